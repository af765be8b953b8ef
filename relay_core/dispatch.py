"""Dispatch: each mailbox hands its messages to its consumers, oldest first.

1. A dispatcher runs while its mailbox has mail and somebody to handle it; it is one task, made when
   there is work and gone when there is none.
2. For each message: the consumers have room for it, the breaker admits it, it is claimed, and it is seen through
   (handling.py). Then the next.
3. While the breaker is open the mail waits; after the cooldown the head of the line is the probe.
4. A consumer that takes only so many at a time is waited for before the claim, mailbox after mailbox in turn:
   what waits in ``new/`` costs nothing of a timeout, and nobody thinks that it was begun. So is a member of every
   pool (pools.py).
5. One message at a time, if anybody listens for itself. If pools alone listen, the next message is begun as soon as
   every pool has a member free: messages are begun in order, and may end in any order. Each such message is a task of
   its own, whatever has become of the dispatcher. Who begins to listen for itself meanwhile gets its first message
   when all of them have ended.
6. Nothing is waited for by a dispatcher but members and slots. Whatever else may let it go on kicks the mailbox, which
   makes a new one: mail that comes or is put back, a subscription that comes or goes, a breaker that moves or whose
   cooldown ends, a disk that may have recovered, and the end of each message that was a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from math import isinf

from relay_core.breaker import CircuitBreakers, CircuitState
from relay_core.clock import Clock, Timer, call_later
from relay_core.consumers import Consumer, Consumers
from relay_core.handling import Handling
from relay_core.mailbox import BadFile, Item, Mailbox
from relay_core.parking import Parking
from relay_core.pools import Hands, Pool, Pools
from relay_core.recorder import Recorder
from relay_core.tasks import Tasks

logger = logging.getLogger(__name__)

_YIELD_EVERY = 32
_RETRY_SECS = 1.0
_LOOK_AGAIN_SECS = 0.01


class Dispatch:
    """All dispatchers."""

    def __init__(
        self,
        consumers: Consumers,
        pools: Pools,
        breakers: CircuitBreakers,
        handling: Handling,
        parking: Parking,
        recorder: Recorder,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self.consumers = consumers
        self.breakers = breakers
        self.handling = handling
        self.parking = parking
        self.recorder = recorder
        self.clock = clock
        self.tasks = tasks
        self._pools = pools
        self._running: dict[str, _Dispatcher] = {}
        self.side_by_side: Counter[str] = Counter()
        """Messages under way in tasks of their own, by mailbox."""
        self._timers: dict[str, Timer] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False

    @property
    def closing(self) -> bool:
        """Whether no further message is begun."""
        return self._closing

    def kick(self, mailbox: Mailbox) -> None:
        """Make sure a mailbox's messages are being handled, if they can be."""
        if mailbox.hash in self._running or self._closing or mailbox.head() is None:
            return
        if not self.consumers(mailbox)[0]:
            return
        dispatcher = _Dispatcher(self, mailbox)
        self._running[mailbox.hash] = dispatcher
        self._idle.clear()
        self.tasks.start(dispatcher.run(), name=f"dispatch {mailbox.subject}")

    def wait(self, mailbox: Mailbox) -> None:
        """Look again when an open breaker may let a probe through."""
        delay = self.breakers.retry_in(mailbox.hash)
        if not isinf(delay):  # forced open: the operator's reset kicks
            self._kick_later(mailbox, max(delay, _LOOK_AGAIN_SECS))

    def retry(self, mailbox: Mailbox) -> None:
        """Look again when the disk may have recovered."""
        self._kick_later(mailbox, _RETRY_SECS)

    def _kick_later(self, mailbox: Mailbox, delay: float) -> None:
        def look() -> None:
            self._timers.pop(mailbox.hash, None)
            self.kick(mailbox)

        # The newest wins: a hot reload may have shortened the cooldown.
        if (timer := self._timers.pop(mailbox.hash, None)) is not None:
            timer.cancel()
        self._timers[mailbox.hash] = call_later(self.clock, delay, look)

    def look_again(self, mailboxes: Iterable[Mailbox]) -> None:
        """Look again at mailboxes that wait for a breaker: its configuration has changed."""
        for mailbox in mailboxes:
            if mailbox.hash in self._timers:
                self.kick(mailbox)

    def ended(self, mailbox: Mailbox) -> None:
        """Forget a dispatcher that has nothing left to do."""
        self._running.pop(mailbox.hash, None)
        self._look_idle()

    def ended_beside(self, mailbox: Mailbox) -> None:
        """Forget a message that was a task of its own, and look what its end lets begin."""
        self.side_by_side[mailbox.hash] -= 1
        if not self.side_by_side[mailbox.hash]:
            del self.side_by_side[mailbox.hash]
        self.kick(mailbox)
        self._look_idle()

    def _look_idle(self) -> None:
        if not self._running and not self.side_by_side:
            self._idle.set()

    async def take_slots(self, slots: list[asyncio.Semaphore]) -> None:
        """Wait for a turn with every consumer that has but so many; they are given in the order they are asked for."""
        for slot in sorted(slots, key=id):  # in one order for all, so that no two wait for each other
            await slot.acquire()

    async def idle(self) -> None:
        """Return when no dispatcher has anything left to do."""
        while self._running or self.side_by_side:
            await self._idle.wait()

    def stop(self) -> None:
        """Begin no further message; those under way go on."""
        self._closing = True
        self._pools.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


