"""The interface of contestants.

A subject is a place for messages: an endpoint, a stream, a mailbox, a queue. Every measurement has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from benchmarks.compare.bare_client import BareClient

Durability = Literal["power", "kill"]
"""What an acknowledged message survives: a power loss (synced to the disk), or kill -9 (given to the kernel)."""
Task = Literal["one_by_one", "in_flight", "bare_client", "fan_out", "latency", "memory"]

PAYLOAD = {"content": "x" * 1000}
IN_FLIGHT = 64
NO_SERVER = "It has no server."
READERS = 10


class Contestant(Protocol):
    """A message store, ready to be measured."""

    pid: int
    """The process whose memory counts: the server, or the one that holds the library."""

    async def make(self, subject: str) -> None:
        """Make a subject without readers, where messages stay."""

    async def publish(self, subject: str, count: int) -> None:
        """Publish one by one, each after the previous one is durable."""

    async def burst(self, subject: str, count: int) -> None:
        """Publish with 64 in flight, until all are durable."""


@runtime_checkable
class Listening(Contestant, Protocol):
    """A contestant that also delivers messages to readers."""

    def listen(self, subject: str, readers: int, handled: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Make a subject with readers, each of which handles and acknowledges every message."""


@runtime_checkable
class OnTheWire(Contestant, Protocol):
    """A contestant whose server can be measured with a bare client."""

    def bare_client(self) -> BareClient:
        """Connect."""

    def requests(self, subject: str, count: int) -> list[bytes]:
        """Return requests that publish a message each."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant before it is started."""

    title: str
    kind: Literal["library", "server"]
    open: Callable[[Path, Durability], AbstractAsyncContextManager[Contestant]]
    version: Callable[[], str]
    missing: Callable[[], str | None] = lambda: None
    """Return what to install, or None if nothing is missing."""
    remarks: Mapping[Durability, str] = field(default_factory=dict)
    cannot: Mapping[Task, str] = field(default_factory=dict)
    out_of_class: Mapping[Durability, str] = field(default_factory=dict)
    """Why it has no figures in a class."""


async def in_tasks(publish: Callable[[], Awaitable[object]], count: int) -> None:
    """Publish from 64 tasks."""
    work = iter(range(count))

    async def publisher() -> None:
        for _ in work:
            await publish()

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(publisher())


async def in_threads(publish: Callable[[], object], count: int) -> None:
    """Publish from 64 threads, because a call blocks."""
    await asyncio.to_thread(_in_threads, publish, count)


def _in_threads(publish: Callable[[], object], count: int) -> None:
    def publisher(work: Iterator[int]) -> None:
        for _ in work:
            publish()

    work = iter(range(count))
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        for done in [threads.submit(publisher, work) for _ in range(IN_FLIGHT)]:
            done.result()
