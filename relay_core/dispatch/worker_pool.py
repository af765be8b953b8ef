"""Pools: the members of a queue share the messages of the mailboxes they consume, each message going to one member.

1. A pool is all live subscriptions with one queue name. At a mailbox, only the members that match its subject count:
   each message goes to exactly one of them, and the pool counts as one listener.
2. A member has a capacity of in-flight messages over all mailboxes, and is free while it is not used up. A member is
   assigned before the message is claimed: a message that waits in ``new/`` uses up no timeout and has not begun.
3. The next message goes to the free member with the fewest messages in flight; on a tie, to the one free for longest.
4. Mailboxes wait for members in the order in which they asked. Each gets one member and asks again for its next
   message, behind the others: one message beside ten thousand waits for at most one turn of each mailbox.
5. No mailbox waits while a suitable member is free. This can change only when a mailbox asks, a member joins, or a
   member is released, and is checked at each of these.
6. A member that leaves gets no further messages and finishes those it has begun. A mailbox that waits for a pool
   without a member left for it gets None; its messages stay queued.
7. A member that let a message time out without an answer does not become free by that (`reserve`): otherwise it would
   be assigned the same message again and again while the others are busy.
8. A message that needs members of several pools takes them in the order of the pools' names, which prevents deadlocks,
   and releases each as soon as it has finished. A member that is taken waits idle for the others: a message that held
   none meanwhile would starve beside mailboxes that need only one pool.

Failure cases:

- A member leaves between its assignment and the start of the message: the dispatcher sees that it no longer consumes
  the mailbox, releases it, and asks again (dispatcher.py).
- A member does not begin its message (`Requeue`): the message goes back to the head of the queue, or, if other
  consumers have had it, to another member within the same delivery (handling.py).
- The bus closes: `stop` answers every waiting mailbox with None, and no further member is assigned.
- A waiting mailbox is cancelled just as it is assigned a member: the member goes to the next mailbox.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence

from relay_core.dispatch.consumer import Consumer
from relay_core.errors import InvalidSubject

MAX_QUEUE_NAME = 64
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]+")


def validate_queue(name: str) -> None:
    """Check the name of a queue.

    Raises:
        InvalidSubject: with code `invalid_queue`.
    """
    if not isinstance(name, str) or len(name) > MAX_QUEUE_NAME or _QUEUE_NAME.fullmatch(name) is None:
        raise InvalidSubject(
            f"a queue name consists of at most {MAX_QUEUE_NAME} letters, digits, _ and -, not {name!r}",
            subject=name if isinstance(name, str) else None,
            code="invalid_queue",
        )


FindConsumers = Callable[[], Sequence[Consumer]]
"""Returns the current consumers of a mailbox, members of pools and others."""


class _Request:
    """A mailbox that waits for a member."""

    __slots__ = ("consumers", "member")

    def __init__(self, consumers: FindConsumers) -> None:
        self.consumers = consumers
        self.member: asyncio.Future[Consumer | None] = asyncio.get_running_loop().create_future()


class Pool:
    """The members of one queue, and the mailboxes that wait for them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._capacity: dict[Consumer, int] = {}
        """How many messages each member may have in flight."""
        self._in_flight: dict[Consumer, int] = {}
        """How many messages it has, is assigned, or let time out without an answer."""
        self._free: dict[Consumer, None] = {}
        """Members with capacity left, the one free for longest first."""
        self._requests: dict[_Request, None] = {}
        """Waiting mailboxes, the longest waiting first."""
        self._stopped = False

    def __len__(self) -> int:
        return len(self._capacity)

    def join(self, member: Consumer, capacity: int) -> None:
        """Add a member; its mailboxes must list it as a consumer already."""
        self._capacity[member] = capacity
        self._in_flight[member] = 0
        self._offer(member)

    def leave(self, member: Consumer) -> None:
        """Remove a member; its mailboxes must no longer list it as a consumer."""
        for by_member in (self._capacity, self._in_flight, self._free):
            by_member.pop(member, None)
        for request in list(self._requests):
            if not self._serves(request.consumers()):
                self._answer(request, None)

    async def take(self, consumers: FindConsumers) -> Consumer | None:
        """Wait for a free member for one message of a mailbox, and return it; it must be released.

        Returns None if no member consumes the mailbox, or the bus is closing.
        """
        present = consumers()
        if self._stopped or not self._serves(present):
            return None
        matching = set(present)
        free = [member for member in self._free if member in matching]
        if free:
            return self._assign(min(free, key=self._in_flight.__getitem__))
        request = _Request(consumers)
        self._requests[request] = None
        try:
            return await request.member
        except asyncio.CancelledError:
            self._requests.pop(request, None)
            if not request.member.cancelled() and (member := request.member.result()) is not None:
                self.release(member, unused=True)
            raise

    def reserve(self, member: Consumer) -> None:
        """Use up one message of a member's capacity until it is released."""
        if member in self._in_flight:
            self._in_flight[member] += 1
            if self._in_flight[member] >= self._capacity[member]:
                self._free.pop(member, None)

    def release(self, member: Consumer, *, unused: bool = False) -> None:
        """Release a member that has finished a message; an `unused` one is next."""
        if member not in self._in_flight:
            return
        self._in_flight[member] -= 1
        if self._in_flight[member] >= self._capacity[member]:
            return
        if unused:
            self._free.pop(member, None)
            self._free = {member: None, **self._free}
        self._offer(member)

    def stop(self) -> None:
        """Assign no further member."""
        self._stopped = True
        for request in list(self._requests):
            self._answer(request, None)

    def _serves(self, consumers: Sequence[Consumer]) -> bool:
        return any(consumer.pool is self for consumer in consumers)

    def _offer(self, member: Consumer) -> None:
        """Assign a member to the waiting mailboxes that it consumes, up to its capacity; otherwise it is free."""
        self._free.setdefault(member)
        for request in list(self._requests):
            if member not in self._free:
                return
            if not request.member.done() and member in request.consumers():
                self._answer(request, self._assign(member))

    def _assign(self, member: Consumer) -> Consumer:
        self._in_flight[member] += 1
        del self._free[member]
        if self._in_flight[member] < self._capacity[member]:
            self._free[member] = None  # behind the others
        return member

    def _answer(self, request: _Request, member: Consumer | None) -> None:
        del self._requests[request]
        if not request.member.done():  # it may have been cancelled just now
            request.member.set_result(member)