class _Dispatcher:
    """One mailbox's turn."""

    __slots__ = ("_bus", "_mailbox")

    def __init__(self, bus: Dispatch, mailbox: Mailbox) -> None:
        self._bus = bus
        self._mailbox = mailbox

    async def run(self) -> None:
        bus, mailbox = self._bus, self._mailbox
        handled = 0
        known: Sequence[Consumer] | None = None
        pools: list[Pool] = []
        try:
            while not bus.closing and (head := mailbox.head()) is not None:
                consumers, timeout = bus.consumers(mailbox)
                if not consumers:
                    while self._take_permit():
                        bus.breakers.release(mailbox.hash)
                    break
                if consumers is not known:
                    known, pools = consumers, _pools(consumers)
                    if mailbox.hash in bus.side_by_side and _alone(consumers):
                        break  # one at a time from now on: the end of the last one kicks
                if pools:
                    go_on = await self._share(pools, consumers, timeout)
                else:
                    go_on = await self._take_turn(head, consumers, timeout)
                if not go_on:
                    break
                handled += 1
                if handled % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
        finally:
            bus.ended(mailbox)

    async def _take_turn(
        self, head: str, consumers: Sequence[Consumer], timeout: float, hands: Hands | None = None
    ) -> bool:
        """See the oldest message through when everybody has room for it; return whether to go on."""
        bus, mailbox = self._bus, self._mailbox
        slots = [one.slots for one in consumers if one.slots is not None]
        if not slots:
            return await self._one(head, consumers, timeout, hands)
        before = bus.consumers(mailbox)[0]
        await bus.take_slots(slots)
        try:
            if bus.closing or bus.consumers(mailbox)[0] != before or mailbox.head() != head:
                return True  # things have changed while it waited for its turn
            return await self._one(head, consumers, timeout, hands)
        finally:
            for slot in slots:
                slot.release()

    async def _share(self, pools: list[Pool], consumers: Sequence[Consumer], timeout: float) -> bool:
        """Give the oldest message to a member of each pool, when each has one free; return whether to go on."""
        bus, mailbox = self._bus, self._mailbox
        others = _alone(consumers)
        hands = Hands()
        try:
            if not await hands.take(pools, lambda: bus.consumers(mailbox)[0]):
                return True
            now = bus.consumers(mailbox)[0]
            if now is not consumers:
                left = any(member not in now for member in hands.members)
                if left or _pools(now) != pools or _alone(now) != others:
                    return True  # somebody came or went while it waited for its turn
            head = mailbox.head()
            if bus.closing or head is None:
                return True
            chosen = [*others, *hands.members]
            if others:
                return await self._take_turn(head, chosen, timeout, hands)
            probe = self._admit(head)
            if probe is None:
                return False
            taken = self._claim(probe)
            if not isinstance(taken, Item):
                return await self._set_aside(taken)
            work, hands = self._beside(taken, chosen, timeout, probe, hands), Hands()
            bus.side_by_side[mailbox.hash] += 1
            bus.tasks.start(work, name=f"handle {taken.id}")
            return True
        finally:
            hands.let_go(unused=True)

    async def _beside(
        self, item: Item, consumers: Sequence[Consumer], timeout: float, probe: bool, hands: Hands
    ) -> None:
        """See a message through in a task of its own."""
        bus, mailbox = self._bus, self._mailbox
        try:
            await bus.handling.see_through(mailbox, item, consumers, timeout, probe, hands)
        finally:
            hands.let_go()
            bus.ended_beside(mailbox)

    async def _one(self, head: str, consumers: Sequence[Consumer], timeout: float, hands: Hands | None) -> bool:
        """See the oldest message through, if the breaker and the disk let it; return whether to go on."""
        bus, mailbox = self._bus, self._mailbox
        probe = self._admit(head)
        if probe is None:
            return False
        taken = self._claim(probe)
        if not isinstance(taken, Item):
            return await self._set_aside(taken)
        if not await bus.handling.see_through(mailbox, taken, consumers, timeout, probe, hands):
            bus.retry(mailbox)
            return False
        return True

    def _admit(self, head: str) -> bool | None:
        """Ask the breaker for the oldest message; return whether it is a probe, or None if it has to wait."""
        bus, mailbox = self._bus, self._mailbox
        held = mailbox.fresh.get(head)
        if held is not None and held.probe:
            return True
        verdict = bus.breakers.check(mailbox.hash)
        probe = verdict.state is CircuitState.HALF_OPEN
        if verdict.allowed or (probe and self._take_permit()):
            return probe
        bus.wait(mailbox)
        return None

    def _take_permit(self) -> bool:
        """Take a half-open breaker's permit from a message further back, if one has it."""
        for item in self._mailbox.fresh.values():
            if item.probe:
                item.probe = False
                return True
        return False

    def _claim(self, probe: bool) -> Item | BadFile | OSError | None:
        """Claim the oldest message; return what is in its place, if it cannot be."""
        bus, mailbox = self._bus, self._mailbox
        taken: Item | BadFile | OSError | None
        try:
            taken = mailbox.claim_next()
        except OSError as error:
            logger.error("%s: cannot claim: %s", mailbox.subject, error)
            taken = error
        bus.recorder.eased(mailbox)
        if probe and not isinstance(taken, Item):
            bus.breakers.release(mailbox.hash)
        return taken

    async def _set_aside(self, found: BadFile | OSError | None) -> bool:
        """Deal with what is no message; return whether to go on."""
        if isinstance(found, BadFile):
            await self._bus.parking.set_aside(self._mailbox, found)
        elif isinstance(found, OSError):
            self._bus.retry(self._mailbox)
        return not isinstance(found, OSError)


def _pools(consumers: Sequence[Consumer]) -> list[Pool]:
    """Return the pools among them, in the order in which their members are to be taken."""
    found = {one.pool for one in consumers if one.pool is not None}
    return sorted(found, key=lambda pool: pool.name) if found else []


def _alone(consumers: Sequence[Consumer]) -> list[Consumer]:
    """Return those that are in no pool."""
    return [one for one in consumers if one.pool is None]
