"""One connection: bytes in, frames out, and never more memory than its share.

1. Requests are begun in the order they came and run side by side, but nothing is begun while one that later ones may
   count on (`ORDERED`, and a publish to a pattern) is under way: to register and publish needs no waiting in between.
   At most `IN_FLIGHT` of one connection are under way, of about `IN_FLIGHT_BYTES`, and at most `BURST` are begun in one
   turn of the loop, for at most `TURN_SECS` (pacing.py); the rest waits, unread in the end, so that a flood from one
   client, or a few costly requests, neither starve the others nor pile up here.
2. A peer that does not read is not read from either: its answers are bounded by the transport's buffer, and those
   that may be `LARGE` are made one after the other. What the server sends by itself looks at `writable` first, and
   waits or drops as its kind demands.
3. A line that is begun must be completed within `LINE_SECS`. A line that is too slow or too long ends the
   connection, after an error that says so and the answers to what was asked before. What still comes is thrown away
   for a moment: a connection closed under a peer that writes would take the error with it.
4. A peer that has closed its end still gets the answers to what it asked (`nc` closes its end first), but for those
   that may never come (`PATIENT`).
5. When the connection is gone, whoever has registered with `on_closed` is told, once, in reverse order. Who registers
   again and again does so by a key, so that a connection that lives for months keeps one of them.
6. Whatever a request does, it gets exactly one answer, unless it was a notification or the connection ends first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, Protocol, cast

from relay_core.errors import Closed, ProtocolError, RelayError
from relay_core.frames import (
    MAX_FRAME,
    BadFrame,
    FrameBuffer,
    Id,
    Request,
    Response,
    decode,
    encode_error,
    encode_notification,
    encode_result,
)
from relay_core.signals import SignalSubscription
from relay_core.tasks import Tasks
from relay_supervisor.identity import Identity
from relay_supervisor.pacing import (
    COSTLY_SECS,
    LARGE,
    LATE_TURN_SECS,
    ORDERED,
    PATIENT,
    TURN_SECS,
    Debt,
    Ticket,
    Turns,
)

logger = logging.getLogger(__name__)

IN_FLIGHT = 256
IN_FLIGHT_BYTES = 4 * 1024 * 1024
BURST = 32
LINE_SECS = 30.0
LINGER_SECS = 1.0
_BUFFERED = 1024 * 1024
_HELD = 64 * 1024
"""Bytes that wait for the end of a turn at most. Beyond that the transport must know of them, to say when to stop."""


class Service(Protocol):
    """Who answers the requests of connections."""

    tasks: Tasks
    turns: Turns
    """Where connections that are ahead of their share wait for their turn."""
    greeting: dict[str, Any]
    """What the first answer of a connection carries beside it."""

    def identify(self, connection: Connection) -> Identity | str:
        """Say who has connected, or why not to talk to them."""
        ...

    def answer(self, connection: Connection, request: Request) -> Any:
        """Return the result of a request, or a coroutine that does; whatever is raised is its error."""
        ...

    def disconnected(self, connection: Connection) -> None:
        """Forget a connection."""
        ...


class Connection(asyncio.Protocol):
    """A client on the socket."""

    def __init__(self, service: Service) -> None:
        self.identity = Identity()
        self.name: str | None = None
        """What the client calls itself."""
        self.closed = False
        self.is_answering = True
        """Whether the request that is begun right now wants an answer."""
        self.signals: dict[str, SignalSubscription] = {}
        """The signals that it listens to, by the id it knows them by."""
        self._service = service
        self._transport: asyncio.Transport
        self._frames = FrameBuffer()
        self._lines: deque[bytes] = deque()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flushing: asyncio.Handle | None = None
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._ordered: Request | None = None
        """The request under way that must be done before the next is begun."""
        self._is_alone = False
        self._patient: set[asyncio.Task[Any]] = set()
        """Requests under way that end with the peer."""
        self._large = asyncio.Lock()
        self._turn: asyncio.Handle | Ticket | None = None
        self._debt = Debt()
        self._line_timer: asyncio.TimerHandle | None = None
        self._line_due = 0.0
        self._reading = True
        self._ending = False
        self._linger: asyncio.TimerHandle | None = None
        """Set while what comes is thrown away."""
        self._drained: asyncio.Future[None] | None = None
        self._cleanups: dict[object, Callable[[], None]] = {}
        self._greeting: dict[str, Any] | None = service.greeting

    # What the rest of the supervisor uses

    @property
    def transport(self) -> asyncio.Transport:
        """Return the transport, to ask who is on the other end."""
        return self._transport

    @property
    def writable(self) -> bool:
        """Whether the peer keeps up with what it is sent."""
        return self._drained is None and not self.closed

    @property
    def in_flight(self) -> int:
        """Return how many requests are under way, or wait for their turn."""
        return self._in_flight + len(self._lines)

    async def drained(self) -> None:
        """Return once the peer keeps up.

        Raises:
            Closed: if it is gone.
        """
        while self._drained is not None:
            await asyncio.shield(self._drained)
        if self.closed:
            raise Closed("the connection is closed")

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification.

        Raises:
            ProtocolError: with code `frame_too_large`, if it does not fit into a frame.
        """
        line = encode_notification(method, params)
        if len(line) > MAX_FRAME:
            raise ProtocolError(f"{len(line)} bytes do not fit into a frame of {MAX_FRAME}", code="frame_too_large")
        self._write(line)

    def hold(self) -> None:
        """Begin nothing more before the request that is begun right now has been answered."""
        self._is_alone = True

    def on_closed(self, cleanup: Callable[[], None], *, key: object = None) -> None:
        """Call back when the connection is gone; the latest of those with the same key is called."""
        self._cleanups[cleanup if key is None else key] = cleanup

    def end(self) -> None:
        """Send what is waiting and begin nothing more, then close."""
        self._ending = True
        self._lines.clear()
        if not self.closed:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._ending = True
        if not self.closed:
            self._transport.abort()

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Find out who it is."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_BUFFERED)
        who = self._service.identify(self)
        if isinstance(who, str):
            self._write_error(None, RelayError(who, code="refused"))
            self.end()
        else:
            self.identity = who

    def data_received(self, data: bytes) -> None:
        """Take in bytes, and begin what they complete."""
        if self._ending:
            return
        had_begun = self._frames.begun
        lines = self._frames.feed(data)
        self._lines.extend(lines)
        if self._frames.begun and (lines or not had_begun):
            self._watch_line()
        self._go_on()

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read."""
        self._drained = asyncio.get_running_loop().create_future()
        self._regulate()

    def resume_writing(self) -> None:
        """Go on."""
        self._release()
        self._regulate()
        if self._turn is None and self._lines:
            self._await_turn()

    def eof_received(self) -> bool:
        """Keep the connection until what was asked has been answered: `nc` closes its end first."""
        self._ending = True
        for task in self._patient:
            task.cancel()
        self._stop_lingering()
        return not self.closed

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everyone who has to do with it."""
        self.closed = True
        self._lines.clear()
        for timer in (self._line_timer, self._turn, self._linger):
            if timer is not None:
                timer.cancel()
        self._release()
        for subscription in self.signals.values():
            subscription.close()
        for cleanup in reversed(self._cleanups.values()):
            try:
                cleanup()
            except Exception:
                logger.exception("cleaning up after a connection failed")
        self._cleanups.clear()
        self._service.disconnected(self)

    # Inside

    @property
    def _has_room(self) -> bool:
        """Whether another request may be begun."""
        few = self._in_flight < IN_FLIGHT and self._in_flight_bytes < IN_FLIGHT_BYTES
        return few and self._ordered is None and self.writable

    def _take_turn(self) -> None:
        """Begin some of the requests that wait."""
        most = LATE_TURN_SECS if isinstance(self._turn, Ticket) else TURN_SECS
        self._turn = None
        begun = 0
        start = now = perf_counter()
        while self._lines and begun < BURST and now - start < most and self._has_room:
            begun += 1
            before = now
            self._begin(self._lines.popleft())
            now = perf_counter()
            if now - before >= COSTLY_SECS:
                self._debt.add(now - before)
        self._flush()  # not in the next turn: somebody waits for it
        if self._lines and self._has_room:
            self._await_turn()
        elif not self._lines and self._frames.overflowed and not self._ending:
            self._give_up(f"a frame must not be longer than {MAX_FRAME} bytes", "frame_too_large")
        self._regulate()
        self._close_if_done()

    def _go_on(self) -> None:
        """Begin what waits now, or when it is this connection's turn."""
        if self._turn is None:
            if self._lines and self._debt.is_due:
                self._await_turn()
                self._regulate()
            else:
                self._take_turn()

    def _await_turn(self) -> None:
        if self._debt.is_due:
            self._turn = self._service.turns.wait(self._take_turn)
        else:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn)

    def _begin(self, line: bytes) -> None:
        try:
            request = decode(line)
        except BadFrame as error:
            self._write_error(error.id, error)
            return
        if isinstance(request, Response):
            return  # nothing was asked: there is nobody to hand it to
        self.is_answering = not request.is_notification
        self._is_alone = False
        try:
            result = self._service.answer(self, request)
        except Exception as error:
            self._fail(request, error)
            return
        if not asyncio.iscoroutine(result):
            self._succeed(request, result)
        elif (
            task := self._service.tasks.start(self._finish(request, result, len(line)), name=request.method[:40])
        ) is None:
            result.close()
            self._fail(request, Closed("the supervisor is stopping", code="stopping"))
        else:
            self._in_flight += 1
            self._in_flight_bytes += len(line)
            self._ordered = request if self._is_alone or request.method in ORDERED else None
            if request.method in PATIENT:
                self._patient.add(task)
                task.add_done_callback(self._patient.discard)

    async def _finish(self, request: Request, pending: Coroutine[Any, Any, Any], size: int) -> None:
        try:
            self._succeed(request, await (self._one_by_one(pending) if request.method in LARGE else pending))
        except Exception as error:
            self._fail(request, error)
        finally:  # one that is cancelled is not answered: its connection closes next, and nobody knows how far it came
            self._in_flight -= 1
            self._in_flight_bytes -= size
            if self._ordered is request:
                self._ordered = None
            if not self.closed:
                self._go_on()

    async def _one_by_one(self, pending: Coroutine[Any, Any, Any]) -> Any:
        """Begin once the answer before this one has been taken."""
        try:
            async with self._large:
                await self.drained()
                return await pending
        finally:
            pending.close()  # if it has not been begun

    def _succeed(self, request: Request, result: Any) -> None:
        if request.is_notification:
            return
        try:
            line = encode_result(request.id, result, self._greeting)
        except Exception as error:
            self._fail(request, error)
            return
        if len(line) > MAX_FRAME:
            why = f"the answer has {len(line)} bytes: ask for less at once"
            self._fail(request, ProtocolError(why, code="frame_too_large"))
            return
        self._greeting = None
        self._write(line)

    def _fail(self, request: Request, error: Exception) -> None:
        if not isinstance(error, RelayError):
            logger.error("%s failed", request.method[:80], exc_info=error)
        if not request.is_notification:
            self._write_error(request.id, error)

    def _write_error(self, id: Id, error: Exception) -> None:
        greeting, self._greeting = self._greeting, None
        line = encode_error(id, error, greeting)
        if len(line) > MAX_FRAME:  # it repeats something long
            line = encode_error(id, ProtocolError(str(error)[:200], code="frame_too_large"), greeting)
        self._write(line)

    def _give_up(self, why: str, code: str) -> None:
        """Say what is wrong with the line that is coming, and close once what came before it is answered."""
        self._write_error(None, ProtocolError(why, code=code))
        self._ending = True
        self._linger = asyncio.get_running_loop().call_later(LINGER_SECS, self._stop_lingering)
        self._regulate()

    def _stop_lingering(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._close_if_done()

    def _write(self, line: bytes) -> None:
        """Send a line with all others of this turn of the loop: a system call costs more than most answers."""
        self._out.append(line)
        self._out_bytes += len(line)
        if self._out_bytes >= _HELD:
            self._flush()
        elif self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._out and not self.closed:
            self._transport.write(b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0

    def _release(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)

    def _regulate(self) -> None:
        """Read only while there is room for what is read."""
        waits = isinstance(self._turn, Ticket)  # for its turn, and what is read meanwhile would pile up
        room = self._has_room and len(self._lines) < IN_FLIGHT and not waits
        want = self._linger is not None or (room and not self._ending)
        if want != self._reading and not self.closed and not self._transport.is_closing():
            self._reading = want
            if want:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _watch_line(self) -> None:
        """Give the line that was begun its time."""
        loop = asyncio.get_running_loop()
        self._line_due = loop.time() + LINE_SECS
        if self._line_timer is None:
            self._line_timer = loop.call_at(self._line_due, self._look_at_line)

    def _look_at_line(self) -> None:
        self._line_timer = None
        loop = asyncio.get_running_loop()
        if not self._frames.begun or self._ending:
            return
        if not self._reading:  # it is us who do not read
            self._watch_line()
        elif loop.time() < self._line_due:  # that was an earlier line
            self._line_timer = loop.call_at(self._line_due, self._look_at_line)
        else:
            self._give_up(f"a frame was not completed within {LINE_SECS:g} s", "frame_too_slow")

    def _close_if_done(self) -> None:
        if self._ending and not self._linger and not self._lines and not self._in_flight and not self.closed:
            self._flush()
            self._transport.close()
