"""A real nats-server, and proxies that stop forwarding messages or pause."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import nats
import orjson
from nats.aio.client import Client

from relay_core import RelayConfig, RelayCore
from relay_core.clock import Clock
from relay_supervisor.adapters.nats.adapter import NatsAdapter
from relay_supervisor.adapters.nats.config import NatsConfig
from tests.kit.waiting import until

BINARY = shutil.which("nats-server") or str(Path(sys.executable).with_name("nats-server"))

RELAXED = RelayConfig.model_validate(
    {
        "durability": "os",
        "reliability": {"rateLimit": {"enabled": False}, "backpressure": {"maxMailboxSize": 100_000}},
    }
)


class NatsServer:
    """A server that can be killed, paused and started again on the same port and files."""

    def __init__(self, directory: Path, settings: str = "", *, jetstream: bool = True) -> None:
        self.directory = directory
        self.port = -1
        self.settings = settings
        self.jetstream = jetstream
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        config = self.directory / "server.conf"
        config.write_text(f"max_payload: 200000\nwrite_deadline: '2s'\n{self.settings}\n")
        js = ["-js", "-sd", str(self.directory / "store")] if self.jetstream else []
        with (self.directory / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                BINARY, "-c", str(config), "-a", "127.0.0.1", "-p", str(self.port), *js,
                "--ports_file_dir", str(self.directory), stdout=log, stderr=log,
            )  # fmt: skip
        ports = self.directory / f"nats-server_{self.process.pid}.ports"
        await until(lambda: ports.exists() and ports.stat().st_size > 0)
        self.port = int(orjson.loads(ports.read_bytes())["nats"][0].rpartition(":")[2])

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()
        self.process = None

    def pause(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Client]:
        client = await nats.connect(self.url, allow_reconnect=False, **options)
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def running_server(directory: Path, settings: str = "", *, jetstream: bool = True) -> AsyncIterator[NatsServer]:
    os.makedirs(directory, exist_ok=True)
    server = NatsServer(directory, settings, jetstream=jetstream)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


async def publish_raw(server: NatsServer, subject: str, headers: bytes, body: bytes) -> None:
    """Publish a header block verbatim, even an invalid one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await reader.readline()
    writer.write(b'CONNECT {"headers":true,"verbose":false}\r\n')
    writer.write(b"HPUB %s %d %d\r\n" % (subject.encode(), len(headers), len(headers) + len(body)))
    writer.write(headers + body + b"\r\nPING\r\n")
    assert await reader.readline() == b"PONG\r\n"
    writer.close()
    await writer.wait_closed()


class StuckProxy:
    """Forward everything between a client and the server, up to the first message with headers (or another word)."""

    def __init__(self, port: int, word: bytes = b"HPUB", *, carry_last: bool = False) -> None:
        self._port = port
        self._word = word
        self._carry_last = carry_last
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.stuck = asyncio.Event()

    def inject(self, data: bytes) -> None:
        """Send data to the clients as the server."""
        for writer in self._writers:
            writer.write(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(there, writer))
                group.create_task(self._carry(reader, back, word=self._word))
        except (ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, back):
                end.transport.abort()
            self._tasks.discard(task)
            self._writers.discard(writer)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, word: bytes | None = None
    ) -> None:
        while data := await reader.read(65536):
            is_last = word is not None and word in data and not self.stuck.is_set()
            if is_last:
                self.stuck.set()
            if not self.stuck.is_set() or (is_last and self._carry_last):
                writer.write(data)
                await writer.drain()
        raise ConnectionError

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)


class PausingProxy(StuckProxy):
    """Forward everything, but run a callback before a client's word and the data after it are forwarded.

    All pings before it have been answered by then.
    """

    def __init__(self, port: int, word: bytes, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(port, word)
        self._meanwhile = meanwhile
        self._pings = 0
        self.brought = bytearray()
        """The server's data to the clients."""

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, word: bytes | None = None
    ) -> None:
        while data := await reader.read(65536):
            rest = b""
            if word is None:
                self.brought.extend(data)
            else:
                if word in data:
                    data, rest = data[: data.index(word)], data[data.index(word) :]
                self._pings += data.count(b"PING\r\n")
            writer.write(data)
            if rest:
                await until(lambda: self.brought.count(b"PONG\r\n") == self._pings)
                await self._meanwhile()
                self._pings += rest.count(b"PING\r\n")
                writer.write(rest)
            await writer.drain()
        raise ConnectionError


def config(server: NatsServer | StuckProxy, **keys: Any) -> NatsConfig:
    """Return the config of a bridge that exports and imports agents, with other keys as in adapters.json."""
    both = {"export": ["relay.agent.>"], "import": ["relay.agent.>"], "createStream": True}
    return NatsConfig.model_validate({"servers": [server.url], **both, **keys})


def export_only(server: NatsServer | StuckProxy, **keys: Any) -> NatsConfig:
    return config(server, **{"import": [], **keys})


def config_for(url: str, **keys: Any) -> NatsConfig:
    return NatsConfig.model_validate({"servers": [url], "export": ["relay.agent.>"], **keys})


@asynccontextmanager
async def talking_server(answer: bytes) -> AsyncIterator[tuple[str, bytearray]]:
    """Send every client the same bytes, and record the responses."""
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if answer:
            received.extend(await reader.read(1000))
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", received
    finally:
        server.close()


class Side:
    """A relay with a bridge, and the messages of its agents."""

    def __init__(self, relay: RelayCore, adapter: NatsAdapter) -> None:
        self.relay = relay
        self.adapter = adapter
        self.got: list[tuple[str, Any]] = []

    @property
    def state(self) -> str:
        return self.relay.adapters()[0].state

    @property
    def detail(self) -> str:
        return self.relay.adapters()[0].detail or ""

    @property
    def durable(self) -> str:
        return f"relay-{self.adapter._relay}-nats"

    async def agent(self, subject: str) -> None:
        """Add an agent that records its messages."""
        await self.relay.register_endpoint(subject)

        async def handle(envelope: Any) -> None:
            self.got.append((envelope.subject, envelope.payload))

        await self.relay.subscribe(subject, handle)


@asynccontextmanager
async def side(
    directory: Path,
    settings: NatsConfig,
    *,
    relay_config: RelayConfig = RELAXED,
    clock: Clock | None = None,
    endpoints: Sequence[str] = (),
) -> AsyncIterator[Side]:
    """Run a relay with a bridge; the endpoints exist before the first message can arrive."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    async with RelayCore(directory, relay_config, clock) as relay:
        for subject in endpoints:
            await relay.register_endpoint(subject)
        adapter = NatsAdapter("nats", settings)
        await relay.add_adapter(adapter)
        yield Side(relay, adapter)


async def settled(client: Client, of: Side) -> None:
    """Wait until the stream's last message has been settled by a relay."""
    js = client.jetstream()

    async def is_settled() -> bool:
        last = (await js.stream_info("RELAY")).state.last_seq
        info = await js.consumer_info("RELAY", of.durable)
        floor = info.ack_floor
        return floor is not None and floor.stream_seq == last and info.num_ack_pending == 0

    for _ in range(1000):
        if await is_settled():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the relay did not settle everything")
