"""A process that publishes, and marks each acknowledgement in the log of its disk.

Run as ``python -m tests.power.publisher`` with a `Life` as JSON. Its marks::

    ack 7             the publish of number 7 has returned
    handled 7         a handler has number 7
    created 12.log    a journal segment has this name
    named 12.log ...  the journal's directory was synced after these were created

Segments are marked because ext4 makes the name of a new file durable with the file's own sync; other file systems need
the sync of the directory. The calls are watched from outside; the bus knows nothing of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from tests.power.disk import mark

KEEP = "power.keep"
"""It has no consumer."""
DONE = "power.done"
"""Handled at once."""
BOTH = "power.*"
NOWHERE = "nowhere.at.all"
"""No endpoint: a dead letter."""
SUBJECTS = (KEEP, DONE, BOTH, KEEP, NOWHERE)

Sync: TypeAlias = Literal["fdatasync", "directory"]


@dataclass
class Life:
    """What one process does."""

    data_dir: str
    disk: str
    first: int
    """The first number to publish."""
    count: int
    lanes: int
    """How many publishes are under way at a time."""
    seed: int
    segment_bytes: int
    kept_bytes: int
    """How many bytes of closed segments are kept."""
    killed: bool
    """Whether it kills itself before the end."""
    without: Sync | None = None
    """A sync that is left out: the losses must be seen."""

    def to_json(self) -> str:
        """Return it as the process reads it."""
        return json.dumps(asdict(self))


def subject(number: int) -> str:
    """Return where a number is published to."""
    return SUBJECTS[number // 4 % len(SUBJECTS)]


def payload(number: int) -> dict[str, Any]:
    """Return the payload of a number: of any length, up to a few blocks of the disk."""
    return {"n": number, "filling": "x" * random.Random(number).choice((0, 100, 1000, 5000, 20_000))}


def watch(life: Life) -> None:
    """Mark the names of journal segments, and leave out the sync that is to be left out."""
    create, link, rename, sync = os.open, os.link, os.rename, os.fsync
    journal = os.path.join(life.data_dir, "journal")
    unnamed: set[str] = set()

    def note(path: Any) -> None:
        directory, name = os.path.split(os.fspath(path))
        if directory == journal and name.endswith(".log"):
            unnamed.add(name)
            mark(life.disk, f"created {name}")

    def watched_open(path: Any, flags: int, *args: Any, **named: Any) -> int:
        descriptor = create(path, flags, *args, **named)
        if flags & os.O_CREAT:
            note(path)
        return descriptor

    def watched_link(source: Any, target: Any, **named: Any) -> None:
        link(source, target, **named)
        note(target)

    def watched_rename(source: Any, target: Any, **named: Any) -> None:
        rename(source, target, **named)
        note(target)

    def watched_fsync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") != journal:
            sync(descriptor)
        elif life.without != "directory":
            names = sorted(unnamed)
            sync(descriptor)
            unnamed.difference_update(names)
            mark(life.disk, " ".join(["named", *names]))

    watched = {"open": watched_open, "link": watched_link, "rename": watched_rename, "fsync": watched_fsync}
    if life.without == "fdatasync":
        watched["fdatasync"] = lambda descriptor: None
    for name, call in watched.items():
        setattr(os, name, call)


async def publish(life: Life) -> None:
    """Publish the numbers of a life, some at a time."""
    from relay_core.config import RelayConfig
    from relay_core.core import RelayCore
    from relay_core.journal import commit
    from relay_core.journal.journal import Journal
    from relay_core.messages.envelope import Envelope

    off = {"enabled": False}
    reliability = {"rateLimit": off, "circuitBreaker": off, "backpressure": off}
    retention = {"journalBytes": life.kept_bytes}
    config = RelayConfig.model_validate({"durability": "fsync", "reliability": reliability, "retention": retention})
    defaults = Journal.__init__.__kwdefaults__
    assert defaults is not None
    assert "segment_bytes" in defaults
    defaults["segment_bytes"] = life.segment_bytes
    if life.seed % 2:  # the loop syncs, however slow this disk is
        commit.QUICK_SECS, commit.QUICK_SYNCS = 60.0, 1
    numbers = range(life.first, life.first + life.count)
    fatal = random.Random(life.seed).choice(numbers[life.count // 2 :]) if life.killed else None

    async def handle(envelope: Envelope) -> None:
        mark(life.disk, f"handled {envelope.payload['n']}")

    async with RelayCore(life.data_dir, config) as core:
        await core.register_endpoint(KEEP)
        await core.register_endpoint(DONE)
        await core.subscribe(DONE, handle)

        async def lane(start: int) -> None:
            for number in numbers[start :: life.lanes]:
                await core.publish(subject(number), payload(number), sender="power.test")
                mark(life.disk, f"ack {number}")
                if number == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)

        async with asyncio.TaskGroup() as group:
            for start in range(life.lanes):
                group.create_task(lane(start))


def main() -> None:
    """Live the life that the argument describes."""
    life = Life(**json.loads(sys.argv[1]))
    watch(life)  # before the bus is imported, which takes hold of some of these functions
    asyncio.run(publish(life))


if __name__ == "__main__":
    main()
