"""One connection: bytes in, frames out, with bounded memory.

1. Requests begin in the order they arrived and run concurrently, but none begins while an `ORDERED` one (or a publish
   to a pattern) is running: a client can register and publish without waiting in between. At most `IN_FLIGHT` requests
   of about `IN_FLIGHT_BYTES` run per connection, and at most `BURST` begin per turn of the loop, for at most
   `TURN_SECS` (flow_control.py). The rest waits, in the end unread, so that neither a flood from one client nor a few
   costly requests starve the others or pile up here.
2. A peer that does not read is not read from: its answers are bounded by the transport's buffer, and `LARGE` ones are
   made one at a time. Senders of notifications check `writable` first, and wait or drop as their kind demands.
3. An incomplete line has a deadline (line_deadline.py). A line that is too slow or too long ends the connection, after
   the answers to earlier requests and an error. Further input is discarded for `LINGER_SECS`: closing under a peer
   that still writes would discard the error too.
4. A peer that has closed its end still gets its answers (`nc` closes its end first), except to `LONG_POLL` requests.
5. Cleanups registered with `on_closed` run once, in reverse order, when the connection is lost. A caller that
   registers repeatedly does so with a key, so that a connection that lives for months keeps one cleanup.
6. Every request gets exactly one answer, unless it was a notification or the connection ends first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter, thread_time
from typing import Any, Protocol, cast

from relay_core.errors import Closed, ProtocolError, RelayError
from relay_core.journal.commit import PublishBatch
from relay_core.messages.signals import SignalSubscription
from relay_core.pipeline.pending_publish import PendingPublish
from relay_core.protocol.frames import (
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
from relay_core.protocol.methods import LARGE, LONG_POLL, ORDERED, has_trait
from relay_core.tasks import Tasks
from relay_supervisor.server.flow_control import (
    COSTLY_SECS,
    LATE_TURN_SECS,
    TURN_SECS,
    FairTurns,
    QueuedTurn,
    TimeDebt,
)
from relay_supervisor.server.identity import Identity
from relay_supervisor.server.line_deadline import LineDeadline
from relay_supervisor.server.output import FlushQueue, LineWriter

logger = logging.getLogger(__name__)

IN_FLIGHT = 256
IN_FLIGHT_BYTES = 4 * 1024 * 1024
BURST = 32
LINGER_SECS = 1.0


class Service(Protocol):
    """Answers the requests of connections."""

    tasks: Tasks
    turns: FairTurns
    """Where connections wait that have exceeded their share of the loop."""
    output: FlushQueue
    """Where connections wait that have answers to send."""
    greeting: dict[str, Any]
    """Sent beside the first answer of a connection."""

    def batch(self) -> PublishBatch:
        """Store the publishes that begin in a `with` statement together."""
        ...

    def identify(self, connection: Connection) -> Identity | str:
        """Return the peer's identity, or why it is refused."""
        ...

    def answer(self, connection: Connection, request: Request) -> Any:
        """Return the result of a request (None if empty), or a coroutine of it; an exception becomes its error."""
        ...

    def disconnected(self, connection: Connection) -> None:
        """Forget a connection."""
        ...


