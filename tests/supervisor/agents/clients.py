"""Agents for tests: the `mcp` package's own client on a real `relay mcp`, or the process itself by its lines."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, TextContent

from relay_core.clock import SystemClock
from tests.kit.daemon import Site
from tests.kit.waiting import PATIENCE_SECS

LEGACY = "legacy"
MODERN = "2026-07-28"


class Told(str):
    """What a tool told the model."""

    is_error: bool

    @property
    def message_id(self) -> str:
        """Return the id of the message that was sent."""
        assert self.startswith("Sent as message "), self
        return self.split()[3].rstrip(".;")


class Agent:
    """An agent's session: its tools by name."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, /, **arguments: Any) -> Told:
        """Call a tool and return what it told, whether that is an error or not."""
        result = await self.client.call_tool(tool, arguments)
        return told(result)

    async def ok(self, tool: str, /, **arguments: Any) -> Told:
        """Call a tool that must do what it was asked."""
        said = await self(tool, **arguments)
        assert not said.is_error, said
        return said

    async def failed(self, tool: str, /, **arguments: Any) -> Told:
        """Call a tool that must not do what it was asked."""
        said = await self(tool, **arguments)
        assert said.is_error, said
        return said


def told(result: CallToolResult) -> Told:
    """Return the text of a result."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    said = Told(content.text)
    said.is_error = result.is_error
    return said


def command(site: Site, subject: str, *more: str) -> list[str]:
    """Return the arguments of Python that run `relay mcp`."""
    places = ("--data-dir", str(site.data_dir), "--socket", str(site.socket))
    return ["-m", "relay_supervisor.cli", "mcp", "--as", subject, *places, *more]


@asynccontextmanager
async def an_agent(site: Site, subject: str, *more: str, mode: str = LEGACY) -> AsyncIterator[Agent]:
    """Run a session of an agent; what its server says on stderr fails the test."""
    program = StdioServerParameters(command=sys.executable, args=command(site, subject, *more))
    log = site.data_dir.parent / f"{subject}.stderr"
    with log.open("w") as errlog:
        async with Client(stdio_client(program, errlog), mode=mode, read_timeout_seconds=PATIENCE_SECS) as client:
            yield Agent(client)
    assert log.read_text() == ""


class Lines:
    """A `relay mcp` process, by the lines that it reads and writes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._begun = b""
        self._lines: list[bytes] = []

    def write(self, *frames: dict[str, Any]) -> None:
        """Say something."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(json.dumps(one).encode() + b"\n" for one in frames))
        self.process.stdin.flush()

    def read(self) -> Any:
        """Return the next thing that it says."""
        assert self.process.stdout is not None
        clock = SystemClock()
        until = clock.monotonic() + PATIENCE_SECS
        while not self._lines:
            readable, _, _ = select.select([self.process.stdout], [], [], max(until - clock.monotonic(), 0))
            assert readable, "it says nothing"
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, "it has ended"
            *lines, self._begun = (self._begun + data).split(b"\n")
            self._lines += lines
        return json.loads(self._lines.pop(0))

    def answer(self, id: int) -> Any:
        """Return the answer with an id; what comes before it is passed over."""
        while (frame := self.read()).get("id") != id:
            pass
        return frame

    def initialize(self) -> Any:
        """Say what a client says first."""
        info = {"name": "test", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        self.write({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        return self.answer(0)

    def call(self, id: int, tool: str, meta: Mapping[str, Any] | None = None, /, **arguments: Any) -> None:
        """Begin a call."""
        params = {"name": tool, "arguments": arguments, **({"_meta": meta} if meta else {})}
        self.write({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})

    def text(self, id: int) -> str:
        """Return what a call has told."""
        return str(self.answer(id)["result"]["content"][0]["text"])

    def end(self) -> tuple[int, bytes]:
        """Close its stdin, and return its exit code and what it said on stderr."""
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_SECS), self.process.stderr.read()


@contextmanager
def lines(site: Site, subject: str, *more: str) -> Iterator[Lines]:
    """Run a process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    with subprocess.Popen(
        [sys.executable, *command(site, subject, *more)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        try:
            yield Lines(process)
        finally:
            process.kill()
