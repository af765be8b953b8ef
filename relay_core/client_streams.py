"""What a client receives by itself: messages, signals and the state, each as something to iterate over.

1. A stream survives the supervisor: when the connection is lost it subscribes again, as often and for as long as
   it takes, until it is closed.
2. A message is acknowledged when the caller asks for the next one, or leaves the loop in good order: after the loop
   body, never before. A body that raises makes a dead letter of its message, with the error as the reason. That a
   loop was left is seen at the end of the stream's `async with`, or of the client's.
3. A message that was in hand when the connection was lost cannot be acknowledged any more: the supervisor has parked
   it. What had been sent and not yet been looked at is dropped here for the same reason.
4. What arrives for a stream that is being closed is refused, so that it becomes a dead letter at once instead of
   holding up its mailbox. The supervisor is told of the end before it is told that the last message was handled:
   it must not send one more.
5. A stream that shares a queue asks by `start` before the caller sees a message, and waits for the answer: what has
   not been begun is the supervisor's, which may have given it to another member meanwhile. What is asked for at the end
   is given back. So nothing is refused then, and nothing is begun twice, whoever dies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from relay_core.envelope import Envelope
from relay_core.errors import Closed, NotFound, RelayError
from relay_core.link import Link, LinkLost
from relay_core.live_state import LiveState, StateUpdate
from relay_core.protocol import parse_answer
from relay_core.signals import Signal

if TYPE_CHECKING:
    from relay_core.redial import Redial


_CLOSE_SECS = 2.0
_CLOSED = "the subscription was closed meanwhile"


class Stream:
    """Notifications of one kind, through any number of connections."""

    opening = ""
    """The method that begins the stream."""
    closing = ""
    """The method that ends it."""
    key = ""
    """What the stream's id is called."""

    def __init__(self, client: Redial, params: dict[str, Any]) -> None:
        self._client = client
        self._params = params
        self._notes: deque[dict[str, Any]] = deque()
        self._arrived = asyncio.Event()
        self._link: Link | None = None
        self._id: str | None = None
        self._closed = False
        self._opening = asyncio.Lock()

    def __await__(self) -> Generator[Any, None, Self]:
        """Begin the stream now, instead of at the first step."""
        return self._begin().__await__()

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def closed(self) -> bool:
        """Whether nothing more is received."""
        return self._closed

    async def close(self) -> None:
        """Receive nothing more; closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._arrived.set()
        try:
            if self._link is not None and self._id is not None:
                async with asyncio.timeout(_CLOSE_SECS):
                    await self._end(self._link, self._id)
        except (LinkLost, RelayError, TimeoutError):
            pass  # nothing comes from there any more, or not for a long time
        finally:
            self._client.forget(self)

    def take(self, link: Link, note: dict[str, Any]) -> None:
        """Take in a notification of the stream's current connection."""
        self._notes.append(note)
        self._arrived.set()

    def decline(self, link: Link, begun: dict[str, Any]) -> None:
        """End a stream that was begun for nobody: whoever wanted it was cancelled meanwhile."""
        if link.lost.done():
            return
        id = begun[self.key]
        stand_in = type(self)(self._client, self._params)
        stand_in._closed = True
        end = stand_in._end(link, id)  # said before anything is refused: the supervisor must not send one more
        self._client.adopt(stand_in, link, id)

        def ended(answer: asyncio.Future[Any]) -> None:
            answer.exception()  # seen: whatever it is, the stream is over
            self._client.forget(stand_in)

        end.add_done_callback(ended)

    def lose(self) -> None:
        """Learn that the connection is over."""
        self._notes.clear()
        self._arrived.set()

    async def prepare(self, link: Link) -> None:
        """Do what must be done on a connection before the stream is begun there."""

    async def _begin(self) -> Self:
        async with self._opening:
            if self._closed:
                raise Closed("the stream is closed")
            if self._link is None or self._link.lost.done():
                self._notes.clear()
                self._link, self._id = await self._client.open_stream(self, self.opening, self.key, self._params)
        return self

    def _end(self, link: Link, id: str) -> asyncio.Future[Any]:
        """Tell the supervisor that the stream is over; nothing comes after its answer."""
        return link.ask(self.closing, {self.key: id})

    async def _next(self) -> dict[str, Any]:
        while not self._closed:
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


class _InHand(NamedTuple):
    link: Link
    delivery_id: str


class _Asked(NamedTuple):
    message: _InHand
    note: dict[str, Any]
    answer: asyncio.Future[Any]


