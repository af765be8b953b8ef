"""Dispatch: who gets which message, in which order, and what becomes of it. Real buses on real directories."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core import (
    BackpressureConfig,
    BudgetConfig,
    CircuitBreakerConfig,
    CircuitState,
    DispatchConfig,
    Envelope,
    NotFound,
    RateLimitConfig,
    RelayConfig,
    RelayCore,
    ReliabilityConfig,
    Span,
    Subscription,
)
from relay_core.clock import iso
from relay_core.ids import UlidFactory
from relay_core.state import TargetBreaker
from relay_core.subjects import subject_hash
from relay_core.testing import FakeClock
from tests.core.sample_adapter import eventually

A, B, C = "relay.agent.a", "relay.agent.b", "relay.agent.c"
SENDER = "relay.agent.sender"
PATIENCE = 30.0
"""Seconds for what should take milliseconds, on a busy machine."""


def config(*, durability: str = "os", timeout_ms: int = 30_000, **breaker: Any) -> RelayConfig:
    return RelayConfig.model_validate(
        {
            "durability": durability,
            "dispatch": DispatchConfig(handler_timeout_ms=timeout_ms),
            "reliability": ReliabilityConfig(
                rate_limit=RateLimitConfig(enabled=False),
                backpressure=BackpressureConfig(max_mailbox_size=10_000),
                circuit_breaker=CircuitBreakerConfig(**breaker),
            ),
            "budget": BudgetConfig(),
        }
    )


@pytest.fixture
async def relay(data_dir: Path, clock: FakeClock) -> AsyncIterator[RelayCore]:
    async with RelayCore(data_dir, config(), clock) as relay:
        yield relay


class Listener:
    """A handler that notes what it gets, and can be held up or made to fail."""

    def __init__(self, *, fails: bool = False, held: bool = False) -> None:
        self.got: list[Any] = []
        self.ids: list[str] = []
        self.fails = fails
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.at_once = self.most_at_once = 0
        if not held:
            self.gate.set()

    async def __call__(self, envelope: Envelope) -> None:
        self.got.append(envelope.payload)
        self.ids.append(envelope.id)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.entered.set()
        try:
            await self.gate.wait()
            if self.fails:
                raise ValueError(f"no use for {envelope.payload}")
        finally:
            self.at_once -= 1


async def publish_all(relay: RelayCore, subject: str, payloads: list[Any]) -> list[str]:
    return [(await relay.publish(subject, payload, sender=SENDER)).message_id for payload in payloads]


async def span(relay: RelayCore, message_id: str, subject: str = A) -> Span:
    (found,) = [one for one in await relay.trace(message_id) if one.target == subject_hash(subject)]
    return found


async def codes(relay: RelayCore) -> list[str]:
    return [letter.code for letter in await relay.dead_letters()]


def breaker(relay: RelayCore, subject: str = A) -> TargetBreaker:
    (found,) = [one for one in relay.breakers() if one.subject == subject]
    return found


def files(data_dir: Path, subject: str, state: str) -> list[str]:
    directory = data_dir / "mailboxes" / subject_hash(subject) / state
    return sorted(path.name.removesuffix(".json") for path in directory.iterdir())


def assert_depth_is_the_directory(relay: RelayCore, data_dir: Path) -> None:
    for state in relay.mailboxes():
        assert (state.depth, state.claimed, state.failed) == tuple(
            len(files(data_dir, state.subject, place)) for place in ("new", "cur", "failed")
        )


# Order


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_a_mailbox_is_first_in_first_out_however_many_publish(data_dir: Path, durability: str) -> None:
    listener = Listener()
    async with RelayCore(data_dir, config(durability=durability)) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, listener)

        async def publish(publisher: int) -> None:
            for number in range(25):
                await relay.publish(A, [publisher, number], sender=f"relay.agent.p{publisher}")
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for publisher in range(20):
                group.create_task(publish(publisher))
        await relay.idle()
        assert len(listener.got) == 500
        assert listener.ids == sorted(set(listener.ids))
        for publisher in range(20):
            assert [number for who, number in listener.got if who == publisher] == list(range(25))
        assert listener.most_at_once == 1
        assert_depth_is_the_directory(relay, data_dir)


async def test_a_publish_returns_before_its_message_is_handled(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    listener = Listener(held=True)
    await relay.subscribe(A, listener)
    result = await relay.publish(A, 1, sender=SENDER)
    assert (result.delivered_to, listener.at_once) == (1, 0)
    await listener.entered.wait()
    assert (await span(relay, result.message_id)).handled_at is None
    listener.gate.set()
    await relay.idle()
    assert (await span(relay, result.message_id)).status == "done"


async def test_a_slow_handler_delays_its_own_mailbox_and_nobody_elses(relay: RelayCore) -> None:
    slow, quick = Listener(held=True), Listener()
    for subject, listener in ((A, slow), (B, quick)):
        await relay.register_endpoint(subject)
        await relay.subscribe(subject, listener)
    await publish_all(relay, A, [1, 2, 3])
    await slow.entered.wait()
    await publish_all(relay, B, [1, 2, 3])
    await eventually(lambda: quick.got == [1, 2, 3])
    await publish_all(relay, A, [4])
    assert slow.got == [1]
    slow.gate.set()
    await relay.idle()
    assert slow.got == [1, 2, 3, 4]


async def test_a_handler_that_blocks_its_thread_delays_its_own_mailbox_and_nobody_elses(relay: RelayCore) -> None:
    blocked, entered, quick, got = threading.Event(), threading.Event(), Listener(), []

    def block(envelope: Envelope) -> None:
        got.append(envelope.payload)
        entered.set()
        assert blocked.wait(PATIENCE)

    await relay.register_endpoint(A)
    await relay.register_endpoint(B)
    await relay.subscribe(A, block)
    await relay.subscribe(B, quick)
    try:
        await publish_all(relay, A, [1, 2])
        await asyncio.to_thread(entered.wait, PATIENCE)
        await publish_all(relay, B, [1, 2, 3])
        await publish_all(relay, A, [3])
        await eventually(lambda: quick.got == [1, 2, 3])
        assert got == [1]
    finally:
        blocked.set()
    await relay.idle()
    assert got == [1, 2, 3]


# Handlers


async def test_all_handlers_of_a_subject_run_side_by_side(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    listeners = [Listener(held=True) for _ in range(3)]
    for pattern, listener in zip((A, "relay.agent.*", "relay.>"), listeners, strict=True):
        await relay.subscribe(pattern, listener)
    (message_id,) = await publish_all(relay, A, ["x"])
    for listener in listeners:
        await listener.entered.wait()  # none waits for another
    for listener in listeners:
        listener.gate.set()
    await relay.idle()
    found = await span(relay, message_id)
    assert found.status == "done"
    assert [outcome["ok"] for outcome in found.outcomes] == [True] * 3


async def test_a_message_that_every_handler_fails_is_a_dead_letter(relay: RelayCore, data_dir: Path) -> None:
    await relay.register_endpoint(A)
    for _ in range(2):
        await relay.subscribe(A, Listener(fails=True))
    (message_id,) = await publish_all(relay, A, ["x"])
    await relay.idle()
    (letter,) = await relay.dead_letters()
    assert letter.envelope is not None
    assert (letter.message_id, letter.code, letter.envelope.payload) == (message_id, "handler_failed", "x")
    assert "ValueError: no use for x" in letter.reason
    assert (files(data_dir, A, "failed"), files(data_dir, A, "cur")) == ([message_id], [])
    found = await span(relay, message_id)
    assert (found.status, found.code) == ("failed", "handler_failed")
    assert [outcome["ok"] for outcome in found.outcomes] == [False, False]


async def test_a_message_that_some_handlers_fail_is_completed_as_partial(relay: RelayCore, data_dir: Path) -> None:
    await relay.register_endpoint(A)
    good, bad = Listener(), Listener(fails=True)
    await relay.subscribe(A, good)
    await relay.subscribe(A, bad)
    (message_id,) = await publish_all(relay, A, ["x"])
    await relay.idle()
    assert (good.got, bad.got) == (["x"], ["x"])
    assert await relay.dead_letters(include_partial=True) == []
    assert (files(data_dir, A, "cur"), files(data_dir, A, "failed")) == ([], [])
    found = await span(relay, message_id)
    assert (found.status, found.code) == ("partial", "handler_failed")
    assert [(outcome["ok"], outcome["error"] is None) for outcome in found.outcomes] == [(True, True), (False, False)]
    assert "no use for x" in found.outcomes[1]["error"]


@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_a_handler_that_takes_too_long_has_failed_and_the_next_message_is_begun(
    data_dir: Path, kind: str
) -> None:
    release, forever, got = threading.Event(), asyncio.Event(), []

    async def hang(envelope: Envelope) -> None:
        got.append(envelope.payload)
        if envelope.payload == 1:
            await forever.wait()

    def block(envelope: Envelope) -> None:
        got.append(envelope.payload)
        if envelope.payload == 1:
            release.wait(PATIENCE)

    async with RelayCore(data_dir, config(timeout_ms=50)) as relay:
        try:
            await relay.register_endpoint(A)
            await relay.subscribe(A, hang if kind == "async" else block)
            await publish_all(relay, A, [1, 2])
            await relay.idle()
            assert got == [1, 2]
            (letter,) = await relay.dead_letters()
            assert (letter.code, letter.envelope and letter.envelope.payload) == ("timeout", 1)
            assert letter.reason.endswith("no answer within 0.05 s")
        finally:
            release.set()


async def test_each_handler_has_a_timeout_of_its_own(data_dir: Path) -> None:
    forever, good = asyncio.Event(), Listener()

    async def hang(envelope: Envelope) -> None:
        await forever.wait()

    async with RelayCore(data_dir, config(timeout_ms=50)) as relay:
        await relay.register_endpoint(A)
        for handler in (hang, good, hang):
            await relay.subscribe(A, handler)
        (message_id,) = await publish_all(relay, A, ["x"])
        await relay.idle()
        found = await span(relay, message_id)
        assert (found.status, found.code) == ("partial", "timeout")
        errors = [outcome["error"] for outcome in found.outcomes]
        assert [error and error.endswith("no answer within 0.05 s") for error in errors] == [True, None, True]


async def test_a_timeout_that_the_handler_itself_meets_is_its_failure(relay: RelayCore) -> None:
    async def impatient(envelope: Envelope) -> None:
        raise TimeoutError("the database")

    await relay.register_endpoint(A)
    await relay.subscribe(A, impatient)
    await publish_all(relay, A, ["x"])
    await relay.idle()
    (letter,) = await relay.dead_letters()
    assert letter.code == "handler_failed"
    assert letter.reason.endswith("TimeoutError: the database")


async def test_a_handler_may_publish_to_its_own_mailbox(relay: RelayCore) -> None:
    got: list[int] = []

    async def count_down(envelope: Envelope) -> None:
        got.append(envelope.payload)
        if envelope.payload:
            result = await relay.publish(A, envelope.payload - 1, sender=A)
            assert result.delivered_to == 1

    await relay.register_endpoint(A)
    await relay.subscribe(A, count_down)
    await relay.publish(A, 5, sender=SENDER)
    await relay.idle()
    assert got == [5, 4, 3, 2, 1, 0]


async def test_a_handler_may_subscribe_another_which_gets_the_next_message(relay: RelayCore) -> None:
    late = Listener()
    subscriptions: list[Subscription] = []

    async def invite(envelope: Envelope) -> None:
        if not subscriptions:
            subscriptions.append(await relay.subscribe(A, late))

    await relay.register_endpoint(A)
    await relay.subscribe(A, invite)
    await publish_all(relay, A, [1, 2, 3])
    await relay.idle()
    assert late.got == [2, 3]


async def test_a_handler_may_unsubscribe_itself_and_its_message_is_still_finished(
    relay: RelayCore, data_dir: Path
) -> None:
    got = []

    async def once(envelope: Envelope) -> None:
        got.append(envelope.payload)
        await subscription.close()

    await relay.register_endpoint(A)
    subscription = await relay.subscribe(A, once)
    first, *rest = await publish_all(relay, A, [1, 2, 3])
    await relay.idle()
    assert got == [1]
    assert (await span(relay, first)).status == "done"
    assert files(data_dir, A, "new") == rest
    assert_depth_is_the_directory(relay, data_dir)


async def test_a_bounded_subscription_takes_its_mailboxes_in_turn_and_leaves_the_rest_unclaimed(
    relay: RelayCore,
) -> None:
    for subject in (A, B, C):
        await relay.register_endpoint(subject)
    began: list[str] = []
    go_on = asyncio.Semaphore(0)

    async def handler(envelope: Envelope) -> None:
        began.append(envelope.subject)
        await go_on.acquire()

    await relay.subscribe("relay.agent.*", handler, max_in_flight=1)
    for _ in range(2):
        for subject in (A, B, C):
            await relay.publish(subject, None, sender=SENDER)
    for handled in range(6):
        await eventually(lambda: len(began) == handled + 1)  # noqa: B023 - awaited within the round
        states = relay.mailboxes()
        assert (sum(one.claimed for one in states), sum(one.depth for one in states)) == (1, 5 - handled)
        go_on.release()
    await relay.idle()
    assert began == [A, B, C, A, B, C]


async def test_what_waits_for_a_bounded_subscription_stays_when_it_leaves(relay: RelayCore) -> None:
    for subject in (A, B):
        await relay.register_endpoint(subject)
    go_on = asyncio.Event()
    handled: list[str] = []

    async def handler(envelope: Envelope) -> None:
        await go_on.wait()
        handled.append(envelope.subject)

    subscription = await relay.subscribe("relay.agent.*", handler, max_in_flight=1)
    for subject in (A, B):
        await relay.publish(subject, None, sender=SENDER)
    await eventually(lambda: sum(one.claimed for one in relay.mailboxes()) == 1)
    await subscription.close()
    go_on.set()
    await relay.idle()
    assert handled == [A]
    assert [one.depth for one in relay.mailboxes()] == [0, 1]


async def test_closing_does_not_wait_for_mail_that_waits_for_its_turn(data_dir: Path) -> None:
    handled: list[str] = []
    go_on = asyncio.Event()

    async def handler(envelope: Envelope) -> None:
        await go_on.wait()
        handled.append(envelope.subject)

    async with RelayCore(data_dir, config()) as relay:
        await relay.subscribe("relay.agent.*", handler, max_in_flight=1)
        for subject in (A, B, C):
            await relay.register_endpoint(subject)
            await relay.publish(subject, None, sender=SENDER)
        await eventually(lambda: sum(one.claimed for one in relay.mailboxes()) == 1)
        asyncio.get_running_loop().call_soon(go_on.set)
    assert handled == [A]
    async with RelayCore(data_dir, config()) as relay:
        assert [one.depth for one in relay.mailboxes()] == [0, 1, 1]
        assert await relay.dead_letters() == []


async def test_mail_that_waits_when_its_subscriber_leaves_stays_for_the_next(relay: RelayCore) -> None:
    first, second = Listener(held=True), Listener()
    await relay.register_endpoint(A)
    subscription = await relay.subscribe(A, first)
    await publish_all(relay, A, [1, 2, 3])
    await first.entered.wait()
    await subscription.close()
    first.gate.set()
    await relay.idle()
    assert first.got == [1]
    assert [envelope.payload for envelope in await relay.inbox(A)] == [2, 3]
    await publish_all(relay, A, [4])
    await relay.subscribe(A, second)
    await relay.idle()
    assert second.got == [2, 3, 4]


# Backlog


@pytest.mark.parametrize("pattern", [A, "relay.agent.*", "relay.>", "*.*.a"])
@pytest.mark.parametrize("restarted", [False, True], ids=["same bus", "restarted"])
async def test_a_late_subscriber_drains_the_backlog_in_order(data_dir: Path, pattern: str, restarted: bool) -> None:
    listener = Listener()
    async with RelayCore(data_dir, config()) as relay:
        await relay.register_endpoint(A)
        await publish_all(relay, A, list(range(40)))
        if not restarted:
            await relay.subscribe(pattern, listener)
            await relay.publish(A, 40, sender=SENDER)
            await relay.idle()
    if restarted:
        async with RelayCore(data_dir, config()) as relay:
            await relay.subscribe(pattern, listener)
            await relay.publish(A, 40, sender=SENDER)
            await relay.idle()
            assert_depth_is_the_directory(relay, data_dir)
    assert listener.got == list(range(41))
    assert files(data_dir, A, "new") == []


async def test_a_wildcard_drains_the_backlog_of_every_mailbox_it_hears_and_of_no_other(relay: RelayCore) -> None:
    listener = Listener()
    for subject in (A, B, "relay.other.a"):
        await relay.register_endpoint(subject)
        await publish_all(relay, subject, [f"{subject} {number}" for number in range(3)])
    await relay.subscribe("relay.agent.*", listener)
    await relay.idle()
    assert sorted(listener.got) == [f"{subject} {number}" for subject in (A, B) for number in range(3)]
    assert len(await relay.inbox("relay.other.a")) == 3


# Subscriptions without an endpoint


async def test_a_publish_counts_the_subscriptions_that_have_no_endpoint_behind_them(relay: RelayCore) -> None:
    listeners = [Listener(), Listener()]
    await relay.subscribe(A, listeners[0])
    await relay.subscribe("relay.>", listeners[1])
    result = await relay.publish(A, 1, sender=SENDER)
    assert result.delivered_to == 2
    await relay.register_endpoint(A)
    assert (await relay.publish(A, 2, sender=SENDER)).delivered_to == 1
    await relay.idle()
    assert [listener.got for listener in listeners] == [[1, 2], [1, 2]]
    assert (await span(relay, result.message_id)).target_kind == "subscription"


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_mail_of_a_subscription_without_endpoint_survives_a_restart(data_dir: Path, durability: str) -> None:
    first, second = Listener(held=True), Listener()
    async with RelayCore(data_dir, config(durability=durability)) as relay:
        subscription = await relay.subscribe(A, first)
        await publish_all(relay, A, [1, 2, 3])
        await first.entered.wait()
        await subscription.close()
        first.gate.set()
        await relay.idle()
    async with RelayCore(data_dir, config(durability=durability)) as relay:
        assert relay.endpoints() == []
        await relay.subscribe("relay.*.a", second)
        await relay.idle()
    assert (first.got, second.got) == ([1], [2, 3])


async def test_a_subject_that_had_only_a_dead_letter_is_a_subscriptions_target_like_any_other(relay: RelayCore) -> None:
    await relay.publish(A, 1, sender=SENDER)
    listener = Listener()
    await relay.subscribe(A, listener)
    result = await relay.publish(A, 2, sender=SENDER)
    await relay.idle()
    assert listener.got == [2]
    assert (await span(relay, result.message_id)).target_kind == "subscription"
    assert breaker(relay).state is CircuitState.CLOSED


async def test_a_subscriber_to_an_endpoint_that_was_unregistered_still_gets_what_is_published(
    relay: RelayCore,
) -> None:
    listener = Listener()
    await relay.register_endpoint(A)
    await relay.subscribe(A, listener)
    await relay.unregister_endpoint(A)
    result = await relay.publish(A, 1, sender=SENDER)
    assert result.delivered_to == 1
    await relay.idle()
    assert listener.got == [1]


# Time to live


async def test_a_message_that_expires_in_line_is_parked_when_its_turn_comes(relay: RelayCore, clock: FakeClock) -> None:
    listener = Listener(held=True)
    await relay.register_endpoint(A)
    await relay.subscribe(A, listener)
    await publish_all(relay, A, [1])
    brief = await relay.publish(A, 2, sender=SENDER, budget={"ttl": clock.now_ms() + 1000})
    edge = await relay.publish(A, 3, sender=SENDER, budget={"ttl": clock.now_ms() + 1001})
    await listener.entered.wait()
    clock.advance(1.001)
    listener.gate.set()
    await relay.idle()
    assert listener.got == [1, 3]  # a message lives up to and including its TTL
    (letter,) = await relay.dead_letters()
    assert (letter.message_id, letter.code, letter.reason) == (brief.message_id, "expired", "message expired (TTL)")
    assert (await span(relay, brief.message_id)).claimed_at is None
    assert (await span(relay, edge.message_id)).status == "done"


# The breaker


@asynccontextmanager
async def opened(
    data_dir: Path, clock: FakeClock, backlog: list[Any], *, durability: str = "os", **limits: Any
) -> AsyncIterator[tuple[RelayCore, Listener]]:
    """Run a bus whose handler at A has failed twice, which opened its breaker, with a backlog that waits."""
    limits = {"failure_threshold": 2, "cooldown_ms": 30_000, "success_to_close": 2} | limits
    listener = Listener(fails=True, held=True)
    async with RelayCore(data_dir, config(durability=durability, **limits), clock) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, listener)
        await publish_all(relay, A, ["bad 1", "bad 2", *backlog])
        listener.gate.set()
        await relay.idle()
        assert listener.got == ["bad 1", "bad 2"]
        assert breaker(relay).state is CircuitState.OPEN
        listener.got.clear()
        listener.entered.clear()
        listener.fails = False
        yield relay, listener


async def test_failing_handlers_open_the_breaker_and_publishes_are_refused(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, []) as (relay, listener):
        result = await relay.publish(A, 1, sender=SENDER)
        assert result.delivered_to == 0
        assert [(one.endpoint_hash, one.reason) for one in result.rejected or ()] == [(subject_hash(A), "circuit_open")]
        assert len(await relay.dead_letters()) == 2  # a refusal is none
        await relay.idle()
        assert listener.got == []
        assert (await span(relay, result.message_id)).status == "refused"


async def test_the_backlog_waits_for_the_cooldown_and_its_head_is_the_probe(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1, 2, 3, 4]) as (relay, listener):
        clock.advance(29.999)
        await relay.idle()
        assert (listener.got, len(await relay.inbox(A))) == ([], 4)
        listener.gate.clear()
        clock.advance(0.001)
        await listener.entered.wait()
        assert listener.got == [1]
        assert breaker(relay).state is CircuitState.HALF_OPEN
        refused = await relay.publish(A, "newcomer", sender=SENDER)
        assert [one.reason for one in refused.rejected or ()] == ["circuit_open"]
        listener.gate.set()
        await relay.idle()
        assert listener.got == [1, 2, 3, 4]
        assert breaker(relay).state is CircuitState.CLOSED
        assert (await relay.publish(A, 5, sender=SENDER)).delivered_to == 1


async def test_a_breaker_heals_only_after_enough_successes(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1], success_to_close=3) as (relay, listener):
        clock.advance(30)
        await relay.idle()
        assert (breaker(relay).state, breaker(relay).half_open_successes) == (CircuitState.HALF_OPEN, 1)
        await publish_all(relay, A, [2])
        await relay.idle()
        assert breaker(relay).half_open_successes == 2
        await publish_all(relay, A, [3])
        await relay.idle()
        assert breaker(relay).state is CircuitState.CLOSED
        assert listener.got == [1, 2, 3]


async def test_a_failed_probe_opens_the_breaker_for_another_cooldown(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1, 2]) as (relay, listener):
        listener.fails = True
        clock.advance(30)
        await relay.idle()
        assert (listener.got, breaker(relay).state) == ([1], CircuitState.OPEN)
        assert await codes(relay) == ["handler_failed"] * 3
        listener.fails = False
        clock.advance(29.999)
        await relay.idle()
        assert listener.got == [1]
        clock.advance(0.001)
        await relay.idle()
        assert listener.got == [1, 2]


async def test_only_one_probe_is_under_way_at_a_time(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, []) as (relay, listener):
        listener.gate.clear()
        clock.advance(30)
        results = [await relay.publish(A, number, sender=SENDER) for number in range(3)]
        assert [result.delivered_to for result in results] == [1, 0, 0]
        listener.gate.set()
        await relay.idle()
        assert (listener.got, breaker(relay).half_open_successes) == ([0], 1)


async def test_a_delivery_is_one_outcome_whatever_the_number_of_its_handlers(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config(failure_threshold=3), clock) as relay:
        await relay.register_endpoint(A)
        subscriptions = [await relay.subscribe(A, Listener(fails=True)) for _ in range(5)]
        await publish_all(relay, A, [1])
        await relay.idle()
        assert breaker(relay).consecutive_failures == 1
        await publish_all(relay, A, [2])  # that it could be stored says nothing of its handlers
        await relay.idle()
        assert breaker(relay).consecutive_failures == 2
        await relay.subscribe(A, Listener())
        await publish_all(relay, A, [3])  # partial: the target works
        await relay.idle()
        assert breaker(relay).consecutive_failures == 0
        for subscription in subscriptions:
            await subscription.close()


async def test_one_message_with_many_handlers_does_not_heal_a_breaker_at_once(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1]) as (relay, _):
        await relay.subscribe(A, Listener())
        clock.advance(30)
        await relay.idle()
        assert (breaker(relay).state, breaker(relay).half_open_successes) == (CircuitState.HALF_OPEN, 1)


async def test_an_expired_head_gives_its_permit_back(data_dir: Path, clock: FakeClock) -> None:
    listener = Listener(fails=True)
    async with RelayCore(data_dir, config(failure_threshold=1), clock) as relay:
        await relay.register_endpoint(A)
        await relay.publish(A, "bad", sender=SENDER)
        brief = await relay.publish(A, 1, sender=SENDER, budget={"ttl": clock.now_ms() + 10_000})
        await publish_all(relay, A, [2, 3])
        await relay.subscribe(A, listener)
        await relay.idle()
        assert (listener.got, breaker(relay).state) == (["bad"], CircuitState.OPEN)
        listener.fails = False
        clock.advance(30)
        await relay.idle()
        assert listener.got == ["bad", 2, 3]
        assert breaker(relay).state is CircuitState.CLOSED
        assert [letter.code for letter in await relay.dead_letters()] == ["handler_failed", "expired"]
        assert (await span(relay, brief.message_id)).code == "expired"


async def test_a_malformed_head_gives_its_permit_back(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1, 2, 3]) as (relay, listener):
        head = data_dir / "mailboxes" / subject_hash(A) / "new" / f"{files(data_dir, A, 'new')[0]}.json"
        relay.bus.mailboxes.get(subject_hash(A)).fresh.clear()  # type: ignore[union-attr]
        head.write_bytes(b"not JSON")
        clock.advance(30)
        await relay.idle()
        assert (listener.got, breaker(relay).state) == ([2, 3], CircuitState.CLOSED)


async def test_a_probe_whose_subscriber_leaves_gives_its_permit_back(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, []) as (relay, listener):
        (subscription,) = relay.subscriptions()
        clock.advance(30)
        assert (await relay.publish(A, 1, sender=SENDER)).delivered_to == 1
        await subscription.close()  # before its dispatcher had a turn
        await relay.idle()
        assert relay.bus.breakers.retry_in(subject_hash(A)) == 0
        await relay.subscribe(A, listener)
        await relay.idle()
        assert listener.got == [1]
        assert (await relay.publish(A, 2, sender=SENDER)).delivered_to == 1
        await relay.idle()
        assert breaker(relay).state is CircuitState.CLOSED


async def test_a_mailbox_that_lost_its_subscriber_takes_mail_again_after_the_cooldown(
    data_dir: Path, clock: FakeClock
) -> None:
    async with opened(data_dir, clock, [1]) as (relay, listener):
        (subscription,) = relay.subscriptions()
        await subscription.close()
        clock.advance(30)
        results = [await relay.publish(A, number, sender=SENDER) for number in (2, 3)]
        assert [result.delivered_to for result in results] == [1, 1]  # nobody handles: storing is the outcome
        assert breaker(relay).state is CircuitState.CLOSED
        await relay.subscribe(A, listener)
        await relay.idle()
        assert listener.got == [1, 2, 3]


async def test_mail_that_overtakes_a_probe_being_stored_takes_its_permit(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [], durability="fsync") as (relay, listener):
        clock.advance(30)
        async with asyncio.TaskGroup() as group:
            publish = group.create_task(relay.publish(A, "probe", sender=SENDER))
            await asyncio.sleep(0)  # it has its permit and is being written
            mailbox = relay.bus.mailboxes.get(subject_hash(A))
            assert mailbox is not None
            mailbox.discover([drop(data_dir, A, "dropped", clock)])
            relay.bus.dispatch.kick(mailbox)
        assert publish.result().delivered_to == 1
        await eventually(lambda: len(listener.got) == 2)
        await relay.idle()
        assert sorted(listener.got) == ["dropped", "probe"]
        assert breaker(relay).state is CircuitState.CLOSED


async def test_an_operator_holds_a_breaker_open_and_resets_it(relay: RelayCore, clock: FakeClock) -> None:
    listener = Listener()
    await relay.register_endpoint(A)
    await publish_all(relay, A, [1, 2])
    relay.force_breaker(A, CircuitState.OPEN, "maintenance")
    await relay.subscribe(A, listener)
    clock.advance(3600 - 1)
    await relay.idle()
    assert listener.got == []
    assert [one.reason for one in (await relay.publish(A, 3, sender=SENDER)).rejected or ()] == ["circuit_open"]
    relay.reset_breaker(A)
    await relay.idle()
    assert listener.got == [1, 2]
    assert (await relay.publish(A, 4, sender=SENDER)).delivered_to == 1
    assert [one.why for one in breaker(relay).transitions] == ["maintenance", "reset by the operator"]


async def test_an_operator_closes_an_open_breaker_without_waiting(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1, 2]) as (relay, listener):
        relay.force_breaker(A, CircuitState.CLOSED, "repaired")
        await relay.idle()
        assert (listener.got, breaker(relay).state) == ([1, 2], CircuitState.CLOSED)


async def test_a_breaker_of_nobody_cannot_be_moved(relay: RelayCore) -> None:
    with pytest.raises(NotFound, match=f"no target {A}"):
        relay.reset_breaker(A)
    with pytest.raises(NotFound, match=f"no target {A}"):
        relay.force_breaker(A, CircuitState.OPEN, "why")


async def test_a_cooldown_that_a_reload_shortens_ends_when_the_new_one_does(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1, 2]) as (relay, listener):
        (data_dir / "config.json").write_bytes(
            orjson.dumps({"reliability": {"circuitBreaker": {"cooldownMs": 10_000}}})
        )
        relay.bus.reload()
        await relay.idle()
        clock.advance(10)
        await relay.idle()
        assert listener.got == [1, 2]


# Mail that other processes drop


def envelope_json(message_id: str, subject: str, payload: Any, clock: Any) -> bytes:
    now = clock.now_ms()
    return orjson.dumps(
        {
            "id": message_id,
            "subject": subject,
            "from": SENDER,
            "budget": {
                "hopCount": 1,
                "maxHops": 5,
                "ancestorChain": [subject],
                "ttl": now + 60_000,
                "callBudgetRemaining": 9,
            },
            "createdAt": iso(now),
            "payload": payload,
        }
    )


def drop(data_dir: Path, subject: str, payload: Any, clock: Any) -> str:
    """Rename a message into a mailbox, and return its file's name."""
    message_id = UlidFactory(clock)()
    box = data_dir / "mailboxes" / subject_hash(subject)
    path = box / "tmp" / f"{message_id}.json"
    path.write_bytes(envelope_json(message_id, subject, payload, clock))
    path.rename(box / "new" / path.name)
    return path.name


