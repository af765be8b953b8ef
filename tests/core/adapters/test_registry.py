"""Adapters: how they come, change places and go, which mail they are offered, and at what pace."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

import relay_core.adapters.host
import relay_core.adapters.registry
from relay_core import (
    AccessDenied,
    AdapterContext,
    AdapterState,
    AdapterStatus,
    BackpressureConfig,
    CircuitState,
    Closed,
    ConfigError,
    DeliveryContext,
    DeliveryResult,
    Envelope,
    InvalidSubject,
    NotFound,
    RateLimitConfig,
    RelayConfig,
    RelayCore,
    RelayError,
    ReliabilityConfig,
    Signal,
    SignalType,
)
from relay_core.adapters.validation import AdapterSettings
from relay_core.records.events import EventKind
from relay_core.testing import FakeClock
from tests.kit.adapters import Gate, SampleAdapter, accept, explode, hang, refuse
from tests.kit.events import EventReader
from tests.kit.waiting import until

SUBJECT = "relay.out.chat"
SENDER = "relay.agent.a"
MAILBOX = "relay.adapter.sample"
CONFIG = RelayConfig(
    durability="os",
    reliability=ReliabilityConfig(
        rate_limit=RateLimitConfig(enabled=False), backpressure=BackpressureConfig(enabled=False)
    ),
)

pytestmark = pytest.mark.bus(CONFIG)


def state_of(relay: RelayCore, id: str = "sample") -> AdapterState:
    (state,) = [state for state in relay.adapters() if state.id == id]
    return state


# Shape


class Bare:
    """An adapter with one part broken."""

    id: Any = "bare"
    patterns: Any = ("relay.out.>",)
    status: Any = AdapterStatus("disconnected")

    def __init__(self, **parts: Any) -> None:
        for name, value in parts.items():
            setattr(self, name, value)

    async def start(self, context: AdapterContext) -> None: ...

    async def stop(self) -> None: ...

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        return DeliveryResult(ok=True)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        pytest.param({"id": None}, "id must be one subject token, not None", id="no id"),
        pytest.param({"id": "two.tokens"}, "id must be one subject token, not 'two.tokens'", id="id with a dot"),
        pytest.param({"id": "../up"}, "id must be one subject token", id="id that is a path"),
        pytest.param({"id": "a b"}, "id must be one subject token", id="id with a blank"),
        pytest.param({"patterns": "relay.out.>"}, "patterns must be a list of patterns", id="patterns a text"),
        pytest.param({"patterns": None}, "patterns must be a list of patterns, not None", id="patterns None"),
        pytest.param({"patterns": ()}, "patterns must be a list of at least one", id="no patterns"),
        pytest.param({"patterns": ["relay.>.x"]}, "bare: patterns ", id="bad pattern"),
        pytest.param({"deliver": lambda envelope, context: None}, "deliver must be an async method", id="sync deliver"),
        pytest.param({"stop": None}, "stop must be an async method", id="no stop"),
        pytest.param({"health": lambda: True}, "health must be an async method", id="sync health"),
        pytest.param({"status": "connected"}, "status must be an AdapterStatus", id="status a text"),
        pytest.param({"senders": "relay.human.>"}, "senders must be a list of patterns", id="senders a text"),
        pytest.param({"senders": ["relay..x"]}, "bare: senders subject", id="bad sender"),
        pytest.param({"senders": [None]}, "bare: senders a subject must be text", id="sender None"),
        pytest.param({"rate": 0}, "rate must be messages per second, above 0", id="rate 0"),
        pytest.param({"timeout": -1}, "timeout must be seconds, above 0", id="negative timeout"),
        pytest.param({"timeout": float("inf")}, "timeout must be seconds, above 0", id="endless timeout"),
        pytest.param({"detached": "yes"}, "detached must be true or false", id="detached a text"),
        pytest.param({"priority": "high"}, "priority must be a whole number", id="priority a text"),
    ],
)
async def test_a_misshapen_adapter_is_refused_with_the_part_at_fault(
    parts: dict[str, Any], problem: str, relay: RelayCore
) -> None:
    with pytest.raises(ConfigError, match=problem):
        await relay.add_adapter(Bare(**parts))
    assert relay.adapters() == []


async def test_a_plain_object_of_the_right_shape_is_an_adapter(relay: RelayCore) -> None:
    await relay.add_adapter(Bare())
    assert [(state.id, state.state) for state in relay.adapters()] == [("bare", "disconnected")]


def test_there_are_five_states() -> None:
    with pytest.raises(ValueError, match="no adapter state 'fine': it is one of starting, connected"):
        AdapterStatus("fine")  # type: ignore[arg-type]


async def test_an_id_can_be_used_once(relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter())
    with pytest.raises(ConfigError, match="there is an adapter sample already"):
        await relay.add_adapter(SampleAdapter())


async def test_of_several_adapters_of_one_id_added_at_once_one_is_taken(relay: RelayCore) -> None:
    class SlowToStart(SampleAdapter):
        async def start(self, context: AdapterContext) -> None:
            await asyncio.sleep(0)
            await super().start(context)

    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(_try_to_add(relay, SlowToStart())) for _ in range(3)]
    assert sorted(task.result() for task in tries) == [False, False, True]


async def _try_to_add(relay: RelayCore, adapter: SampleAdapter) -> bool:
    try:
        await relay.add_adapter(adapter)
    except ConfigError:
        return False
    return True


async def test_an_adapters_own_subject_cannot_be_an_endpoint(relay: RelayCore) -> None:
    with pytest.raises(InvalidSubject, match=r"relay\.adapter\.sample is an adapter's own subject"):
        await relay.register_endpoint(MAILBOX)


# Starting


class Unstartable(SampleAdapter):
    """One that does not start, in one way or another."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    async def start(self, context: AdapterContext) -> None:
        await super().start(context)
        if self.how == "raises":
            raise PermissionError("bad token")
        if self.how == "hangs":
            await asyncio.Event().wait()
        if self.how == "loses its status":
            self.status = None  # type: ignore[assignment]
        else:
            self.status = AdapterStatus("error", "bad token")


