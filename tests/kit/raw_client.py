"""A client without manners, for tests: it sends the bytes it is told to and reads only when it is told to."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

from tests.kit.waiting import PATIENCE_SECS

_GONE = (ConnectionError, asyncio.IncompleteReadError)


class Raw:
    """A connection to a supervisor's socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.notes: deque[dict[str, Any]] = deque()
        """Notifications that came while an answer was waited for."""
        self._ids = count(1)

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_unix_connection(str(self.path), limit=16 * 1024 * 1024)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Go away."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    def send(self, data: bytes) -> None:
        """Send bytes, however many, without waiting."""
        self.writer.write(data)

    def ask(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        id = next(self._ids)
        self.send(request(method, params, id))
        return id

    async def frame(self) -> dict[str, Any] | None:
        """Return the next frame, or None if the connection is over."""
        async with asyncio.timeout(PATIENCE_SECS):
            try:
                line = await self.reader.readline()
            except _GONE:
                return None
        return json.loads(line) if line else None

    async def answer(self, id: int) -> dict[str, Any]:
        """Return the answer to a request; notifications that come before it are kept."""
        while (found := await self.frame()) is not None:
            if "method" in found:
                self.notes.append(found)
            else:
                assert found["id"] == id, found
                return found
        raise AssertionError("the connection was closed before the answer came")

    async def call(self, method: str, **params: Any) -> Any:
        """Ask and return the result."""
        found = await self.answer(self.ask(method, **params))
        assert "result" in found, found
        return found["result"]

    async def refusal(self, method: str, **params: Any) -> tuple[str, str]:
        """Ask and return which error was the answer: its class and its code."""
        return kind(await self.answer(self.ask(method, **params)))

    async def note(self, method: str = "message") -> Any:
        """Return what the next notification says, which must be of a method."""
        found = self.notes.popleft() if self.notes else await self.frame()
        assert found is not None
        assert found.get("method") == method, found
        return found["params"]

    async def over(self) -> list[dict[str, Any]]:
        """Read until the connection is closed from the other side, and return what came until then."""
        found = []
        while (frame := await self.frame()) is not None:
            found.append(frame)
        return found


def request(method: str, params: dict[str, Any], id: int | None = None) -> bytes:
    """Return the line of a request, or of a notification if there is no id."""
    frame: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    if id is not None:
        frame["id"] = id
    return json.dumps(frame).encode() + b"\n"


def kind(answer: dict[str, Any]) -> tuple[str, str]:
    """Return the class and the code of an answer that is an error."""
    assert "error" in answer, answer
    data = answer["error"]["data"]
    return data["error"], data["code"]


async def authenticate(raw: Raw, operator: Raw, pattern: str) -> str:
    """Give a connection a new token for a pattern, and return the token's id."""
    made = await operator.call("tokens.add", pattern=pattern)
    hello = await raw.call("server.hello", token=made["token"])
    assert (hello["operator"], hello["pattern"]) == (False, pattern)
    return str(made["info"]["id"])
