"""What the event log tells of the bus itself, of pressure and of adapters: the stories that a report is made of."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core import Envelope, RelayConfig, RelayCore
from relay_core.config import BackpressureConfig, ReliabilityConfig
from relay_core.messages.subjects import subject_hash
from relay_core.records.events import Event, EventKind
from relay_core.testing import FakeClock
from tests.kit.adapters import SampleAdapter
from tests.kit.bus import SENDER, A, B, C
from tests.kit.events import EventReader

LIMITS = RelayConfig(
    durability="os",
    reliability=ReliabilityConfig(backpressure=BackpressureConfig(max_mailbox_size=5, pressure_warning_at=0.6)),
)


def told(data_dir: Path, *kinds: EventKind) -> list[Event]:
    """Return the events of some kinds, in the order in which they were written."""
    segments = sorted((data_dir / "events").rglob("*.jsonl"))
    return [event for path in segments for event in EventReader(path) if event.kind in kinds]


def episode(data_dir: Path) -> list[tuple[str | None, int | None]]:
    events = told(data_dir, EventKind.PRESSURE)
    assert all((event.target, event.subject, event.limit) == (subject_hash(A), A, 5) for event in events)
    return [(event.status, event.depth) for event in events]


async def fill(relay: RelayCore, count: int) -> None:
    for _ in range(count):
        await relay.publish(A, {}, sender=SENDER)


async def test_a_start_and_an_orderly_stop_are_told(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config=LIMITS, clock=clock):
        pass
    async with RelayCore(data_dir, config=LIMITS, clock=clock):
        pass
    assert [event.status for event in told(data_dir, EventKind.BUS)] == ["started", "stopped"] * 2


async def test_pressure_is_told_when_it_begins_when_it_is_critical_and_when_it_is_over(
    data_dir: Path, clock: FakeClock
) -> None:
    async with RelayCore(data_dir, config=LIMITS, clock=clock) as relay:
        await relay.register_endpoint(A)
        await fill(relay, 7)
        await relay.claim(A, limit=3)  # and nobody publishes any more
    assert episode(data_dir) == [("warning", 3), ("critical", 5), ("normal", 5)]


@pytest.mark.parametrize("limits", [{"maxMailboxSize": 50}, {"pressureWarningAt": 1.0}, {"enabled": False}], ids=str)
async def test_pressure_ends_when_the_limit_is_raised(data_dir: Path, clock: FakeClock, limits: dict[str, Any]) -> None:
    async with RelayCore(data_dir, config=LIMITS, clock=clock) as relay:
        await relay.register_endpoint(A)
        await fill(relay, 4)
        (data_dir / "config.json").write_bytes(orjson.dumps({"reliability": {"backpressure": limits}}))
        relay.bus.reload()
        await fill(relay, 1)  # and what is below the new warning begins no other episode
    assert episode(data_dir) == [("warning", 3), ("normal", 3)]


async def test_pressure_goes_on_when_the_limit_is_raised_too_little(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config=LIMITS, clock=clock) as relay:
        await relay.register_endpoint(A)
        await fill(relay, 5)
        (data_dir / "config.json").write_bytes(orjson.dumps({"reliability": {"backpressure": {"maxMailboxSize": 6}}}))
        relay.bus.reload()
        assert len(await relay.claim(A)) == 1  # four wait, and the warning is at 3.6
        await relay.idle()
        assert relay.bus.mailboxes.get(subject_hash(A)).episode is not None  # type: ignore[union-attr]
        await relay.claim(A)
    assert episode(data_dir) == [("warning", 3), ("normal", 4)]


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
async def test_bytes_are_the_payloads_in_every_event(data_dir: Path, clock: FakeClock, restarted: bool) -> None:
    async def fail(envelope: Envelope) -> None:
        raise ValueError("no")

    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(RelayCore(data_dir, config=LIMITS, clock=clock))
        for subject in (A, B, C):
            await relay.register_endpoint(subject)
            await relay.publish(subject, {"content": "hi"}, sender=SENDER)
        if restarted:
            await stack.aclose()
            relay = await stack.enter_async_context(RelayCore(data_dir, config=LIMITS, clock=clock))
        await relay.subscribe(A, lambda envelope: None)
        await relay.subscribe(B, fail)
        (taken,) = await relay.claim(C)
        await relay.complete(C, taken.id)
        await relay.idle()
        await relay.run_replay((await relay.plan_replay()).id)
        await relay.idle()
        spans = [span for letter in await relay.dead_letters() for span in await relay.trace(letter.message_id)]
    size = len(b'{"content":"hi"}')
    assert [span.size for span in spans] == [size]
    about_messages = [event for event in told(data_dir, *EventKind) if event.message_id is not None]
    assert {event.kind for event in about_messages} >= {
        "publish",
        "stored",
        "handled",
        "failed",
        "dead_letter",
        "replayed",
    }
    assert {(event.kind, event.bytes) for event in about_messages if event.bytes != size} == set()


async def test_each_rise_above_the_warning_is_an_episode_with_its_own_worst(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config=LIMITS, clock=clock) as relay:
        await relay.register_endpoint(A)
        await fill(relay, 5)
        await relay.claim(A, limit=3)
        await fill(relay, 2)
    assert episode(data_dir) == [("warning", 3), ("normal", 4), ("warning", 3)]


async def test_a_dispatcher_that_drains_a_mailbox_ends_its_pressure(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config=LIMITS, clock=clock) as relay:
        await relay.register_endpoint(A)
        await fill(relay, 4)
        await relay.subscribe(A, lambda envelope: None)
        await relay.idle()
    assert episode(data_dir) == [("warning", 3), ("normal", 3)]


async def test_what_happens_at_an_adapter_names_it(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config=LIMITS, clock=clock) as relay:
        await relay.add_adapter(SampleAdapter("chat", ["relay.human.chat.>"]))
        await relay.register_endpoint(A)
        await relay.publish("relay.human.chat.1", {}, sender=SENDER)
        await relay.publish(A, {}, sender=SENDER)
        await relay.idle()
    events = told(data_dir, EventKind.STORED, EventKind.HANDLED)
    assert [(event.kind, event.adapter) for event in events] == [
        ("stored", "chat"),
        ("handled", "chat"),
        ("stored", None),
    ]


@pytest.mark.parametrize("waiting", [4, 6])
async def test_mail_that_expires_ends_pressure_too(data_dir: Path, clock: FakeClock, waiting: int) -> None:
    async with RelayCore(data_dir, config=LIMITS, clock=clock) as relay:
        await relay.register_endpoint(A)
        await fill(relay, waiting)
        clock.advance(2 * 86_400)
        assert await relay.maintenance.expire() == min(waiting, 5)
    assert episode(data_dir)[-1][0] == "normal"
