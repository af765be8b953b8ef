"""The workloads of the demo, in one process: ``python -m relay_tui.demo.traffic --socket S --data-dir D --hooks FD``.

1. `ALL_WORKLOADS` lists the workloads. Each is one small coroutine that never ends; all share one `RelayClient`.
2. A workload that fails (the supervisor was restarted, an operator removed an endpoint) is logged and restarted.
3. SIGTERM ends it. It runs at a low priority.
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
MAILBOXES = (*agents.MAILBOXES, *failing.MAILBOXES, *dead_letters.MAILBOXES)
"""The endpoints of the workloads; all are registered before the first message."""

SEED = 5
_RESTART_SECS = 1.0

logger = logging.getLogger(__name__)


async def run_for_ever(name: str, workload: Workload, bus: BusAccess) -> None:
    """Run a workload, and restart it when it fails."""
    while True:
        try:
            await workload(bus)
        except RelayError as error:
            logger.warning("%s: %s", name, error)
        except Exception:
            logger.exception("%s failed", name)
        await asyncio.sleep(_RESTART_SECS)


async def run(path: Path, data_dir: Path, listener: socket.socket | None) -> None:
    """Run all workloads until SIGTERM."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    workloads = dict(ALL_WORKLOADS)
    if listener is not None:
        workloads["receiver"] = partial(external.receive, listener=listener)
    async with RelayClient(path, data_dir=data_dir, name="demo") as client, asyncio.TaskGroup() as group:
        for mailbox in MAILBOXES:
            await client.register_endpoint(mailbox)
        started = SystemClock().monotonic()
        for name, workload in workloads.items():
            bus = BusAccess(client, data_dir, SEED, name, started)
            group.create_task(run_for_ever(name, workload, bus), name=name)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Run the demo's traffic on a running supervisor.")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--hooks", type=int, help="a listening socket for webhooks, as a file descriptor")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    os.nice(5)
    listener = socket.socket(fileno=given.hooks) if given.hooks is not None else None
    try:
        asyncio.run(run(given.socket, given.data_dir, listener))
    except asyncio.CancelledError:
        return


if __name__ == "__main__":
    main()
