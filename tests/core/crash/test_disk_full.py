"""A full disk, for real: a tmpfs of two megabytes. Publishing is refused, nothing is torn, and it heals by itself."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from relay_core.core import RelayCore
from relay_core.deadletters import Code
from relay_core.envelope import Envelope, decode_envelope
from relay_core.errors import StorageError
from tests.core.crash.child import config

SUBJECT = "a.b"
Durability = Literal["os", "fsync"]
pytestmark = pytest.mark.parametrize("durability", ["os", "fsync"])


class Disk:
    """A small file system, and a file that takes up what is left of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data_dir = root / "relay"
        self._ballast = root / "ballast"

    def fill(self) -> None:
        """Leave no byte free."""
        with self._ballast.open("ab", buffering=0) as ballast, suppress(OSError):
            for size in (65536, 1):
                with suppress(OSError):
                    while True:
                        ballast.write(bytes(size))

    def free(self) -> None:
        """Give the space back."""
        self._ballast.unlink()

    def as_killed(self) -> Path:
        """Return a copy, on another disk, of what a kill at this moment would leave of an idle bus."""
        return Path(shutil.copytree(self.data_dir, self.root.parent / "killed"))

    def files(self, state: str) -> list[Path]:
        """Return the files of all mailboxes in a state."""
        return sorted(self.data_dir.glob(f"mailboxes/*/{state}/*"))

    def stored(self) -> list[Envelope]:
        """Return what is in new/; fails if any file there is torn."""
        return [decode_envelope(path.read_bytes()) for path in self.files("new")]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    root = tmp_path / "disk"
    root.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(root)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this machine mounts no tmpfs")
    yield Disk(root)
    subprocess.run(["umount", "-l", str(root)], check=True)


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
        assert numbers(disk.stored()) == acknowledged
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
            (box,) = core.mailboxes()
            assert box.degraded is None
            assert box.depth == len(disk.files("new"))
            for envelope in await core.claim(SUBJECT, limit=100_000):
                assert envelope.payload["n"] in acknowledged | {refused}
                await core.complete(SUBJECT, envelope.id)


async def test_what_was_refused_stays_away_also_after_a_restart(disk: Disk, durability: Durability) -> None:
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        acknowledged, _ = await publish_until_full(core)
        killed = await asyncio.to_thread(disk.as_killed)
    for data_dir in (disk.data_dir, killed):
        async with RelayCore(data_dir, config(durability)) as core:
            assert numbers(await core.inbox(SUBJECT, limit=100_000)) == acknowledged
            assert await core.dead_letters() == []


async def test_a_retry_with_the_same_dedupe_id_publishes_what_was_refused(disk: Disk, durability: Durability) -> None:
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        await asyncio.to_thread(disk.fill)
        acknowledged, refused = await publish_until_full(core, dedupe=True)
        disk.free()
        for number in acknowledged | {refused}:
            await core.publish(SUBJECT, {"n": number}, sender="s", dedupe_id=f"d{number}")
        assert sorted(envelope.payload["n"] for envelope in disk.stored()) == sorted(acknowledged | {refused})


async def test_a_dead_letter_that_finds_no_room_is_kept_and_parked_at_the_next_start(
    disk: Disk, durability: Durability
) -> None:
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await core.register_endpoint(SUBJECT)
        for number in range(3):
            await core.publish(SUBJECT, {"n": number, "x": "x" * 20_000}, sender="s")
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
        acknowledged, _ = await publish_until_full(core)
        with pytest.raises(StorageError):  # more than the journal has taken beforehand
            await core.publish(SUBJECT, "x" * 1_000_000, sender="s")
        await asyncio.to_thread(disk.fill)
        await core.subscribe(SUBJECT, handle)
        await core.idle()
        assert sorted(handled) == sorted(acknowledged)
        killed = await asyncio.to_thread(disk.as_killed)
    disk.free()
    for data_dir in (disk.data_dir, killed):
        async with RelayCore(data_dir, config(durability)) as core:
            await core.subscribe(SUBJECT, handle)
            await core.idle()
            assert sorted(handled) == sorted(acknowledged)


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


async def test_registering_an_endpoint_says_that_the_disk_is_full(disk: Disk, durability: Durability) -> None:
    async with RelayCore(disk.data_dir, config(durability)) as core:
        await asyncio.to_thread(disk.fill)
        with pytest.raises(StorageError) as caught:
            await register_until_full(core)
        assert (caught.value.code, caught.value.retryable) == ("storage_full", True)
        disk.free()
        await core.register_endpoint(SUBJECT)
        assert (await core.publish(SUBJECT, 1, sender="s")).delivered_to == 1