DROPPER = """
    import os, sys
    box = sys.argv[1]
    for line in sys.stdin.buffer:
        name = line[7:33].decode() + ".json"
        with open(f"{box}/tmp/{name}", "wb") as file:
            file.write(line)
        os.rename(f"{box}/tmp/{name}", f"{box}/new/{name}")
"""


async def test_files_that_another_process_drops_are_delivered_in_order(data_dir: Path) -> None:
    listener = Listener()
    async with RelayCore(data_dir, config()) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, listener)
        assert relay.bus.drops.polled == []  # it is told at once, and need not look once a second
        box = data_dir / "mailboxes" / subject_hash(A)
        new_id = UlidFactory(relay.bus.clock)
        lines = [envelope_json(new_id(), A, number, relay.bus.clock) for number in range(50)]
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(DROPPER), str(box), stdin=asyncio.subprocess.PIPE
        )
        await child.communicate(b"\n".join(lines) + b"\n")
        assert child.returncode == 0
        await eventually(lambda: len(listener.got) == 50)
        await relay.idle()
        assert listener.got == list(range(50))
        assert files(data_dir, A, "new") == files(data_dir, A, "cur") == files(data_dir, A, "failed") == []
        assert_depth_is_the_directory(relay, data_dir)


async def test_a_dropped_file_waits_its_turn_and_counts_as_depth(relay: RelayCore, data_dir: Path) -> None:
    await relay.register_endpoint(A)
    await publish_all(relay, A, [1])
    drop(data_dir, A, 2, relay.bus.clock)
    await eventually(lambda: relay.mailboxes()[0].depth == 2)
    await publish_all(relay, A, [3])
    assert_depth_is_the_directory(relay, data_dir)
    listener = Listener()
    await relay.subscribe(A, listener)
    await relay.idle()
    assert listener.got == [1, 2, 3]


