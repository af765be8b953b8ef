"""One connection to the supervisor: sends requests, matches answers to them and passes on notifications.

A connection is used once. When it is lost, every pending request fails with `ConnectionLost`, and whether the
supervisor carried it out is unknown. reconnect.py opens a new one.

Nothing is sent before the kernel has confirmed that the user's own supervisor serves the socket (peer_credentials.py).
Frames are therefore read without the checks that a server needs (frames.py).

A request has a deadline instead of a timer: one timer for the connection waits for the earliest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson

from relay_core.errors import ProtocolError, SupervisorUnavailable
from relay_core.protocol.frames import (
    MAX_FRAME,
    FrameBuffer,
    encode_ack,
    encode_notification,
    encode_request,
    error_from_wire,
)
from relay_core.protocol.peer_credentials import explain_unreachable, find_stranger


class ConnectionLost(Exception):
    """The connection ended before the answer arrived."""


class _Pending(NamedTuple):
    """A request without an answer."""

    answer: asyncio.Future[Any]
    on_late_answer: Callable[[Any], None] | None
    deadline: float


_READ_SIZE = 64 * 1024


class Connection(asyncio.BufferedProtocol):
    """An open connection, until it is lost or closed."""

    def __init__(self, on_note: Callable[[Connection, str, dict[str, Any]], None]) -> None:
        self._on_note = on_note
        self._loop = asyncio.get_running_loop()
        self._read = memoryview(bytearray(_READ_SIZE))
        """Holds the bytes of one read. A plain Protocol allocates 256 KiB for each read, which can take 15 µs."""
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport
        self._ids = count(1)
        self._waiting: dict[int, _Pending] = {}
        """Requests without an answer, including cancelled ones."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._room: asyncio.Future[None] | None = None
        self._out: list[bytes] = []
        """Lines to send at the end of this turn of the loop."""
        self._is_busy = False
        """True if the last bytes held several frames: several lines will be sent in response."""
        self.lost: asyncio.Future[None] = self._loop.create_future()
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
        self,
        method: str,
        params: dict[str, Any],
        on_late_answer: Callable[[Any], None] | None = None,
        *,
        deadline: float = inf,
    ) -> Any:
        """Send a request and return its answer.

        An answer that arrives after a cancellation or the deadline is passed to `on_late_answer`.

        Raises:
            ConnectionLost: if the connection ended before it arrived.
            TimeoutError: if it did not arrive before the deadline, in the loop's time.
            RelayError: if the answer is an error.
            ProtocolError: if the request does not fit into a frame.
        """
        while self._room is not None:
            async with asyncio.timeout_at(deadline if deadline < inf else None):
                await asyncio.shield(self._room)
        answer = self.ask(method, params, on_late_answer, deadline=deadline)
        try:
            return await answer
        except asyncio.CancelledError:
            if on_late_answer is not None and not answer.cancelled() and answer.exception() is None:
                on_late_answer(answer.result())  # it arrived at the same moment
            raise

    def ask(
        self,
        method: str,
        params: dict[str, Any],
        on_late_answer: Callable[[Any], None] | None = None,
        *,
        deadline: float = inf,
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
        answer: asyncio.Future[Any] = self._loop.create_future()
        others_wait = bool(self._waiting)
        self._waiting[id] = _Pending(answer, on_late_answer, deadline)
        if deadline < self._timer_at:
            self._set_timer(deadline)
        self._write(line, others_wait)
        return answer

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification; do nothing if the connection has ended."""
        if not self.lost.done():
            line = encode_notification(method, params)
            _check_size(line)
            self._write(line, False)

    def ack(self, delivery_id: str, *, more_follow: bool) -> None:
        """Acknowledge a delivery; do nothing if the connection has ended."""
        if not self.lost.done():
            self._write(encode_ack(delivery_id), more_follow)

    def close(self) -> None:
        """Send the waiting output, then close."""
        if not self.lost.done():
            self._flush()
            self._transport.close()

    def _write(self, line: bytes, more_follow: bool) -> None:
        """Send a line immediately; if more are likely to follow, send all of this turn of the loop together at its end.

        A single request loses no time, and many cost few system calls here and fill whole turns on the server.
        """
        if self._out:
            self._out.append(line)
        elif more_follow or self._is_busy:
            self._out.append(line)
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(line)

    def _flush(self) -> None:
        if self._out and not self.lost.done():
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check who serves the socket."""
        self._transport = cast(asyncio.Transport, transport)
        try:
            self.stranger = find_stranger(transport.get_extra_info("socket"))
        except OSError as error:
            self.stranger = f"its server cannot be identified: {error.strerror}"
        if self.stranger is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to read into."""
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the frames that the bytes complete."""
        lines = self._frames.feed(bytes(self._read[:nbytes]))
        self._is_busy = len(lines) > 1
        for line in lines:
            try:
                frame = orjson.loads(line)
            except ValueError:
                continue  # not a supervisor of this protocol: requests fail when the connection is lost
            if not isinstance(frame, dict):
                continue
            if "method" in frame:
                if isinstance(params := frame.get("params"), dict):
                    self._on_note(self, str(frame["method"]), params)
            elif "result" in frame or "error" in frame:
                self._answered(frame)
        if self._frames.overflowed:
            self._transport.abort()

    def pause_writing(self) -> None:
        """Delay further requests."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """Resume requests."""
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the pending requests."""
        self.lost.set_result(None)
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
        for pending in self._waiting.values():
            if not pending.answer.done():
                pending.answer.set_exception(ConnectionLost(self.refusal or ""))
        self._waiting.clear()

    def _answered(self, frame: dict[str, Any]) -> None:
        id = frame.get("id")
        if id is None and "error" in frame:
            self.refusal = error_from_wire(frame["error"]).message
        pending = self._waiting.pop(id, None) if type(id) is int else None
        if pending is None:
            return
        if pending.answer.done():
            if pending.on_late_answer is not None and "error" not in frame:
                pending.on_late_answer(frame["result"])
        elif "error" in frame:
            pending.answer.set_exception(error_from_wire(frame["error"]))
        else:
            pending.answer.set_result(frame["result"])

    # Deadlines

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._expire) if at < inf else None

    def _expire(self) -> None:
        """Fail the requests whose deadline has passed, and wait for the next deadline."""
        now = self._loop.time()
        open_requests = [pending for pending in self._waiting.values() if not pending.answer.done()]
        for pending in open_requests:
            if pending.deadline <= now:
                pending.answer.set_exception(TimeoutError())
        self._set_timer(min((pending.deadline for pending in open_requests if pending.deadline > now), default=inf))


def _check_size(line: bytes) -> None:
    if len(line) > MAX_FRAME:
        raise ProtocolError(f"{len(line)} bytes do not fit into a frame of {MAX_FRAME}", code="frame_too_large")
