"""Messages in the hands of socket clients: pushed to subscriptions, or claimed.

1. A pushed message is in flight until its client says `ack` or `fail`, or the handler timeout is over. One
   mailbox has one message in flight, and a member of a pool has so many, so that nothing grows.
2. A client that does not read is waited for before it is sent more, within the same timeout.
3. A client that goes away fails what it had in hand: it is parked as `disconnected`, since nobody knows how far
   the client came. So are its claims, unless they were made with a lease; those are parked when it runs out. What it
   had not been sent yet goes back in line.
4. Of a client that says `start` it is known what it has begun. The rest goes back in line when it goes away or
   unsubscribes, or when it has not begun it within the handler timeout: `start` is `NotFound` then. The handler
   timeout counts anew from `start`.
5. A member of a pool that says `start`, and has said nothing in time, is given nothing more in the place of that
   message until it does, or until it reads again if the message was not even sent: its process may be stopped, or its
   handler may hang.
6. `ack` and `fail` are answered once: a delivery that is not in hand any more is `NotFound`. An `ack` is answered
   after the message's end is written down; where others handle the message too, the last of them sees to that. If it
   cannot be written, `ack` is a StorageError and the delivery stays in hand; one that wants no answer is taken, and the
   end is written when the disk lets it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from itertools import count

import orjson

from relay_core.clock import Timer, call_later
from relay_core.consumers import End, PutBack
from relay_core.core import RelayCore
from relay_core.deadletters import Code
from relay_core.envelope import Envelope
from relay_core.errors import Closed, NotFound, RelayError
from relay_core.files import storage_error
from relay_core.frames import MAX_FRAME
from relay_core.pools import Pool
from relay_core.subscriptions import Subscription
from relay_core.tasks import Tasks
from relay_supervisor.connection import Connection
from relay_supervisor.pacing import Slices

_ROOM = MAX_FRAME // 2
"""Bytes of messages in one answer, so that it fits into a frame."""
_GONE = "the consumer has disconnected"
_YIELD_EVERY = 16


class ConsumerFailed(Exception):
    """A client said that it could not handle a message."""

    dead_letter_code = Code.CONSUMER_FAILED


class ConsumerDisconnected(Exception):
    """A client went away with a message in hand."""

    dead_letter_code = Code.DISCONNECTED


class ConsumerTimedOut(Exception):
    """A client did not say in time what became of a message that it had begun."""

    dead_letter_code = Code.TIMEOUT


class Deliveries:
    """What every connection has subscribed to, and what it has in hand."""

    def __init__(self, relay: RelayCore, tasks: Tasks) -> None:
        self._relay = relay
        self._tasks = tasks
        self._subscriptions: dict[Connection, dict[str, Subscription]] = defaultdict(dict)
        self._pushed: dict[Connection, dict[str, _Pushed]] = defaultdict(dict)
        self._overdue: dict[Connection, dict[str, Subscription]] = defaultdict(dict)
        """Members of pools that have said nothing in time, by the delivery that is waited for."""
        self._claims: dict[tuple[str, str], _Claim] = {}
        self._claimed_by: dict[Connection, set[tuple[str, str]]] = {}
        """Claims that end with their connection."""
        self._numbers = count(1)

    def in_hand(self) -> list[asyncio.Future[None]]:
        """Return what ends as consumers finish the messages they have begun, leases left out."""
        pushed = [one.answered for held in self._pushed.values() for one in held.values() if one.is_begun]
        return pushed + [claim.ended for claim in self._claims.values() if claim.timer is None]

    # Pushed

    async def subscribe(
        self,
        connection: Connection,
        pattern: str,
        max_in_flight: int | None = None,
        *,
        queue: str | None = None,
        starts: bool = False,
    ) -> str:
        """Push the messages of a pattern to a connection, which shares them if it names a queue.

        Raises:
            InvalidSubject: if the pattern or the queue's name breaks the naming rules.
        """
        push = _Push(self, connection, starts)
        subscription = await self._relay.subscribe(pattern, push, max_in_flight=max_in_flight, queue=queue)
        push.subscription_id = subscription.id
        if connection.closed:
            await subscription.close()
            raise Closed("the connection is closed")
        if connection not in self._subscriptions:
            connection.on_closed(lambda: self._leave(connection))
        self._subscriptions[connection][subscription.id] = subscription
        return subscription.id

    async def unsubscribe(self, connection: Connection, subscription_id: str) -> None:
        """Push nothing more; what has been begun can still be answered.

        Raises:
            NotFound: if the connection has no such subscription.
        """
        subscriptions = self._subscriptions.get(connection, {})
        subscription = subscriptions.pop(subscription_id, None)
        if subscription is None:
            raise NotFound(f"this connection has no subscription {subscription_id}", what=subscription_id)
        if not subscriptions:
            subscriptions.clear()  # a dict that was large keeps its table until then
        subscription.end()
        for pushed in self._pushed.get(connection, {}).values():
            if pushed.subscription_id == subscription_id:
                pushed.take_back("the consumer has unsubscribed")

    def unsubscribe_from(self, connection: Connection, pattern: str) -> None:
        """Push nothing more of a pattern to a connection that has lost the right to it."""
        held = self._subscriptions.get(connection, {})
        for subscription in [one for one in held.values() if one.pattern == pattern]:
            del held[subscription.id]
            subscription.end()

    def subscriptions_of(self, connection: Connection) -> int:
        """Return how many subscriptions a connection has."""
        return len(self._subscriptions.get(connection, ()))

    async def push(
        self, connection: Connection, subscription_id: str, envelope: Envelope, end: End, *, starts: bool = False
    ) -> None:
        """Send one message and wait for the client's word on it."""
        # Else the dispatcher keeps the time.
        limit = self._relay.bus.config.dispatch.handler_timeout_ms / 1000 if starts else None
        delivery_id = f"{next(self._numbers)}"
        pushed = _Pushed(subscription_id, starts, end)
        try:
            try:
                async with asyncio.timeout(limit):
                    await connection.drained()
                    self._pushed[connection][delivery_id] = pushed
                    self._relay.bus.replies.read(envelope, connection.identity.reader)
                    note = {"subscriptionId": subscription_id, "deliveryId": delivery_id}
                    connection.notify("message", note | {"envelope": envelope.to_wire()})
                    await pushed.started
            except Closed:
                raise PutBack(_GONE) from None
            except TimeoutError:
                if not pushed.is_begun:  # else its `start` came at the same moment
                    self._occupy(connection, subscription_id, delivery_id)
                    raise PutBack(f"the consumer did not begin it within {limit:g} s") from None
            try:
                async with asyncio.timeout(limit):
                    await pushed.answered
            except TimeoutError:
                if pushed.answered.cancelled() or not pushed.answered.done():
                    self._occupy(connection, subscription_id, delivery_id)
                    raise ConsumerTimedOut(f"no answer within {limit:g} s") from None
                pushed.answered.result()  # it came at the same moment
        finally:
            self._pushed.get(connection, {}).pop(delivery_id, None)
            pushed.forget()

    def start(self, connection: Connection, delivery_id: str) -> None:
        """Take a client's word that it begins a message.

        Raises:
            NotFound: if it has no such delivery in hand, and must not begin it.
        """
        pushed = self._pushed.get(connection, {}).get(delivery_id)
        if pushed is None or not pushed.start():
            raise self._not_in_hand(connection, delivery_id)

    def ack(self, connection: Connection, delivery_id: str) -> None:
        """Take a client's word that a message was handled.

        Raises:
            NotFound: if it has no such delivery in hand.
            StorageError: if it cannot be written down, and the client waits for the answer; it is in hand still.
        """
        pushed = self._in_hand(connection, delivery_id)
        try:
            pushed.end()
        except OSError as error:
            if connection.is_answering:
                raise storage_error("finish a message in", self._relay.bus.data_dir.path, error) from error
            pushed.end.close()
        del self._pushed[connection][delivery_id]
        pushed.answered.set_result(None)

    def fail(self, connection: Connection, delivery_id: str, reason: str, *, put_back: bool = False) -> None:
        """Take a client's word that a message could not be handled, or was not begun after all.

        Raises:
            NotFound: if it has no such delivery in hand.
        """
        pushed = self._in_hand(connection, delivery_id)
        del self._pushed[connection][delivery_id]
        pushed.answered.set_exception((PutBack if put_back else ConsumerFailed)(reason))

    def _in_hand(self, connection: Connection, delivery_id: str) -> _Pushed:
        pushed = self._pushed.get(connection, {}).get(delivery_id)
        if pushed is None or not pushed.start() or pushed.answered.done():
            raise self._not_in_hand(connection, delivery_id)
        return pushed

    def _occupy(self, connection: Connection, subscription_id: str, delivery_id: str) -> None:
        """Give a member of a pool nothing more in the place of a message that it has said nothing about in time."""
        subscription = self._subscriptions.get(connection, {}).get(subscription_id)
        if subscription is None or (pool := subscription.pool) is None:
            return
        pool.occupy(subscription)
        if delivery_id in self._pushed[connection]:  # else it was not sent, or the word came at the same moment
            self._overdue[connection][delivery_id] = subscription
        else:
            self._tasks.start(self._give_back_later(connection, pool, subscription), name="wait for a reader")

    @staticmethod
    async def _give_back_later(connection: Connection, pool: Pool, member: Subscription) -> None:
        with suppress(Closed):
            await connection.drained()
        pool.give_back(member)

    def _not_in_hand(self, connection: Connection, delivery_id: str) -> NotFound:
        """Return the answer to who speaks too late, and let it have other messages again."""
        self._pushed.get(connection, {}).pop(delivery_id, None)  # it may be about to be overdue: nothing more will come
        late = self._overdue.get(connection, {}).pop(delivery_id, None)
        if late is not None and late.pool is not None:
            late.pool.give_back(late)
        return NotFound(
            f"no delivery {delivery_id} is in hand: it was answered, or took longer than the handler timeout",
            what=delivery_id,
        )

    def _leave(self, connection: Connection) -> None:
        self._overdue.pop(connection, None)
        ended = list(self._subscriptions.pop(connection, {}).values())
        for subscription in ended:
            subscription.detach()
        if ended:
            self._tasks.start(self._announce(ended), name="end subscriptions")
        for pushed in self._pushed.pop(connection, {}).values():
            pushed.take_back(_GONE)
            if not pushed.answered.done():
                pushed.answered.set_exception(ConsumerDisconnected(_GONE))

    @staticmethod
    async def _announce(ended: list[Subscription]) -> None:
        """Let the mailboxes know that subscriptions are over; once for each pattern, since it may match thousands."""
        slices = Slices()
        for subscription in {one.pattern: one for one in ended}.values():
            subscription.announce()
            await slices.rest()

    # Claimed

    async def peek(self, connection: Connection, subject: str, limit: int, after: str | None) -> list[Envelope]:
        """Look at waiting messages, as many as fit into an answer."""
        found = await self._relay.inbox(subject, limit, room=_ROOM, after=after)
        for envelope in found:
            self._relay.bus.replies.read(envelope, connection.identity.reader)
        return found

    async def claim(
        self, connection: Connection, subject: str, limit: int, lease_ms: int | None, ids: list[str] | None = None
    ) -> list[Envelope]:
        """Take waiting messages, as many as fit into an answer, for a connection or for a time."""
        taken: list[Envelope] = []
        size = 0
        wanted = iter(ids) if ids is not None else None
        while len(taken) < limit and size < _ROOM:
            if len(taken) % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
            if connection.closed:  # what it has is parked, or waits for its lease to run out
                raise Closed("the connection is closed")
            found = await self._relay.claim(subject, 1, ids=wanted)
            if not found:
                break
            size += _size(found[0])
            taken += found
            self._relay.bus.replies.read(found[0], connection.identity.reader)
            self._hold(connection, subject, found[0].id, lease_ms)
        return taken

    async def complete(self, subject: str, message_id: str, *, late: bool) -> bool:
        """Finish a claimed message; return whether it was late."""
        was_late = await self._relay.complete(subject, message_id, late=late)
        self._let_go((subject, message_id))
        return was_late

    async def fail_claim(self, subject: str, message_id: str, reason: str) -> None:
        """Make a dead letter of a claimed message."""
        await self._relay.fail(subject, message_id, reason)
        self._let_go((subject, message_id))

    def _hold(self, connection: Connection, subject: str, message_id: str, lease_ms: int | None) -> None:
        key = (subject, message_id)
        if lease_ms is not None:
            reason = f"not completed within {lease_ms / 1000:g} s"
            clock = self._relay.bus.clock
            timer = call_later(clock, lease_ms / 1000, lambda: self._abandon(key, Code.TIMEOUT, reason))
            self._claims[key] = _Claim(None, timer)
            return
        self._claims[key] = _Claim(connection, None)
        if connection.closed:
            self._abandon(key, Code.DISCONNECTED, _GONE)
            return
        if connection not in self._claimed_by:
            self._claimed_by[connection] = set()
            connection.on_closed(lambda: self._abandon_all(connection))
        self._claimed_by[connection].add(key)

    def _let_go(self, key: tuple[str, str]) -> bool:
        """Forget a claim; False if it is over already."""
        claim = self._claims.pop(key, None)
        if claim is None:
            return False
        if claim.timer is not None:
            claim.timer.cancel()
        if claim.connection in self._claimed_by:
            self._claimed_by[claim.connection].discard(key)
        claim.ended.set_result(None)
        return True

    def _abandon_all(self, connection: Connection) -> None:
        for key in self._claimed_by.pop(connection):
            self._abandon(key, Code.DISCONNECTED, _GONE)

    def _abandon(self, key: tuple[str, str], code: str, reason: str) -> None:
        if self._let_go(key):
            self._tasks.start(self._park(*key, code, reason), name="abandon a claim")

    async def _park(self, subject: str, message_id: str, code: str, reason: str) -> None:
        with suppress(NotFound):  # the mailbox is gone
            await self._relay.bus.pull.abandon(subject, message_id, reason, code)


