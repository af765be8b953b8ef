"""The floor: the bare loop of benchmarks/rig/floor.py, the least that any Maildir costs.

It has no readers. For the fan-out it writes ten files, and the same loop then reads and removes them: the work of ten
readers, without waking them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.compare.contestant import NO_SERVER, PAYLOAD, Contestant, Durability, Entry, in_threads
from benchmarks.rig import floor


class Floor:
    """Files, written by hand."""

    def __init__(self, directory: Path, durability: Durability) -> None:
        self.pid = os.getpid()
        self._directory = directory
        self._sync = durability == "power"
        self._boxes: dict[str, list[Path]] = {}
        self._handled: Callable[[], None] | None = None

    async def make(self, subject: str) -> None:
        """Make a mailbox."""
        self._boxes[subject] = [floor.make_mailbox(self._directory, subject)]

    async def publish(self, subject: str, count: int) -> None:
        """Write the files one after the other."""
        floor.write(self._boxes[subject], floor.messages(subject, count), sync=self._sync)

    async def burst(self, subject: str, count: int) -> None:
        """Write the files from threads if each waits for a sync; otherwise one loop is faster."""
        boxes, mail = self._boxes[subject], floor.messages(subject, count)
        if self._sync:
            work = iter(mail)
            await in_threads(lambda: floor.write(boxes, [next(work)], sync=True), count)
        else:
            floor.write(boxes, mail)
        if self._handled is not None:
            _read(boxes, mail, self._handled)

    @asynccontextmanager
    async def listen(self, subject: str, readers: int, handled: Callable[[], None]) -> AsyncIterator[None]:
        """Make as many mailboxes as there are readers."""
        self._boxes[subject] = [floor.make_mailbox(self._directory, f"{subject}.{n}") for n in range(readers)]
        self._handled = handled
        try:
            yield
        finally:
            self._handled = None


def _read(boxes: list[Path], mail: list[floor.Message], handled: Callable[[], None]) -> None:
    for box in boxes:
        for message_id, _ in mail:
            path = f"{box}/new/{message_id}.json"
            Path(path).read_bytes()
            handled()
            os.unlink(path)


@asynccontextmanager
async def _open(directory: Path, durability: Durability) -> AsyncIterator[Contestant]:
    if floor.PAYLOAD != PAYLOAD:
        raise RuntimeError("the floor writes a different payload")
    yield Floor(directory, durability)


ENTRIES = {
    "floor": Entry(
        "bare Maildir (the floor)",
        "library",
        _open,
        lambda: "a loop",
        cannot={
            "bare_client": NO_SERVER,
            "latency": "A loop that writes files wakes no reader.",
            "memory": "It holds nothing.",
        },
        remarks={
            "power": "Two syncs a message, file and directory; for 64 in flight, 64 threads. For the fan-out one "
            "process writes ten files, then reads and removes them.",
            "kill": "For 64 in flight still one loop, which is faster than threads where nothing waits.",
        },
    )
}
