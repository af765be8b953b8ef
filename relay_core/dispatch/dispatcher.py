"""Dispatch: each mailbox hands its messages to its consumers, oldest first.

1. A dispatcher is one task per mailbox; it exists while the mailbox has both messages and consumers.
2. For each message: its consumers have capacity, the breaker admits it, it is claimed, and it is delivered
   (handling.py).
3. While the breaker is open, messages wait; after the cooldown the oldest is the probe.
4. Capacity is waited for before the claim: slots of consumers that limit them, and a member of every pool
   (worker_pool.py), mailboxes taking turns. A message that waits in ``new/`` uses up no timeout and has not begun.
5. With a consumer outside of pools, a mailbox has one message in flight. If only pools consume it, the next message
   begins as soon as every pool has a free member: messages begin in order and may end in any order. Each is then a
   concurrent task that may outlive the dispatcher. A consumer outside of pools that is added meanwhile gets its first
   message when all of these have ended.
6. A dispatcher waits only for members and slots. Every other event that may let it continue wakes the mailbox, which
   starts a new dispatcher: a message that arrives or is requeued, a subscription that is added or closed, a breaker
   that changes state or whose cooldown ends, a disk that may have recovered, and the end of each concurrent task.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from math import isinf

from relay_core.clock import Clock, Timer, call_later
from relay_core.dispatch.consumer import Consumer
from relay_core.dispatch.consumers import Consumers
from relay_core.dispatch.dead_lettering import DeadLetterWriter
from relay_core.dispatch.handling import Handling
from relay_core.dispatch.worker_pool import MemberLease, Pool, Pools
from relay_core.messages.subjects import is_pattern, subject_hash
from relay_core.records.recorder import Recorder
from relay_core.rules.breaker import CircuitBreakers, CircuitState
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.mailboxes import Mailboxes
from relay_core.storage.stored_message import BadFile, StoredMessage
from relay_core.tasks import Tasks

logger = logging.getLogger(__name__)

_YIELD_EVERY = 32
_RETRY_SECS = 1.0
_PROBE_DELAY_SECS = 0.01


class Dispatch:
    """All dispatchers."""

    def __init__(
        self,
        mailboxes: Mailboxes,
        consumers: Consumers,
        pools: Pools,
        breakers: CircuitBreakers,
        handling: Handling,
        dead_letter_writer: DeadLetterWriter,
        recorder: Recorder,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._mailboxes = mailboxes
        self.consumers = consumers
        self.breakers = breakers
        self.handling = handling
        self.dead_letter_writer = dead_letter_writer
        self.recorder = recorder
        self.clock = clock
        self.tasks = tasks
        self._pools = pools
        self._running: dict[str, _Dispatcher] = {}
        self.concurrent: Counter[str] = Counter()
        """Messages in flight in concurrent tasks, by mailbox."""
        self._timers: dict[str, Timer] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.closing = False
        """Whether no further message begins."""

    def wake(self, mailbox: Mailbox) -> None:
        """Start a mailbox's dispatcher, unless it is running or has nothing to do."""
        if mailbox.hash in self._running or self.closing or mailbox.head() is None:
            return
        if not self.consumers(mailbox)[0]:
            return
        dispatcher = _Dispatcher(self, mailbox)
        self._running[mailbox.hash] = dispatcher
        self._idle.clear()
        self.tasks.start(dispatcher.run(), name=f"dispatch {mailbox.subject}")

    def refresh(self, mailbox: Mailbox) -> None:
        """Look up a mailbox's consumers again, and dispatch to them."""
        self.consumers.forget(mailbox)
        mailbox.is_handled = bool(self.consumers(mailbox)[0])
        if mailbox.is_handled:
            self.wake(mailbox)

    def refresh_matching(self, pattern: str) -> None:
        """Refresh every mailbox that a subject or a pattern matches."""
        if is_pattern(pattern):
            mailboxes = self._mailboxes.select_any(pattern)
        else:
            known = self._mailboxes.get(subject_hash(pattern))
            mailboxes = [known] if known is not None else []
        for mailbox in mailboxes:
            self.refresh(mailbox)

    def wake_after_cooldown(self, mailbox: Mailbox) -> None:
        """Wake a mailbox when its open breaker may admit a probe."""
        delay = self.breakers.retry_in(mailbox.hash)
        if not isinf(delay):  # forced open: a reset by the operator wakes it
            self._wake_later(mailbox, max(delay, _PROBE_DELAY_SECS))

    def wake_after_error(self, mailbox: Mailbox) -> None:
        """Wake a mailbox when the disk may have recovered."""
        self._wake_later(mailbox, _RETRY_SECS)

    def _wake_later(self, mailbox: Mailbox, delay: float) -> None:
        def wake() -> None:
            self._timers.pop(mailbox.hash, None)
            self.wake(mailbox)

        # The newest timer wins: a hot reload may have shortened the cooldown.
        if (timer := self._timers.pop(mailbox.hash, None)) is not None:
            timer.cancel()
        self._timers[mailbox.hash] = call_later(self.clock, delay, wake)

    def breakers_changed(self) -> None:
        """Wake mailboxes that wait for a breaker: the configuration of breakers has changed."""
        for mailbox in self._mailboxes:
            if mailbox.hash in self._timers:
                self.wake(mailbox)

    def ended(self, mailbox: Mailbox) -> None:
        """Remove a dispatcher that has nothing left to do."""
        self._running.pop(mailbox.hash, None)
        self._check_idle()

    def ended_concurrent(self, mailbox: Mailbox) -> None:
        """Remove a concurrent task, and wake its mailbox."""
        self.concurrent[mailbox.hash] -= 1
        if not self.concurrent[mailbox.hash]:
            del self.concurrent[mailbox.hash]
        self.wake(mailbox)
        self._check_idle()

    def _check_idle(self) -> None:
        if not self._running and not self.concurrent:
            self._idle.set()

    async def idle(self) -> None:
        """Return when no dispatcher has anything left to do."""
        while self._running or self.concurrent:
            await self._idle.wait()

    def stop(self) -> None:
        """Begin no further message; those in flight continue."""
        self.closing = True
        self._pools.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


