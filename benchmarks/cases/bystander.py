"""The cases of a bystander: how long its publishes take while one narrow token does its worst.

A supervisor in another process, with its defaults (fsync and limits, except for the rate limit). A client that is not
involved publishes one message after the other to its own endpoint: first alone, then while a token's holder in
another process (``python -m benchmarks.cases.bystander SOCKET TOKEN WHAT``) attacks. The value is its p99 under
attack; beside it are its p50, and both when it was alone.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from statistics import median, quantiles
from time import perf_counter

from benchmarks.cases.bus import TARGET, WARM
from benchmarks.harness import Bench, Goal, Result
from benchmarks.rig import floor
from benchmarks.rig.daemon import ROOT, supervisor
from relay_core.client.client import RelayClient

LIMIT_MS = 100.0
MAILBOXES = 1000
"""As many as a token may have."""
ENDPOINTS = 3000
PIPELINED = 200
PATTERN = "relay.narrow.*"
SENDER = "relay.narrow.one"
LARGE = {"content": "x" * 140_000}
ATTACK_SECS = 5.0
AFTER = 200
"""Messages that are still measured when the attacker is gone: that is when its mailboxes are cleaned up."""


def bystander(bench: Bench, name: str, *, endpoints: int = 0) -> Iterable[Result]:
    """Publish alone, then while a token's holder attacks."""

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
    alone = [_percentiles(one) for one, _ in rounds]
    attacked = [_percentiles(one) for _, one in rounds]
    details = {
        "p50": median(one[49] for one in attacked),
        "longest": median(max(one) for _, one in rounds),
        "alone_p50": median(one[49] for one in alone),
        "alone_p99": median(one[98] for one in alone),
        "messages": sum(len(one) for _, one in rounds),
    }
    yield Goal(name, "p99", "ms", "most", LIMIT_MS).result([one[98] for one in attacked], **details)


async def publish(client: RelayClient, count: int) -> list[float]:
    """Publish one by one and return the milliseconds that each took."""
    times = []
    for _ in range(count):
        begin = perf_counter()
        result = await client.publish(TARGET, floor.PAYLOAD, sender=floor.SENDER)
        times.append((perf_counter() - begin) * 1e3)
        if not result.delivered_to:
            raise RuntimeError(f"not delivered: {result}")
    return times


def _percentiles(times: list[float]) -> list[float]:
    return quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99


# The attacker


async def close_with_mailboxes(client: RelayClient) -> None:
    """Own as many reply mailboxes as there may be, and go away."""
    await asyncio.gather(*(client.call("replies.open", timeout=None) for _ in range(MAILBOXES)))
    print("ready", flush=True)


async def ask_for_lists(client: RelayClient) -> None:
    """Ask for long lists, many at a time."""
    print("ready", flush=True)
    until = perf_counter() + ATTACK_SECS

    async def ask(method: str) -> None:
        while perf_counter() < until:
            await client.call(method, {"limit": 1000}, timeout=None)

    await asyncio.gather(*(ask(method) for method in ("agents.list", "endpoints.list") for _ in range(PIPELINED // 2)))


async def broadcast(client: RelayClient) -> None:
    """Publish much to everybody, with many reply mailboxes there."""
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


async def attack(socket: str, token: str, what: str) -> None:
    """Attack as a token's holder."""
    async with RelayClient(socket, token=token) as client:
        await ATTACKS[what](client)


BYSTANDER_CASES: dict[str, Callable[[Bench, str], Iterable[Result]]] = {
    "bystander_close": bystander,
    "bystander_lists": partial(bystander, endpoints=ENDPOINTS),
    "bystander_broadcast": bystander,
}
"""Every case by name, in the order of running."""

if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(attack(*sys.argv[1:4]))
