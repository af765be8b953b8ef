"""A bus in this process: its configuration, its publishers, and (run as a program) its memory.

``python -m benchmarks.rig.running DATA_DIR`` opens the bus, updates its index and prints its memory as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Literal

from benchmarks.rig.floor import PAYLOAD, SENDER
from benchmarks.rig.servers import memory_mb
from relay_core.config import BackpressureConfig, RateLimitConfig, RelayConfig, ReliabilityConfig
from relay_core.core import RelayCore

_HUGE = 1_000_000_000


def config(durability: Literal["os", "fsync"]) -> RelayConfig:
    """Return a configuration with every check enabled and none refusing."""
    return RelayConfig(
        durability=durability,
        reliability=ReliabilityConfig(
            rate_limit=RateLimitConfig(max_per_window=_HUGE),
            backpressure=BackpressureConfig(max_mailbox_size=_HUGE),
        ),
    )


async def publish_all(relay: RelayCore, subject: str, count: int, publishers: int = 1) -> None:
    """Publish `count` messages, shared out among the publishers."""
    work = iter(range(count))

    async def publisher() -> None:
        for _ in work:
            result = await relay.publish(subject, PAYLOAD, sender=SENDER)
            if result.rejected or not result.delivered_to:
                raise RuntimeError(f"not delivered: {result}")

    if publishers == 1:
        return await publisher()
    async with asyncio.TaskGroup() as group:
        for _ in range(publishers):
            group.create_task(publisher())


async def timed(relay: RelayCore, subject: str, count: int, publishers: int = 1, *, handled: bool = False) -> float:
    """Return the seconds per publish; with `handled`, until all messages are handled."""
    await relay.idle()
    begin = perf_counter()
    await publish_all(relay, subject, count, publishers)
    if handled:
        await relay.idle()
    took = perf_counter() - begin
    waiting = sum(mailbox.depth for mailbox in relay.mailboxes())
    if handled and waiting:
        raise RuntimeError(f"{waiting} messages were not handled")
    return took / count


async def background() -> None:
    """Wait until the background work after a start is done."""
    busy = [task for task in asyncio.all_tasks() if task.get_name() in ("check index", "rescan")]
    if busy:
        await asyncio.wait(busy)


async def hold(directory: Path) -> dict[str, float]:
    """Return the memory of this process with an open bus whose index is up to date."""
    async with RelayCore(directory, config("os")) as relay:
        await background()
        await relay.maintenance.checkpoint_index()
        await background()
        gc.collect()
        return {"rss_mb": memory_mb("self"), "peak_mb": memory_mb("self", "VmHWM")}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(hold(Path(sys.argv[1])))))
