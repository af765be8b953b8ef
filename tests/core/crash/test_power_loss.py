"""Power loss, for real: an ext4 file system on a loop device is shut down without writing its log back.

What the kernel still had in memory is gone, as when the plug is pulled; SIGKILL alone cannot show that.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from relay_core.core import RelayCore
from relay_core.errors import StorageError
from relay_core.journal.journal import Journal
from relay_core.messages.dead_letter import Code
from relay_core.messages.envelope import Envelope
from tests.core.crash.child import ENDPOINTS, FLAKY, GOOD, KEEP, LATE, SUBJECTS, config
from tests.core.crash.ledger import Ledger, Nursery
from tests.kit.waiting import until

FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("I", 2)


class Disk:
    """A disk whose plug can be pulled."""

    def __init__(self, directory: Path) -> None:
        self._image = directory / "disk.img"
        self.root = directory / "disk"
        self.root.mkdir()
        with self._image.open("wb") as image:
            image.truncate(96 * 1024 * 1024)
        self._run("mkfs.ext4", "-q", "-F", str(self._image))
        self.mount()

    def mount(self) -> None:
        """Plug it in. The kernel commits nothing by itself every 5 s: only what is synced is on it."""
        self._run("mount", "-o", "loop,commit=300", str(self._image), str(self.root))

    def plug_in_again(self) -> None:
        """Take the disk out and mount a copy of it.

        Not the same image: a process that happened to copy our mounts (unshare) keeps the dead file system in use,
        and mounting its image again would give that one back.
        """
        self._run("umount", str(self.root))
        copy = self._image.with_name(f"after-{self._image.name}")
        self._run("cp", "--sparse=always", str(self._image), str(copy))
        copy.rename(self._image)
        self.mount()

    def pull_the_plug(self) -> None:
        """Lose everything that is not on the disk yet; every further write is an error."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def settle(self) -> None:
        """Write everything to the disk."""
        self._run("sync", "-f", str(self.root))

    def remove(self) -> None:
        """Leave no mount and no loop device behind."""
        if os.path.ismount(self.root):
            with suppress(subprocess.CalledProcessError):
                self._run("umount", "-l", str(self.root))

    @staticmethod
    def _run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("power loss needs root and mkfs.ext4")
    try:
        made = Disk(tmp_path)
    except (subprocess.CalledProcessError, OSError) as error:
        pytest.skip(f"this machine mounts no loop device: {getattr(error, 'stderr', None) or error}")
    yield made
    made.remove()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


def prepare(disk: Disk, tmp_path: Path, durability: Literal["os", "fsync"]) -> Ledger:
    """Return the ledger of a bus that was started and stopped, and of which everything is on the disk."""
    ledger = Ledger(disk.root / "relay", tmp_path / "handled.log", durability)

    async def begin() -> None:
        async with RelayCore(ledger.data_dir, config(durability)) as core:
            for subject in ENDPOINTS:
                await core.register_endpoint(subject)

    asyncio.run(begin())
    disk.settle()
    return ledger


async def read_all(ledger: Ledger) -> None:
    """Start a bus and read all messages, which quarantines torn files."""
    async with RelayCore(ledger.data_dir, config(ledger.durability)) as core:
        for endpoint in core.endpoints():
            await core.inbox(endpoint.subject, limit=100_000)


def lose_power(ledger: Ledger, nursery: Nursery, disk: Disk, *, acknowledged: int, **wishes: object) -> None:
    """Run a job, pull the plug once so many publishes were acknowledged, and plug the disk in again."""
    job = ledger.job(rounds=1000, power_fails=True, **wishes)
    ledger.run(nursery, job, cut=disk.pull_the_plug, cut_after=acknowledged)
    disk.plug_in_again()


@pytest.mark.parametrize(
    "subjects",
    [(KEEP,), (GOOD,), (FLAKY, KEEP), SUBJECTS],
    ids=["waiting", "handled", "dead-lettered and replayed", "everything at once"],
)
def test_fsync_loses_nothing_that_was_acknowledged(
    disk: Disk, nursery: Nursery, tmp_path: Path, subjects: tuple[str, ...]
) -> None:
    ledger = prepare(disk, tmp_path, "fsync")
    chance = random.Random(len(subjects))
    for turn in range(3):
        wishes = ({}, {"segment_bytes": 64 * 1024}, {"segment_bytes": 16 * 1024, "reuses": True})[turn % 3]
        lose_power(ledger, nursery, disk, acknowledged=chance.randint(20, 250), subjects=subjects, seed=turn, **wishes)
        ledger.check(power_lost=True, retry=chance)
    assert len(ledger.acknowledged) > 60