async def test_what_was_dropped_while_no_bus_ran_is_found_at_the_start(data_dir: Path, clock: FakeClock) -> None:
    listener = Listener()
    async with RelayCore(data_dir, config(), clock) as relay:
        await relay.register_endpoint(A)
        await publish_all(relay, A, [1])
    clock.advance(1)
    drop(data_dir, A, 2, clock)
    async with RelayCore(data_dir, config(), clock) as relay:
        await relay.subscribe(A, listener)
        await relay.idle()
        assert listener.got == [1, 2]


async def test_a_dropped_file_that_is_no_message_is_parked_and_blocks_nobody(relay: RelayCore, data_dir: Path) -> None:
    listener = Listener()
    await relay.register_endpoint(A)
    await relay.subscribe(A, listener)
    box = data_dir / "mailboxes" / subject_hash(A)
    for name, data in ((f"{UlidFactory(relay.bus.clock)()}.json", b"{}"), ("hello.txt", b"hello")):
        (box / "tmp" / name).write_bytes(data)
        (box / "tmp" / name).rename(box / "new" / name)
    await eventually(lambda: relay.mailboxes()[0].failed >= 2)
    await publish_all(relay, A, [1])
    await relay.idle()
    assert listener.got == [1]
    assert await codes(relay) == ["malformed", "malformed"]
    assert files(data_dir, A, "new") == files(data_dir, A, "cur") == []