class Connection(asyncio.Protocol):
    """A client on the socket."""

    def __init__(self, service: Service) -> None:
        self.identity = Identity()
        self.name: str | None = None
        """The client's name for itself."""
        self.is_answering = True
        """Whether the request that is being started expects an answer."""
        self.signals: dict[str, SignalSubscription] = {}
        """Its subscriptions to signals, by their id."""
        self.publishes: set[PendingPublish] = set()
        """Its publishes that wait to be stored."""
        self._service = service
        self._transport: asyncio.Transport
        self._frames = FrameBuffer()
        self._lines: deque[bytes] = deque()
        self._output = LineWriter(service.output)
        self._deadline = LineDeadline(
            lambda: self._frames.begun and not self._ending,
            lambda: self._reading,
            lambda why: self._give_up(why, "frame_too_slow"),
        )
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._ordered: Request | None = None
        """The running request that must end before the next begins."""
        self._is_alone = False
        self._long_polls: set[asyncio.Task[Any]] = set()
        self._large = asyncio.Lock()
        self._turn: asyncio.Handle | QueuedTurn | None = None
        self._debt = TimeDebt()
        self._reading = True
        self._ending = False
        self._linger: asyncio.TimerHandle | None = None
        """Set while input is discarded."""
        self._cleanups: dict[object, Callable[[], None]] = {}
        self._greeting: dict[str, Any] | None = service.greeting

    # For the rest of the supervisor

    @property
    def closed(self) -> bool:
        """Return True if the connection is lost."""
        return self._output.closed

    @property
    def transport(self) -> asyncio.Transport:
        """Return the transport, to look up the peer."""
        return self._transport

    @property
    def writable(self) -> bool:
        """Return True if the peer keeps up with the output."""
        return self._output.keeps_up

    @property
    def in_flight(self) -> int:
        """Return the number of requests that run or wait for their turn."""
        return self._in_flight + len(self._lines)

    async def drained(self) -> None:
        """Wait until the peer keeps up.

        Raises:
            Closed: if the connection is closed.
        """
        await self._output.drained()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification.

        Raises:
            ProtocolError: with code `frame_too_large`, if it does not fit into a frame.
        """
        line = encode_notification(method, params)
        if len(line) > MAX_FRAME:
            raise ProtocolError(f"{len(line)} bytes do not fit into a frame of {MAX_FRAME}", code="frame_too_large")
        self._output.write(line)

    def hold(self) -> None:
        """Begin no other request before the one that is being started has been answered."""
        self._is_alone = True

    def on_closed(self, cleanup: Callable[[], None], *, key: object = None) -> None:
        """Call `cleanup` when the connection is lost; it replaces the one with the same key."""
        self._cleanups[cleanup if key is None else key] = cleanup

    def end(self) -> None:
        """Send the waiting output, begin nothing more, and close."""
        self._ending = True
        self._lines.clear()
        if not self.closed:
            self._output.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close immediately."""
        self._ending = True
        if not self.closed:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Identify the peer."""
        self._transport = cast(asyncio.Transport, transport)
        self._output.open(self._transport)
        identity = self._service.identify(self)
        if isinstance(identity, str):
            self._write_error(None, RelayError(identity, code="refused"))
            self.end()
        else:
            self.identity = identity

    def data_received(self, data: bytes) -> None:
        """Begin the requests that the bytes complete."""
        if self._ending:
            return
        had_begun = self._frames.begun
        lines = self._frames.feed(data)
        self._lines.extend(lines)
        if self._frames.begun and (lines or not had_begun):
            self._deadline.restart()
        self._proceed()

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read."""
        self._output.pause()
        self._regulate()

    def resume_writing(self) -> None:
        """Resume reading."""
        self._output.resume()
        self._regulate()
        if self._turn is None and self._lines:
            self._await_turn()

    def eof_received(self) -> bool:
        """Keep the connection open until its requests have been answered: `nc` closes its end first."""
        self._ending = True
        for task in self._long_polls:
            task.cancel()
        self._stop_lingering()
        return not self.closed

    def connection_lost(self, error: Exception | None) -> None:
        """Run the cleanups."""
        self._lines.clear()
        for timer in (self._deadline, self._turn, self._linger):
            if timer is not None:
                timer.cancel()
        self._output.close()
        for subscription in self.signals.values():
            subscription.close()
        for cleanup in reversed(self._cleanups.values()):
            try:
                cleanup()
            except Exception:
                logger.exception("cleaning up after a connection failed")
        self._cleanups.clear()
        self._service.disconnected(self)

    # Turns

    @property
    def _has_room(self) -> bool:
        """Return True if another request may begin."""
        few = self._in_flight < IN_FLIGHT and self._in_flight_bytes < IN_FLIGHT_BYTES
        return few and self._ordered is None and self._output.keeps_up

    def _take_turn(self) -> None:
        """Begin some of the waiting requests."""
        most = LATE_TURN_SECS if isinstance(self._turn, QueuedTurn) else TURN_SECS
        self._turn = None
        with self._service.batch():
            self._begin_some(most)
        self._output.flush()  # not in the next turn of the loop: clients wait for these answers
        if self._lines and self._has_room:
            self._await_turn()
        elif not self._lines and self._frames.overflowed and not self._ending:
            self._give_up(f"a frame must not be longer than {MAX_FRAME} bytes", "frame_too_large")
        self._regulate()
        self._close_if_done()

    def _begin_some(self, most: float) -> None:
        lines = self._lines
        start = now = perf_counter()
        # Waiting for the interpreter or a processor costs the others nothing, so the thread's own time counts. To read
        # it is a system call: for a single request of a connection without debt the clock is good enough.
        worked = thread_time() if len(lines) > 1 or self._debt.is_any else None
        for _ in range(BURST):
            if not lines or now - start >= most or not self._has_room:
                return
            before = now
            self._begin(lines.popleft())
            now = perf_counter()
            cost = now - before
            if cost >= COSTLY_SECS:
                if worked is not None:
                    worked, since = thread_time(), worked
                    cost = min(cost, worked - since)
                if cost >= COSTLY_SECS:
                    self._debt.add(cost)

    def _proceed(self) -> None:
        """Begin waiting requests now, or when it is this connection's turn."""
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

    def _regulate(self) -> None:
        """Read only while there is room for the input."""
        queued = isinstance(self._turn, QueuedTurn)  # input would pile up meanwhile
        room = self._has_room and len(self._lines) < IN_FLIGHT and not queued
        want = self._linger is not None or (room and not self._ending)
        if want != self._reading and not self.closed and not self._transport.is_closing():
            self._reading = want
            if want:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # Requests

    def _begin(self, line: bytes) -> None:
        try:
            request = decode(line)
        except BadFrame as error:
            self._write_error(error.id, error)
            return
        if isinstance(request, Response):
            return  # the server sends no requests
        self.is_answering = not request.is_notification
        self._is_alone = False
        try:
            result = self._service.answer(self, request)
        except Exception as error:
            self._fail(request, error)
            return
        if isinstance(result, PendingPublish):
            self._in_flight += 1
            self._in_flight_bytes += len(line)
            if self._is_alone:
                self._ordered = request
            self.publishes.add(result)
            result.when_done(partial(self._publish_ended, request, len(line)))
        elif not asyncio.iscoroutine(result):
            self._succeed(request, result)
        elif (
            task := self._service.tasks.start(self._finish(request, result, len(line)), name=request.method[:40])
        ) is None:
            result.close()
            self._fail(request, Closed("the supervisor is stopping", code="stopping"))
        else:
            self._begun(request, len(line))
            if has_trait(request.method, LONG_POLL):
                self._long_polls.add(task)
                task.add_done_callback(self._long_polls.discard)

    def _begun(self, request: Request, size: int) -> None:
        self._in_flight += 1
        self._in_flight_bytes += size
        self._ordered = request if self._is_alone or has_trait(request.method, ORDERED) else None

    def _ended(self, request: Request, size: int) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= size
        if self._ordered is request:
            self._ordered = None

    def _publish_ended(self, request: Request, size: int, publish: PendingPublish) -> None:
        """Answer a publish; the answers to a group that was stored together leave together."""
        self.publishes.discard(publish)
        if publish.error is not None:
            self._fail(request, publish.error)
        else:
            self._succeed(request, publish.result)
        self._ended(request, size)
        if self._turn is None and not self.closed and (self._lines or self._ending or not self._reading):
            self._await_turn()
            self._regulate()

    async def _finish(self, request: Request, pending: Coroutine[Any, Any, Any], size: int) -> None:
        try:
            is_large = has_trait(request.method, LARGE)
            self._succeed(request, await (self._one_by_one(pending) if is_large else pending))
        except Exception as error:
            self._fail(request, error)
        finally:  # a cancelled request gets no answer: its connection closes next, and its progress is unknown
            self._ended(request, size)
            if not self.closed:
                self._proceed()

    async def _one_by_one(self, pending: Coroutine[Any, Any, Any]) -> Any:
        """Start once the peer has read the previous large answer."""
        try:
            async with self._large:
                await self.drained()
                return await pending
        finally:
            pending.close()  # if it was not started

    def _succeed(self, request: Request, result: Any) -> None:
        if request.is_notification:
            return
        try:
            line = encode_result(request.id, {} if result is None else result, self._greeting)
        except Exception as error:
            self._fail(request, error)
            return
        if len(line) > MAX_FRAME:
            why = f"the answer has {len(line)} bytes: ask for fewer rows"
            self._fail(request, ProtocolError(why, code="frame_too_large"))
            return
        self._greeting = None
        self._output.write(line)

    def _fail(self, request: Request, error: Exception) -> None:
        if not isinstance(error, RelayError):
            logger.error("%s failed", request.method[:80], exc_info=error)
        if not request.is_notification:
            self._write_error(request.id, error)

    def _write_error(self, id: Id, error: Exception) -> None:
        greeting, self._greeting = self._greeting, None
        line = encode_error(id, error, greeting)
        if len(line) > MAX_FRAME:  # it quotes something long
            line = encode_error(id, ProtocolError(str(error)[:200], code="frame_too_large"), greeting)
        self._output.write(line)

    # The end

    def _give_up(self, why: str, code: str) -> None:
        """Report an error in the input, and close once earlier requests have been answered."""
        self._write_error(None, ProtocolError(why, code=code))
        self._ending = True
        self._linger = asyncio.get_running_loop().call_later(LINGER_SECS, self._stop_lingering)
        self._regulate()

    def _stop_lingering(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._ending and not self._linger and not self._lines and not self._in_flight and not self.closed:
            self._output.flush()
            self._transport.close()
