"""The cast of the demo, in one process: ``python -m relay_tui.demo.traffic --socket S --data-dir D --hooks FD``.

1. `ALL_WORKLOADS` lists the workloads. Each is one small coroutine that never ends; all share one `RelayClient`.
2. A workload that fails (the supervisor was restarted, an operator removed an endpoint) is logged and restarted after
   a moment.
3. SIGTERM ends it. Everybody else on the machine goes first (nice).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
from functools import partial
from pathlib import Path

from relay_core.client.client import RelayClient
from relay_core.clock import SystemClock
from relay_core.errors import RelayError
from relay_tui.demo import agents, dead_letters, external, failing
from relay_tui.demo.bus_access import BusAccess, Workload

ALL_WORKLOADS: dict[str, Workload] = {
    **agents.WORKLOADS,
    **failing.WORKLOADS,
    **dead_letters.WORKLOADS,
    **external.WORKLOADS,
}
"""Everybody, by name."""

MAILBOXES = (*agents.MAILBOXES, *failing.MAILBOXES, *dead_letters.MAILBOXES)
"""Where they receive. All are there before the first word is said."""

SEED = 5
NICE = 5
_AGAIN_SECS = 1.0

logger = logging.getLogger(__name__)


async def perform(name: str, member: Workload, bus: BusAccess) -> None:
    """Let a member play for ever."""
    while True:
        try:
            await member(bus)
        except RelayError as error:
            logger.warning("%s: %s", name, error)
        except Exception:
            logger.exception("%s stumbled", name)
        await asyncio.sleep(_AGAIN_SECS)


async def play(path: Path, data_dir: Path, listener: socket.socket | None) -> None:
    """Play until cancelled."""
    cast = dict(ALL_WORKLOADS)
    if listener is not None:
        cast["receiver"] = partial(external.receive, listener=listener)
    async with RelayClient(path, data_dir=data_dir, name="demo") as client, asyncio.TaskGroup() as group:
        for mailbox in MAILBOXES:
            await client.register_endpoint(mailbox)
        began = SystemClock().monotonic()
        for name, member in cast.items():
            group.create_task(perform(name, member, BusAccess(client, data_dir, SEED, name, began)), name=name)


async def run(path: Path, data_dir: Path, listener: socket.socket | None) -> None:
    """Play until SIGTERM."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await play(path, data_dir, listener)


def main() -> None:
    """Play."""
    parser = argparse.ArgumentParser(description="Play the demo's traffic on a running supervisor.")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--hooks", type=int, help="a listening socket for webhooks, as a file descriptor")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    os.nice(NICE)
    listener = socket.socket(fileno=given.hooks) if given.hooks is not None else None
    try:
        asyncio.run(run(given.socket, given.data_dir, listener))
    except asyncio.CancelledError:
        return


if __name__ == "__main__":
    main()