# Claims


async def test_a_message_that_another_process_takes_is_nobodys_here(relay: RelayCore, data_dir: Path) -> None:
    await relay.register_endpoint(A)
    first, _ = await publish_all(relay, A, [1, 2])
    box = data_dir / "mailboxes" / subject_hash(A)
    (box / "new" / f"{first}.json").rename(box / "cur" / f"{first}.json")
    listener = Listener()
    await relay.subscribe(A, listener)
    await relay.idle()
    assert listener.got == [2]
    assert (relay.mailboxes()[0].depth, await relay.dead_letters()) == (0, [])


async def test_a_disk_that_refuses_a_claim_holds_the_mail_up_and_loses_none(
    relay: RelayCore, data_dir: Path, clock: FakeClock
) -> None:
    listener = Listener()
    await relay.register_endpoint(A)
    await publish_all(relay, A, [1, 2])
    box = data_dir / "mailboxes" / subject_hash(A)
    (box / "cur").rename(box / "cur.away")
    (box / "cur").write_bytes(b"")  # renaming into it is an error that is not "gone"
    await relay.subscribe(A, listener)
    await relay.idle()
    assert listener.got == []
    assert relay.mailboxes()[0].depth == 2
    (box / "cur").unlink()
    (box / "cur.away").rename(box / "cur")
    clock.advance(1)
    await relay.idle()
    assert listener.got == [1, 2]
    assert_depth_is_the_directory(relay, data_dir)