class _Claim:
    """A message that a pull consumer holds, for as long as it is connected or until a timer ends it."""

    def __init__(self, connection: Connection | None, timer: Timer | None) -> None:
        self.connection = connection
        self.timer = timer
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Pushed:
    """A message that a client has been sent."""

    def __init__(self, subscription_id: str, starts: bool, end: End) -> None:
        self.subscription_id = subscription_id
        self.end = end
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = loop.create_future()
        self.answered: asyncio.Future[None] = loop.create_future()
        if not starts:
            self.started.set_result(None)  # nobody knows, so it may be at any time

    @property
    def is_begun(self) -> bool:
        """Tell whether the client may have begun it."""
        return self.started.done() and not self.started.cancelled() and self.started.exception() is None

    def start(self) -> bool:
        """Take note that the client begins it; return False if it was taken back before."""
        if not self.started.done():
            self.started.set_result(None)
        return self.is_begun

    def take_back(self, why: str) -> None:
        """Have it offered to others, if the client has not begun it."""
        if not self.started.done():
            self.started.set_exception(PutBack(why))

    def forget(self) -> None:
        """Let nothing wait for it any more."""
        for future in (self.started, self.answered):
            if not future.done():
                future.cancel()
            elif not future.cancelled():
                future.exception()  # seen, whoever was quicker


class _Push:
    """The handler behind a connection's subscription."""

    says_end = True

    def __init__(self, deliveries: Deliveries, connection: Connection, starts: bool) -> None:
        self._deliveries = deliveries
        self._connection = connection
        self.keeps_time = starts
        """Whether a timeout counts from when the client begins, which only we know."""
        self.subscription_id = ""
        self.__qualname__ = connection.name or "socket client"
        """What its outcomes are listed under."""

    async def __call__(self, envelope: Envelope, end: End) -> None:
        try:
            await self._deliveries.push(self._connection, self.subscription_id, envelope, end, starts=self.keeps_time)
        except RelayError as error:  # too large for a frame
            raise ConsumerFailed(error.message) from error


def _size(envelope: Envelope) -> int:
    return len(orjson.dumps(envelope.payload)) + 1024
