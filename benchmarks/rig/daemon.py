"""A supervisor in its own process, and (run as a program) a subscriber in another.

``python -m benchmarks.rig.daemon SOCKET SUBJECT COUNT`` prints "ready", receives that many messages, and prints a JSON
list of their arrival times, in seconds of the monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Literal, NamedTuple

from benchmarks.rig.running import config
from benchmarks.rig.servers import ROOT, server, until_ready
from relay_core.client.client import RelayClient
from relay_core.errors import SupervisorUnavailable


class Daemon(NamedTuple):
    """A running supervisor."""

    socket: Path
    pid: int


@asynccontextmanager
async def supervisor(directory: Path, durability: Literal["os", "fsync"] = "os") -> AsyncIterator[Daemon]:
    """Run a supervisor on a data directory, with every check enabled and none refusing."""
    (directory / "config.json").write_text(config(durability).model_dump_json(by_alias=True))
    with TemporaryDirectory(prefix="relay-bench-") as place:
        socket = Path(place) / "relay.sock"
        places = ["--data-dir", str(directory), "--socket", str(socket)]
        with server([sys.executable, "-m", "relay_supervisor", "run", *places], cwd=ROOT) as process:
            await until_ready(process, lambda: _answers(socket))
            yield Daemon(socket, process.pid)


async def _answers(socket: Path) -> bool:
    try:
        async with RelayClient(socket):
            return True
    except SupervisorUnavailable:
        return False


async def receive(socket: str, subject: str, count: int) -> list[float]:
    """Receive messages, and return their arrival times."""
    arrived = []
    async with RelayClient(socket) as client, client.subscribe(subject) as messages:
        print("ready", flush=True)
        async for _ in messages:
            arrived.append(perf_counter())
            if len(arrived) == count:
                break
    return arrived


if __name__ == "__main__":
    print(json.dumps(asyncio.run(receive(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
