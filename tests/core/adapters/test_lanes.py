"""Lanes: lines of mail within one adapter, and platforms that say when to ask again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relay_core import (
    AccessDenied,
    AdapterStatus,
    Binding,
    CircuitState,
    ConfigError,
    DeliveryContext,
    DeliveryResult,
    Envelope,
    RelayConfig,
    RelayCore,
    StorageError,
)
from relay_core.messages.delivery import Status
from relay_core.messages.subjects import subject_hash
from relay_core.testing import FakeClock
from tests.kit.adapters import SampleAdapter, accept, refuse
from tests.kit.waiting import until

SENDER = "relay.agent.a"
CONFIG = RelayConfig(durability="os")

pytestmark = pytest.mark.bus(CONFIG)


class LanedAdapter(SampleAdapter):
    """An adapter with a lane for each last token of a subject."""

    def __init__(self, *arguments: Any, max_in_flight: int | None = None, drain: float = 10.0, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.max_in_flight = max_in_flight
        self.drain = drain

    def lane(self, subject: str) -> str | None:
        return subject.rpartition(".")[2]


class Turns:
    """A platform that holds every message until the test lets it go, by payload."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.open: dict[Any, asyncio.Event] = {}

    async def __call__(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        self.begun.append(envelope.payload)
        await self.open.setdefault(envelope.payload, asyncio.Event()).wait()
        return DeliveryResult(ok=True)

    def finish(self, *payloads: Any) -> None:
        for payload in payloads:
            self.open.setdefault(payload, asyncio.Event()).set()


async def send(relay: RelayCore, *where: tuple[str, Any]) -> None:
    for lane, payload in where:
        await relay.publish(f"relay.out.{lane}", payload, sender=SENDER)


# Lanes


async def test_lanes_go_side_by_side_and_each_in_its_own_order(relay: RelayCore) -> None:
    turns = Turns()
    adapter = LanedAdapter(platform=turns, detached=True)
    await relay.add_adapter(adapter)
    await send(relay, ("x", "x1"), ("x", "x2"), ("y", "y1"), ("z", "z1"))
    await until(lambda: len(turns.begun) == 3)
    assert turns.begun == ["x1", "y1", "z1"]
    assert relay.adapters()[0].depth == 1
    turns.finish("x1", "x2", "y1", "z1")
    await relay.idle()
    assert turns.begun[3:] == ["x2"]
    assert relay.adapters()[0].delivered == 4


async def test_a_slot_is_taken_after_the_lanes_own_queue_and_before_the_claim(relay: RelayCore) -> None:
    turns = Turns()
    await relay.add_adapter(LanedAdapter(platform=turns, detached=True, max_in_flight=2))
    await send(relay, ("x", "x1"), ("x", "x2"), ("x", "x3"), ("y", "y1"), ("z", "z1"))
    await until(lambda: len(turns.begun) == 2)
    assert turns.begun == ["x1", "y1"]  # x2 does not hold a slot while x1 works
    assert {box.subject: box.claimed for box in relay.mailboxes()} == {
        "relay.adapter.sample": 0,
        "relay.adapter.sample.x": 1,
        "relay.adapter.sample.y": 1,
        "relay.adapter.sample.z": 0,
    }
    turns.finish("y1")
    await until(lambda: len(turns.begun) == 3)
    assert turns.begun == ["x1", "y1", "z1"]
    turns.finish("x1", "x2", "x3", "z1")
    await relay.idle()
    assert turns.begun[3:] == ["x2", "x3"]


async def test_each_lane_has_a_breaker_of_its_own(relay: RelayCore) -> None:
    async def picky(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        return await (refuse if envelope.subject.endswith("bad") else accept)(envelope, context)

    await relay.add_adapter(LanedAdapter(platform=picky))
    for number in range(6):
        await send(relay, ("bad", number), ("good", number))
    states = {breaker.subject: breaker.state for breaker in relay.breakers()}
    assert states["relay.adapter.sample.bad"] is CircuitState.OPEN
    assert (await relay.publish("relay.out.good", 7, sender=SENDER)).delivered_to == 1


async def test_what_waits_in_lanes_is_delivered_after_a_restart(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        adapter = LanedAdapter(detached=True)
        await relay.add_adapter(adapter)
        adapter.set_status(AdapterStatus("disconnected"))
        await send(relay, ("x", 1), ("y", 2), ("x", 3))
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        successor = SampleAdapter(detached=True)  # it has no lanes any more
        await relay.add_adapter(successor)
        await relay.idle()
        assert sorted(map(str, successor.got)) == ["1", "2", "3"]


@pytest.mark.parametrize(
    "lane",
    [
        pytest.param(lambda subject: None, id="none"),
        pytest.param(lambda subject: "two.tokens", id="two tokens"),
        pytest.param(lambda subject: "no token!", id="no token"),
        pytest.param(lambda subject: 1 / 0, id="raises"),
    ],
)
async def test_without_a_usable_lane_a_message_goes_to_the_main_one(relay: RelayCore, lane: Any) -> None:
    adapter = SampleAdapter()
    adapter.lane = lane  # type: ignore[attr-defined]
    await relay.add_adapter(adapter)
    await send(relay, ("x", 1))
    assert [box.subject for box in relay.mailboxes()] == ["relay.adapter.sample"]
    assert adapter.got == [1]


async def test_an_empty_lane_may_be_dropped_and_comes_back(relay: RelayCore) -> None:
    adapter = LanedAdapter()
    await relay.add_adapter(adapter)
    await send(relay, ("x", 1))
    assert await relay.maintenance.drop_empty_mailboxes() == 1
    await send(relay, ("x", 2))
    assert adapter.got == [1, 2]


async def test_a_dead_letter_of_a_lane_is_replayed_into_it(relay: RelayCore) -> None:
    adapter = LanedAdapter(platform=refuse)
    await relay.add_adapter(adapter)
    await send(relay, ("x", 1))
    (letter,) = await relay.dead_letters()
    assert letter.envelope is not None
    adapter.platform = accept
    plan = await relay.plan_replay(ids=[letter.envelope.id])
    assert (await relay.run_replay(plan.id)).delivered == 1
    assert adapter.got == [1, 1]


# Reloading


async def test_a_long_turn_ends_in_the_replaced_adapter_while_the_new_one_works(relay: RelayCore) -> None:
    turns, new_turns = Turns(), Turns()
    old = LanedAdapter(platform=turns, detached=True, drain=3600.0)
    await relay.add_adapter(old)
    await send(relay, ("x", "x1"), ("x", "x2"))
    await until(lambda: turns.begun == ["x1"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relay_core.adapters.registry.DRAIN_TIMEOUT_SECS", 0.0)
        patch.setattr("relay_core.adapters.registry.STOP_TIMEOUT_SECS", 0.05)
        await relay.replace_adapter(LanedAdapter(platform=new_turns, detached=True))
    await send(relay, ("y", "y1"))
    await until(lambda: new_turns.begun == ["y1"])
    assert old.stops == 0
    turns.finish("x1")
    await until(lambda: new_turns.begun == ["y1", "x2"])
    new_turns.finish("y1", "x2")
    await relay.idle()
    await until(lambda: old.stops == 1)
    assert (turns.begun, await relay.dead_letters()) == (["x1"], [])


async def test_a_turn_that_outlasts_the_bus_is_interrupted(data_dir: Path, clock: FakeClock) -> None:
    turns = Turns()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relay_core.adapters.registry.DRAIN_TIMEOUT_SECS", 0.0)
        patch.setattr("relay_core.adapters.registry.STOP_TIMEOUT_SECS", 0.05)
        async with RelayCore(data_dir, CONFIG, clock) as relay:
            await relay.add_adapter(LanedAdapter(platform=turns, detached=True, drain=3600.0))
            await send(relay, ("x", "x1"))
            await until(lambda: turns.begun == ["x1"])
            await relay.replace_adapter(LanedAdapter(detached=True))
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        assert [letter.code for letter in await relay.dead_letters()] == ["interrupted"]


# Platforms that say when to ask again


class Busy:
    """A platform that is busy so many times, then takes what it is given."""

    def __init__(self, times: int, *, retry_after: float = 30.0) -> None:
        self.times = times
        self.retry_after = retry_after

    async def __call__(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        if self.times:
            self.times -= 1
            return DeliveryResult(ok=False, error="too many requests", code="429", retry_after=self.retry_after)
        return DeliveryResult(ok=True)


async def test_a_message_that_was_not_taken_waits_at_the_head_of_its_line(relay: RelayCore, clock: FakeClock) -> None:
    adapter = SampleAdapter(platform=Busy(1))
    await relay.add_adapter(adapter)
    first = await relay.publish("relay.out.x", 1, sender=SENDER)
    assert (first.delivered_to, [outcome.status for outcome in first.adapter_results or ()]) == (1, ["queued"])
    assert relay.adapters()[0].last_error == "too many requests (429): asked again in 30 s"
    second = await relay.publish("relay.out.x", 2, sender=SENDER)
    assert [outcome.status for outcome in second.adapter_results or ()] == ["queued"]
    clock.advance(29)
    await relay.idle()
    assert adapter.got == [1]
    (box,) = [box for box in relay.mailboxes() if box.subject == "relay.adapter.sample"]
    assert (box.depth, box.claimed) == (2, 0)
    clock.advance(1)
    await relay.idle()
    assert adapter.got == [1, 1, 2]
    state = relay.adapters()[0]
    assert (state.delivered, state.failed, state.depth) == (2, 0, 0)
    assert [span.status for span in await relay.trace(first.message_id)] == [Status.DONE]


async def test_being_asked_again_is_no_outcome_for_the_breaker(relay: RelayCore, clock: FakeClock) -> None:
    await relay.add_adapter(SampleAdapter(platform=Busy(10, retry_after=1)))
    await relay.publish("relay.out.x", 1, sender=SENDER)
    for _ in range(10):
        clock.advance(1)
        await relay.idle()
    assert relay.adapters()[0].delivered == 1
    assert {breaker.state for breaker in relay.breakers()} <= {CircuitState.CLOSED}


async def test_a_message_that_is_never_taken_expires(relay: RelayCore, clock: FakeClock) -> None:
    await relay.add_adapter(SampleAdapter(platform=Busy(1000, retry_after=600)))
    await relay.publish("relay.out.x", 1, sender=SENDER)
    for _ in range(7):
        clock.advance(600)
        await relay.idle()
    assert [letter.code for letter in await relay.dead_letters()] == ["expired"]


async def test_a_late_failure_after_a_wait_is_a_dead_letter(relay: RelayCore, clock: FakeClock) -> None:
    platforms: Iterator[Any] = iter([Busy(1), refuse])

    async def platform(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        result: DeliveryResult = await next(platforms)(envelope, context)
        return result

    await relay.add_adapter(SampleAdapter(platform=platform))
    await relay.publish("relay.out.x", 1, sender=SENDER)
    clock.advance(30)
    await relay.idle()
    assert [(letter.code, letter.reason) for letter in await relay.dead_letters()] == [
        ("adapter_failed", "adapter delivery failed: sample: chat not found (404)")
    ]


async def test_a_message_that_waits_survives_a_restart_as_unbegun(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.add_adapter(SampleAdapter(platform=Busy(1)))
        await relay.publish("relay.out.x", 1, sender=SENDER)
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        adapter = SampleAdapter()
        await relay.add_adapter(adapter)
        await relay.idle()
        assert (adapter.got, await relay.dead_letters()) == ([1], [])


# Odds and ends of the seam


async def test_an_adapter_may_say_that_its_message_may_come_back(relay: RelayCore) -> None:
    adapter = SampleAdapter()
    await relay.add_adapter(adapter)
    await adapter.context.publish("relay.out.x", "own", sender=SENDER)
    await adapter.context.publish("relay.out.x", "again", sender=SENDER, echo=True)
    await relay.idle()
    assert adapter.got == ["again"]


async def test_what_an_adapter_brings_in_while_it_is_taken_in_waits_until_the_bus_knows_it(relay: RelayCore) -> None:
    class Eager(SampleAdapter):
        senders = ("relay.eager",)
        bound = True

        async def start(self, context: Any) -> None:
            await super().start(context)
            self.bringing = asyncio.ensure_future(  # noqa: TID251 - awaited below
                context.publish("relay.eager", "early", sender="relay.eager")
            )
            await asyncio.sleep(0)

    relay.set_bindings([Binding(chat="relay.eager", agent="relay.agent.a")])
    await relay.register_endpoint("relay.agent.a")
    adapter = Eager(patterns=["relay.eager"])
    await relay.add_adapter(adapter)
    assert (await adapter.bringing).delivered_to == 1
    assert [mail.payload for mail in await relay.inbox("relay.agent.a")] == ["early"]


async def test_what_adapters_share_is_made_once_and_closed_after_the_last(relay: RelayCore) -> None:
    diary: list[str] = []

    @asynccontextmanager
    async def make() -> AsyncIterator[str]:
        diary.append("made")
        yield "a port"
        diary.append("closed")

    class Sharing(SampleAdapter):
        async def start(self, context: Any) -> None:
            await super().start(context)
            self.shared = context.share("port", make)
            assert await self.shared.__aenter__() == "a port"

        async def stop(self) -> None:
            if self.stops == 0:
                await self.shared.__aexit__(None, None, None)
            await super().stop()

    await relay.add_adapter(Sharing())
    await relay.replace_adapter(Sharing())
    assert diary == ["made"]
    await relay.remove_adapter("sample")
    assert diary == ["made", "closed"]


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [
        ("lane", "x", "lane must be a plain method"),
        ("max_in_flight", 0, "max_in_flight must be a whole number above 0"),
        ("max_in_flight", True, "max_in_flight must be a whole number above 0"),
        ("drain", -1, "drain must be seconds, above 0"),
        ("bound", "yes", "bound must be true or false"),
    ],
)
async def test_a_misshapen_part_is_named(relay: RelayCore, part: str, value: Any, problem: str) -> None:
    adapter = SampleAdapter()
    setattr(adapter, part, value)
    with pytest.raises(ConfigError, match=problem):
        await relay.add_adapter(adapter)


async def test_what_an_adapter_says_is_concealed_everywhere(data_dir: Path, clock: FakeClock) -> None:
    def redact(text: str) -> str:
        return text.replace("hunter2", "***")

    async def blab(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        if envelope.payload == "raise":
            raise ConnectionError("hunter2 was refused")
        ok = envelope.payload == "fine"
        return DeliveryResult(ok=ok, error="hunter2 is wrong", detail="took hunter2" if ok else None)

    async with RelayCore(data_dir, CONFIG, clock) as relay:
        adapter = SampleAdapter(platform=blab)
        await relay.add_adapter(adapter, redact=redact)
        seen: list[Any] = []
        for payload in ("fine", "wrong", "raise"):
            result = await relay.publish("relay.out.x", payload, sender=SENDER)
            seen += [result, await relay.trace(result.message_id), relay.adapters()]
        adapter.set_status(AdapterStatus("error", "hunter2 has expired"))
        seen += [relay.adapters(), await relay.dead_letters()]
        assert "hunter2" not in repr(seen)
        assert "*** was refused" in repr(seen)
    events = b"".join(path.read_bytes() for path in (data_dir / "events").rglob("*") if path.is_file())
    assert b"*** has expired" in events
    assert b"hunter2" not in events


async def test_adapters_do_not_wait_for_each_other(relay: RelayCore) -> None:
    here, there = SampleAdapter("here", ["relay.here"]), SampleAdapter("there", ["relay.there"])

    async def answer_here(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        await context.publish("relay.there", "to you", sender="relay.adapter.here")
        return DeliveryResult(ok=True)

    async def answer_there(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        await context.publish("relay.here", "and back", sender="relay.adapter.there")
        return DeliveryResult(ok=True)

    here.platform, there.platform = answer_here, answer_there
    await relay.add_adapter(here)
    await relay.add_adapter(there)
    await relay.publish("relay.here", "begin", sender=SENDER)
    await relay.idle()
    assert {letter.code for letter in await relay.dead_letters()} == {"max_hops"}
    assert (here.got[0], len(here.got) + len(there.got)) == ("begin", 5)


# What a reviewer found


async def test_a_lane_whose_subject_has_dead_letters_takes_mail_all_the_same(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.publish("relay.adapter.sample.x", "to nobody", sender=SENDER)
        adapter = LanedAdapter()
        await relay.add_adapter(adapter)
        await send(relay, ("x", 1))
        assert adapter.got == [1]
        adapter.set_status(AdapterStatus("disconnected"))
        await send(relay, ("x", 2))
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        successor = LanedAdapter()
        await relay.add_adapter(successor)
        await relay.idle()
        assert successor.got == [2]
        assert [letter.code for letter in await relay.dead_letters()] == ["no_match"]


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_a_lane_that_is_just_being_made_has_its_order_already(
    durability: Any, data_dir: Path, clock: FakeClock
) -> None:
    async with RelayCore(data_dir, RelayConfig(durability=durability), clock) as relay:
        adapter = LanedAdapter(detached=True)
        await relay.add_adapter(adapter)
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(send(relay, ("x", number)))
            for number in range(8, 30):
                await asyncio.sleep(0)
                group.create_task(send(relay, ("x", number)))
        await relay.idle()
        assert adapter.got == list(range(30))


async def test_a_lane_is_not_removed_under_a_publish_that_waits_for_another(relay: RelayCore) -> None:
    first, second = LanedAdapter("first"), LanedAdapter("second", patterns=["relay.out.>", "relay.only.x"])
    await relay.add_adapter(second)
    await relay.publish("relay.only.x", 0, sender=SENDER)
    await relay.add_adapter(first)
    async with asyncio.TaskGroup() as group:
        async with relay.bus.lifecycle.lock:
            publish = group.create_task(relay.publish("relay.out.x", 1, sender=SENDER))  # first has no lane x yet
            dropping = group.create_task(relay.maintenance.drop_empty_mailboxes())
            await asyncio.sleep(0)
        await dropping
    assert publish.result().delivered_to == 2
    assert (first.got, second.got) == ([1], [0, 1])


async def test_a_lane_that_cannot_be_made_fails_for_itself_alone(relay: RelayCore, data_dir: Path) -> None:
    adapter = LanedAdapter()
    await relay.add_adapter(adapter)
    await relay.register_endpoint("relay.out.x")
    where = data_dir / "mailboxes" / subject_hash("relay.adapter.sample.x")
    where.write_text("in the way")
    result = await relay.publish("relay.out.x", 1, sender=SENDER)
    assert (result.delivered_to, adapter.got) == (1, [])
    with pytest.raises(StorageError):
        await relay.publish("relay.out.y.x", 1, sender=SENDER)


async def test_a_replacement_of_the_same_size_waits_for_the_slots_of_the_old_one(relay: RelayCore) -> None:
    turns, new_turns = Turns(), Turns()
    await relay.add_adapter(LanedAdapter(platform=turns, detached=True, max_in_flight=1, drain=3600.0))
    await send(relay, ("x", "x1"), ("y", "y1"))
    await until(lambda: turns.begun == ["x1"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relay_core.adapters.registry.DRAIN_TIMEOUT_SECS", 0.0)
        patch.setattr("relay_core.adapters.registry.STOP_TIMEOUT_SECS", 0.05)
        await relay.replace_adapter(LanedAdapter(platform=new_turns, detached=True, max_in_flight=1))
    await send(relay, ("z", "z1"))
    assert new_turns.begun == []
    turns.finish("x1")
    new_turns.finish("y1", "z1")
    await relay.idle()
    assert sorted(new_turns.begun) == ["y1", "z1"]


async def test_a_replacement_with_more_slots_uses_them_at_once(relay: RelayCore) -> None:
    turns, new_turns = Turns(), Turns()
    await relay.add_adapter(LanedAdapter(platform=turns, detached=True, max_in_flight=1, drain=3600.0))
    await send(relay, ("x", "x1"), ("y", "y1"))
    await until(lambda: turns.begun == ["x1"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relay_core.adapters.registry.DRAIN_TIMEOUT_SECS", 0.0)
        patch.setattr("relay_core.adapters.registry.STOP_TIMEOUT_SECS", 0.05)
        await relay.replace_adapter(LanedAdapter(platform=new_turns, detached=True, max_in_flight=2))
    await until(lambda: new_turns.begun == ["y1"])
    turns.finish("x1")
    new_turns.finish("y1")
    await relay.idle()


@pytest.mark.parametrize("after", [float("nan"), float("inf")])
async def test_a_platform_that_never_wants_to_be_asked_again_has_failed(relay: RelayCore, after: float) -> None:
    await relay.add_adapter(SampleAdapter(platform=Busy(1, retry_after=after)))
    await relay.publish("relay.out.x", 1, sender=SENDER)
    assert [letter.code for letter in await relay.dead_letters()] == ["adapter_failed"]


async def test_a_message_does_not_wait_beyond_its_time(relay: RelayCore, clock: FakeClock) -> None:
    await relay.add_adapter(SampleAdapter(platform=Busy(1, retry_after=7200)))
    await relay.publish("relay.out.x", 1, sender=SENDER, budget={"ttl": clock.now_ms() + 60_000})
    clock.advance(61)
    await relay.idle()
    assert [letter.code for letter in await relay.dead_letters()] == ["expired"]


async def test_a_crash_while_a_message_is_put_back_leaves_it_unbegun(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.add_adapter(SampleAdapter(platform=Busy(1)))
        result = await relay.publish("relay.out.x", 1, sender=SENDER)
        (box,) = [box for box in relay.bus.mailboxes if box.subject == "relay.adapter.sample"]
        name = f"{result.message_id}.json"
    path = box.maildir.path
    (path / "cur" / name).hardlink_to(path / "new" / name)  # linked back, and not yet removed
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        adapter = SampleAdapter()
        await relay.add_adapter(adapter)
        await relay.idle()
        assert (adapter.got, await relay.dead_letters()) == ([1], [])


@pytest.mark.parametrize("sender", ["relay.adapter.other", "relay.theirs.x", "relay.system.bus"])
async def test_an_adapter_cannot_speak_as_another_or_as_the_bus(relay: RelayCore, sender: str) -> None:
    other = SampleAdapter("other", ["relay.x"])
    other.senders = ("relay.theirs.>",)  # type: ignore[attr-defined]
    adapter = SampleAdapter()
    await relay.add_adapter(other)
    await relay.add_adapter(adapter)
    with pytest.raises(AccessDenied, match="is reserved for"):
        await adapter.context.publish("relay.y", 1, sender=sender)
