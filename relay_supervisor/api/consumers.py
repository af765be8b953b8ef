"""In-flight messages of push consumers: the subscriptions of socket clients.

1. A pushed message is in flight until its client sends `ack` or `fail`, or until the handler timeout. A mailbox has
   one message in flight and a member of a pool a fixed number, so that nothing grows.
2. A client that does not read is sent nothing more until it does, within the same timeout.
3. When a client disconnects, its in-flight messages are dead-lettered as `disconnected`, since how far it came is
   unknown. Messages that were not sent yet are requeued.
4. A client that sends `start` reveals which messages it has begun. The others are requeued when it disconnects or
   unsubscribes, or if it has not begun them within the handler timeout: `start` is `NotFound` then. The handler
   timeout restarts with `start`.
5. A member of a pool that sends `start`, and misses a deadline, gets no other message in place of the late one until
   it answers (or until it reads again, if the message was not even sent): its process may be stopped, or its handler
   hang.
6. `ack` and `fail` are accepted once: a delivery that is not in flight is `NotFound`. An `ack` is answered after the
   end of the message has been recorded; if several consumers handle the message, the last one records it. If that
   fails, `ack` is a StorageError and the delivery stays in flight; an `ack` sent as a notification is accepted, and
   the end is recorded with the others of this turn (turns.py), or once the disk allows it.
7. A message is sent, and its answer taken, without a task, unless the client sends `start` or does not read.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from relay_core.core import RelayCore
from relay_core.dispatch.consumer import Ack, Requeue
from relay_core.dispatch.subscriptions import Subscription
from relay_core.dispatch.worker_pool import Pool
from relay_core.errors import Closed, NotFound, RelayError
from relay_core.messages.dead_letter import Code
from relay_core.storage.atomic_file import storage_error
from relay_core.storage.stored_message import StoredMessage
from relay_core.tasks import Tasks
from relay_supervisor.server.connection import Connection
from relay_supervisor.server.flow_control import TimeSlices

_GONE = "the consumer has disconnected"


class ConsumerError(Exception):
    """A client did not handle a message."""

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.dead_letter_code = code


class PushConsumers:
    """The subscriptions of connections and their in-flight messages."""

    def __init__(self, relay: RelayCore, tasks: Tasks) -> None:
        self._relay = relay
        self._tasks = tasks
        self._subscriptions: dict[Connection, dict[str, Subscription]] = defaultdict(dict)
        self._pushed: dict[Connection, dict[str, _Pushed]] = defaultdict(dict)
        self._overdue: dict[Connection, dict[str, Subscription]] = defaultdict(dict)
        """Members of pools that missed a deadline, by the late delivery."""
        self._numbers = count(1)

    def pending(self) -> list[asyncio.Future[None]]:
        """Return futures that end as consumers finish the messages they have begun."""
        return [
            pushed.ended() for deliveries in self._pushed.values() for pushed in deliveries.values() if pushed.is_begun
        ]

    async def subscribe(
        self,
        connection: Connection,
        pattern: str,
        max_in_flight: int | None = None,
        *,
        queue: str | None = None,
        starts: bool = False,
    ) -> str:
        """Push the messages of a pattern to a connection; members of a queue share them.

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
        """End a subscription; deliveries that were begun can still be answered.

        Raises:
            NotFound: if the connection has no such subscription.
        """
        subscriptions = self._subscriptions.get(connection, {})
        subscription = subscriptions.pop(subscription_id, None)
        if subscription is None:
            raise NotFound(f"this connection has no subscription {subscription_id}", what=subscription_id)
        if not subscriptions:
            subscriptions.clear()  # frees the table of a dict that was large
        subscription.end()
        for pushed in self._pushed.get(connection, {}).values():
            if pushed.subscription_id == subscription_id:
                pushed.requeue("the consumer has unsubscribed")

    def unsubscribe_from(self, connection: Connection, pattern: str) -> None:
        """End the subscriptions of a connection that may no longer read a pattern."""
        own = self._subscriptions.get(connection, {})
        for subscription in [subscription for subscription in own.values() if subscription.pattern == pattern]:
            del own[subscription.id]
            subscription.end()

    def subscriptions_of(self, connection: Connection) -> int:
        """Return the number of a connection's subscriptions."""
        return len(self._subscriptions.get(connection, ()))

    def of_connection(self, connection: Connection) -> list[Subscription]:
        """Return a connection's subscriptions."""
        return list(self._subscriptions.get(connection, {}).values())

    def in_flight(self, connections: Iterable[Connection]) -> Counter[str]:
        """Return the number of in-flight messages of each subscription of these connections."""
        return Counter(
            pushed.subscription_id for connection in connections for pushed in self._pushed.get(connection, {}).values()
        )

    def push(
        self, connection: Connection, subscription_id: str, message: StoredMessage, ack: Ack, *, starts: bool
    ) -> Coroutine[Any, Any, None] | None:
        """Hand a message over to a client; or return a coroutine that does, and waits for the client's answer."""
        delivery_id = f"{next(self._numbers)}"
        pushed = _Pushed(subscription_id, starts, ack)
        if starts or not connection.writable:
            return self._push_and_wait(connection, delivery_id, message, pushed)
        ack.on_abandoned = partial(self._forget, connection, delivery_id)
        self._send(connection, delivery_id, message, pushed)
        return None

    def _send(self, connection: Connection, delivery_id: str, message: StoredMessage, pushed: _Pushed) -> None:
        self._relay.note_reader(message.envelope, connection.identity.reader)
        note = {"subscriptionId": pushed.subscription_id, "deliveryId": delivery_id, "envelope": message.to_wire()}
        try:
            connection.notify("message", note)
        except RelayError as error:  # too large for a frame
            raise ConsumerError(error.message, Code.CONSUMER_FAILED) from error
        self._pushed[connection][delivery_id] = pushed

    async def _push_and_wait(
        self, connection: Connection, delivery_id: str, message: StoredMessage, pushed: _Pushed
    ) -> None:
        """Send a message when the client reads, and wait for its answer."""
        # Without `starts` the dispatcher enforces the timeout.
        started, ack, subscription_id = pushed.started, pushed.ack, pushed.subscription_id
        limit = self._relay.config.dispatch.handler_timeout_ms / 1000 if started is not None else None
        try:
            try:
                async with asyncio.timeout(limit):
                    await connection.drained()
                    self._send(connection, delivery_id, message, pushed)
                    if started is not None:
                        await started
            except Closed:
                raise Requeue(_GONE) from None
            except TimeoutError:
                if not pushed.is_begun:  # otherwise `start` arrived at the same moment
                    self._reserve(connection, subscription_id, delivery_id)
                    raise Requeue(f"the consumer did not start it within {limit:g} s") from None
            try:
                async with asyncio.timeout(limit):
                    await ack.wait()
            except TimeoutError:
                if not ack.finished:
                    self._reserve(connection, subscription_id, delivery_id)
                    raise ConsumerError(f"no answer within {limit:g} s", Code.TIMEOUT) from None
                await ack.wait()  # it arrived at the same moment
        finally:
            self._forget(connection, delivery_id)
            pushed.cancel()

    def start(self, connection: Connection, delivery_id: str) -> None:
        """Record that a client begins to handle a message.

        Raises:
            NotFound: if the delivery is not in flight: the client must not handle it.
        """
        pushed = self._pushed.get(connection, {}).get(delivery_id)
        if pushed is None or not pushed.start():
            raise self._not_in_flight(connection, delivery_id)

    def ack(self, connection: Connection, delivery_id: str) -> None:
        """Finish a message that a client has handled.

        Raises:
            NotFound: if the delivery is not in flight.
            StorageError: if the end cannot be recorded and the client expects an answer; the delivery stays in flight.
        """
        pushed = self._find(connection, delivery_id)
        if connection.is_answering:
            try:
                pushed.ack()
            except OSError as error:
                raise storage_error("finish a message in", self._relay.data_dir.path, error) from error
        else:
            pushed.ack.soon()
        self._forget(connection, delivery_id)

    def fail(self, connection: Connection, delivery_id: str, reason: str, *, put_back: bool = False) -> None:
        """Dead-letter a message that a client could not handle, or requeue one that it did not begin.

        Raises:
            NotFound: if the delivery is not in flight.
        """
        pushed = self._find(connection, delivery_id)
        pushed.ack.fail(Requeue(reason) if put_back else ConsumerError(reason, Code.CONSUMER_FAILED))
        self._forget(connection, delivery_id)

    def _find(self, connection: Connection, delivery_id: str) -> _Pushed:
        pushed = self._pushed.get(connection, {}).get(delivery_id)
        if pushed is None or not pushed.start() or pushed.ack.finished:
            raise self._not_in_flight(connection, delivery_id)
        return pushed

    def _forget(self, connection: Connection, delivery_id: str) -> None:
        """Remove a delivery that is no longer in flight."""
        pushed = self._pushed.get(connection, {}).pop(delivery_id, None)
        if pushed is not None:
            pushed.end()

    def _reserve(self, connection: Connection, subscription_id: str, delivery_id: str) -> None:
        """Give a member of a pool no other message in place of one that is late."""
        subscription = self._subscriptions.get(connection, {}).get(subscription_id)
        if subscription is None or (pool := subscription.pool) is None:
            return
        pool.reserve(subscription)
        if delivery_id in self._pushed[connection]:
            self._overdue[connection][delivery_id] = subscription
        else:  # it was not sent, or the answer arrived at the same moment
            self._tasks.start(self._give_back_later(connection, pool, subscription), name="wait for a reader")

    @staticmethod
    async def _give_back_later(connection: Connection, pool: Pool, member: Subscription) -> None:
        with suppress(Closed):
            await connection.drained()
        pool.release(member)

    def _not_in_flight(self, connection: Connection, delivery_id: str) -> NotFound:
        """Return the error for a late answer, and let the member have other messages again."""
        # It may be about to be overdue, and no other answer will come.
        self._forget(connection, delivery_id)
        late = self._overdue.get(connection, {}).pop(delivery_id, None)
        if late is not None and late.pool is not None:
            late.pool.release(late)
        return NotFound(
            f"delivery {delivery_id} is not in flight: it was answered, or took longer than the handler timeout",
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
            if pushed.is_begun:
                pushed.ack.fail(ConsumerError(_GONE, Code.DISCONNECTED))
            pushed.requeue(_GONE)
            pushed.end()

    @staticmethod
    async def _announce(ended: list[Subscription]) -> None:
        """Notify mailboxes that subscriptions have ended; once for each pattern, since it may match thousands."""
        slices = TimeSlices()
        for subscription in {subscription.pattern: subscription for subscription in ended}.values():
            subscription.announce()
            await slices.pause()


class _Pushed:
    """A message that was sent to a client."""

    __slots__ = ("_ended", "ack", "started", "subscription_id")

    def __init__(self, subscription_id: str, starts: bool, ack: Ack) -> None:
        self.subscription_id = subscription_id
        self.ack = ack
        self.started: asyncio.Future[None] | None = asyncio.get_running_loop().create_future() if starts else None
        """Ends when the client begins it; None if that is unknown: it may begin at any time."""
        self._ended: asyncio.Future[None] | None = None

    @property
    def is_begun(self) -> bool:
        """Return True if the client may have begun it."""
        started = self.started
        return started is None or (started.done() and not started.cancelled() and started.exception() is None)

    def start(self) -> bool:
        """Record that the client begins it; return False if it was requeued before."""
        if self.started is not None and not self.started.done():
            self.started.set_result(None)
        return self.is_begun

    def requeue(self, why: str) -> None:
        """Requeue it, if the client has not begun it."""
        if self.started is not None and not self.started.done():
            self.started.set_exception(Requeue(why))

    def cancel(self) -> None:
        """Cancel the wait for its beginning."""
        if self.started is not None:
            if not self.started.done():
                self.started.cancel()
            elif not self.started.cancelled():
                self.started.exception()  # retrieved, to avoid a warning

    def ended(self) -> asyncio.Future[None]:
        """Return a future that ends when it is no longer in flight."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
        return self._ended

    def end(self) -> None:
        """Note that it is no longer in flight."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


class _Push:
    """The handler behind a connection's subscription."""

    hands_over = True

    def __init__(self, consumers: PushConsumers, connection: Connection, starts: bool) -> None:
        self._consumers = consumers
        self._connection = connection
        self.enforces_timeout = starts
        """Whether the timeout counts from `start`, which the dispatcher does not see."""
        self.subscription_id = ""
        self.__qualname__ = connection.name or "socket client"
        """The name of its outcomes in listings."""

    def __call__(self, message: StoredMessage, ack: Ack) -> Coroutine[Any, Any, None] | None:
        return self._consumers.push(self._connection, self.subscription_id, message, ack, starts=self.enforces_timeout)
