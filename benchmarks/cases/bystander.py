"""The cases of a bystander: the latency of its publishes while the holder of a narrow token attacks.

A supervisor runs in another process with its defaults (fsync and limits, except for the rate limit). An uninvolved
client publishes messages one by one to its own endpoint: first alone, then while the token's holder in a third process
(``python -m benchmarks.cases.bystander SOCKET TOKEN ATTACK``) attacks. The value is its p99 under attack; the p50, and
both without an attack, are reported with it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from statistics import median
from time import perf_counter

from benchmarks.cases.bus import TARGET, WARM
from benchmarks.harness import Bench, Cases, Result, percentile_results, percentiles
from benchmarks.rig import floor
from benchmarks.rig.daemon import supervisor
from benchmarks.rig.servers import ROOT
from relay_core.client.client import RelayClient

LIMIT_MS = 100.0
MAILBOXES = 1000
"""The maximum for a token."""
ENDPOINTS = 3000
PIPELINED = 200
PATTERN = "relay.narrow.*"
SENDER = "relay.narrow.one"
LARGE = {"content": "x" * 140_000}
ATTACK_SECS = 5.0
AFTER = 200
"""Messages measured after the attacker has gone, while its mailboxes are cleaned up."""


def bystander(bench: Bench, name: str, *, endpoints: int = 0) -> Iterable[Result]:
    """Publish without an attack, then during one."""

    async def relay() -> tuple[list[float], list[float]]:
        async with supervisor(bench.fresh(), "fsync") as daemon, RelayClient(daemon.socket) as client:
            await client.register_endpoint(TARGET)
            for number in range(endpoints):
                await client.register_endpoint(f"relay.crowd.{number}")
            token = (await client.add_token(PATTERN)).token
            await publish(client, WARM)
            alone = await publish(client, bench.messages)
            attacker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.cases.bystander", str(daemon.socket), token, name),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
            )
            assert attacker.stdout is not None
            await attacker.stdout.readline()
            attacked: list[float] = []
            while attacker.returncode is None:  # set by the loop when the process has ended
                attacked += await publish(client, 1)
            if attacker.returncode:
                raise RuntimeError(f"the attacker ended with {attacker.returncode}")
            attacked += await publish(client, AFTER)
            return alone, attacked

    rounds = [bench.run(relay()) for _ in range(bench.rounds)]
    alone = [percentiles(times) for times, _ in rounds]
    attacked = [percentiles(times) for _, times in rounds]
    details = {
        "p50": median(times[49] for times in attacked),
        "longest": median(max(times) for _, times in rounds),
        "alone_p50": median(times[49] for times in alone),
        "alone_p99": median(times[98] for times in alone),
        "messages": sum(len(times) for _, times in rounds),
    }
    yield from percentile_results(name, attacked, {99: LIMIT_MS}, **details)


async def publish(client: RelayClient, count: int) -> list[float]:
    """Publish one by one, and return the milliseconds that each took."""
    times = []
    for _ in range(count):
        begin = perf_counter()
        result = await client.publish(TARGET, floor.PAYLOAD, sender=floor.SENDER)
        times.append((perf_counter() - begin) * 1e3)
        if not result.delivered_to:
            raise RuntimeError(f"not delivered: {result}")
    return times


# The attacker


async def close_with_mailboxes(client: RelayClient) -> None:
    """Open the maximum number of reply mailboxes, and disconnect."""
    await asyncio.gather(*(client.call("replies.open", timeout=None) for _ in range(MAILBOXES)))
    print("ready", flush=True)


async def ask_for_lists(client: RelayClient) -> None:
    """Request long lists, many at a time."""
    print("ready", flush=True)
    until = perf_counter() + ATTACK_SECS

    async def ask(method: str) -> None:
        while perf_counter() < until:
            await client.call(method, {"limit": 1000}, timeout=None)

    await asyncio.gather(*(ask(method) for method in ("agents.list", "endpoints.list") for _ in range(PIPELINED // 2)))


async def broadcast(client: RelayClient) -> None:
    """Broadcast large messages, with many reply mailboxes open."""
    await asyncio.gather(*(client.call("replies.open", timeout=None) for _ in range(MAILBOXES)))
    print("ready", flush=True)
    until = perf_counter() + ATTACK_SECS
    while perf_counter() < until:
        await client.publish(">", LARGE, sender=SENDER)


ATTACKS: dict[str, Callable[[RelayClient], Awaitable[None]]] = {
    "bystander_close": close_with_mailboxes,
    "bystander_lists": ask_for_lists,
    "bystander_broadcast": broadcast,
}


async def attack(socket: str, token: str, name: str) -> None:
    """Attack as a token's holder."""
    async with RelayClient(socket, token=token) as client:
        await ATTACKS[name](client)


BYSTANDER_CASES: Cases = {
    "bystander_close": bystander,
    "bystander_lists": partial(bystander, endpoints=ENDPOINTS),
    "bystander_broadcast": bystander,
}

if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(attack(*sys.argv[1:4]))