# Restart

VICTIM = """
    import asyncio, sys
    from relay_core import RelayConfig, RelayCore

    async def main():
        async with RelayCore(sys.argv[1], RelayConfig(durability=sys.argv[2])) as relay:
            async def hang(envelope):
                print(envelope.id, flush=True)
                await asyncio.Event().wait()
            await relay.register_endpoint("relay.agent.a")
            for number in range(3):
                await relay.publish("relay.agent.a", number, sender="relay.agent.sender")
            await relay.subscribe("relay.agent.a", hang)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_a_restart_parks_what_was_being_handled_and_leaves_the_rest_alone(
    data_dir: Path, durability: str
) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(VICTIM),
        str(data_dir),
        durability,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert child.stdout is not None
    handled = (await asyncio.wait_for(child.stdout.readline(), PATIENCE)).decode().strip()
    child.send_signal(signal.SIGKILL)
    await child.wait()
    box = data_dir / "mailboxes" / subject_hash(A)
    waiting = files(data_dir, A, "new")
    before = {name: (box / "new" / f"{name}.json").stat().st_ino for name in waiting}
    assert (files(data_dir, A, "cur"), len(waiting)) == ([handled], 2)
    (box / "tmp" / "leftover.json").write_bytes(b"half a mess")
    async with RelayCore(data_dir, config(durability=durability)) as relay:
        (letter,) = await relay.dead_letters()
        assert (letter.message_id, letter.code) == (handled, "interrupted")
        assert letter.envelope is not None
        assert letter.envelope.payload == 0
        assert {name: (box / "new" / f"{name}.json").stat().st_ino for name in files(data_dir, A, "new")} == before
        assert files(data_dir, A, "tmp") == []
        listener = Listener()
        await relay.subscribe(A, listener)
        await relay.idle()
        assert listener.got == [1, 2]
        assert_depth_is_the_directory(relay, data_dir)


# Closing


async def test_closing_waits_for_the_message_under_way_and_begins_no_other(data_dir: Path) -> None:
    listener = Listener(held=True)
    async with RelayCore(data_dir, config()) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, listener)
        await publish_all(relay, A, [1, 2])
        await listener.entered.wait()
        asyncio.get_running_loop().call_later(0.05, listener.gate.set)
    assert (listener.got, listener.at_once) == ([1], 0)
    async with RelayCore(data_dir, config()) as relay:
        assert await relay.dead_letters() == []
        assert [envelope.payload for envelope in await relay.inbox(A)] == [2]


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_closing_parks_a_message_whose_handler_does_not_end(
    data_dir: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay_core.bus.CLOSE_GRACE_SECS", 0.05)
    listener = Listener(held=True)
    async with RelayCore(data_dir, config(durability=durability)) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, listener)
        first, second = await publish_all(relay, A, [1, 2])
        await listener.entered.wait()
    assert listener.at_once == 0  # it was cancelled
    assert (files(data_dir, A, "cur"), files(data_dir, A, "failed"), files(data_dir, A, "new")) == (
        [],
        [first],
        [second],
    )
    async with RelayCore(data_dir, config(durability=durability)) as relay:
        (letter,) = await relay.dead_letters()
        assert (letter.code, letter.reason) == ("interrupted", "the bus was closed meanwhile")
        found = await span(relay, first)
        assert (found.status, found.code) == ("failed", "interrupted")


async def test_closing_waits_for_blocking_handlers_that_wait_for_a_thread(data_dir: Path) -> None:
    release, got = threading.Event(), []

    def block(envelope: Envelope) -> None:
        assert release.wait(PATIENCE)
        got.append(envelope.payload)

    async with RelayCore(data_dir, config()) as relay:
        await relay.subscribe("relay.many.*", block)
        for number in range(80):  # more than there are threads
            await relay.publish(f"relay.many.n{number}", number, sender=SENDER)
        await eventually(lambda: sum(state.claimed for state in relay.mailboxes()) == 80)
        asyncio.get_running_loop().call_later(0.05, release.set)
    assert sorted(got) == list(range(80))
    assert list((data_dir / "mailboxes").glob("*/*/*.json")) == []


# Idle


async def test_idle_returns_at_once_where_nobody_has_anything_to_do(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    await publish_all(relay, A, [1])  # nobody handles it
    async with asyncio.timeout(PATIENCE):
        await relay.idle()
    assert relay.mailboxes()[0].depth == 1


async def test_idle_waits_for_every_mailbox_and_for_what_handlers_publish(relay: RelayCore) -> None:
    last = Listener()

    def forward(to: str) -> Callable[[Envelope], Any]:
        async def handler(envelope: Envelope) -> None:
            await asyncio.sleep(0)
            await relay.publish(to, envelope.payload, sender=envelope.subject)

        return handler

    for subject, handler in ((A, forward(B)), (B, forward(C)), (C, last)):
        await relay.register_endpoint(subject)
        await relay.subscribe(subject, handler)
    await publish_all(relay, A, list(range(20)))
    await relay.idle()
    assert last.got == list(range(20))


async def test_several_may_wait_for_idle_and_none_returns_early(relay: RelayCore) -> None:
    listener = Listener(held=True)
    await relay.register_endpoint(A)
    await relay.subscribe(A, listener)
    await publish_all(relay, A, [1, 2])
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(relay.idle()) for _ in range(3)]
        await listener.entered.wait()
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        listener.gate.set()
    assert listener.got == [1, 2]


async def test_idle_does_not_return_when_work_has_begun_again_meanwhile(relay: RelayCore) -> None:
    finished, listener = asyncio.Event(), Listener()

    async def handle(envelope: Envelope) -> None:
        await listener(envelope)
        if envelope.payload == 1:
            finished.set()  # who waits for this has its turn before who waits for idle

    async def publish_more() -> None:
        await finished.wait()
        await relay.publish(A, 2, sender=SENDER)

    await relay.register_endpoint(A)
    await relay.subscribe(A, handle)
    async with asyncio.TaskGroup() as group:
        group.create_task(publish_more())
        await asyncio.sleep(0)
        await relay.publish(A, 1, sender=SENDER)
        await relay.idle()
        assert listener.got == [1, 2]


# Times


async def test_the_times_of_a_span_are_in_order(data_dir: Path) -> None:
    async def handle(envelope: Envelope) -> None:
        await asyncio.sleep(0)
        if envelope.payload == "bad":
            raise ValueError

    async with RelayCore(data_dir, config()) as relay:
        await relay.register_endpoint(A)
        message_ids = await publish_all(relay, A, ["waits", "bad"])
    async with RelayCore(data_dir, config()) as relay:
        await relay.subscribe(A, handle)
        message_ids += await publish_all(relay, A, ["good", "bad"])
        await relay.idle()
        for message_id in message_ids:
            found = await span(relay, message_id)
            assert found.stored_at is not None
            assert found.claimed_at is not None
            assert found.handled_at is not None
            assert found.sent_at <= found.stored_at <= found.claimed_at <= found.handled_at


@pytest.mark.parametrize("restarted", [False, True], ids=["same bus", "restarted"])
async def test_times_stay_in_order_when_the_wall_clock_goes_back(
    data_dir: Path, clock: FakeClock, restarted: bool
) -> None:
    listener = Listener()
    async with RelayCore(data_dir, config(), clock) as relay:
        await relay.register_endpoint(A)
        if not restarted:
            await relay.subscribe(A, listener)
        (message_id,) = await publish_all(relay, A, [1])
        clock.jump_wall(-600)
        await relay.idle()
        found = await span(relay, message_id)
    if restarted:
        async with RelayCore(data_dir, config(), clock) as relay:
            await relay.subscribe(A, listener)
            await relay.idle()
            found = await span(relay, message_id)
    assert found.stored_at is not None
    assert found.claimed_at is not None
    assert found.handled_at is not None
    assert found.sent_at <= found.stored_at <= found.claimed_at <= found.handled_at


async def test_a_span_says_how_long_a_message_waited_and_how_long_it_was_handled(
    relay: RelayCore, clock: FakeClock
) -> None:
    listener = Listener(held=True)
    await relay.register_endpoint(A)
    await relay.subscribe(A, listener)
    _, message_id = await publish_all(relay, A, [1, 2])
    await listener.entered.wait()
    clock.advance(2)
    listener.entered.clear()
    listener.gate.set()
    await relay.idle()
    found = await span(relay, message_id)
    assert (found.sent_at, found.stored_at) == (1_700_000_000_000, 1_700_000_000_000)
    assert (found.claimed_at, found.handled_at) == (1_700_000_002_000, 1_700_000_002_000)
