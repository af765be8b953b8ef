"""Streams of messages, signals and state, each an async iterator.

1. A stream survives the supervisor: when the connection is lost it subscribes again, for as long as it takes, until it
   is closed.
2. A message is acknowledged when the caller asks for the next one or leaves the loop normally: after the loop body,
   never before. A body that raises dead-letters its message, with the error as the reason. Leaving the loop is noticed
   at the end of the stream's `async with`, or of the client's.
3. A message in flight when the connection is lost cannot be acknowledged: the supervisor has dead-lettered it.
   Messages received but not yet returned are dropped for the same reason.
4. Messages that arrive while a stream is closing are refused, so that they are dead-lettered immediately instead of
   blocking their mailbox. `unsubscribe` is sent before the last `ack`, so that the supervisor does not send another.
5. A stream that shares a queue sends `start` and waits for the answer before the caller sees a message: until then the
   supervisor may give the message to another member. A message whose `start` is pending at the end is requeued. So no
   message is refused at the end, and none is handled twice, whichever process dies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from relay_core.client.connection import Connection, ConnectionLost
from relay_core.errors import Closed, NotFound, RelayError
from relay_core.messages.envelope import Envelope, trusted_envelope
from relay_core.messages.signals import Signal
from relay_core.protocol.live_state import LiveState, StateUpdate
from relay_core.protocol.methods import parse_answer

_CLOSE_SECS = 2.0
_CLOSED = "the subscription was closed"


class StreamOwner(Protocol):
    """The client of a stream (reconnect.py)."""

    async def open_stream(
        self, stream: Stream, method: str, key: str, params: dict[str, Any]
    ) -> tuple[Connection, str]:
        """Start a stream on the current connection, waiting for one as long as it takes."""
        ...

    def adopt(self, stream: Stream, connection: Connection, stream_id: str) -> None:
        """Pass a stream its notifications."""
        ...

    def forget(self, stream: Stream) -> None:
        """Pass a stream no more notifications."""
        ...


class Stream:
    """Notifications of one kind, through any number of connections."""

    opening = ""
    """The method that starts the stream."""
    closing = ""
    """The method that ends it."""
    key = ""
    """The field that holds the stream's id."""

    def __init__(self, client: StreamOwner, params: dict[str, Any]) -> None:
        self._client = client
        self._params = params
        self._notes: deque[dict[str, Any]] = deque()
        self._arrived = asyncio.Event()
        self._connection: Connection | None = None
        self._id: str | None = None
        self._closed = False
        self._error: BaseException | None = None
        """The exception that ended the caller's loop."""
        self._opening = asyncio.Lock()

    def __await__(self) -> Generator[Any, None, Self]:
        """Start the stream now, instead of at the first step."""
        return self._begin().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(error)

    @property
    def closed(self) -> bool:
        """Return True if the stream is closed."""
        return self._closed

    async def close(self, error: BaseException | None = None) -> None:
        """End the stream; closing again does nothing. A current message is acknowledged, or failed with the error."""
        if self._closed:
            return
        self._closed = True
        self._error = error
        self._arrived.set()
        try:
            if self._connection is not None and self._id is not None:
                async with asyncio.timeout(_CLOSE_SECS):
                    await self._end(self._connection, self._id)
        except (ConnectionLost, RelayError, TimeoutError):
            pass  # the supervisor is gone, or too slow to wait for
        finally:
            self._client.forget(self)

    def take(self, connection: Connection, note: dict[str, Any]) -> None:
        """Accept a notification of the stream's current connection."""
        self._notes.append(note)
        self._arrived.set()

    def decline(self, connection: Connection, begun: dict[str, Any]) -> None:
        """End a stream whose caller was cancelled before it was opened."""
        if connection.lost.done():
            return
        id = begun[self.key]
        stand_in = type(self)(self._client, self._params)
        stand_in._closed = True
        end = stand_in._end(connection, id)  # sent before any refusal: the supervisor must not send another message
        self._client.adopt(stand_in, connection, id)

        def ended(answer: asyncio.Future[Any]) -> None:
            answer.exception()  # retrieved; the stream has ended either way
            self._client.forget(stand_in)

        end.add_done_callback(ended)

    def lose(self) -> None:
        """Handle the loss of the connection."""
        self._notes.clear()
        self._arrived.set()

    async def prepare(self, connection: Connection) -> None:
        """Prepare a connection before the stream is started on it."""

    async def _begin(self) -> Self:
        async with self._opening:
            if self._closed:
                raise Closed("the stream is closed")
            if self._connection is None or self._connection.lost.done():
                self._notes.clear()
                self._connection, self._id = await self._client.open_stream(self, self.opening, self.key, self._params)
        return self

    def _end(self, connection: Connection, id: str) -> asyncio.Future[Any]:
        """Ask the supervisor to end the stream; no notification follows its answer."""
        return connection.ask(self.closing, {self.key: id})

    async def _next(self) -> dict[str, Any]:
        while not self._closed:
            if self._connection is None or self._connection.lost.done():
                try:
                    await self._begin()
                except Closed:
                    if not self.closed:
                        raise
                    break
            if self._notes:
                return self._notes.popleft()
            self._arrived.clear()
            await self._arrived.wait()
        raise StopAsyncIteration


class _Delivery(NamedTuple):
    connection: Connection
    delivery_id: str


class _PendingStart(NamedTuple):
    message: _Delivery
    note: dict[str, Any]
    answer: asyncio.Future[Any]


