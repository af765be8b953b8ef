"""An answer is not lost: it waits for a busy consumer, and a failure says where it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay_core import Binding, CircuitState, RateLimitConfig, RelayConfig, ReliabilityConfig
from relay_core.config import BackpressureConfig
from relay_core.testing import FakeClock
from relay_supervisor.adapters.claude_code.answer import KEPT_CHARS, LONGEST_PAUSE_SECS, excerpt
from tests.kit.adapters import SampleAdapter
from tests.kit.bus import refusing_journal
from tests.kit.waiting import advance_until, until
from tests.supervisor.adapters.claude_code.bench import DESK, Bench, Frame

PERSON = "relay.human.chat.c.1"
SLOW = "relay.test.slow"
LIMITED = RelayConfig(
    durability="os",
    reliability=ReliabilityConfig(rate_limit=RateLimitConfig(per_sender_overrides={"relay.agent.a": 1})),
)
SMALL = RelayConfig(
    durability="os",
    reliability=ReliabilityConfig(
        rate_limit=RateLimitConfig(enabled=False), backpressure=BackpressureConfig(max_mailbox_size=1)
    ),
)


def refusals(desk: Frame) -> int:
    return sum(desk.relay.metrics().refusals.values())


async def refused(desk: Frame, count: int = 1) -> None:
    """Wait until an answer has been refused."""
    await until(lambda: refusals(desk) >= count)
    await asyncio.sleep(0)


async def test_an_answer_waits_for_an_open_breaker(bench: Bench, clock: FakeClock) -> None:
    async with bench.run(clock=clock) as desk:
        desk.relay.force_breaker(DESK, CircuitState.OPEN, "for the test")
        await desk.send("hello")
        await refused(desk)
        clock.advance(1)
        await refused(desk, 2)
        assert await desk.letters() == []
        desk.relay.reset_breaker(DESK)
        await advance_until(clock, lambda: bool(desk.replies), step_secs=5)
        await desk.relay.idle()
        assert desk.contents == ["echo: hello"]
        assert await desk.letters() == []
        assert len(bench.prompts) == 1


async def test_an_answer_waits_for_its_rate(bench: Bench, clock: FakeClock) -> None:
    async with bench.run(clock=clock, relay_config=LIMITED) as desk:
        await desk.ask("one")
        await desk.send("two")
        await refused(desk)
        await advance_until(clock, lambda: desk.contents == ["echo: one", "echo: two"], step_secs=5)
        assert desk.relay.metrics().refusals.keys() == {"rate_limited"}


async def test_an_answer_waits_for_room(bench: Bench, clock: FakeClock) -> None:
    async with bench.run(clock=clock, relay_config=SMALL) as desk:
        await desk.relay.register_endpoint(SLOW)
        await desk.relay.publish(SLOW, "full", sender=DESK)
        await desk.send("hello", reply_to=SLOW)
        await refused(desk)
        (claimed,) = await desk.relay.claim(SLOW)
        await desk.relay.complete(SLOW, claimed.id)
        await advance_until(
            clock, lambda: any(box.depth for box in desk.relay.mailboxes() if box.subject == SLOW), step_secs=5
        )
        (answer,) = await desk.relay.inbox(SLOW)
        assert answer.payload["content"] == "echo: hello"
        assert desk.relay.metrics().refusals.keys() == {"backpressure"}


async def test_an_answer_waits_for_a_disk_that_refuses(bench: Bench, clock: FakeClock) -> None:
    async with bench.run(clock=clock) as desk:
        await desk.send("hello")
        with refusing_journal(desk.relay, claims=False):
            await bench.until("turn_end")
            for _ in range(3):
                clock.advance(1)
                await asyncio.sleep(0.01)
            assert desk.replies == []
        await advance_until(clock, lambda: desk.contents == ["echo: hello"], step_secs=5)
        await desk.relay.idle()
        assert await desk.letters() == []


@pytest.mark.parametrize(
    ("budget", "waits"), [({}, 120), ({"ttl": 50_000}, 50)], ids=["the turn's time", "the message's life"]
)
async def test_an_answer_that_is_not_accepted_in_time_is_a_failure_that_keeps_its_beginning(
    bench: Bench, clock: FakeClock, budget: dict[str, int], waits: int
) -> None:
    began = clock.monotonic()
    budget = {name: clock.now_ms() + value for name, value in budget.items()}
    async with bench.run(clock=clock, turnTimeoutSecs=120) as desk:
        desk.relay.force_breaker(DESK, CircuitState.OPEN, "for the test")
        await desk.send("hello", budget=budget)
        await refused(desk)
        await advance_until(clock, lambda: desk.relay.adapters()[0].failed == 1, step_secs=5)
        assert waits <= clock.monotonic() - began <= waits + LONGEST_PAUSE_SECS
        ((code, reason),) = await desk.letters()
        assert code == "adapter_failed"
        session = bench.starts[0]["session"]
        assert f"in the transcript of session {session}, and begins: echo: hello" in reason


async def test_a_stop_does_not_lose_an_answer_that_waits(bench: Bench) -> None:
    async with bench.run() as desk:
        desk.relay.force_breaker(DESK, CircuitState.OPEN, "for the test")
        await desk.send("hello")
        await refused(desk)
        await desk.relay.remove_adapter("claude", drain_timeout=0.0)
        ((code, reason),) = await desk.letters()
        assert (code, "begins: echo: hello" in reason) == ("adapter_failed", True), reason


async def test_what_is_kept_of_an_answer_shows_no_secret(bench: Bench, clock: FakeClock) -> None:
    async with bench.run(clock=clock, turnTimeoutSecs=60) as desk:
        await desk.relay.remove_adapter("claude")
        await desk.relay.add_adapter(
            bench.adapter(turnTimeoutSecs=60), redact=lambda text: text.replace("sesame", "***")
        )
        desk.relay.force_breaker(DESK, CircuitState.OPEN, "for the test")
        await desk.send("the word is sesame")
        await refused(desk)
        await advance_until(clock, lambda: desk.relay.adapters()[0].failed == 1, step_secs=5)
        ((_, reason),) = await desk.letters()
        assert "begins: echo: the word is ***" in reason


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("short", "short"),
        ("x" * KEPT_CHARS, "x" * KEPT_CHARS),
        ("a " * KEPT_CHARS, "a " * (KEPT_CHARS // 2 - 1) + "a…"),
        ("begins " + "s" * KEPT_CHARS, "begins…"),
        ("s" * (KEPT_CHARS + 1), "…"),
    ],
    ids=["short", "just so", "long", "a long word", "one word"],
)
def test_an_excerpt_ends_between_words(text: str, kept: str) -> None:
    assert excerpt(text) == kept


async def test_an_answer_without_a_consumer_is_a_failure_at_once_and_kept_by_the_bus(bench: Bench) -> None:
    async with bench.run() as desk:
        await desk.send("hello", reply_to="relay.test.nobody")
        await desk.relay.idle()
        letters = {letter.code: letter for letter in await desk.relay.dead_letters()}
        assert letters.keys() == {"adapter_failed", "no_match"}
        assert "did not reach relay.test.nobody: it has no consumer" in letters["adapter_failed"].reason
        assert "echo: hello" not in letters["adapter_failed"].reason


class Chat(SampleAdapter):
    """A platform whose subjects are people."""

    bound = True

    def __init__(self) -> None:
        super().__init__("c", patterns=["relay.human.chat.c.>"])

    @property
    def heard(self) -> list[Any]:
        return [payload["content"] for payload in self.got if isinstance(payload, dict)]


async def ask_for(desk: Frame, sender: str, *bindings: Binding) -> tuple[Chat, list[str]]:
    """Have an agent answer to a person; return the platform, and the signals that reached the person."""
    chat, signals = Chat(), list[str]()
    await desk.relay.add_adapter(chat)
    desk.relay.set_bindings(bindings)
    desk.relay.on_signal(PERSON, lambda subject, signal: signals.append(signal.type))
    await desk.relay.publish("relay.agent.a", {"content": "hello"}, sender=sender, reply_to=PERSON)
    await desk.relay.idle()
    return chat, signals


@pytest.mark.parametrize("sender", [DESK, PERSON], ids=["another client asked", "the person asked"])
async def test_a_person_who_is_not_bound_gets_neither_answer_nor_progress(bench: Bench, sender: str) -> None:
    async with bench.run() as desk:
        chat, signals = await ask_for(desk, sender, Binding(chat=PERSON, agent="relay.agent.other", start="both"))
        ((code, reason),) = await desk.letters()
        assert code == "adapter_failed"
        assert "relay.agent.a is not bound to" in reason
        assert reason.endswith("(not_bound)")
        assert signals == []
        if sender == PERSON:  # the bus tells that it failed: without a word of the answer
            await until(lambda: len(chat.heard) == 1)
        assert "echo: hello" not in f"{chat.heard}"


async def test_a_person_who_is_bound_gets_both(bench: Bench) -> None:
    async with bench.run() as desk:
        chat, signals = await ask_for(desk, DESK, Binding(chat=PERSON, agent="relay.agent.a", start="both"))
        await until(lambda: bool(chat.heard))
        assert chat.heard == ["echo: hello"]
        assert signals == ["typing", "progress", "typing"]
        assert await desk.letters() == []
