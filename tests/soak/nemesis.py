"""The faults of a round. Each strikes once, and leaves a supervisor that runs."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.soak.checker import RATE_SECS

if TYPE_CHECKING:
    from tests.soak.rig import Rig

HOUR = 3600


@dataclass(frozen=True)
class Fault:
    """One way to hurt a supervisor or its clients."""

    strike: Callable[[Rig], Awaitable[None]]
    possible: Callable[[Rig], bool] = lambda _: True

    @property
    def name(self) -> str:
        """Return what the fault is called in reports."""
        return self.strike.__name__.replace("_", " ")


async def kill(rig: Rig) -> None:
    """End the supervisor with SIGKILL."""
    rig.expect_alive()
    await rig.kill()
    await rig.start()


async def kill_twice(rig: Rig) -> None:
    """Kill the supervisor again as soon as it answers, before it has caught up."""
    await kill(rig)
    await kill(rig)


async def restart(rig: Rig) -> None:
    """Shut the supervisor down gracefully, under load."""
    await rig.stop()
    await rig.start()


async def freeze(rig: Rig) -> None:
    """Stop the supervisor for a while: leases and handler timeouts run out meanwhile."""
    rig.send(signal.SIGSTOP)
    await asyncio.sleep(rig.chance.uniform(0.1, 3.0))
    rig.send(signal.SIGCONT)


async def cut_connections(rig: Rig) -> None:
    """Drop some clients' connections, wherever they are."""
    for client in rig.chance.sample(rig.clients, k=rig.chance.randrange(1, len(rig.clients))):
        client.cut()


async def lose_index(rig: Rig) -> None:
    """Delete index.db while the supervisor is down, after a kill or a shutdown.

    Not soon after the disk was full: what the index knew is then nowhere else (docs/operations.md).
    """
    rig.expect_alive()
    await (rig.kill() if rig.chance.random() < 0.5 else rig.stop())
    rig.lose_index()
    await rig.start()


async def jump_clock(rig: Rig) -> None:
    """Set the wall clock forward or back by up to an hour, then right again."""
    rig.jump_clock_to(rig.chance.randrange(-HOUR, HOUR))
    await asyncio.sleep(rig.chance.uniform(0.1, 1.0))
    if rig.chance.random() < 0.5:
        await kill(rig)
    rig.jump_clock_to(0)


async def fill_disk(rig: Rig) -> None:
    """Fill the disk; perhaps kill the supervisor, which must start all the same; then free the space."""
    await asyncio.to_thread(rig.volume.fill)
    try:
        await asyncio.sleep(rig.chance.uniform(0.1, 2.5))
        rig.expect_alive()
        if rig.chance.random() < 0.5:
            await kill(rig)
            await asyncio.sleep(rig.chance.uniform(0.1, 1.0))
    finally:
        rig.volume.free()
        rig.filled_at = time.monotonic()
    if rig.chance.random() < 0.3:
        await kill(rig)


async def cut_power(rig: Rig) -> None:
    """Lose what is not on the disk, under load or after an idle second."""
    rig.history.power_cuts.append(time.monotonic())
    rig.send(signal.SIGSTOP)  # it must not answer any more: ext4 lets a sync succeed that the shutdown overtakes
    await asyncio.to_thread(rig.volume.cut_power)
    rig.history.power_cuts.append(time.monotonic())
    await rig.kill()
    await asyncio.to_thread(rig.volume.restore_power)
    await rig.start()


FAULTS = [
    Fault(kill),
    Fault(kill_twice),
    Fault(restart),
    Fault(freeze),
    Fault(cut_connections),
    Fault(lose_index, lambda rig: time.monotonic() - rig.filled_at > RATE_SECS),
    Fault(jump_clock),
    Fault(fill_disk, lambda rig: rig.volume.can_fill),
    Fault(cut_power, lambda rig: rig.volume.can_lose_power and rig.durability == "fsync"),
]
"""What can happen in a round; a kill is drawn more often than anything else, since several of these kill."""
