"""Redis streams: a real redis-server with its append-only file, over a Unix socket, and redis-py's asyncio client.

1. XADD, awaited each time; 64 in flight are a pipeline of 64, the usual way to publish many.
2. Readers are a consumer group and a connection each: XREADGROUP that blocks, then one XACK for all messages returned.
3. `appendfsync` is `always` (one sync for all that arrived in a turn of the server's loop) or `everysec`, its default.
   During a sync of `everysec` Redis may delay a write although it has acknowledged the message.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.compare.bare_client import BareClient
from benchmarks.compare.contestant import IN_FLIGHT, PAYLOAD, Contestant, Durability, Entry
from benchmarks.rig.servers import server, until_ready

if TYPE_CHECKING:
    from redis.asyncio import Redis

_BLOCK_MS = 5000
_ANSWER = rb"\$\d+\r\n\d+-\d+\r\n"
_SYNC: dict[Durability, str] = {"power": "always", "kill": "everysec"}


class RedisStreams:
    """A server with streams."""

    def __init__(self, client: Redis, socket: Path, pid: int) -> None:
        self.pid = pid
        self._client = client
        self._socket = socket

    async def make(self, subject: str) -> None:
        """Do nothing: the first message makes the stream."""

    async def publish(self, subject: str, count: int) -> None:
        """Add, and wait for the answer, each time."""
        for _ in range(count):
            await self._client.xadd(subject, _fields())

    async def burst(self, subject: str, count: int) -> None:
        """Add with pipelines."""
        for begin in range(0, count, IN_FLIGHT):
            pipeline = self._client.pipeline(transaction=False)
            for _ in range(min(IN_FLIGHT, count - begin)):
                pipeline.xadd(subject, _fields())
            await pipeline.execute()

    @asynccontextmanager
    async def listen(self, subject: str, readers: int, handled: Callable[[], None]) -> AsyncIterator[None]:
        """Make a group for each reader."""

        async def read(client: Redis, group: str) -> None:
            while True:
                found = await client.xreadgroup(group, "reader", {subject: ">"}, count=IN_FLIGHT, block=_BLOCK_MS)
                for _, messages in found:
                    for _ in messages:
                        handled()
                    await client.xack(subject, group, *[message_id for message_id, _ in messages])

        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(_client(self._socket)) for _ in range(readers)]
            for n in range(readers):
                await self._client.xgroup_create(subject, f"group-{n}", id="0", mkstream=True)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(read(client, f"group-{n}")) for n, client in enumerate(clients)]
                yield
                for task in tasks:
                    task.cancel()

    def bare_client(self) -> BareClient:
        """Connect."""
        return BareClient(self._socket, _ANSWER, lines=2)

    def requests(self, subject: str, count: int) -> list[bytes]:
        """Return commands as redis-py sends them."""
        words = [word.encode() for word in ("XADD", subject, "*", *chain(*_fields().items()))]
        command = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        return [command] * count


@asynccontextmanager
async def _open(directory: Path, durability: Durability) -> AsyncIterator[Contestant]:
    with TemporaryDirectory(prefix="relay-bench-") as place:
        socket = Path(place) / "redis.sock"
        where = ["--port", "0", "--unixsocket", str(socket), "--dir", str(directory)]
        safe = ["--appendonly", "yes", "--appendfsync", _SYNC[durability], "--save", ""]
        with server(["redis-server", *where, *safe]) as process:
            async with _client(socket) as client:
                await until_ready(process, lambda: _answers(client))
                yield RedisStreams(client, socket, process.pid)


def _client(socket: Path) -> Redis:
    from redis.asyncio import Redis

    return Redis(unix_socket_path=str(socket), protocol=2, socket_timeout=None)


async def _answers(client: Redis) -> bool:
    from redis.exceptions import ConnectionError

    try:
        await client.ping()
    except ConnectionError:
        return False
    return True


def _fields() -> dict[str, str]:
    return {"payload": json.dumps(PAYLOAD)}


def _version() -> str:
    said = subprocess.run(["redis-server", "--version"], check=True, capture_output=True, text=True).stdout
    return f"redis-server {said.partition('v=')[2].split()[0]}, redis-py {version('redis')}"


def _missing() -> str | None:
    if shutil.which("redis-server") is None:
        return "install the program redis-server"
    return None if find_spec("redis") else "pip install redis"


ENTRIES = {
    "redis": Entry(
        "Redis streams",
        "server",
        _open,
        _version,
        _missing,
        remarks={
            "power": "`appendfsync always`; 64 in flight are pipelines of 64, which share a sync. Acknowledgements by "
            "readers are synced as well.",
            "kill": "`appendfsync everysec`, the default; 64 in flight are pipelines of 64.",
        },
    )
}
