"""A full disk, for real: a tmpfs of two megabytes. Publishing is refused, nothing is torn, and it heals by itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from relay_core.clock import parse_iso
from relay_core.config import DispatchConfig
from relay_core.core import RelayCore
from relay_core.errors import NotFound, StorageError
from relay_core.messages.dead_letter import Code, DeadLetter
from relay_core.messages.envelope import Envelope
from relay_core.testing import FakeClock
from tests.core.crash.child import config
from tests.core.crash.small_disk import Disk, mounted
from tests.kit.waiting import until

SUBJECT = "a.b"
Durability = Literal["os", "fsync"]
pytestmark = pytest.mark.parametrize("durability", ["os", "fsync"])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted("tmpfs", tmp_path) as disk:
        yield disk


async def publish_until_full(core: RelayCore, *, dedupe: bool = False) -> tuple[set[int], int]:
    """Publish until the disk refuses; return the numbers that were acknowledged, and the one that was not."""
    acknowledged: set[int] = set()
    for number in range(100_000):
        try:
            await core.publish(
                SUBJECT, {"n": number, "x": "x" * 1000}, sender="s", dedupe_id=f"d{number}" if dedupe else None
            )
        except StorageError as error:
            if (error.code, error.retryable) != ("storage_full", True):
                raise
            return acknowledged, number
        acknowledged.add(number)
    raise AssertionError("the disk never filled up")


async def register_until_full(core: RelayCore) -> None:
    for number in range(10_000):
        await core.register_endpoint(f"a.b{number}")


def numbers(envelopes: list[Envelope]) -> set[int]:
    return {envelope.payload["n"] for envelope in envelopes}


async def test_a_full_disk_refuses_and_leaves_nothing_half_written(disk: Disk, durability: Durability) -> None:
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        acknowledged, _ = await publish_until_full(core)
        for _ in range(10):  # more than the index may give back meanwhile
            with pytest.raises(StorageError, match="free some space"):
                await core.publish(SUBJECT, {"n": -1, "x": "x" * 500_000}, sender="s")
        assert numbers(await core.inbox(SUBJECT, limit=100_000)) == acknowledged
        assert numbers(disk.stored()) <= acknowledged  # the others are in the journal, until there is space
        assert disk.files("tmp") == []
        assert disk.files("failed") == []
        (box,) = core.mailboxes()
        assert box.depth == len(acknowledged)
        assert box.degraded


async def test_publishing_works_again_once_there_is_space(disk: Disk, durability: Durability) -> None:
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        for _ in range(2):
            await asyncio.to_thread(disk.fill)
            acknowledged, refused = await publish_until_full(core)
            disk.free()
            await core.publish(SUBJECT, {"n": refused}, sender="s")
            await core.idle()
            (box,) = core.mailboxes()
            assert box.degraded is None
            assert box.depth == len(disk.files("new"))
            for envelope in await core.claim(SUBJECT, limit=100_000):
                assert envelope.payload["n"] in acknowledged | {refused}
                await core.complete(SUBJECT, envelope.id)


async def test_what_was_refused_stays_away_also_after_a_restart(disk: Disk, durability: Durability) -> None:
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        await asyncio.to_thread(disk.fill, leave=500_000)
        acknowledged, _ = await publish_until_full(core)
        killed = await asyncio.to_thread(disk.as_killed)
    disk.free()
    for data_dir in (disk.data_dir, killed):
        async with RelayCore(data_dir, config(durability)) as core:
            assert numbers(await core.inbox(SUBJECT, limit=100_000)) == acknowledged
            assert await core.dead_letters() == []


async def test_a_retry_with_the_same_dedupe_id_publishes_a_refused_message(disk: Disk, durability: Durability) -> None:
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        await asyncio.to_thread(disk.fill)
        acknowledged, refused = await publish_until_full(core, dedupe=True)
        disk.free()
        for number in acknowledged | {refused}:
            await core.publish(SUBJECT, {"n": number}, sender="s", dedupe_id=f"d{number}")
        await core.idle()
        assert sorted(envelope.payload["n"] for envelope in disk.stored()) == sorted(acknowledged | {refused})


async def test_a_dead_letter_that_finds_no_room_is_kept_and_dead_lettered_at_the_next_start(
    disk: Disk, durability: Durability
) -> None:
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        for number in range(3):
            await core.publish(SUBJECT, {"n": number, "x": "x" * 20_000}, sender="s")
        await core.idle()
        await asyncio.to_thread(disk.fill)

        async def fail(envelope: Envelope) -> None:
            raise RuntimeError("no")

        await core.subscribe(SUBJECT, fail)
        await core.idle()
        # Where the journal had room for a record it may be there; no message is gone.
        assert len(disk.files("cur")) + len(disk.files("failed")) == 3
        assert disk.files("cur")
        assert disk.files("tmp") == []
    disk.free()
    async with RelayCore(disk.data_dir, config(durability)) as core:
        letters = await core.dead_letters()
        assert {letter.envelope.payload["n"] for letter in letters if letter.envelope} == {0, 1, 2}
        assert {letter.code for letter in letters} <= {Code.INTERRUPTED, Code.HANDLER_FAILED}
        assert disk.files("cur") == []


async def test_a_handler_still_runs_once_while_the_disk_is_full(disk: Disk, durability: Durability) -> None:
    handled: list[int] = []

    async def handle(envelope: Envelope) -> None:
        handled.append(envelope.payload["n"])

    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        await asyncio.to_thread(disk.fill, leave=800_000)
        acknowledged, _ = await publish_until_full(core)
        with pytest.raises(StorageError):  # more than the journal has taken beforehand
            await core.publish(SUBJECT, "x" * 1_000_000, sender="s")
        await asyncio.to_thread(disk.fill)
        await core.subscribe(SUBJECT, handle)
        await core.idle()
        before = sorted(handled)
        assert len(before) > 20  # as long as the journal has space for claims
        assert before == sorted(acknowledged)[: len(before)]
        killed = await asyncio.to_thread(disk.as_killed)
        disk.free()
    for data_dir in (disk.data_dir, killed):
        if data_dir == killed:
            handled[:] = before
        async with RelayCore(data_dir, config(durability)) as core:
            await core.subscribe(SUBJECT, handle)
            await core.idle()
            assert sorted(handled) == sorted(acknowledged)


async def test_what_waits_can_be_finished_while_the_disk_is_full(disk: Disk, durability: Durability) -> None:
    """That is what makes room."""
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        await publish_until_full(core)
        for envelope in await core.claim(SUBJECT, limit=50):
            await asyncio.to_thread(disk.fill)  # others take what becomes free
            await core.complete(SUBJECT, envelope.id)
        assert core.mailboxes()[0].claimed == 0


async def test_messages_without_space_for_their_files_are_handled_and_get_them_later(
    disk: Disk, durability: Durability
) -> None:
    """The journal has space for them, the mailbox has not."""
    handled: list[int] = []

    async def handle(envelope: Envelope) -> None:
        handled.append(envelope.payload["n"])

    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        await asyncio.to_thread(disk.take_names)
        for number in range(20):
            await core.publish(SUBJECT, {"n": number}, sender="s")
        await core.idle()
        (box,) = core.mailboxes()
        assert (box.depth, disk.files("new")) == (20, [])
        assert "No space left" in (box.degraded or "")
        first, second, _ = await core.claim(SUBJECT, 3)
        await core.complete(SUBJECT, first.id)
        killed = await asyncio.to_thread(disk.as_killed)
        disk.free()
        await core.idle()
        assert numbers(disk.stored()) == set(range(3, 20))
        assert len(disk.files("cur")) == 2
        await core.complete(SUBJECT, second.id)
        assert core.mailboxes()[0].degraded is None
    async with RelayCore(killed, config(durability)) as core:
        assert [letter.code for letter in await core.dead_letters()] == [Code.INTERRUPTED] * 2
        await core.subscribe(SUBJECT, handle)
        await core.idle()
    assert handled == list(range(3, 20))


async def test_index_and_events_fail_no_publish(disk: Disk, durability: Durability) -> None:
    """The mailboxes and the journal lie on a healthy disk; what is derived from them does not."""
    disk.data_dir.mkdir(mode=0o700)
    for name in ("mailboxes", "journal"):
        healthy = disk.root.parent / name
        for directory in (healthy, disk.data_dir / name):
            directory.mkdir(mode=0o700)
        mount = ["mount", "--bind", str(healthy), str(disk.data_dir / name)]
        await asyncio.to_thread(subprocess.run, mount, check=True)
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        await asyncio.to_thread(disk.fill)
        for number in range(50):
            result = await core.publish(SUBJECT, number, sender="s")
            assert result.delivered_to == 1
        assert len(await core.inbox(SUBJECT)) == 50
        await core.bus.index.flush()
        assert core.bus.index.dirty


async def test_registering_an_endpoint_on_a_full_disk_raises_storage_full(disk: Disk, durability: Durability) -> None:
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await asyncio.to_thread(disk.fill)
        with pytest.raises(StorageError) as caught:
            await register_until_full(core)
        assert (caught.value.code, caught.value.retryable) == ("storage_full", True)
        disk.free()
        await core.register_endpoint(SUBJECT)
        assert (await core.publish(SUBJECT, 1, sender="s")).delivered_to == 1


async def fail(envelope: Envelope) -> None:
    raise RuntimeError("no")


async def hang(envelope: Envelope) -> None:
    await asyncio.Event().wait()


async def by_handler(core: RelayCore, clock: FakeClock) -> None:
    await core.subscribe(SUBJECT, fail)
    await core.idle()


async def by_timeout(core: RelayCore, clock: FakeClock) -> None:
    await core.subscribe(SUBJECT, hang)
    await core.idle()


async def by_expiry(core: RelayCore, clock: FakeClock) -> None:
    clock.advance(2 * 3600)
    assert await core.claim(SUBJECT, 3) == []


STUCK: dict[str, tuple[Callable[[RelayCore, FakeClock], Coroutine[Any, Any, None]], str, str]] = {
    "handler": (by_handler, Code.HANDLER_FAILED, "fail: RuntimeError: no"),
    "timeout": (by_timeout, Code.TIMEOUT, "hang: no answer within 0.01 s"),
    "expiry": (by_expiry, Code.EXPIRED, "message expired (TTL)"),
}
"""How messages end while the disk is full, and the codes of their dead letters afterwards."""


@asynccontextmanager
async def a_full_disk(disk: Disk, durability: Durability, clock: FakeClock) -> AsyncIterator[RelayCore]:
    """Yield a bus with three messages on a disk that has no room for their dead letters."""
    settings = config(durability).model_copy(update={"dispatch": DispatchConfig(handler_timeout_ms=10)})
    async with RelayCore(disk.data_dir, settings, clock=clock) as core:
        await core.register_endpoint(SUBJECT)
        for number in range(3):
            await core.publish(SUBJECT, {"n": number, "x": "x" * 100_000}, sender="s")
        await core.idle()
        await asyncio.to_thread(disk.fill)
        yield core


async def dead_letters(core: RelayCore, clock: FakeClock, count: int) -> list[DeadLetter]:
    """Return the dead letters when there are so many, as time goes by."""

    async def are_there() -> bool:
        clock.advance(1)
        return len(await core.dead_letters()) >= count

    await until(are_there)
    return await core.dead_letters()


@pytest.mark.parametrize("how", STUCK)
async def test_a_refused_dead_letter_is_written_once_there_is_space(
    disk: Disk, durability: Durability, clock: FakeClock, how: str
) -> None:
    end, code, reason = STUCK[how]
    async with a_full_disk(disk, durability, clock) as core:
        await end(core, clock)
        (box,) = core.mailboxes()
        assert box.claimed
        assert "cannot be written" in (box.degraded or "")
        assert len(disk.files("cur")) == box.claimed
        failed_at = clock.now_ms()
        disk.free()
        letters = await dead_letters(core, clock, 3)
        assert {letter.envelope.payload["n"] for letter in letters if letter.envelope} == {0, 1, 2}
        assert {(letter.code, letter.reason) for letter in letters} == {(code, reason)}
        assert all(parse_iso(letter.failed_at) <= failed_at for letter in letters)
        (box,) = core.mailboxes()
        assert (box.claimed, box.failed, box.degraded) == (0, 3, None)
        assert disk.files("cur") == disk.files("tmp") == []


async def test_a_message_that_waits_to_be_dead_lettered_can_be_completed_or_failed(
    disk: Disk, durability: Durability, clock: FakeClock
) -> None:
    async with a_full_disk(disk, durability, clock) as core:
        await by_handler(core, clock)
        first, *others = sorted(path.stem for path in disk.files("cur"))
        with pytest.raises(StorageError) as caught:
            await core.fail(SUBJECT, first, "an operator said so")
        assert (caught.value.code, caught.value.retryable) == ("storage_full", True)
        disk.free()
        await core.fail(SUBJECT, first, "an operator said so")
        done = others[:1]
        for message_id in done:
            assert await core.complete(SUBJECT, message_id)
        for message_id in [first, *done]:
            for verb in (core.complete(SUBJECT, message_id), core.fail(SUBJECT, message_id, "again")):
                with pytest.raises(NotFound):
                    await verb
        letters = await dead_letters(core, clock, 3 - len(done))
        reasons = {letter.message_id: letter.reason for letter in letters}
        assert reasons.pop(first) == "an operator said so"
        assert set(reasons.values()) == {"fail: RuntimeError: no"}
        assert not set(done) & {letter.message_id for letter in letters}
        assert core.mailboxes()[0].claimed == 0
    async with RelayCore(disk.data_dir, config(durability)) as core:
        assert {letter.message_id for letter in await core.dead_letters()} == {first, *reasons}


async def test_a_failure_that_waits_when_the_bus_closes_is_dead_lettered_if_there_is_space_by_then(
    disk: Disk, durability: Durability, clock: FakeClock
) -> None:
    async with a_full_disk(disk, durability, clock) as core:
        await by_handler(core, clock)
        disk.free()
    async with RelayCore(disk.data_dir, config(durability)) as core:
        assert [letter.code for letter in await core.dead_letters()] == [Code.HANDLER_FAILED] * 3


async def test_a_start_on_a_nearly_full_disk_dead_letters_interrupted_messages_once_there_is_space(
    disk: Disk, durability: Durability, clock: FakeClock
) -> None:
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        await core.publish(SUBJECT, {"x": "x" * 800_000}, sender="s")
        (envelope,) = await core.claim(SUBJECT)
    await asyncio.to_thread(disk.fill, leave=400_000)
    async with RelayCore(disk.data_dir, config(durability), clock=clock) as core:
        assert core.mailboxes()[0].claimed == 1
        assert await core.dead_letters() == []
        disk.free()
        (letter,) = await dead_letters(core, clock, 1)
        assert (letter.message_id, letter.code) == (envelope.id, Code.INTERRUPTED)


async def test_a_file_that_is_no_message_is_set_aside_once_there_is_space(
    disk: Disk, durability: Durability, clock: FakeClock
) -> None:
    async with a_full_disk(disk, durability, clock) as core:
        for path in disk.files("new"):
            os.truncate(path, 1000)
        await asyncio.to_thread(disk.fill)
        assert await core.claim(SUBJECT, 3) == []
        disk.free()
        letters = await dead_letters(core, clock, 3)
        assert {letter.code for letter in letters} == {Code.MALFORMED}
        assert disk.files("cur") == disk.files("new") == []


async def test_closed_segments_of_the_journal_are_the_first_to_go(disk: Disk, durability: Durability) -> None:
    """What only a lost index would need never keeps a message from being stored."""
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        for number in range(20):
            await core.publish(SUBJECT, "x" * 20_000, sender="s", dedupe_id=f"d{number}")
        for envelope in await core.claim(SUBJECT, limit=20):
            await core.complete(SUBJECT, envelope.id)
    kept = disk.data_dir / "journal" / "kept"
    assert sum(path.stat().st_size for path in kept.iterdir()) > 400_000
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.publish(SUBJECT, "x", sender="s", dedupe_id="first")  # the journal takes room ahead
        await asyncio.to_thread(disk.fill)
        for number in range(5):
            await core.publish(SUBJECT, "x" * 30_000, sender="s", dedupe_id=f"later {number}")
        await core.idle()
        assert len(disk.stored()) == 6
    assert all(path.stat().st_size < 400_000 for path in kept.iterdir())