UNSTARTABLE = [
    pytest.param("raises", "adapter sample did not start: PermissionError: bad token", id="raises"),
    pytest.param("hangs", "adapter sample did not start: no answer within 0.01 s", id="hangs"),
    pytest.param("ends in error", "adapter sample did not start: bad token", id="ends in error"),
    pytest.param("loses its status", "did not start: its status must be an AdapterStatus", id="loses its status"),
]


@pytest.mark.parametrize(("how", "problem"), UNSTARTABLE)
async def test_of_an_adapter_that_does_not_start_nothing_stays(how: str, problem: str, relay: RelayCore) -> None:
    adapter = Unstartable(how)
    with pytest.raises(RelayError, match=problem) as failure:
        await relay.bus.adapters.add(adapter, start_timeout=0.01)
    assert failure.value.code == "adapter_failed"
    assert adapter.stops == 1
    assert relay.adapters() == []
    assert relay.mailboxes() == []
    with pytest.raises(Closed, match="adapter sample has been stopped"):
        await adapter.context.publish(SUBJECT, {}, sender=SENDER)
    await relay.add_adapter(SampleAdapter())


@pytest.mark.parametrize(("how", "problem"), UNSTARTABLE)
async def test_a_replacement_that_does_not_start_leaves_the_old_one_at_work(
    how: str, problem: str, relay: RelayCore
) -> None:
    old, new = SampleAdapter(), Unstartable(how)
    await relay.add_adapter(old)
    with pytest.raises(RelayError, match=problem):
        await relay.bus.adapters.replace(new, start_timeout=0.01)
    assert (old.stops, new.stops) == (0, 1)
    assert (await relay.publish(SUBJECT, "hi", sender=SENDER)).delivered_to == 1
    assert (old.got, new.got) == (["hi"], [])