class _Dispatcher:
    """Hands out the messages of one mailbox."""

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
                    if mailbox.hash in bus.concurrent and _outside_pools(consumers):
                        break  # one at a time from now on: the last concurrent task wakes the mailbox
                if pools:
                    proceed = await self._share(pools, consumers, timeout)
                else:
                    proceed = await self._take_turn(head, consumers, timeout)
                if not proceed:
                    break
                handled += 1
                if handled % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
        finally:
            bus.ended(mailbox)

    async def _take_turn(
        self, head: str, consumers: Sequence[Consumer], timeout: float, lease: MemberLease | None = None
    ) -> bool:
        """Deliver the oldest message when every consumer has a free slot; return whether to continue."""
        bus, mailbox = self._bus, self._mailbox
        slots = [consumer.slots for consumer in consumers if consumer.slots is not None]
        if not slots:
            return await self._deliver_head(head, consumers, timeout, lease)
        before = bus.consumers(mailbox)[0]
        for slot in sorted(slots, key=id):  # in the same order for all mailboxes, so that none deadlock
            await slot.acquire()
        try:
            if bus.closing or bus.consumers(mailbox)[0] != before or mailbox.head() != head:
                return True  # the situation has changed meanwhile
            return await self._deliver_head(head, consumers, timeout, lease)
        finally:
            for slot in slots:
                slot.release()

    async def _share(self, pools: list[Pool], consumers: Sequence[Consumer], timeout: float) -> bool:
        """Deliver the oldest message to a member of each pool, when each has one free; return whether to continue."""
        bus, mailbox = self._bus, self._mailbox
        others = _outside_pools(consumers)
        lease = MemberLease()
        try:
            if not await lease.take(pools, lambda: bus.consumers(mailbox)[0]):
                return True
            now = bus.consumers(mailbox)[0]
            if now is not consumers:
                left = any(member not in now for member in lease.members)
                if left or _pools(now) != pools or _outside_pools(now) != others:
                    return True  # consumers have changed meanwhile
            head = mailbox.head()
            if bus.closing or head is None:
                return True
            chosen = [*others, *lease.members]
            if others:
                return await self._take_turn(head, chosen, timeout, lease)
            probe = self._admit(head)
            if probe is None:
                return False
            taken = self._claim(probe)
            if not isinstance(taken, StoredMessage):
                return await self._skip(taken)
            work, lease = self._deliver_concurrently(taken, chosen, timeout, probe, lease), MemberLease()
            bus.concurrent[mailbox.hash] += 1
            bus.tasks.start(work, name=f"handle {taken.id}")
            return True
        finally:
            lease.release_all(unused=True)

    async def _deliver_concurrently(
        self, message: StoredMessage, consumers: Sequence[Consumer], timeout: float, probe: bool, lease: MemberLease
    ) -> None:
        """Deliver a message in a concurrent task."""
        bus, mailbox = self._bus, self._mailbox
        try:
            await bus.handling.deliver(mailbox, message, consumers, timeout, probe, lease)
        finally:
            lease.release_all()
            bus.ended_concurrent(mailbox)

    async def _deliver_head(
        self, head: str, consumers: Sequence[Consumer], timeout: float, lease: MemberLease | None
    ) -> bool:
        """Deliver the oldest message, if the breaker and the disk allow it; return whether to continue."""
        bus, mailbox = self._bus, self._mailbox
        probe = self._admit(head)
        if probe is None:
            return False
        taken = self._claim(probe)
        if not isinstance(taken, StoredMessage):
            return await self._skip(taken)
        if not await bus.handling.deliver(mailbox, taken, consumers, timeout, probe, lease):
            bus.wake_after_error(mailbox)
            return False
        return True

    def _admit(self, head: str) -> bool | None:
        """Ask the breaker to admit the oldest message; return whether it is a probe, or None if it has to wait."""
        bus, mailbox = self._bus, self._mailbox
        held = mailbox.fresh.get(head)
        if held is not None and held.probe:
            return True
        verdict = bus.breakers.check(mailbox.hash)
        probe = verdict.state is CircuitState.HALF_OPEN
        if verdict.allowed or (probe and self._take_permit()):
            return probe
        bus.wake_after_cooldown(mailbox)
        return None

    def _take_permit(self) -> bool:
        """Take a half-open breaker's permit from a younger message; return False if none has one."""
        for message in self._mailbox.fresh.values():
            if message.probe:
                message.probe = False
                return True
        return False

    def _claim(self, probe: bool) -> StoredMessage | BadFile | OSError | None:
        """Claim the oldest message, or return the reason why it could not be claimed."""
        bus, mailbox = self._bus, self._mailbox
        taken: StoredMessage | BadFile | OSError | None
        try:
            taken = mailbox.claim_next()
            if isinstance(taken, StoredMessage):
                bus.handling.begin(mailbox, taken)
        except OSError as error:
            logger.error("%s: cannot claim: %s", mailbox.subject, error)
            taken = error
        bus.recorder.pressure_cleared(mailbox)
        if probe and not isinstance(taken, StoredMessage):
            bus.breakers.release(mailbox.hash)
        return taken

    async def _skip(self, found: BadFile | OSError | None) -> bool:
        """Process a claim that yielded no message; return whether to continue."""
        if isinstance(found, BadFile):
            await self._bus.dead_letter_writer.quarantine(self._mailbox, found)
        elif isinstance(found, OSError):
            self._bus.wake_after_error(self._mailbox)
        return not isinstance(found, OSError)


def _pools(consumers: Sequence[Consumer]) -> list[Pool]:
    """Return the pools of consumers, in the order in which members must be taken."""
    found = {consumer.pool for consumer in consumers if consumer.pool is not None}
    return sorted(found, key=lambda pool: pool.name) if found else []


def _outside_pools(consumers: Sequence[Consumer]) -> list[Consumer]:
    """Return the consumers that are in no pool."""
    return [consumer for consumer in consumers if consumer.pool is None]
