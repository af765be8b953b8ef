"""Pools: the members of a queue share the messages of the mailboxes they listen to, one each.

1. A pool is all live subscriptions with one queue name. At a mailbox it is those of them that listen there: each
   message goes to exactly one of them, and counts as heard by one listener.
2. A member has room for so many messages over all mailboxes, and is free while some of it is left. It is given one
   before the claim: what waits in ``new/`` costs nothing of a timeout, and nobody thinks that it was begun.
3. The next message goes to the free member with the fewest in hand, among equals to the one that has waited longest.
4. Mailboxes that wait for a member are served in the order in which they asked. Each gets one member and asks again for
   its next message, behind the others: one message beside ten thousand waits for one turn of each mailbox at most.
5. Nobody waits while a member that would do is free. That can change in three ways only, and each is looked at when it
   happens: somebody asks, a member comes, a member has room again.
6. A member that leaves gets nothing more, and finishes what it has begun. Who waits for a pool that has nobody left at
   its mailbox is told so; its messages stay in line.
7. A member that let a message's time pass without a word is not free again by that (`reserve`): it would be given the
   same message once more, and again, while the others are busy with the rest.
8. Who needs members of several pools takes them in the order of the pools' names, so that no two wait for each other,
   and lets go of each as soon as that one is through. A member that is taken waits idle for those that are not free:
   who held nothing meanwhile would starve beside mailboxes that need one pool alone.

Failure cases:

- Given to a member that left before it could begin: the dispatcher sees that the member is not a listener any more,
  gives it back, and asks again (dispatcher.py).
- A member did not begin what it was given (`Requeue`): the message is offered to another, at the head of the line, or
  within the delivery where other consumers have had the same message (handling.py).
- The bus closes: `stop` tells everyone who waits, and nobody is given anything any more.
- Who waits is cancelled at the moment in which it is given a member: the member goes to the next in line.
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
            f"a queue is named by letters, digits, _ and -, {MAX_QUEUE_NAME} at most, not {name!r}",
            subject=name if isinstance(name, str) else None,
            code="invalid_queue",
        )


Listeners = Callable[[], Sequence[Consumer]]
"""Returns who listens to the mailbox that asks, members and others."""


class _Asking:
    """A mailbox that waits for a member."""

    __slots__ = ("given", "listeners")

    def __init__(self, listeners: Listeners) -> None:
        self.listeners = listeners
        self.given: asyncio.Future[Consumer | None] = asyncio.get_running_loop().create_future()


class Pool:
    """The members of one queue, and who waits for them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._room: dict[Consumer, int] = {}
        """How many messages each member may have in hand."""
        self._in_hand: dict[Consumer, int] = {}
        """How many it has, has been promised, or has said nothing about in time."""
        self._free: dict[Consumer, None] = {}
        """Consumers with room left, the one that has waited longest first."""
        self._asking: dict[_Asking, None] = {}
        """Mailboxes that wait, the one that has waited longest first."""
        self._stopped = False

    def __len__(self) -> int:
        return len(self._room)

    def join(self, member: Consumer, room: int) -> None:
        """Take in a member; those who listen must know it already."""
        self._room[member] = room
        self._in_hand[member] = 0
        self._offer(member)

    def leave(self, member: Consumer) -> None:
        """Give a member nothing more; those who listen must have forgotten it already."""
        for kept in (self._room, self._in_hand, self._free):
            kept.pop(member, None)
        for asking in list(self._asking):
            if not self._is_heard_by(asking.listeners()):
                self._answer(asking, None)

    async def take(self, listeners: Listeners) -> Consumer | None:
        """Return a free member for one message, when it is the mailbox's turn; None if nobody is left, or is to begin.

        It must be given back.
        """
        heard = listeners()
        if self._stopped or not self._is_heard_by(heard):
            return None
        here = set(heard)
        free = [member for member in self._free if member in here]
        if free:
            return self._give(min(free, key=self._in_hand.__getitem__))
        asking = _Asking(listeners)
        self._asking[asking] = None
        try:
            return await asking.given
        except asyncio.CancelledError:
            self._asking.pop(asking, None)
            if not asking.given.cancelled() and (given := asking.given.result()) is not None:
                self.give_back(given, unused=True)
            raise

    def reserve(self, member: Consumer) -> None:
        """Take some of a member's room away, until it is given back."""
        if member in self._in_hand:
            self._in_hand[member] += 1
            if self._in_hand[member] >= self._room[member]:
                self._free.pop(member, None)

    def give_back(self, member: Consumer, *, unused: bool = False) -> None:
        """Take a member back that is through with a message; one that was not needed keeps its place."""
        if member not in self._in_hand:
            return
        self._in_hand[member] -= 1
        if self._in_hand[member] >= self._room[member]:
            return  # the rest is occupied
        if unused:
            self._free.pop(member, None)
            self._free = {member: None, **self._free}
        self._offer(member)

    def stop(self) -> None:
        """Give nobody anything more."""
        self._stopped = True
        for asking in list(self._asking):
            self._answer(asking, None)

    def _is_heard_by(self, listeners: Sequence[Consumer]) -> bool:
        return any(one.pool is self for one in listeners)

    def _offer(self, member: Consumer) -> None:
        """Give a member to those who wait for it, as far as it has room, and let it wait with the rest."""
        self._free.setdefault(member)
        for asking in list(self._asking):
            if member not in self._free:
                return
            if not asking.given.done() and member in asking.listeners():
                self._answer(asking, self._give(member))

    def _give(self, member: Consumer) -> Consumer:
        self._in_hand[member] += 1
        del self._free[member]
        if self._in_hand[member] < self._room[member]:
            self._free[member] = None  # behind the others
        return member

    def _answer(self, asking: _Asking, member: Consumer | None) -> None:
        del self._asking[asking]
        if not asking.given.done():  # it may have been cancelled just now
            asking.given.set_result(member)