class Pools:
    """All pools that have members."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._stopped = False

    def __len__(self) -> int:
        return len(self._pools)

    def get(self, name: str) -> Pool:
        """Return the pool of a queue, created if there is none.

        Raises:
            InvalidSubject: if the name is invalid.
        """
        validate_queue(name)
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = Pool(name)
            if self._stopped:
                pool.stop()
        return pool

    def leave(self, pool: Pool, member: Consumer) -> None:
        """Remove a member, and its pool if it was the last."""
        pool.leave(member)
        if not pool and self._pools.get(pool.name) is pool:
            del self._pools[pool.name]
            if not self._pools:
                self._pools.clear()  # a dict that was large keeps its table until then

    def stop(self) -> None:
        """Assign no further member."""
        self._stopped = True
        for pool in self._pools.values():
            pool.stop()


class MemberLease:
    """The members, one of each pool, that are assigned to one message."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[Consumer, Pool] = {}

    async def take(self, pools: Iterable[Pool], consumers: FindConsumers) -> bool:
        """Wait for a member of each pool; return False if one has none for the mailbox, or the bus is closing."""
        for pool in pools:
            member = await pool.take(consumers)
            if member is None:
                return False
            self._held[member] = pool
        return True

    @property
    def members(self) -> list[Consumer]:
        """Return the assigned members that have not finished."""
        return list(self._held)

    async def replace(self, member: Consumer, consumers: FindConsumers) -> Consumer | None:
        """Assign the message to another member of the same pool; return None if there is none."""
        pool = self._held[member]
        self.release(member)
        other = await pool.take(consumers)
        if other is not None:
            self._held[other] = pool
        return other

    def release(self, member: Consumer) -> None:
        """Release a member that has finished."""
        pool = self._held.pop(member, None)
        if pool is not None:
            pool.release(member)

    def release_all(self, *, unused: bool = False) -> None:
        """Release every member; `unused` ones are next."""
        for member, pool in self._held.items():
            pool.release(member, unused=unused)
        self._held.clear()
