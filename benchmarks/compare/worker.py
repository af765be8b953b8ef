"""One contestant in its own process, measured on request of the runner.

``python -m benchmarks.compare.worker NAME DIRECTORY DURABILITY`` starts it, then answers each JSON line
(``{"task", "count"}``) with a JSON line of figures by metric. It ends with its input, and ends its server.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count as numbers
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import cast, get_args

from benchmarks.compare.bare_client import Pattern
from benchmarks.compare.contestant import READERS, Contestant, Durability, Listening, OnTheWire, Task
from benchmarks.compare.programme import entry
from benchmarks.rig.servers import memory_mb

RATE = 200
LATENCY_MESSAGES = 2000
"""At most: ten seconds at that rate."""
WARM = 32
_SEEN_SECS = 120.0

Figures = dict[str, float]
_new = numbers()


class Seen:
    """Records when each message was handled, by a task or a thread."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self._goal = sys.maxsize
        self._reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> None:
        """Record a message."""
        self.at.append(perf_counter())
        if len(self.at) >= self._goal:
            self._loop.call_soon_threadsafe(self._reached.set)

    async def reach(self, goal: int) -> None:
        """Wait until `goal` messages were handled.

        Raises:
            RuntimeError: if fewer or more were.
        """
        self._reached.clear()
        self._goal = goal
        with suppress(TimeoutError):
            async with asyncio.timeout(_SEEN_SECS):
                while len(self.at) < goal:
                    await self._reached.wait()
        if len(self.at) != goal:
            raise RuntimeError(f"{len(self.at)} messages were handled instead of {goal}")
        self._goal = sys.maxsize


async def one_by_one(contestant: Contestant, count: int) -> Figures:
    """Publish one after the other."""
    return {"publish_1": await _rate(contestant, contestant.publish, count)}


async def in_flight(contestant: Contestant, count: int) -> Figures:
    """Publish with 64 under way."""
    return {"publish_64": await _rate(contestant, contestant.burst, count)}


async def _rate(contestant: Contestant, publish: Callable[[str, int], Awaitable[None]], count: int) -> float:
    subject = f"stored{next(_new)}"
    await contestant.make(subject)
    await publish(subject, WARM)
    begin = perf_counter()
    await publish(subject, count)
    return count / (perf_counter() - begin)


async def bare_client(contestant: Contestant, count: int) -> Figures:
    """Publish with 64 under way, with a client that does nothing else; return the faster of its two patterns."""
    if not isinstance(contestant, OnTheWire):
        raise RuntimeError(f"{type(contestant).__name__} has no bare client")
    subject = f"stored{next(_new)}"
    await contestant.make(subject)
    times = []
    for pattern in get_args(Pattern):
        warm, requests = contestant.requests(subject, WARM), contestant.requests(subject, count)
        with contestant.bare_client() as client:
            await asyncio.to_thread(client.exchange, warm, pattern)
            begin = perf_counter()
            await asyncio.to_thread(client.exchange, requests, pattern)
            times.append(perf_counter() - begin)
    return {"bare_64": count / min(times)}


async def fan_out(contestant: Contestant, count: int) -> Figures:
    """Publish to ten readers with 64 under way, until the last has handled the last message."""
    publishes = max(count // READERS * 2, 1)
    seen, subject = Seen(), f"fan{next(_new)}"
    async with _listening(contestant).listen(subject, READERS, seen):
        await contestant.burst(subject, WARM)
        await seen.reach(WARM * READERS)
        begin = perf_counter()
        await contestant.burst(subject, publishes)
        await seen.reach((WARM + publishes) * READERS)
        return {"fan_out_10": publishes * READERS / (max(seen.at) - begin)}


async def latency(contestant: Contestant, count: int) -> Figures:
    """Publish at a steady rate; measure from the call of publish to the handler."""
    count = min(count, LATENCY_MESSAGES)
    seen, subject = Seen(), f"read{next(_new)}"
    called = []
    async with _listening(contestant).listen(subject, 1, seen):
        begin = perf_counter()
        for n in range(WARM + count):
            await asyncio.sleep(begin + n / RATE - perf_counter())
            called.append(perf_counter())
            await contestant.publish(subject, 1)
        await seen.reach(WARM + count)
    times = [(after - before) * 1e3 for before, after in zip(called, seen.at, strict=True)]
    cuts = quantiles(times[WARM:], n=100, method="inclusive")
    return {"latency_p50": cuts[49], "latency_p99": cuts[98]}


def _listening(contestant: Contestant) -> Listening:
    if not isinstance(contestant, Listening):
        raise RuntimeError(f"{type(contestant).__name__} has no readers")
    return contestant


async def memory(contestant: Contestant, count: int) -> Figures:
    """Measure the memory of the process."""
    return {"memory": memory_mb(contestant.pid)}


_TASKS: dict[Task, Callable[[Contestant, int], Awaitable[Figures]]] = {
    "one_by_one": one_by_one,
    "in_flight": in_flight,
    "bare_client": bare_client,
    "fan_out": fan_out,
    "latency": latency,
    "memory": memory,
}


async def work(name: str, directory: Path, durability: Durability) -> None:
    """Start a contestant, and measure it until the input ends."""
    async with entry(name).open(directory, durability) as contestant:
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            gc.collect()
            print(json.dumps(await _TASKS[asked["task"]](contestant, asked["count"])), flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(work(sys.argv[1], Path(sys.argv[2]), cast(Durability, sys.argv[3])))