class MessageStream(Stream):
    """The messages of a subject or a pattern: ``async for envelope in client.subscribe(...)``."""

    opening = "subscribe"
    closing = "unsubscribe"
    key = "subscriptionId"
    _in_hand: _InHand | None = None
    _asked: _Asked | None = None
    """A message that is about to be begun, if the supervisor agrees."""
    _error: BaseException | None = None
    """What ended the loop."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Envelope:
        """Acknowledge the message before, and return the next one."""
        self.ack()
        while (note := await self._begin_message()) is None:
            pass
        return Envelope.model_validate(note["envelope"])

    async def _begin_message(self) -> dict[str, Any] | None:
        """Take the next message in hand; return None if the supervisor has taken it back meanwhile."""
        if self._asked is None:
            note = await self._next()
            assert self._link is not None
            message = _InHand(self._link, note["deliveryId"])
            if not self._starts:
                self._in_hand = message
                return note
            try:
                answer = message.link.ask("start", {"deliveryId": message.delivery_id})
            except LinkLost:
                return None
            self._asked = _Asked(message, note, answer)
        asked = self._asked
        try:
            await asyncio.shield(asked.answer)  # who is cancelled meanwhile gets the same message the next time
        except (LinkLost, NotFound):
            self._asked = None
            return None
        except RelayError:
            self._asked = None
            raise
        if self._closed:
            raise StopAsyncIteration
        self._asked, self._in_hand = None, asked.message
        return asked.note

    @property
    def _starts(self) -> bool:
        return bool(self._params.get("starts"))

    def ack(self) -> None:
        """Say that the message in hand was handled; the next step does so by itself."""
        in_hand, self._in_hand = self._in_hand, None
        if in_hand is not None:
            in_hand.link.notify("ack", {"deliveryId": in_hand.delivery_id})

    def fail(self, reason: str) -> None:
        """Make a dead letter of the message in hand."""
        in_hand, self._in_hand = self._in_hand, None
        if in_hand is not None:
            in_hand.link.notify("fail", {"deliveryId": in_hand.delivery_id, "reason": reason})

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(error)

    async def close(self, error: BaseException | None = None) -> None:
        """Receive nothing more; the message in hand was handled, unless an error ended the loop."""
        self._error = error
        await super().close()

    def take(self, link: Link, note: dict[str, Any]) -> None:
        """Take in a message, unless the stream is over."""
        if self._closed:
            self._refuse(link, note)
        else:
            super().take(link, note)

    def _end(self, link: Link, id: str) -> asyncio.Future[Any]:
        ended = super()._end(link, id)
        if self._error is None:
            self.ack()
        else:
            self.fail(_describe(self._error))
        asked, self._asked = self._asked, None
        if asked is not None:  # it is begun for the supervisor, and for nobody here
            link.notify("fail", {"deliveryId": asked.message.delivery_id, "reason": _CLOSED, "putBack": True})
        while self._notes:
            self._refuse(link, self._notes.popleft())
        return ended

    def _refuse(self, link: Link, note: dict[str, Any]) -> None:
        if not self._starts:  # else it goes back in line by itself
            link.notify("fail", {"deliveryId": note["deliveryId"], "reason": _CLOSED})


class ReplyStream(MessageStream):
    """The messages of a reply mailbox, which is the connection's, and is opened again on the next."""

    def __init__(self, client: Redial, params: dict[str, Any] | None = None) -> None:
        super().__init__(client, params or {"maxInFlight": 1})
        self._key: str | None = None

    @property
    def subject(self) -> str | None:
        """Return the mailbox's subject, once it has been made."""
        return self._params.get("pattern")

    @property
    def is_current(self) -> bool:
        """Whether the mailbox is that of the connection in use."""
        return self._link is not None and not self._link.lost.done()

    async def prepare(self, link: Link) -> None:
        """Make the mailbox, or show the key of the one it was before."""
        made = await link.request("replies.open", {"key": self._key} if self._key is not None else {})
        self._key = made["key"]
        self._params["pattern"] = made["subject"]


def subscribe_params(pattern: str, max_in_flight: int, queue: str | None) -> dict[str, Any]:
    """Return what a stream of messages asks the supervisor for."""
    params: dict[str, Any] = {"pattern": pattern, "maxInFlight": max_in_flight}
    return params if queue is None else params | {"queue": queue, "starts": True}


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class SignalStream(Stream):
    """The signals of a pattern: ``async for subject, signal in client.signals(...)``."""

    opening = "signal.subscribe"
    closing = "signal.unsubscribe"
    key = "subscriptionId"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, Signal]:
        """Return the next signal and where it was sent."""
        note = await self._next()
        return note["subject"], Signal.model_validate(note["signal"])


class StateWatch(Stream):
    """The state as it changes: ``async for state in client.watch()``; it is one object, kept up to date."""

    opening = "state.watch"
    closing = "state.unwatch"
    key = "watchId"

    def __init__(self, client: Redial, params: dict[str, Any]) -> None:
        super().__init__(client, params)
        self.state = LiveState()
        self.update: StateUpdate | None = None
        """What the last step has changed."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LiveState:
        """Return the state after the next update."""
        self.update = parse_answer(StateUpdate, "state.watch", await self._next())
        self.state.apply(self.update)
        return self.state
