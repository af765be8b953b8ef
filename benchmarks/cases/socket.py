"""The cases of the socket: a supervisor in its own process, and clients in this one.

Everything else is as in bus.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from statistics import median
from time import perf_counter

from benchmarks.cases.bus import RATE, TARGET, WARM
from benchmarks.harness import Bench, Cases, Goal, Result, percentile_results, percentiles
from benchmarks.rig import floor
from benchmarks.rig.daemon import supervisor
from benchmarks.rig.servers import ROOT, cpu_seconds, memory_mb
from relay_core.client.client import RelayClient
from relay_core.errors import RelayError

IN_FLIGHT = 64
CLIENTS = 200
IDLE_ENDPOINTS = 100
IDLE_SECS = 20.0

Publish = Callable[[RelayClient, int], Awaitable[None]]


async def one_by_one(client: RelayClient, count: int) -> None:
    """Publish, and wait for each answer."""
    for _ in range(count):
        await _publish(client)


async def side_by_side(client: RelayClient, count: int) -> None:
    """Publish with `IN_FLIGHT` messages in flight."""
    await _share_out([client] * IN_FLIGHT, count)


async def in_batches(client: RelayClient, count: int) -> None:
    """Publish `IN_FLIGHT` messages per frame."""
    message = {"subject": TARGET, "payload": floor.PAYLOAD, "sender": floor.SENDER}
    for begin in range(0, count, IN_FLIGHT):
        for result in await client.publish_many([message] * min(IN_FLIGHT, count - begin)):
            if isinstance(result, RelayError) or not result.delivered_to:
                raise RuntimeError(f"not delivered: {result}")


def publish(bench: Bench, name: str, *, way: Publish, least: float) -> Iterable[Result]:
    """Publish through the socket as fast as possible, against the floor."""

    def bare() -> float:
        box = [floor.make_mailbox(bench.fresh(), TARGET)]
        floor.write(box, floor.messages(TARGET, WARM))
        return floor.write(box, floor.messages(TARGET, bench.messages)) / bench.messages

    async def relay() -> float:
        async with supervisor(bench.fresh()) as daemon, RelayClient(daemon.socket) as client:
            await client.register_endpoint(TARGET)
            await way(client, 2 * IN_FLIGHT)
            begin = perf_counter()
            await way(client, bench.messages)
            return (perf_counter() - begin) / bench.messages

    rounds = bench.compare(bare, lambda: bench.run(relay()))
    details = rounds.medians("floor", 1e6, "us") | {"relay_per_s": 1 / median(rounds.subject)}
    yield Goal(name, "ratio_to_floor", "x", "least", least).result(rounds.speed, **details)


def round_trip(bench: Bench, name: str, *, p50: float) -> Iterable[Result]:
    """Publish one at a time, and measure each."""

    async def relay() -> list[float]:
        async with supervisor(bench.fresh()) as daemon, RelayClient(daemon.socket) as client:
            await client.register_endpoint(TARGET)
            await one_by_one(client, WARM)
            times = []
            for _ in range(bench.messages):
                begin = perf_counter()
                await _publish(client)
                times.append((perf_counter() - begin) * 1e3)
            return percentiles(times)

    rounds = [bench.run(relay()) for _ in range(bench.rounds)]
    p99 = median(times[98] for times in rounds)
    yield from percentile_results(name, rounds, {50: p50}, p99=p99, messages=bench.messages)


def latency(bench: Bench, name: str, *, p50: float, p99: float) -> Iterable[Result]:
    """Publish at a steady rate to a subscriber in another process; measure from the call to its loop body."""
    count = WARM + bench.messages

    async def relay() -> list[float]:
        async with supervisor(bench.fresh()) as daemon, RelayClient(daemon.socket) as client:
            await client.register_endpoint(TARGET)
            command = ["-m", "benchmarks.rig.daemon", str(daemon.socket), TARGET, str(count)]
            subscriber = await asyncio.create_subprocess_exec(
                sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, limit=2**24
            )
            assert subscriber.stdout is not None
            await subscriber.stdout.readline()
            called = []
            begin = perf_counter()
            for n in range(count):
                await asyncio.sleep(begin + n / RATE - perf_counter())
                called.append(perf_counter())
                await _publish(client)
            arrived = json.loads(await subscriber.stdout.readline())
            await subscriber.wait()
        times = [(after - before) * 1e3 for before, after in zip(called, arrived, strict=True)]
        return percentiles(times[WARM:])

    rounds = [bench.run(relay()) for _ in range(bench.rounds)]
    yield from percentile_results(name, rounds, {50: p50, 99: p99}, per_s=RATE, messages=bench.messages)


def many_clients(bench: Bench, name: str, *, most: float) -> Iterable[Result]:
    """Publish over many connections with one message in flight each, against one connection.

    That one has either one message in flight as well, or as many as the others together, whose frames then share system
    calls.
    """

    async def relay(clients: int, in_flight: int) -> float:
        async with supervisor(bench.fresh()) as daemon, AsyncExitStack() as stack:
            connected = [await stack.enter_async_context(RelayClient(daemon.socket)) for _ in range(clients)]
            await connected[0].register_endpoint(TARGET)
            publishers = connected * (in_flight // clients)
            await _share_out(publishers, 2 * CLIENTS)
            begin = perf_counter()
            await _share_out(publishers, bench.messages)
            return (perf_counter() - begin) / bench.messages

    def measure(clients: int, in_flight: int) -> float:
        return bench.run(relay(clients, in_flight))

    for metric, in_flight in (("ratio_to_one", 1), ("ratio_to_one_with_200_in_flight", CLIENTS)):
        rounds = bench.compare(partial(measure, 1, in_flight), partial(measure, CLIENTS, CLIENTS))
        details = rounds.medians("one", 1e6, "us") | {"clients": CLIENTS}
        yield Goal(name, metric, "x", "most", most).result(rounds.cost, **details)


def idle(bench: Bench, name: str, *, cpu: float, memory: float) -> Iterable[Result]:
    """Measure a supervisor with endpoints and without traffic."""

    async def relay() -> tuple[float, float]:
        async with supervisor(bench.fresh()) as daemon:
            async with RelayClient(daemon.socket) as client:
                for n in range(IDLE_ENDPOINTS):
                    await client.register_endpoint(f"{TARGET}.{n}")
            await asyncio.sleep(2.0)
            before, begin = cpu_seconds(daemon.pid), perf_counter()
            await asyncio.sleep(IDLE_SECS)
            share = (cpu_seconds(daemon.pid) - before) / (perf_counter() - begin)
            return share * 100, memory_mb(daemon.pid)

    rounds = [bench.run(relay()) for _ in range(min(bench.rounds, 3))]
    details = {"endpoints": IDLE_ENDPOINTS, "seconds": IDLE_SECS}
    yield Goal(name, "cpu", "%", "most", cpu).result([share for share, _ in rounds], **details)
    yield Goal(name, "rss", "MB", "most", memory).result([held for _, held in rounds], **details)


async def _publish(client: RelayClient) -> None:
    result = await client.publish(TARGET, floor.PAYLOAD, sender=floor.SENDER)
    if not result.delivered_to:
        raise RuntimeError(f"not delivered: {result}")


async def _share_out(publishers: list[RelayClient], count: int) -> None:
    work = iter(range(count))

    async def publisher(client: RelayClient, work: Iterator[int]) -> None:
        for _ in work:
            await _publish(client)

    async with asyncio.TaskGroup() as group:
        for client in publishers:
            group.create_task(publisher(client, work))


SOCKET_CASES: Cases = {
    "socket_os_64": partial(publish, way=side_by_side, least=0.6),
    "socket_batch_64": partial(publish, way=in_batches, least=0.8),
    "socket_os_1": partial(round_trip, p50=0.5),
    "socket_clients_200": partial(many_clients, most=1.2),
    "socket_idle": partial(idle, cpu=0.5, memory=90),
    "socket_latency_200": partial(latency, p50=1.5, p99=8),
}
