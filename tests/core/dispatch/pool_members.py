"""Workers that are members of a pool, and their messages."""

from __future__ import annotations

from typing import Any

from relay_core import RelayCore
from tests.kit.bus import ALL
from tests.kit.handlers import Worker


async def members(relay: RelayCore, number: int, pattern: str = ALL, **options: Any) -> list[Worker]:
    options = {"queue": "workers"} | options
    workers = [Worker(f"worker {n}") for n in range(number)]
    for worker in workers:
        await relay.subscribe(pattern, worker, **options)
    return workers


def in_flight(workers: list[Worker]) -> list[list[Any]]:
    return [worker.in_flight for worker in workers]


def together(workers: list[Worker]) -> list[Any]:
    return [payload for worker in workers for payload in worker.in_flight]


def ended(workers: list[Worker]) -> list[Any]:
    return [payload for worker in workers for payload in worker.ended]