async def test_its_directory_is_private(relay: RelayCore, data_dir: Path) -> None:
    adapter = SampleAdapter()
    await relay.add_adapter(adapter)
    assert adapter.context.data_dir == data_dir / "adapters" / "sample"
    for directory in (adapter.context.data_dir, adapter.context.data_dir.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


# Matching


async def test_all_matching_adapters_get_the_message_by_priority(relay: RelayCore) -> None:
    log: list[tuple[str, object]] = []
    for id, priority in (("low", -5), ("b", 0), ("a", 0), ("high", 10)):
        await relay.add_adapter(SampleAdapter(id, priority=priority, log=log))
    await relay.add_adapter(SampleAdapter("elsewhere", ["relay.in.>"], priority=99, log=log))
    result = await relay.publish(SUBJECT, "hi", sender=SENDER)
    assert result.delivered_to == 4
    assert [id for id, _ in log] == ["high", "a", "b", "low"]


async def test_an_adapter_gets_a_message_once_however_many_of_its_patterns_match(relay: RelayCore) -> None:
    adapter = SampleAdapter(patterns=["relay.out.>", "relay.>", SUBJECT, SUBJECT])
    await relay.add_adapter(adapter)
    assert (await relay.publish(SUBJECT, "hi", sender=SENDER)).delivered_to == 1
    assert adapter.got == ["hi"]


async def test_an_adapter_never_gets_its_own_message_back(relay: RelayCore) -> None:
    mine, other = SampleAdapter("mine"), SampleAdapter("other")
    await relay.add_adapter(mine)
    await relay.add_adapter(other)
    result = await mine.context.publish(SUBJECT, "hi", sender="relay.human.x")
    assert result.delivered_to == 1
    await relay.idle()
    assert (mine.got, other.got) == ([], ["hi"])


async def test_an_adapters_publish_is_deduplicated(relay: RelayCore) -> None:
    mine, other = SampleAdapter("mine"), SampleAdapter("other")
    await relay.add_adapter(mine)
    await relay.add_adapter(other)
    first, again = [await mine.context.publish(SUBJECT, "hi", sender=SENDER, dedupe_id="42") for _ in range(2)]
    assert first.message_id == again.message_id
    await relay.idle()
    assert other.got == ["hi"]


@pytest.mark.bus(
    CONFIG.model_copy(
        update={
            "reliability": ReliabilityConfig(
                rate_limit=RateLimitConfig(enabled=False), backpressure=BackpressureConfig(max_mailbox_size=1)
            )
        }
    )
)
async def test_what_an_adapter_publishes_is_counted_and_a_replacement_counts_on(relay: RelayCore) -> None:
    async def publish(adapter: SampleAdapter, subject: str, sender: str = "relay.human.x") -> None:
        await adapter.context.publish(subject, "hi", sender=sender)

    def counts() -> tuple[int, int]:
        return state_of(relay, "mine").published, state_of(relay, "mine").refused

    await relay.register_endpoint("relay.agent.full")
    mine = SampleAdapter("mine")
    await relay.add_adapter(mine)
    await publish(mine, "relay.agent.full")
    assert counts() == (1, 0)
    await publish(mine, "relay.agent.full")
    assert counts() == (1, 1), "a full mailbox refuses"
    await publish(mine, "relay.agent.unknown")
    assert counts() == (2, 1), "the bus keeps a dead letter"
    with pytest.raises(AccessDenied):
        await publish(mine, "relay.agent.unknown", "relay.adapter.other")
    assert counts() == (2, 2)
    new = SampleAdapter("mine")
    await relay.replace_adapter(new)
    await publish(new, "relay.agent.unknown")
    assert counts() == (3, 2)
    assert (state_of(relay, "mine").delivered, state_of(relay, "mine").failed) == (0, 0)


# Senders


@pytest.mark.parametrize(
    ("sender", "owner"),
    [
        pytest.param("relay.human.tg.5", "tg", id="by its pattern"),
        pytest.param("relay.bot", "tg", id="by its second pattern"),
        pytest.param("relay.human.mail", None, id="no pattern matches"),
        pytest.param("relay.human.tg", None, id="shorter than the pattern"),
        pytest.param("relay.adapter.tg", "tg", id="its own subject"),
        pytest.param("relay.adapter.tg.chat.5", "tg", id="below its own subject"),
        pytest.param("relay.adapter.gone", "gone", id="the own subject of one that does not run"),
        pytest.param("relay.adapters", None, id="only looks like an adapter's"),
    ],
)
async def test_a_sender_belongs_to_the_adapter_that_says_so(sender: str, owner: str | None, relay: RelayCore) -> None:
    await relay.add_adapter(Bare(id="tg", senders=["relay.human.tg.>", "relay.bot"]))
    await relay.add_adapter(Bare(id="greedy", senders=["relay.adapter.>"]))
    assert relay.bus.routes.owner_of_sender(sender) == owner


async def test_a_sender_that_several_adapters_claim_belongs_to_the_highest_priority(relay: RelayCore) -> None:
    await relay.add_adapter(Bare(id="a", senders=["relay.human.>"]))
    await relay.add_adapter(Bare(id="b", senders=["relay.human.x"], priority=1))
    assert relay.bus.routes.owner_of_sender("relay.human.x") == "b"
    assert relay.bus.routes.owner_of_sender("relay.human.y") == "a"


async def test_senders_change_with_the_adapter_and_go_with_it(relay: RelayCore) -> None:
    routes = relay.bus.routes
    await relay.add_adapter(Bare(id="tg", senders=["relay.old"]))
    await relay.replace_adapter(Bare(id="tg", senders=["relay.new"]))
    assert [routes.owner_of_sender(sender) for sender in ("relay.old", "relay.new")] == [None, "tg"]
    await relay.remove_adapter("tg")
    assert routes.owner_of_sender("relay.new") is None
    assert routes.owner_of_sender("relay.adapter.tg") == "tg"


# Deliveries


async def test_a_delivery_knows_where_it_stands(relay: RelayCore, clock: FakeClock) -> None:
    adapter = SampleAdapter()
    await relay.add_adapter(adapter)
    root = await relay.publish(SUBJECT, "root", sender=SENDER)
    child = await relay.publish(
        SUBJECT, "child", sender=SENDER, parent_id=root.message_id, budget={"ttl": clock.now_ms() + 60_000}
    )
    context = adapter.deliveries[-1]
    assert (context.message_id, context.parent_id, context.trace_id, context.replays) == (
        child.message_id,
        root.message_id,
        root.message_id,
        0,
    )
    clock.advance(20)
    assert context.remaining == 40
    clock.advance(50)
    assert context.remaining == -10


async def test_an_answer_published_from_a_delivery_inherits_its_budget(relay: RelayCore) -> None:
    async def answer(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        assert envelope.reply_to is not None
        await context.publish(envelope.reply_to, "answer", sender="relay.agent.b")
        return DeliveryResult(ok=True)

    await relay.register_endpoint("relay.agent.a")
    await relay.add_adapter(SampleAdapter(platform=answer))
    asked = await relay.publish(SUBJECT, "?", sender=SENDER, reply_to="relay.agent.a", budget={"maxHops": 3})
    (reply,) = await relay.inbox("relay.agent.a")
    assert (reply.budget.hop_count, reply.budget.max_hops) == (2, 3)
    assert reply.budget.ancestor_chain == (MAILBOX, "relay.agent.a")
    (span,) = await relay.trace(reply.id)
    assert (span.parent_id, span.trace_id) == (asked.message_id, asked.message_id)


async def test_what_the_platform_says_of_a_success_is_in_the_trace(relay: RelayCore) -> None:
    async def sent(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        return DeliveryResult(ok=True, detail="message 77")

    await relay.add_adapter(SampleAdapter(platform=sent))
    result = await relay.publish(SUBJECT, {}, sender=SENDER)
    (span,) = await relay.trace(result.message_id)
    assert span.outcomes == ({"handler": "sample", "ok": True, "detail": "message 77"},)


async def _return_nothing(envelope: Envelope, context: DeliveryContext) -> object:
    return None


async def _cancel_itself(envelope: Envelope, context: DeliveryContext) -> object:
    raise asyncio.CancelledError


async def _time_out_itself(envelope: Envelope, context: DeliveryContext) -> object:
    raise TimeoutError("upstream")


@pytest.mark.parametrize(
    ("platform", "error"),
    [
        pytest.param(refuse, "chat not found (404)", id="says no"),
        pytest.param(explode, "ConnectionError: platform is down", id="raises"),
        pytest.param(
            _return_nothing,
            "deliver must return a DeliveryResult, not NoneType",
            id="returns something else",
        ),
        pytest.param(_cancel_itself, "the adapter cancelled its own delivery", id="cancels itself"),
        pytest.param(_time_out_itself, "TimeoutError: upstream", id="has a timeout of its own"),
    ],
)
async def test_a_failure_is_the_adapters_alone_and_the_next_message_is_tried(
    platform: Any, error: str, relay: RelayCore
) -> None:
    adapter = SampleAdapter(platform=platform)
    await relay.add_adapter(adapter)
    await relay.publish(SUBJECT, 1, sender=SENDER)
    adapter.platform = accept
    await relay.publish(SUBJECT, 2, sender=SENDER)
    (letter,) = await relay.dead_letters()
    assert letter.reason == f"adapter delivery failed: sample: {error}"
    state = state_of(relay)
    assert (state.delivered, state.failed, state.last_error) == (1, 1, error)


async def test_the_breaker_opens_after_failures_and_heals(relay: RelayCore, clock: FakeClock) -> None:
    adapter = SampleAdapter(platform=explode)
    await relay.add_adapter(adapter)

    async def publish() -> tuple[int, list[str]]:
        result = await relay.publish(SUBJECT, len(adapter.got), sender=SENDER)
        return result.delivered_to, [rejection.reason for rejection in result.rejected or ()]

    for _ in range(5):
        assert await publish() == (0, [])
    assert [breaker.state for breaker in relay.breakers()] == [CircuitState.OPEN]
    assert await publish() == (0, ["circuit_open"])
    clock.advance(29.9)
    assert await publish() == (0, ["circuit_open"])
    adapter.platform = accept
    clock.advance(0.1)
    assert await publish() == (1, [])
    assert [breaker.state for breaker in relay.breakers()] == [CircuitState.HALF_OPEN]
    assert await publish() == (1, [])
    assert [breaker.state for breaker in relay.breakers()] == [CircuitState.CLOSED]
    assert len(adapter.got) == 7


# The operator's settings


async def test_the_operators_priority_wins(relay: RelayCore) -> None:
    log: list[tuple[str, object]] = []
    await relay.add_adapter(SampleAdapter("high", priority=5, log=log))
    await relay.add_adapter(SampleAdapter("low", priority=1, log=log), settings=AdapterSettings(priority=6))
    await relay.publish(SUBJECT, 1, sender=SENDER)
    assert log == [("low", 1), ("high", 1)]
    assert [(state.id, state.priority) for state in relay.adapters()] == [("high", 5), ("low", 6)]
    await relay.replace_adapter(SampleAdapter("high", priority=5, log=log), settings=AdapterSettings(priority=7))
    await relay.publish(SUBJECT, 2, sender=SENDER)
    assert log[2:] == [("high", 2), ("low", 2)]


async def test_the_operators_rate_wins(relay: RelayCore, clock: FakeClock) -> None:
    adapter = SampleAdapter(rate=1000, detached=True)
    assert (await relay.add_adapter(adapter, settings=AdapterSettings(rate=0.5))).rate == 0.5
    for number in range(2):
        await relay.publish(SUBJECT, number, sender=SENDER)
    await relay.idle()
    clock.advance(1.9)
    await relay.idle()
    assert adapter.got == [0]
    clock.advance(0.1)
    await until(lambda: adapter.got == [0, 1])


@pytest.mark.parametrize("how", ["set before", "set by the reload", "removed"])
async def test_the_operators_drain_wins(relay: RelayCore, caplog: pytest.LogCaptureFixture, how: str) -> None:
    class Patient(SampleAdapter):
        drain = 3600.0

    old, soon = Patient(platform=hang, detached=True), AdapterSettings(drain=0.001)
    state = await relay.add_adapter(old, settings=AdapterSettings() if how == "set by the reload" else soon)
    assert state.drain_secs == (3600 if how == "set by the reload" else 0.001)
    await relay.publish(SUBJECT, 1, sender=SENDER)
    await until(lambda: old.got == [1])
    if how == "removed":
        await relay.remove_adapter("sample")
    else:
        await relay.replace_adapter(Patient(), settings=soon if how == "set by the reload" else AdapterSettings())
    assert "adapter sample has not finished its messages within 0.001 s" in caplog.messages
    (letter,) = await relay.dead_letters()
    assert letter.code == "interrupted"


# Pace


async def test_mail_that_comes_faster_than_the_rate_waits_unclaimed(relay: RelayCore, clock: FakeClock) -> None:
    adapter = SampleAdapter(rate=2, detached=True)
    await relay.add_adapter(adapter)
    for number in range(4):
        assert (await relay.publish(SUBJECT, number, sender=SENDER)).delivered_to == 1
    await relay.idle()
    assert adapter.got == [0]
    assert [(box.depth, box.claimed) for box in relay.mailboxes()] == [(3, 0)]
    clock.advance(0.4)
    await relay.idle()
    assert adapter.got == [0]
    for number in range(1, 4):
        clock.advance(0.1 if number == 1 else 0.5)
        await relay.idle()
        assert adapter.got == list(range(number + 1))
    clock.advance(10)
    await relay.publish(SUBJECT, "later", sender=SENDER)
    await relay.idle()
    assert adapter.got[-1] == "later"


async def test_waiting_for_its_turn_costs_nothing_of_the_timeout(relay: RelayCore, clock: FakeClock) -> None:
    adapter = SampleAdapter(rate=0.05, timeout=20, platform=accept)
    await relay.add_adapter(adapter)
    await relay.publish(SUBJECT, 1, sender=SENDER)
    async with asyncio.TaskGroup() as group:
        second = group.create_task(relay.publish(SUBJECT, 2, sender=SENDER))
        await until(lambda: state_of(relay).depth == 1)
        clock.advance(20)
    assert [outcome.status for outcome in second.result().adapter_results or ()] == ["delivered"]
    assert adapter.got == [1, 2]


async def test_nobody_waits_longer_than_usual_for_an_adapter_that_may_take_long(
    relay: RelayCore, clock: FakeClock
) -> None:
    gate = Gate()
    await relay.add_adapter(SampleAdapter(timeout=600, platform=gate))
    async with asyncio.TaskGroup() as group:
        publish = group.create_task(relay.publish(SUBJECT, 1, sender=SENDER))
        await gate.reached.wait()
        clock.advance(31)
    assert [outcome.status for outcome in publish.result().adapter_results or ()] == ["queued"]
    gate.opened.set()
    await relay.idle()
    assert state_of(relay).delivered == 1


# Which mail is offered


@pytest.mark.parametrize("announce", [True, False], ids=["announced", "noticed by the next publish"])
@pytest.mark.parametrize("state", ["disconnected", "error", "starting"])
async def test_mail_waits_while_the_adapter_is_not_connected(state: Any, announce: bool, relay: RelayCore) -> None:
    adapter = SampleAdapter(platform=accept)
    await relay.add_adapter(adapter)
    adapter.set_status(AdapterStatus(state, "no route"), announce=announce)
    for number in range(3):
        result = await relay.publish(SUBJECT, number, sender=SENDER)
        assert (result.delivered_to, [outcome.status for outcome in result.adapter_results or ()]) == (1, ["queued"])
    await relay.idle()
    view = state_of(relay)
    assert (view.state, view.detail, view.depth, view.delivered, view.failed) == (state, "no route", 3, 0, 0)
    adapter.set_status(AdapterStatus("connected"), announce=announce)
    if not announce:
        await relay.publish(SUBJECT, 3, sender=SENDER)
    await relay.idle()
    assert adapter.got == list(range(3 if announce else 4))
    assert await relay.dead_letters() == []


async def test_mail_that_waited_before_the_adapter_came_is_delivered_in_order(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.add_adapter(SampleAdapter(connects=False))
        for number in range(5):
            await relay.publish(SUBJECT, number, sender=SENDER)
    adapter = SampleAdapter()
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        assert [(box.subject, box.depth, box.consumers) for box in relay.mailboxes()] == [(MAILBOX, 5, 0)]
        await relay.add_adapter(adapter)
        await relay.idle()
    assert adapter.got == list(range(5))


async def test_a_detached_delivery_counts_once_stored_and_survives_a_restart(
    data_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_core.adapters.registry, "DRAIN_TIMEOUT_SECS", 0.0)
    gate = Gate()
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.add_adapter(SampleAdapter(platform=gate, detached=True))
        for number in range(3):
            assert (await relay.publish(SUBJECT, number, sender=SENDER)).delivered_to == 1
        await gate.reached.wait()
    again = SampleAdapter(detached=True)
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.add_adapter(again)
        await relay.idle()
        (letter,) = await relay.dead_letters()
    assert again.got == [1, 2]
    assert letter.envelope is not None
    assert (letter.envelope.payload, letter.code) == (0, "interrupted")
    assert "the adapter was stopped before it answered" in letter.reason


async def test_closing_the_bus_lets_the_message_under_way_finish_with_its_answer(
    data_dir: Path, clock: FakeClock
) -> None:
    gate = Gate()

    async def answer(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        result = await gate(envelope, context)
        await context.publish("relay.agent.a", "answer", sender="relay.agent.b")
        return result

    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.register_endpoint("relay.agent.a")
        adapter = SampleAdapter(platform=answer, detached=True)
        await relay.add_adapter(adapter)
        await relay.publish(SUBJECT, "?", sender=SENDER)
        await gate.reached.wait()
        asyncio.get_running_loop().call_soon(gate.opened.set)
    assert adapter.stops == 1
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        assert [envelope.payload for envelope in await relay.inbox("relay.agent.a")] == ["answer"]
        assert await relay.dead_letters() == []


# Health


class Patient(SampleAdapter):
    """One that can tell how it is."""

    answer: bool | Exception | None = True

    async def health(self) -> bool:
        if self.answer is None:
            await asyncio.Event().wait()
        assert self.answer is not None
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        pytest.param(False, "the health probe returned False", id="says no"),
        pytest.param(OSError("unreachable"), "the health probe failed: OSError: unreachable", id="raises"),
        pytest.param(None, "the health probe did not answer in time", id="does not answer"),
    ],
)
async def test_a_bad_probe_holds_the_mail_and_a_good_one_lets_it_go(
    answer: bool | Exception | None,
    detail: str,
    relay: RelayCore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_core.adapters.host, "HEALTH_TIMEOUT_SECS", 0.01)
    adapter = Patient()
    await relay.add_adapter(adapter)
    assert state_of(relay).healthy is None
    adapter.answer = answer
    clock.advance(30)
    (state,) = await relay.probe_adapters()
    assert (state.healthy, state.state, state.detail, state.since) == (False, "error", detail, clock.now_ms())
    await relay.publish(SUBJECT, "waits", sender=SENDER)
    await relay.idle()
    assert adapter.got == []
    adapter.answer = True
    (state,) = await relay.probe_adapters("sample")
    assert (state.healthy, state.state) == (True, "connected")
    await relay.idle()
    assert adapter.got == ["waits"]


async def test_the_adapters_word_is_newer_than_its_last_probe(relay: RelayCore) -> None:
    adapter = Patient()
    await relay.add_adapter(adapter)
    adapter.answer = False
    await relay.probe_adapters()
    adapter.set_status(AdapterStatus("connected"))
    assert (state_of(relay).state, state_of(relay).healthy) == ("connected", None)


async def test_an_adapter_without_a_probe_is_as_well_as_it_says(relay: RelayCore) -> None:
    adapter = SampleAdapter(connects=False)
    await relay.add_adapter(adapter)
    (state,) = await relay.probe_adapters()
    assert (state.state, state.healthy) == ("disconnected", None)
    await relay.publish(SUBJECT, "waits", sender=SENDER)
    adapter.set_status(AdapterStatus("connected"), announce=False)
    await relay.probe_adapters()
    await relay.idle()
    assert adapter.got == ["waits"]


async def test_only_a_known_adapter_can_be_probed_replaced_or_removed(relay: RelayCore) -> None:
    for work in (
        relay.probe_adapters("sample"),
        relay.replace_adapter(SampleAdapter()),
        relay.remove_adapter("sample"),
    ):
        with pytest.raises(NotFound, match="no adapter sample"):
            await work


async def test_a_status_that_cannot_be_read_is_an_error_of_the_adapter(relay: RelayCore) -> None:
    adapter = SampleAdapter()
    await relay.add_adapter(adapter)
    adapter.status = None  # type: ignore[assignment]
    assert (await relay.publish(SUBJECT, "waits", sender=SENDER)).delivered_to == 1
    state = state_of(relay)
    assert (state.state, state.detail) == ("error", "its status must be an AdapterStatus, not NoneType")


# Replacing and removing


@pytest.mark.parametrize("detached", [False, True], ids=["awaited", "detached"])
async def test_replacing_under_load_loses_doubles_and_reorders_nothing(detached: bool, relay: RelayCore) -> None:
    log: list[tuple[str, object]] = []

    async def take_a_step(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        await asyncio.sleep(0)
        return DeliveryResult(ok=True)

    def make() -> SampleAdapter:
        return SampleAdapter(platform=take_a_step, detached=detached, log=log)

    adapters = [make()]
    await relay.add_adapter(adapters[0])
    published: list[object] = []

    async def publish() -> None:
        while len(adapters) <= 10 or not adapters[-1].deliveries:
            published.append(len(published))
            assert (await relay.publish(SUBJECT, published[-1], sender=SENDER)).delivered_to == 1

    async def replace() -> None:
        while len(adapters) <= 10:
            await until(lambda: len(adapters[-1].deliveries) > 10)
            adapters.append(make())
            await relay.replace_adapter(adapters[-1])

    async with asyncio.TaskGroup() as group:
        group.create_task(publish())
        group.create_task(replace())
    await relay.idle()
    assert [payload for _, payload in log] == published
    assert [adapter.stops for adapter in adapters] == [1] * 10 + [0]
    assert all(adapter.deliveries for adapter in adapters)
    assert state_of(relay).delivered == len(published)
    assert await relay.dead_letters(include_partial=True) == []


async def test_a_replacement_has_its_own_patterns_at_once(relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter(patterns=["relay.old.>"]))
    await relay.replace_adapter(SampleAdapter(patterns=["relay.new.>"]))
    assert (await relay.publish("relay.old.x", {}, sender=SENDER)).delivered_to == 0
    assert (await relay.publish("relay.new.x", {}, sender=SENDER)).delivered_to == 1


async def test_a_replaced_adapter_finishes_its_message_and_publishes_nothing_more(relay: RelayCore) -> None:
    gate = Gate()
    old, new = SampleAdapter(platform=gate), SampleAdapter()
    await relay.add_adapter(old)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(relay.publish(SUBJECT, 1, sender=SENDER))
        await gate.reached.wait()
        replaced = group.create_task(relay.replace_adapter(new))
        await until(lambda: bool(new.contexts))
        second = group.create_task(relay.publish(SUBJECT, 2, sender=SENDER))
        await until(lambda: state_of(relay).depth == 1)
        assert (old.stops, new.got, replaced.done()) == (0, [], False)
        gate.opened.set()
    assert [publish.result().delivered_to for publish in (first, second)] == [1, 1]
    assert (old.got, new.got, old.stops) == ([1], [2], 1)
    with pytest.raises(Closed):
        await old.context.publish(SUBJECT, {}, sender=SENDER)


async def test_a_message_that_outlasts_the_drain_is_cut_off_and_parked(relay: RelayCore) -> None:
    old, new = SampleAdapter(platform=hang, detached=True), SampleAdapter()
    await relay.add_adapter(old)
    await relay.publish(SUBJECT, 1, sender=SENDER)
    await until(lambda: old.got == [1])
    await relay.replace_adapter(new, drain_timeout=0.0)
    await relay.publish(SUBJECT, 2, sender=SENDER)
    assert (old.got, new.got) == ([1], [2])
    (letter,) = await relay.dead_letters()
    assert letter.code == "interrupted"


async def test_an_adapter_that_fails_to_stop_is_gone_all_the_same(relay: RelayCore) -> None:
    class Stubborn(SampleAdapter):
        async def stop(self) -> None:
            raise RuntimeError("no")

    await relay.add_adapter(Stubborn())
    await relay.remove_adapter("sample")
    assert relay.adapters() == []


async def test_the_mail_of_a_removed_adapter_stays_for_its_successor(relay: RelayCore) -> None:
    gate = Gate()
    old, new = SampleAdapter(platform=gate, detached=True), SampleAdapter(detached=True)
    await relay.add_adapter(old)
    for number in range(3):
        await relay.publish(SUBJECT, number, sender=SENDER)
    await gate.reached.wait()
    async with asyncio.TaskGroup() as group:
        group.create_task(relay.remove_adapter("sample"))
        await asyncio.sleep(0)
        assert (await relay.publish(SUBJECT, "late", sender=SENDER)).delivered_to == 0
        gate.opened.set()
    assert (old.got, old.stops, relay.adapters()) == ([0], 1, [])
    await relay.idle()
    assert {box.subject: (box.depth, box.registered) for box in relay.mailboxes()}[MAILBOX] == (2, False)
    await relay.add_adapter(new)
    await relay.idle()
    assert new.got == [1, 2]


async def test_a_stopped_adapter_hears_no_signals(relay: RelayCore, clock: FakeClock) -> None:
    adapter = SampleAdapter()
    await relay.add_adapter(adapter)
    heard: list[str] = []
    typing = Signal(type=SignalType.TYPING, state="on", endpoint_subject=SUBJECT, timestamp="2026-01-01T00:00:00.000Z")
    adapter.context.on_signal("relay.>", lambda subject, signal: heard.append(subject))
    adapter.context.signal("relay.agent.a", typing)
    await relay.remove_adapter("sample")
    relay.signal("relay.agent.a", typing)
    assert heard == ["relay.agent.a"]


async def test_every_change_of_state_is_an_event(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        adapter = SampleAdapter()
        await relay.add_adapter(adapter)
        adapter.set_status(AdapterStatus("error", "401: renew the token"))
        adapter.set_status(AdapterStatus("error", "401: renew the token, please"))
        adapter.set_status(AdapterStatus("connected"))
        await relay.replace_adapter(SampleAdapter())
        await relay.remove_adapter("sample")
    events = [event for path in sorted((data_dir / "events").rglob("*.jsonl*")) for event in EventReader(path)]
    changes = [(event.adapter, event.status, event.detail) for event in events if event.kind == EventKind.ADAPTER]
    assert changes == [
        ("sample", "connected", None),
        ("sample", "error", "401: renew the token"),
        ("sample", "connected", None),
        ("sample", "connected", None),
        ("sample", "stopping", "replaced"),
        ("sample", "stopping", "removed"),
        ("sample", "removed", None),
    ]
