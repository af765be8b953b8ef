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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from relay_core.core import RelayCore
from relay_core.errors import StorageError
from tests.core.crash.child import ENDPOINTS, FLAKY, GOOD, KEEP, SUBJECTS, config
from tests.core.crash.ledger import Ledger, Nursery

pytestmark = pytest.mark.serial

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
        """Plug it in."""
        self._run("mount", "-o", "loop", str(self._image), str(self.root))

    def plug_in_again(self) -> None:
        """Take the disk out and mount a copy of it.

        Not the same image: whoever happened to copy our mounts (unshare) keeps the dead file system in use,
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
    """Start a bus and read all mail, which sets aside what is torn."""
    async with RelayCore(ledger.data_dir, config(ledger.durability)) as core:
        for endpoint in core.endpoints():
            await core.inbox(endpoint.subject, limit=100_000)


def lose_power(ledger: Ledger, nursery: Nursery, disk: Disk, *, acknowledged: int, **wishes: object) -> None:
    """Run a job, pull the plug once so many publishes were acknowledged, and plug the disk in again."""
    ledger.run(nursery, ledger.job(rounds=1000, **wishes), cut=disk.pull_the_plug, cut_after=acknowledged)
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
        wishes = {"segment_bytes": 64 * 1024} if turn % 2 else {}
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
