"""A proxy in front of a supervisor's socket that can drop connections and responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import orjson

from relay_core.tasks import Tasks


class Wire:
    """Forward lines in both directions, and drop or hold some on demand."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.asked: list[str] = []
        """The requested methods, in order."""
        self.connections = 0
        """Number of accepted connections."""
        self.cut_answers_to: dict[str, int] = {}
        """How many responses to each method are dropped; the connection is cut instead."""
        self.held = asyncio.Event()
        """While cleared, no response passes."""
        self.held.set()
        self.hold_answers_to: set[str] = set()
        """Methods whose next response clears `held` and waits for it, with everything after it."""
        self.tasks = Tasks()
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """End every connection, to both sides."""
        for writer in self._writers:
            writer.transport.abort()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a client to the supervisor."""
        self.connections += 1
        self.tasks.start(self._join(reader, writer), name="wire")

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward_reader, onward = await asyncio.open_unix_connection(self.target)
        except OSError:
            writer.transport.abort()
            return
        methods: dict[object, str] = {}
        self._writers |= {writer, onward}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ask(reader, onward, methods))
                group.create_task(self._answer(onward_reader, writer, methods))
        finally:
            for end in (writer, onward):
                self._writers.discard(end)
                end.transport.abort()
            for end in (writer, onward):
                with suppress(OSError):
                    await end.wait_closed()

    async def _ask(
        self, reader: asyncio.StreamReader, onward: asyncio.StreamWriter, methods: dict[object, str]
    ) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                frame = orjson.loads(line)
                self.asked.append(frame["method"])
                methods[frame.get("id")] = frame["method"]
                onward.write(line)
        onward.transport.close()

    async def _answer(
        self, reader: asyncio.StreamReader, back: asyncio.StreamWriter, methods: dict[object, str]
    ) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                await self.held.wait()
                method = methods.get(orjson.loads(line).get("id"), "")
                if method in self.hold_answers_to:
                    self.held.clear()
                    await self.held.wait()
                if self.cut_answers_to.get(method, 0) > 0:
                    self.cut_answers_to[method] -= 1
                    self.cut()
                    return
                back.write(line)
        back.transport.close()


@asynccontextmanager
async def a_wire(target: Path) -> AsyncIterator[tuple[Path, Wire]]:
    """Put a proxy in front of a socket; its own socket is in the same directory."""
    path = target.with_name("wire.sock")
    wire = Wire(target)
    server = await asyncio.start_unix_server(wire.accept, path, limit=8 * 1024 * 1024)
    try:
        yield path, wire
    finally:
        wire.held.set()
        wire.cut()
        server.close()
        await wire.tasks.close(grace=1.0)
