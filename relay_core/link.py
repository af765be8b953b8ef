"""One connection to the supervisor: requests out, answers back to whoever asked, notifications to whoever listens.

A link lives once. When it is lost, everything that waits for an answer learns so by `LinkLost`: whether the
supervisor did what was asked is not known then. Making a new one is redial.py's part.

Nothing is sent before the kernel has said that the user's own supervisor serves the socket (peer.py).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

from relay_core.errors import ProtocolError, SupervisorUnavailable
from relay_core.frames import (
    MAX_FRAME,
    BadFrame,
    FrameBuffer,
    Request,
    Response,
    decode,
    encode_notification,
    encode_request,
)
from relay_core.peer import find_stranger


class LinkLost(Exception):
    """The connection ended before the answer came."""


class Link(asyncio.Protocol):
    """A connection that is open, until it is lost or closed."""

    def __init__(self, on_note: Callable[[Link, str, dict[str, Any]], None]) -> None:
        self._on_note = on_note
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport
        self._ids = count(1)
        self._waiting: dict[int, tuple[asyncio.Future[Any], Callable[[Any], None] | None]] = {}
        """What was asked and is not answered yet, also if nobody waits for it any more."""
        self._room: asyncio.Future[None] | None = None
        self._out: list[bytes] = []
        self._turn_is_new = True
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is over."""
        self.refusal: str | None = None
        """Why the supervisor did not want to talk."""
        self.stranger: str | None = None
        """Why we must not talk to who serves the socket."""

    @classmethod
    async def open(cls, path: Path, on_note: Callable[[Link, str, dict[str, Any]], None]) -> Link:
        """Connect.

        Raises:
            SupervisorUnavailable: if nobody answers there; with the code `foreign_supervisor`, if another user does.
        """
        try:
            _, link = await asyncio.get_running_loop().create_unix_connection(lambda: cls(on_note), str(path))
        except OSError as error:
            raise _unavailable(path, error) from error
        if link.stranger is not None:
            message = f"cannot use {path}: {link.stranger}"
            raise SupervisorUnavailable(message, socket=str(path), code="foreign_supervisor")
        return link

    async def request(self, method: str, params: dict[str, Any], unwanted: Callable[[Any], None] | None = None) -> Any:
        """Ask, and return the answer; one that nobody waits for any more when it comes is given to `unwanted`.

        Raises:
            LinkLost: if the connection ended before it came.
            RelayError: if the answer is an error.
            ProtocolError: if the question does not fit into a frame.
        """
        while self._room is not None:
            await asyncio.shield(self._room)
        answer = self.ask(method, params, unwanted)
        try:
            return await answer
        except asyncio.CancelledError:
            if unwanted is not None and not answer.cancelled() and answer.exception() is None:
                unwanted(answer.result())  # it came at the same moment
            raise

    def ask(
        self, method: str, params: dict[str, Any], unwanted: Callable[[Any], None] | None = None
    ) -> asyncio.Future[Any]:
        """Ask at once, before anything that is said later, and return what will be the answer.

        Raises:
            LinkLost: if the connection is over.
            ProtocolError: if the question does not fit into a frame.
        """
        id = next(self._ids)
        line = encode_request(method, params, id)
        _check_size(line)
        if self.lost.done():
            raise LinkLost(self.refusal or "")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[id] = answer, unwanted
        self._write(line)
        return answer

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Say something that needs no answer; nothing happens if the connection is over."""
        if not self.lost.done():
            line = encode_notification(method, params)
            _check_size(line)
            self._write(line)

    def close(self) -> None:
        """Send what is waiting, then close."""
        if not self.lost.done():
            self._flush()
            self._transport.close()

    def _write(self, line: bytes) -> None:
        """Send the first line of a turn of the loop at once, and all others of it together at its end.

        So a single question loses no time, and many cost few system calls here and make full turns there.
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

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        try:
            self.stranger = find_stranger(transport.get_extra_info("socket"))
        except OSError as error:
            self.stranger = f"who serves it cannot be found out: {error.strerror}"
        if self.stranger is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Hand out what the bytes say."""
        for line in self._frames.feed(data):
            try:
                frame = decode(line)
            except BadFrame:
                continue  # not from a supervisor of this protocol: whoever waits will be told of the loss
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
        """Wait before asking more."""
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Go on."""
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everyone who waits."""
        self.lost.set_result(None)
        self.resume_writing()
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(LinkLost(self.refusal or ""))
        self._waiting.clear()

    def _answered(self, id: int, frame: Response) -> None:
        answer, unwanted = self._waiting.pop(id, (None, None))
        if answer is None:
            return
        if answer.done():
            if unwanted is not None and frame.error is None:
                unwanted(frame.result)
        elif frame.error is not None:
            answer.set_exception(frame.error)
        else:
            answer.set_result(frame.result)


def _check_size(line: bytes) -> None:
    if len(line) > MAX_FRAME:
        raise ProtocolError(f"{len(line)} bytes do not fit into a frame of {MAX_FRAME}", code="frame_too_large")


def _unavailable(path: Path, error: OSError) -> SupervisorUnavailable:
    if isinstance(error, FileNotFoundError):
        why = "no supervisor is running: start one with 'relay-supervisor run'"
    elif isinstance(error, ConnectionRefusedError):
        why = "the supervisor that was there is gone: start one with 'relay-supervisor run'"
    elif isinstance(error, PermissionError):
        why = "it belongs to another user"
    elif error.errno == errno.ENAMETOOLONG or "too long" in str(error):
        why = "its path is too long for a socket"
    else:
        why = str(error)
    return SupervisorUnavailable(f"cannot reach {path}: {why}", socket=str(path))
