"""The cases of the bus, one function per way of measuring.

All use 1 KB payloads, one sender, and a rate limiter and backpressure that never refuse. Goals of "at least" are speeds
(the base's time over the bus's), those of "at most" are costs (the bus's time over the base's).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Literal

from benchmarks.harness import Bench, Cases, Goal, Result, percentile_results, percentiles
from benchmarks.rig import floor
from benchmarks.rig.running import background, config, publish_all, timed
from benchmarks.rig.servers import ROOT
from relay_core.core import RelayCore
from relay_core.messages.envelope import Envelope

TARGET = "relay.bench.target"
WARM = 32
RATE = 200
STORED_MAILBOXES = 10
WORK_SECS = 0.005


def publish(
    bench: Bench,
    name: str,
    *,
    least: float,
    durability: Literal["os", "fsync"] = "os",
    publishers: int = 1,
    targets: int = 1,
    handled: bool = False,
) -> Iterable[Result]:
    """Publish as fast as possible, against the floor in as many directories, per delivery."""
    publishes = max(bench.messages // targets, 1)
    subjects = [f"{TARGET}.{n}" for n in range(targets)]
    sync = durability == "fsync"

    def bare() -> float:
        directory = bench.fresh()
        boxes = [floor.make_mailbox(directory, subject) for subject in subjects]
        floor.write(boxes, floor.messages(TARGET, WARM), sync=sync)
        return floor.write(boxes, floor.messages(TARGET, publishes), sync=sync) / (publishes * targets)

    async def relay() -> float:
        async with RelayCore(bench.fresh(), config(durability)) as relay:
            for subject in subjects:
                await relay.register_endpoint(subject)
            if handled:
                await relay.subscribe(f"{TARGET}.*", ignore)
            to = subjects[0] if targets == 1 else f"{TARGET}.*"
            await publish_all(relay, to, WARM, publishers)
            return await timed(relay, to, publishes, publishers, handled=handled) / targets

    rounds = bench.compare(bare, lambda: bench.run(relay()), sync=sync)
    details = rounds.medians("floor", 1e6, "us") | {"relay_per_s": 1 / median(rounds.subject), "messages": publishes}
    yield Goal(name, "ratio_to_floor", "x", "least", least).result(rounds.speed, **details)


def handle(bench: Bench, name: str, *, publishers: int, least: float, per_s: float) -> Iterable[Result]:
    """Publish, handle and complete with fsync, against a bare journal that syncs as many messages at a time."""

    def bare() -> float:
        return floor.journal(bench.fresh(), TARGET, bench.messages, group=publishers) / bench.messages

    async def relay() -> float:
        async with RelayCore(bench.fresh(), config("fsync")) as relay:
            await relay.register_endpoint(TARGET)
            await relay.subscribe(TARGET, ignore)
            await publish_all(relay, TARGET, WARM, publishers)
            return await timed(relay, TARGET, bench.messages, publishers, handled=True)

    rounds = bench.compare(bare, lambda: bench.run(relay()), sync=True)
    details = rounds.medians("journal", 1e6, "us") | {"messages": bench.messages}
    yield Goal(name, "ratio_to_journal", "x", "least", least).result(rounds.speed, **details)
    yield Goal(name, "rate", "1/s", "least", per_s).result([1 / secs for secs in rounds.subject], **details)


def backlog(bench: Bench, name: str, *, most: float) -> Iterable[Result]:
    """Publish to a mailbox that holds many messages, against an empty one; the floor is compared likewise."""
    full = bench.fresh()
    box = floor.make_mailbox(full, TARGET)
    floor.fill(box, TARGET, bench.stored)

    def bare(box: Path) -> float:
        return floor.write([box], floor.messages(TARGET, bench.messages)) / bench.messages

    bus = bench.compare(
        lambda: bench.run(publish_beside(bench, bench.fresh(), TARGET)),
        lambda: bench.run(publish_beside(bench, full, TARGET)),
    )
    loop = bench.compare(lambda: bare(floor.make_mailbox(bench.fresh(), TARGET)), lambda: bare(box))
    details = bus.medians("empty", 1e6, "us") | {"floor_ratio": median(loop.cost), "stored": bench.stored}
    yield Goal(name, "ratio_to_empty", "x", "most", most).result(bus.cost, **details)


def many_endpoints(bench: Bench, name: str, *, most: float) -> Iterable[Result]:
    """Publish on a bus with many endpoints and subscriptions, against one that has one of each beside the target.

    The target has no handler: removing messages would slow down the next round (harness.py).
    """
    many = bench.fresh()
    targets = (f"{TARGET}.{n}" for n in count())
    rounds = bench.compare(
        lambda: bench.run(publish_beside(bench, bench.fresh(), next(targets), 1)),
        lambda: bench.run(publish_beside(bench, many, next(targets), bench.endpoints)),
    )
    details = rounds.medians("one", 1e6, "us") | {"endpoints": bench.endpoints, "subscriptions": bench.endpoints}
    yield Goal(name, "ratio_to_one", "x", "most", most).result(rounds.cost, **details)


def start(bench: Bench, name: str, *, most: float) -> Iterable[Result]:
    """Start with many stored messages and their index, against listing the same directories."""
    directory = stored(bench)

    def scan() -> float:
        begin = perf_counter()
        for box in os.listdir(directory / "mailboxes"):
            for state in floor.STATES:
                os.listdir(f"{directory}/mailboxes/{box}/{state}")
        return perf_counter() - begin

    async def relay() -> float:
        begin = perf_counter()
        async with RelayCore(directory, config("os")):
            took = perf_counter() - begin
            await background()
            return took

    bench.run(relay())  # makes the index
    rounds = bench.compare(scan, lambda: bench.run(relay()))
    details = rounds.medians("scan", 1e3, "ms") | {"stored": bench.stored, "mailboxes": STORED_MAILBOXES}
    yield Goal(name, "ratio_to_scan", "x", "most", most).result(rounds.cost, **details)


def memory(bench: Bench, name: str, *, most: float) -> Iterable[Result]:
    """Open a bus with many stored messages in a new process; the first one also fills the index."""
    command = [sys.executable, "-m", "benchmarks.rig.running", str(stored(bench))]
    runs = [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
        for _ in range(min(bench.rounds, 3))
    ]
    details = {"peak_mb": max(run["peak_mb"] for run in runs), "stored": bench.stored, "mailboxes": STORED_MAILBOXES}
    yield Goal(name, "rss", "MB", "most", most).result([run["rss_mb"] for run in runs], **details)


def latency(bench: Bench, name: str, *, p50: float, p99: float) -> Iterable[Result]:
    """Publish at a steady rate; measure from the call of publish to the handler's first line."""

    async def relay() -> list[float]:
        called: deque[float] = deque()
        seen: list[float] = []

        async def handler(envelope: Envelope) -> None:
            seen.append((perf_counter() - called.popleft()) * 1e3)  # handlers of one mailbox run in order

        async with RelayCore(bench.fresh(), config("os")) as relay:
            await relay.register_endpoint(TARGET)
            await relay.subscribe(TARGET, handler)
            begin = perf_counter()
            for n in range(WARM + bench.messages):
                await asyncio.sleep(begin + n / RATE - perf_counter())
                called.append(perf_counter())
                await relay.publish(TARGET, floor.PAYLOAD, sender=floor.SENDER)
            await relay.idle()
        if called:
            raise RuntimeError(f"{len(called)} messages were not handled")
        return percentiles(seen[WARM:])

    rounds = [bench.run(relay()) for _ in range(bench.rounds)]
    yield from percentile_results(name, rounds, {50: p50, 99: p99}, per_s=RATE, messages=bench.messages)


