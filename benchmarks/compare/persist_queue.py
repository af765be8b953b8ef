"""persist-queue from PyPI: its queue in SQLite with acknowledgements, and its queue of files.

1. SQLite in WAL mode, with `synchronous` at its FULL: a sync for each `put`, `get` and `ack`, in both classes.
2. The file queue syncs once in a hundred messages, when it begins another file: it is in one class only.
3. A reader is a thread that blocks in `get`, in the same process; 64 in flight are 64 threads.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from benchmarks.compare.contestant import NO_SERVER, PAYLOAD, Contestant, Durability, Entry, in_threads

_STOP = "stop"


class Queue(Protocol):
    """What both queues can do."""

    def put(self, item: Any) -> object:
        """Store an item."""

    def get(self) -> Any:
        """Wait for an item."""


Make = Callable[[Path], tuple[Queue, Callable[[Any], object]]]
"""Makes a queue and the function that acknowledges an item."""


class PersistQueue:
    """Queues in a directory each."""

    def __init__(self, directory: Path, make: Make) -> None:
        self.pid = os.getpid()
        self._directory = directory
        self._make = make
        self._queues: dict[str, Queue] = {}

    async def make(self, subject: str) -> None:
        """Make a queue."""
        self._queues[subject], _ = self._make(self._directory / subject)

    async def publish(self, subject: str, count: int) -> None:
        """Put one message after the other."""
        queue = self._queues[subject]
        for _ in range(count):
            queue.put(PAYLOAD)

    async def burst(self, subject: str, count: int) -> None:
        """Put from many threads."""
        await in_threads(partial(self._queues[subject].put, PAYLOAD), count)

    @asynccontextmanager
    async def listen(self, subject: str, readers: int, handled: Callable[[], None]) -> AsyncIterator[None]:
        """Read in a thread, until an item that says to stop."""
        queue, acknowledge = self._make(self._directory / subject)
        self._queues[subject] = queue

        def read() -> None:
            while (item := queue.get()) != _STOP:
                handled()
                acknowledge(item)

        if readers != 1:
            raise RuntimeError("a message of a queue is for one reader")
        thread = Thread(target=read, daemon=True)
        thread.start()
        try:
            yield
        finally:
            while thread.is_alive():  # a `get` that is about to wait misses the first item, for ten seconds
                queue.put(_STOP)
                thread.join(0.1)


def _sqlite(path: Path) -> tuple[Queue, Callable[[Any], object]]:
    import persistqueue

    queue = persistqueue.SQLiteAckQueue(str(path), multithreading=True)
    return queue, queue.ack


def _files(path: Path) -> tuple[Queue, Callable[[Any], object]]:
    import persistqueue

    path.mkdir()
    queue = persistqueue.Queue(str(path), tempdir=str(path))
    return queue, lambda item: queue.task_done()


@asynccontextmanager
async def _open(directory: Path, durability: Durability, *, make: Make) -> AsyncIterator[Contestant]:
    yield PersistQueue(directory, make)


def _missing() -> str | None:
    return None if find_spec("persistqueue") else "pip install persist-queue"


def _version() -> str:
    return version("persist-queue")


_ALONE = "A message of a queue is for one reader; a fan-out is up to its user."

ENTRIES = {
    "persist-queue": Entry(
        "persist-queue, SQLite",
        "library",
        partial(_open, make=_sqlite),
        _version,
        _missing,
        cannot={"bare_client": NO_SERVER, "fan_out": _ALONE},
        remarks={
            "power": "A sync for each put, and two more for getting and acknowledging it. 64 threads, one connection.",
            "kill": "It syncs here too: there is no setting against it.",
        },
    ),
    "persist-queue-files": Entry(
        "persist-queue, files",
        "library",
        partial(_open, make=_files),
        _version,
        _missing,
        cannot={"bare_client": NO_SERVER, "fan_out": _ALONE},
        out_of_class={"power": "It syncs once in a hundred messages, and so has no figures in this class."},
    ),
}