def test_os_loses_what_was_acknowledged(disk: Disk, nursery: Nursery, tmp_path: Path) -> None:
    """The same test sees the losses that fsync prevents."""
    ledger = prepare(disk, tmp_path, "os")
    for _ in range(3):
        lose_power(ledger, nursery, disk, acknowledged=300, subjects=(KEEP,))
        asyncio.run(read_all(ledger))
        if ledger.lost():
            return
    raise AssertionError("nothing was lost without fsync: this test cannot see losses")


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_a_disk_that_fails_acknowledges_nothing_and_closes(
    disk: Disk, durability: Literal["os", "fsync"]
) -> None:
    async with RelayCore(disk.root / "relay", config(durability)) as core:
        await core.register_endpoint("a.b")
        await core.publish("a.b", 1, sender="s")
        await asyncio.to_thread(disk.pull_the_plug)
        for _ in range(3):
            with pytest.raises(StorageError) as caught:
                await core.publish("a.b", 2, sender="s")
            assert not caught.value.retryable
        (box,) = core.mailboxes()
        assert box.depth == 1
        assert box.degraded
        with pytest.raises(StorageError):
            await core.register_endpoint("c.d")


class Syncs:
    """Counts the syncs of the journal that have come back."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self, fd: int) -> None:
        os.fdatasync(fd)
        self.done += 1


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    found = Syncs()
    defaults = Journal.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "fdatasync", found)
    return found


class Idle:
    """A bus on which one thing happens, and then nothing."""

    def __init__(self, core: RelayCore) -> None:
        self.core = core
        self.release = asyncio.Event()

    async def handled(self) -> None:
        await self.core.subscribe(KEEP, self._handle)
        await self.core.idle()

    async def begun(self) -> None:
        entered = asyncio.Event()

        async def handle(_: Envelope) -> None:
            entered.set()
            await self.release.wait()

        await self.core.subscribe(KEEP, handle)
        await entered.wait()

    async def claimed(self) -> None:
        await self.core.claim(KEEP)

    async def purged(self) -> None:
        assert await self.core.purge_dead_letters() == 1

    async def completed(self) -> None:
        (envelope,) = await self.core.claim(KEEP)  # in the same step: one sync for both
        await self.core.complete(KEEP, envelope.id)

    async def _handle(self, _: Envelope) -> None:
        pass


IDLE: dict[str, tuple[Callable[[Idle], Coroutine[Any, Any, None]], str, list[str]]] = {
    "handled": (Idle.handled, KEEP, []),
    "completed": (Idle.completed, KEEP, []),
    "purged": (Idle.purged, LATE, []),
    "begun": (Idle.begun, KEEP, [Code.INTERRUPTED]),
    "claimed": (Idle.claimed, KEEP, [Code.INTERRUPTED]),
}
"""What happens last → how, to a message of which subject, and the dead letters that it leaves after a power loss."""


async def lose_power_when_idle(disk: Disk, case: str, syncs: Syncs | None) -> tuple[int, list[str]]:
    """Cut the power once what happened last is synced, or at once; return what waits then, and the dead letters."""
    happen, subject, _ = IDLE[case]
    data_dir = disk.root / "relay"
    async with RelayCore(data_dir, config("fsync")) as core:
        await core.register_endpoint(KEEP)
        await core.publish(subject, 1, sender="s")
        await asyncio.to_thread(disk.settle)
        idle = Idle(core)
        before = syncs.done if syncs is not None else 0
        await happen(idle)
        if syncs is not None:
            await until(lambda: syncs.done > before)
        await asyncio.to_thread(disk.pull_the_plug)
        idle.release.set()
    await asyncio.to_thread(disk.plug_in_again)
    async with RelayCore(data_dir, config("fsync")) as core:
        return len(await core.inbox(KEEP)), [letter.code for letter in await core.dead_letters()]


@pytest.mark.parametrize("case", IDLE)
async def test_ends_and_claims_survive_a_power_loss_of_an_idle_bus(disk: Disk, syncs: Syncs, case: str) -> None:
    assert await lose_power_when_idle(disk, case, syncs) == (0, IDLE[case][2])


@pytest.mark.parametrize("case", IDLE)
async def test_without_that_sync_it_is_as_if_it_had_not_happened(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The same test sees what the sync prevents."""
    monkeypatch.setattr("relay_core.journal.commit.SYNC_WITHIN_SECS", 3600.0)
    assert await lose_power_when_idle(disk, case, None) != (0, IDLE[case][2])