def pool(bench: Bench, name: str, *, members: int, least: float) -> Iterable[Result]:
    """Handle the messages of a mailbox, each of which takes a little time, with several queue members against one."""
    messages = max(bench.messages // 5, 1)

    async def work(envelope: Envelope) -> None:
        await asyncio.sleep(WORK_SECS)

    async def relay(members: int) -> float:
        async with RelayCore(bench.fresh(), config("os")) as relay:
            await relay.register_endpoint(TARGET)
            for _ in range(members):
                await relay.subscribe(TARGET, work, queue="workers")
            await publish_all(relay, TARGET, members)
            return await timed(relay, TARGET, messages, handled=True)

    rounds = bench.compare(lambda: bench.run(relay(1)), lambda: bench.run(relay(members)))
    per_s = {"one_per_s": 1 / median(rounds.base), "relay_per_s": 1 / median(rounds.subject)}
    yield Goal(name, "ratio_to_one", "x", "least", least).result(rounds.speed, **per_s, messages=messages)


async def ignore(envelope: Envelope) -> None:
    """Handle a message."""


def stored(bench: Bench) -> Path:
    """Return a data directory with many messages in a few mailboxes."""
    directory = bench.fresh()
    for subject in (f"{TARGET}.{n}" for n in range(STORED_MAILBOXES)):
        floor.fill(floor.make_mailbox(directory, subject), subject, bench.stored // STORED_MAILBOXES)
    return directory


async def publish_beside(bench: Bench, directory: Path, subject: str, others: int = 0) -> float:
    """Publish to one endpoint of a bus that also has others, each with a subscription."""
    async with RelayCore(directory, config("os")) as relay:
        for n in range(others):
            await relay.register_endpoint(f"relay.bench.other.{n}")
            await relay.subscribe(f"relay.bench.other.{n}", ignore)
        await relay.register_endpoint(subject)
        await background()
        await publish_all(relay, subject, WARM)
        return await timed(relay, subject, bench.messages)


BUS_CASES: Cases = {
    "publish_os_1": partial(publish, least=1.5),
    "publish_os_64": partial(publish, publishers=64, least=0.8),
    "publish_fsync_1": partial(publish, durability="fsync", least=0.7),
    "publish_fsync_64": partial(publish, durability="fsync", publishers=64, least=6),
    "broadcast_os_10": partial(publish, targets=10, least=0.8),
    "publish_backlog": partial(backlog, most=1.2),
    "publish_many_endpoints": partial(many_endpoints, most=1.2),
    "start_stored": partial(start, most=3),
    "memory_stored": partial(memory, most=120),
    # These complete messages, which slows down later cases (harness.py).
    "handle_fsync_64": partial(handle, publishers=64, least=0.3, per_s=15_000),
    "handle_os_64": partial(publish, publishers=64, handled=True, least=0.5),
    "latency_os_200": partial(latency, p50=1, p99=5),
    "pool_4": partial(pool, members=4, least=3),
}