class MessageStream(Stream):
    """The messages of a subject or a pattern: ``async for envelope in client.subscribe(...)``."""

    opening = "subscribe"
    closing = "unsubscribe"
    key = "subscriptionId"

    def __init__(self, client: StreamOwner, params: dict[str, Any]) -> None:
        super().__init__(client, params)
        self._starts = bool(params.get("starts"))
        self._current: _Delivery | None = None
        self._pending_start: _PendingStart | None = None
        """The message whose `start` has not been answered."""

    async def __anext__(self) -> Envelope:
        """Acknowledge the previous message and return the next."""
        self.ack()
        while (note := await self._begin_message()) is None:
            pass
        try:
            return trusted_envelope(note["envelope"])
        except (KeyError, TypeError):
            return parse_answer(Envelope, self.opening, note.get("envelope"))  # says what is wrong

    async def _begin_message(self) -> dict[str, Any] | None:
        """Return the next message; None if the supervisor has requeued it meanwhile."""
        if self._pending_start is None:
            note = await self._next()
            assert self._connection is not None
            message = _Delivery(self._connection, note["deliveryId"])
            if not self._starts:
                self._current = message
                return note
            try:
                answer = message.connection.ask("start", {"deliveryId": message.delivery_id})
            except ConnectionLost:
                return None
            self._pending_start = _PendingStart(message, note, answer)
        pending = self._pending_start
        try:
            await asyncio.shield(pending.answer)  # after a cancellation the next call returns the same message
        except (ConnectionLost, NotFound):
            self._pending_start = None
            return None
        except RelayError:
            self._pending_start = None
            raise
        if self._closed:
            raise StopAsyncIteration
        self._pending_start, self._current = None, pending.message
        return pending.note

    def ack(self) -> None:
        """Acknowledge the current message; the next step does so too."""
        current, self._current = self._current, None
        if current is not None:
            current.connection.ack(current.delivery_id, more_follow=bool(self._notes))

    def fail(self, reason: str) -> None:
        """Dead-letter the current message."""
        current, self._current = self._current, None
        if current is not None:
            current.connection.notify("fail", {"deliveryId": current.delivery_id, "reason": reason})

    def take(self, connection: Connection, note: dict[str, Any]) -> None:
        """Accept a message, or refuse it if the stream is closed."""
        if self._closed:
            self._refuse(connection, note)
        else:
            self._notes.append(note)
            self._arrived.set()

    def _end(self, connection: Connection, id: str) -> asyncio.Future[Any]:
        ended = super()._end(connection, id)
        if self._error is None:
            self.ack()
        else:
            self.fail(_describe(self._error))
        pending, self._pending_start = self._pending_start, None
        if pending is not None:  # started for the supervisor, but not seen by the caller
            connection.notify("fail", {"deliveryId": pending.message.delivery_id, "reason": _CLOSED, "putBack": True})
        while self._notes:
            self._refuse(connection, self._notes.popleft())
        return ended

    def _refuse(self, connection: Connection, note: dict[str, Any]) -> None:
        if not self._starts:  # otherwise the supervisor requeues it
            connection.notify("fail", {"deliveryId": note["deliveryId"], "reason": _CLOSED})


class ReplyStream(MessageStream):
    """The messages of a reply mailbox, which is opened again on each new connection."""

    def __init__(self, client: StreamOwner, params: dict[str, Any] | None = None) -> None:
        super().__init__(client, params or {"maxInFlight": 1})
        self._key: str | None = None

    @property
    def subject(self) -> str | None:
        """Return the mailbox's subject, once it is open."""
        return self._params.get("pattern")

    @property
    def is_current(self) -> bool:
        """Return True if the mailbox belongs to the current connection."""
        return self._connection is not None and not self._connection.lost.done()

    async def prepare(self, connection: Connection) -> None:
        """Open the mailbox; with its key, if it was open before."""
        opened = await connection.request("replies.open", {"key": self._key} if self._key is not None else {})
        self._key = opened["key"]
        self._params["pattern"] = opened["subject"]


def subscribe_params(pattern: str, max_in_flight: int, queue: str | None) -> dict[str, Any]:
    """Return the parameters of `subscribe` for a stream."""
    params: dict[str, Any] = {"pattern": pattern, "maxInFlight": max_in_flight}
    return params if queue is None else params | {"queue": queue, "starts": True}


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class SignalStream(Stream):
    """The signals of a pattern: ``async for subject, signal in client.signals(...)``."""

    opening = "signal.subscribe"
    closing = "signal.unsubscribe"
    key = "subscriptionId"

    async def __anext__(self) -> tuple[str, Signal]:
        """Return the next signal and its subject."""
        note = await self._next()
        return note["subject"], Signal.model_validate(note["signal"])


class StateWatch(Stream):
    """The state as it changes: ``async for state in client.watch()``; the state is one object, updated in place."""

    opening = "state.watch"
    closing = "state.unwatch"
    key = "watchId"

    def __init__(self, client: StreamOwner, params: dict[str, Any]) -> None:
        super().__init__(client, params)
        self.state = LiveState()
        self.update: StateUpdate | None = None
        """The changes of the last step."""

    async def __anext__(self) -> LiveState:
        """Return the state after the next update."""
        self.update = parse_answer(StateUpdate, "state.watch", await self._next())
        self.state.apply(self.update)
        return self.state
