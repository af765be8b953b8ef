"""A JSON-RPC client of the rig's own, so that a defect of RelayClient cannot hide one of the supervisor.

It never reconnects and never retries by itself: the rig's clients decide what to do, and note what they were told.
"""

from __future__ import annotations

import asyncio
import json
from itertools import count
from pathlib import Path
from typing import Any, cast

ANSWER_SECS = 60.0


class Lost(Exception):
    """The connection ended, so the outcome of what was asked is unknown."""


class Refused(Exception):
    """The supervisor answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        data = error.get("data") or {}
        self.kind: str = data.get("error", "")
        self.code: str = data.get("code", "")


class Wire(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.pushed: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        """The parameters of `message` notifications; None once the connection is lost."""
        self.is_lost = False
        self._transport: asyncio.Transport
        self._buffer = b""
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._ids = count(1)

    @classmethod
    async def connect(cls, socket: Path) -> Wire:
        """Connect, or raise OSError."""
        _, wire = await asyncio.get_running_loop().create_unix_connection(cls, str(socket))
        return wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand each frame to the request it answers, or queue it."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            frame = json.loads(line)
            if "method" in frame:
                if frame["method"] == "message":
                    self.pushed.put_nowait(frame["params"])
                continue
            answer = self._asked.pop(frame["id"], None)
            if answer is None or answer.done():
                continue
            if "error" in frame:
                answer.set_exception(Refused(frame["error"]))
            else:
                answer.set_result(frame["result"])

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every request that is still open."""
        self.is_lost = True
        self.pushed.put_nowait(None)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(Lost("the connection was lost"))
        self._asked.clear()

    async def call(self, method: str, **params: Any) -> Any:
        """Ask, and return the result.

        Raises:
            Refused: if the answer is an error.
            Lost: if no answer came.
        """
        if self.is_lost:
            raise Lost("not connected")
        number = next(self._ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        frame = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self._transport.write(json.dumps(frame).encode() + b"\n")
        try:
            async with asyncio.timeout(ANSWER_SECS):
                return await answer
        except TimeoutError:
            self.cut()
            raise Lost(f"no answer to {method} in {ANSWER_SECS:.0f} s") from None

    def cut(self) -> None:
        """Drop the connection without a word."""
        self._transport.abort()