class Pools:
    """All pools that have members."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._stopped = False

    def __len__(self) -> int:
        return len(self._pools)

    def get(self, name: str) -> Pool:
        """Return the pool of a queue, made if there is none.

        Raises:
            InvalidSubject: if that is no name for one.
        """
        validate_queue(name)
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = Pool(name)
            if self._stopped:
                pool.stop()
        return pool

    def leave(self, pool: Pool, member: Consumer) -> None:
        """Give a member nothing more, and forget its pool if it was the last."""
        pool.leave(member)
        if not pool and self._pools.get(pool.name) is pool:
            del self._pools[pool.name]
            if not self._pools:
                self._pools.clear()  # a dict that was large keeps its table until then

    def stop(self) -> None:
        """Give nobody anything more."""
        self._stopped = True
        for pool in self._pools.values():
            pool.stop()


class MemberLease:
    """The members, one of each pool, that one message has been given to."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[Consumer, Pool] = {}

    async def take(self, pools: Iterable[Pool], listeners: Listeners) -> bool:
        """Wait for a member of each pool; False if one has nobody left, or is to begin nothing."""
        for pool in pools:
            member = await pool.take(listeners)
            if member is None:
                return False
            self._held[member] = pool
        return True

    @property
    def members(self) -> list[Consumer]:
        """Return who has been given the message and is not through with it."""
        return list(self._held)

    async def replace(self, member: Consumer, listeners: Listeners) -> Consumer | None:
        """Give a member's message to another of its pool; None if there is nobody."""
        pool = self._held[member]
        self.give_back(member)
        other = await pool.take(listeners)
        if other is not None:
            self._held[other] = pool
        return other

    def give_back(self, member: Consumer) -> None:
        """Let go of a member that is through."""
        pool = self._held.pop(member, None)
        if pool is not None:
            pool.give_back(member)

    def release(self, *, unused: bool = False) -> None:
        """Let go of everybody; they are next if they were not needed."""
        for member, pool in self._held.items():
            pool.give_back(member, unused=unused)
        self._held.clear()
