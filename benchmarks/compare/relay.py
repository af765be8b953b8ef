"""Relay: the library in this process, and a supervisor behind its socket.

Every check of a publish is enabled and none refuses. A fan-out is one publish to a pattern of ten endpoints.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from typing import Literal

from benchmarks.compare.bare_client import BareClient
from benchmarks.compare.contestant import NO_SERVER, PAYLOAD, Contestant, Durability, Entry, in_tasks
from benchmarks.rig.daemon import supervisor
from benchmarks.rig.running import config
from relay_core.client.client import RelayClient
from relay_core.client.streams import MessageStream
from relay_core.core import RelayCore
from relay_core.messages.envelope import Envelope
from relay_core.protocol.frames import encode_request

SENDER = "relay.bench.sender"
_ANSWER = rb'\{"jsonrpc":"2.0","id":\d+,"result":\{"messageId":"\w{26}","deliveredTo":1\b[^\n]*\n'
_SETTING: dict[Durability, Literal["fsync", "os"]] = {"power": "fsync", "kill": "os"}


class Relay:
    """A bus: the verbs are the same in this process and through the socket."""

    def __init__(self, bus: RelayCore | RelayClient, pid: int) -> None:
        self.pid = pid
        self._bus = bus
        self._to: dict[str, str] = {}

    async def make(self, subject: str) -> None:
        """Make an endpoint."""
        await self._make_for(subject, 1)

    async def publish(self, subject: str, count: int) -> None:
        """Publish one after the other."""
        for _ in range(count):
            await self._publish(subject)

    async def burst(self, subject: str, count: int) -> None:
        """Publish from many tasks."""
        await in_tasks(lambda: self._publish(subject), count)

    async def _publish(self, subject: str) -> None:
        result = await self._bus.publish(self._to[subject], PAYLOAD, sender=SENDER)
        if not result.delivered_to:
            raise RuntimeError(f"not delivered: {result}")

    async def _make_for(self, subject: str, readers: int) -> list[str]:
        """Make an endpoint for each reader; several are reached by a pattern."""
        name = f"relay.bench.{subject}"
        endpoints = [name] if readers == 1 else [f"{name}.{n}" for n in range(readers)]
        self._to[subject] = name if readers == 1 else f"{name}.*"
        for endpoint in endpoints:
            await self._bus.register_endpoint(endpoint)
        return endpoints


class Library(Relay):
    """A bus in this process."""

    def __init__(self, bus: RelayCore) -> None:
        super().__init__(bus, os.getpid())
        self._core = bus

    @asynccontextmanager
    async def listen(self, subject: str, readers: int, handled: Callable[[], None]) -> AsyncIterator[None]:
        """Subscribe a handler to each endpoint."""

        async def handler(envelope: Envelope) -> None:
            handled()

        async with AsyncExitStack() as stack:
            for endpoint in await self._make_for(subject, readers):
                await stack.enter_async_context(await self._core.subscribe(endpoint, handler))
            yield


class Socket(Relay):
    """A supervisor in its own process."""

    def __init__(self, client: RelayClient, socket: Path, pid: int) -> None:
        super().__init__(client, pid)
        self._socket = socket

    @asynccontextmanager
    async def listen(self, subject: str, readers: int, handled: Callable[[], None]) -> AsyncIterator[None]:
        """Subscribe to each endpoint over its own connection."""

        async def read(messages: MessageStream) -> None:
            async for _ in messages:
                handled()

        async with AsyncExitStack() as stack:
            streams = []
            for endpoint in await self._make_for(subject, readers):
                client = await stack.enter_async_context(RelayClient(self._socket))
                streams.append(await stack.enter_async_context(client.subscribe(endpoint)))
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(read(messages)) for messages in streams]
                yield
                for task in tasks:
                    task.cancel()

    def bare_client(self) -> BareClient:
        """Connect."""
        return BareClient(self._socket, _ANSWER, lines=1)

    def requests(self, subject: str, count: int) -> list[bytes]:
        """Return requests as `RelayClient` sends them."""
        params = {"subject": self._to[subject], "from": SENDER, "payload": PAYLOAD}
        return [encode_request("publish", {**params, "dedupeId": token_hex(16)}, n) for n in range(count)]


@asynccontextmanager
async def _open_library(directory: Path, durability: Durability) -> AsyncIterator[Contestant]:
    async with RelayCore(directory, config(_SETTING[durability])) as bus:
        yield Library(bus)


@asynccontextmanager
async def _open_socket(directory: Path, durability: Durability) -> AsyncIterator[Contestant]:
    async with supervisor(directory, _SETTING[durability]) as daemon, RelayClient(daemon.socket) as client:
        yield Socket(client, daemon.socket, daemon.pid)


def _version() -> str:
    return version("relay-bus")


ENTRIES = {
    "relay": Entry("Relay, the library", "library", _open_library, _version, cannot={"bare_client": NO_SERVER}),
    "relay-socket": Entry("Relay, through its socket", "server", _open_socket, _version),
}
