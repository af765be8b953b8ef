"""The standard library's mailbox.Maildir: files as the floor has them, written with its `add`.

`add` always syncs the file and never the directory. To survive a power loss a message also needs a sync of the
directory, which this contestant adds in that class.
"""

from __future__ import annotations

import json
import mailbox
import os
import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from benchmarks.compare.contestant import NO_SERVER, PAYLOAD, Contestant, Durability, Entry, in_threads


class Mailbox:
    """A Maildir of the standard library."""

    def __init__(self, directory: Path, durability: Durability) -> None:
        self.pid = os.getpid()
        self._directory = directory
        self._sync = durability == "power"
        self._boxes: dict[str, tuple[mailbox.Maildir, int]] = {}

    async def make(self, subject: str) -> None:
        """Make a mailbox."""
        path = self._directory / subject
        self._boxes[subject] = mailbox.Maildir(path), os.open(path / "new", os.O_RDONLY)

    async def publish(self, subject: str, count: int) -> None:
        """Add one message after the other."""
        for _ in range(count):
            self._add(subject)

    async def burst(self, subject: str, count: int) -> None:
        """Add from many threads."""
        await in_threads(lambda: self._add(subject), count)

    def close(self) -> None:
        """Close the directories."""
        for _, directory in self._boxes.values():
            os.close(directory)

    def _add(self, subject: str) -> None:
        box, directory = self._boxes[subject]
        box.add(json.dumps(PAYLOAD).encode())
        if self._sync:
            os.fsync(directory)


@asynccontextmanager
async def _open(directory: Path, durability: Durability) -> AsyncIterator[Contestant]:
    with closing(Mailbox(directory, durability)) as contestant:
        yield contestant


ENTRIES = {
    "mailbox": Entry(
        "`mailbox.Maildir`",
        "library",
        _open,
        lambda: f"Python {platform.python_version()}",
        cannot={
            "bare_client": NO_SERVER,
            "fan_out": "A mailbox has one reader; a fan-out is up to its user.",
            "latency": "It wakes no reader: readers poll.",
        },
        remarks={
            "power": "`add` syncs the file; the benchmark syncs the directory, which `add` does not. 64 threads.",
            "kill": "`add` syncs every file here too: there is no option against it. 64 threads.",
        },
    )
}
