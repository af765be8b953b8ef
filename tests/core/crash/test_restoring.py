"""A full disk and the journal: messages only in the journal are restored without a restart, and its space is freed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core.core import RelayCore
from relay_core.journal.journal import Durability, Journal
from relay_core.journal.segment import encode_record, read_segment, segments
from relay_core.messages.dead_letter import encode_dead_letter
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import subject_hash
from relay_core.testing import FakeClock
from tests.core.crash.child import config
from tests.core.crash.small_disk import Disk, mounted
from tests.kit.waiting import until

BOTH = ("a.b", "a.c")
BIG = "x" * 100_000
pytestmark = pytest.mark.parametrize("durability", ["os", "fsync"])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted("tmpfs", tmp_path) as disk:
        yield disk


async def leave_in_journal(disk: Disk, durability: Durability, clock: FakeClock, *subjects: str) -> list[str]:
    """Publish, and leave what a kill (os) or a power loss (fsync) may: the lines, and no files; return the ids."""
    async with RelayCore(disk.data_dir, config(durability), clock=clock) as core:
        for subject in BOTH:
            await core.register_endpoint(subject)
        for number, subject in enumerate(subjects):
            await core.publish(subject, {"n": number, "x": BIG}, sender="s", dedupe_id=f"d{number}")
        records = list(lines(disk))
        await core.idle()
        written = [path.stem for path in disk.files("new")]
    for path in [*disk.files("new"), *disk.data_dir.glob("journal/kept/*")]:  # the latter would give way
        path.unlink()
    put(disk, durability, records)
    return sorted(set(written))


def lines(disk: Disk) -> Iterator[dict[str, Any]]:
    for sequence, path in segments(disk.data_dir / "journal"):
        yield from read_segment(sequence, path)


def put(disk: Disk, durability: Durability, records: list[dict[str, Any]]) -> None:
    """Append a segment to the journal of a bus that does not run."""
    journal = Journal(disk.data_dir / "journal", durability)
    journal.open()
    journal.append([orjson.dumps(record) for record in records])
    os.ftruncate(journal._fd, journal._offset)  # what it takes ahead belongs to the disk here
    journal.close()


async def as_time_goes_by(clock: FakeClock, happened: Any) -> None:
    async def has_happened() -> bool:
        clock.advance(1)
        return bool(happened())

    await until(has_happened)


def depths(core: RelayCore) -> dict[str, int]:
    return {box.subject: box.depth for box in core.mailboxes()}


async def test_they_come_back_in_order_and_once(disk: Disk, durability: Durability, clock: FakeClock) -> None:
    ids = await leave_in_journal(disk, durability, clock, "a.b", "a.b", "a.b")
    await asyncio.to_thread(disk.fill)
    clock.jump_wall(-60)  # and yet what is published next is younger
    async with RelayCore(disk.data_dir, config(durability), clock=clock) as core:
        assert depths(core) == {"a.b": 3, "a.c": 0}  # held in memory
        old = [sequence for sequence, _ in segments(disk.data_dir / "journal")]
        disk.free()
        await core.publish("a.b", {"n": 3, "x": ""}, sender="s")
        await as_time_goes_by(clock, lambda: depths(core)["a.b"] == 4)
        claimed = await core.claim("a.b", limit=10)
        assert [envelope.payload["n"] for envelope in claimed] == [0, 1, 2, 3]
        assert [envelope.id for envelope in claimed[:3]] == ids
        for envelope in claimed:
            await core.complete("a.b", envelope.id)
        await as_time_goes_by(
            clock, lambda: core.mailboxes()[0].degraded is None
        )  # the writer may have met the full disk
        await as_time_goes_by(
            clock, lambda: not (set(old[:-1]) & {sequence for sequence, _ in segments(core.bus.journal.directory)})
        )
        killed = await asyncio.to_thread(disk.as_killed)
    for data_dir in (disk.data_dir, killed):
        async with RelayCore(data_dir, config(durability), clock=clock) as core:
            assert depths(core) == {"a.b": 0, "a.c": 0}
            assert await core.dead_letters() == []
            again = await core.publish("a.b", {"n": 0, "x": BIG}, sender="s", dedupe_id="d0")
            assert again.message_id == ids[0]


async def test_one_that_was_begun_is_not_offered_again(disk: Disk, durability: Durability, clock: FakeClock) -> None:
    begun, waiting = await leave_in_journal(disk, durability, clock, "a.b", "a.b")
    put(disk, durability, [{"id": begun, "ops": [["begun", subject_hash("a.b"), begun]]}])
    await asyncio.to_thread(disk.fill)
    async with RelayCore(disk.data_dir, config(durability), clock=clock) as core:
        assert [envelope.id for envelope in await core.inbox("a.b")] == [waiting]
        disk.free()
        await as_time_goes_by(clock, lambda: core.mailboxes()[0].failed == 1)
        assert [(letter.message_id, letter.code) for letter in await core.dead_letters()] == [(begun, "interrupted")]
        assert [envelope.id for envelope in await core.claim("a.b", limit=9)] == [waiting]


async def test_their_subscriber_gets_them(disk: Disk, durability: Durability, clock: FakeClock) -> None:
    await leave_in_journal(disk, durability, clock, "a.b", "a.b")
    await asyncio.to_thread(disk.fill)
    got: list[int] = []

    async def take(envelope: Envelope) -> None:
        got.append(envelope.payload["n"])

    async with RelayCore(disk.data_dir, config(durability), clock=clock) as core:
        await core.subscribe("a.b", take)
        disk.free()
        await as_time_goes_by(clock, lambda: len(got) == 2)
        await core.idle()
    assert got == [0, 1]


@pytest.mark.parametrize("before", ["os", "fsync"])
async def test_a_copy_that_was_handled_is_not_made_again_with_the_one_that_found_no_room(
    disk: Disk, before: Durability, durability: Durability, clock: FakeClock
) -> None:
    (message_id,) = await leave_in_journal(disk, before, clock, "a.*")
    await asyncio.to_thread(disk.fill, leave=150_000)
    async with RelayCore(disk.data_dir, config(durability), clock=clock) as core:
        assert depths(core) == dict.fromkeys(BOTH, 1)
        first, second = BOTH
        (envelope,) = await core.claim(first)
        await core.complete(first, envelope.id)
        killed = await asyncio.to_thread(disk.as_killed)
    for data_dir in (killed, disk.data_dir):
        async with RelayCore(data_dir, config(durability), clock=clock) as core:
            await as_time_goes_by(clock, lambda core=core: depths(core) == {first: 0, second: 1})
            assert [envelope.id for envelope in await core.claim(second)] == [message_id]
            await core.complete(second, message_id)
            assert await core.claim(first) == []


async def test_a_dead_letter_that_found_no_room_is_not_offered_meanwhile(
    disk: Disk, durability: Durability, clock: FakeClock
) -> None:
    """The journal has it as failed; its file is still in its old place."""
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint("a.b")
        sent = await core.publish("a.b", {"n": 0, "x": BIG}, sender="s")
    for kept in disk.data_dir.glob("journal/kept/*"):
        kept.unlink()
    (path,) = disk.files("new")
    letter = encode_dead_letter(
        path.read_bytes(),
        reason="as it was said",
        code="handler_failed",
        failed_ms=clock.now_ms(),
        endpoint_hash=subject_hash("a.b"),
    )
    line = encode_record(sent.message_id, [("failed", subject_hash("a.b"), sent.message_id, letter)])
    put(disk, durability, [orjson.loads(line)])
    await asyncio.to_thread(disk.fill)
    got: list[Envelope] = []

    async def take(envelope: Envelope) -> None:
        got.append(envelope)

    async with RelayCore(disk.data_dir, config(durability), clock=clock) as core:
        await core.subscribe("a.b", take)
        await core.idle()
        disk.free()
        await as_time_goes_by(clock, lambda: core.mailboxes()[0].failed)
        (found,) = await core.dead_letters()
        assert (found.message_id, found.code, found.reason) == (sent.message_id, "handler_failed", "as it was said")
        assert core.mailboxes()[0].failed == 1
    assert (got, disk.files("new"), disk.files("cur")) == ([], [], [])


async def test_a_stop_with_no_room_for_another_segment_leaves_nothing_to_be_carried_out(
    disk: Disk, durability: Durability
) -> None:
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint("a.b")
        sent = await core.publish("a.b", 1, sender="s", dedupe_id="d")
        await asyncio.to_thread(disk.take_names)
    assert segments(disk.data_dir / "journal") == []
    disk.free()
    async with RelayCore(disk.data_dir, config(durability)) as core:
        assert (await core.publish("a.b", 1, sender="s", dedupe_id="d")).message_id == sent.message_id
        assert depths(core) == {"a.b": 1}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_the_journal_takes_ahead_refuses_no_message(
    tmp_path: Path, durability: Durability, when: str
) -> None:
    """It takes room ahead before others fill the disk, or when there is little more than that."""
    with mounted("tmpfs", tmp_path, megabytes=8) as disk:
        async with RelayCore(disk.data_dir, config(durability)) as core:
            await core.register_endpoint("a.b")
            size = 8000
            if when == "before":
                await core.publish("a.b", 1, sender="s", dedupe_id="first")
                await asyncio.to_thread(disk.fill)
            else:
                await asyncio.to_thread(disk.fill, leave=1_750_000)
                size = 300_000
            for number in range(2):
                sent = await core.publish("a.b", "x" * size, sender="s", dedupe_id=f"d{number}")
                assert (sent.delivered_to, sent.rejected) == (1, None)
