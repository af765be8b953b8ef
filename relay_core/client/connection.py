"""One connection to the supervisor: sends requests, matches answers to them and passes on notifications.

A connection is used once. When it is lost, every pending request fails with `ConnectionLost`, and whether the
supervisor carried it out is unknown. reconnect.py opens a new one.

Nothing is sent before the kernel has confirmed that the user's own supervisor serves the socket (peer_credentials.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

from relay_core.errors import ProtocolError, SupervisorUnavailable
from relay_core.protocol.frames import (
    MAX_FRAME,
    BadFrame,
    FrameBuffer,
    Request,
    Response,
    decode,
    encode_notification,
    encode_request,
)
from relay_core.protocol.peer_credentials import explain_unreachable, find_stranger


class ConnectionLost(Exception):
    """The connection ended before the answer arrived."""


class Connection(asyncio.Protocol):
    """An open connection, until it is lost or closed."""

    def __init__(self, on_note: Callable[[Connection, str, dict[str, Any]], None]) -> None:
        self._on_note = on_note
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport
        self._ids = count(1)
        self._waiting: dict[int, tuple[asyncio.Future[Any], Callable[[Any], None] | None]] = {}
        """Requests without an answer, including cancelled ones."""
        self._room: asyncio.Future[None] | None = None
        self._out: list[bytes] = []
        self._turn_is_new = True
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection has ended."""
        self.refusal: str | None = None
        """Why the supervisor refused the connection."""
        self.stranger: str | None = None
        """Why the server of the socket cannot be trusted."""

    @classmethod
    async def open(cls, path: Path, on_note: Callable[[Connection, str, dict[str, Any]], None]) -> Connection:
        """Connect.

        Raises:
            SupervisorUnavailable: if no supervisor answers; with code `foreign_supervisor`, if another user's does.
        """
        try:
            _, connection = await asyncio.get_running_loop().create_unix_connection(lambda: cls(on_note), str(path))
        except OSError as error:
            message = f"cannot reach {path}: {explain_unreachable(error)}"
            raise SupervisorUnavailable(message, socket=str(path)) from error
        if connection.stranger is not None:
            message = f"cannot use {path}: {connection.stranger}"
            raise SupervisorUnavailable(message, socket=str(path), code="foreign_supervisor")
        return connection

    async def request(
        self, method: str, params: dict[str, Any], on_late_answer: Callable[[Any], None] | None = None
    ) -> Any:
        """Send a request and return its answer; one that arrives after a cancellation is passed to `on_late_answer`.

        Raises:
            ConnectionLost: if the connection ended before it arrived.
            RelayError: if the answer is an error.
            ProtocolError: if the request does not fit into a frame.
        """
        while self._room is not None:
            await asyncio.shield(self._room)
        answer = self.ask(method, params, on_late_answer)
        try:
            return await answer
        except asyncio.CancelledError:
            if on_late_answer is not None and not answer.cancelled() and answer.exception() is None:
                on_late_answer(answer.result())  # it arrived at the same moment
            raise

    def ask(
        self, method: str, params: dict[str, Any], on_late_answer: Callable[[Any], None] | None = None
    ) -> asyncio.Future[Any]:
        """Send a request now, ahead of any later one, and return the future of its answer.

        Raises:
            ConnectionLost: if the connection has ended.
            ProtocolError: if the request does not fit into a frame.
        """
        id = next(self._ids)
        line = encode_request(method, params, id)
        _check_size(line)
        if self.lost.done():
            raise ConnectionLost(self.refusal or "")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[id] = answer, on_late_answer
        self._write(line)
        return answer

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification; do nothing if the connection has ended."""
        if not self.lost.done():
            line = encode_notification(method, params)
            _check_size(line)
            self._write(line)

    def close(self) -> None:
        """Send the waiting output, then close."""
        if not self.lost.done():
            self._flush()
            self._transport.close()

    def _write(self, line: bytes) -> None:
        """Send the first line of a turn of the loop immediately, and its other lines together at its end.

        A single request loses no time, and many cost few system calls here and fill whole turns on the server.
        """
        if self._turn_is_new:
            self._turn_is_new = False
            asyncio.get_running_loop().call_soon(self._flush)
            self._transport.write(line)
        else:
            self._out.append(line)

    def _flush(self) -> None:
        self._turn_is_new = True
        if self._out and not self.lost.done():
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check who serves the socket."""
        self._transport = cast(asyncio.Transport, transport)
        try:
            self.stranger = find_stranger(transport.get_extra_info("socket"))
        except OSError as error:
            self.stranger = f"its server cannot be identified: {error.strerror}"
        if self.stranger is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Pass on the frames that the bytes complete."""
        for line in self._frames.feed(data):
            try:
                frame = decode(line)
            except BadFrame:
                continue  # not a supervisor of this protocol: requests fail when the connection is lost
            if isinstance(frame, Request):
                self._on_note(self, frame.method, frame.params)
                continue
            if frame.id is None and frame.error is not None:
                self.refusal = frame.error.message
            if isinstance(frame.id, int):
                self._answered(frame.id, frame)
        if self._frames.overflowed:
            self._transport.abort()

    def pause_writing(self) -> None:
        """Delay further requests."""
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Resume requests."""
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the pending requests."""
        self.lost.set_result(None)
        self.resume_writing()
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(self.refusal or ""))
        self._waiting.clear()

    def _answered(self, id: int, frame: Response) -> None:
        answer, on_late_answer = self._waiting.pop(id, (None, None))
        if answer is None:
            return
        if answer.done():
            if on_late_answer is not None and frame.error is None:
                on_late_answer(frame.result)
        elif frame.error is not None:
            answer.set_exception(frame.error)
        else:
            answer.set_result(frame.result)


def _check_size(line: bytes) -> None:
    if len(line) > MAX_FRAME:
        raise ProtocolError(f"{len(line)} bytes do not fit into a frame of {MAX_FRAME}", code="frame_too_large")
