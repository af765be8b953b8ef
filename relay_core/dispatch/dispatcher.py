"""Dispatch: each mailbox hands its messages to its consumers, oldest first.

1. A mailbox is busy while it has both messages and consumers.
2. For each message: its consumers have capacity, the breaker admits it, it is claimed, and it is delivered. With one
   consumer outside of pools this takes no task, and the mailboxes of one turn of the loop are served together
   (turns.py). Pools and several consumers take a task for each busy mailbox (`_Dispatcher`, handling.py).
3. While the breaker is open, messages wait; after the cooldown the oldest is the probe.
4. Capacity is waited for before the claim: slots of consumers that limit them (slots.py), and a member of every pool
   (worker_pool.py), mailboxes taking turns. A message that waits in ``new/`` uses up no timeout and has not begun.
5. With a consumer outside of pools, a mailbox has one message in flight. If only pools consume it, the next message
   begins as soon as every pool has a free member: messages begin in order and may end in any order. Each is then a
   concurrent task that may outlive the dispatcher. A consumer outside of pools that is added meanwhile gets its first
   message when all of these have ended.
6. A busy mailbox waits only for members and slots. Every other event that may let it continue wakes it: a message that
   arrives or is requeued, a subscription that is added or closed, a breaker that changes state or whose cooldown ends,
   a disk that may have recovered, and the end of each concurrent task.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from math import isinf

from relay_core.clock import Clock, Timer, call_later
from relay_core.dispatch.consumer import Consumer
from relay_core.dispatch.consumers import Consumers
from relay_core.dispatch.dead_lettering import DeadLetterWriter
from relay_core.dispatch.handling import Handling
from relay_core.dispatch.turns import Turns
from relay_core.dispatch.worker_pool import MemberLease, Pool, Pools
from relay_core.journal.commit import Commits
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
        commits: Commits,
        dead_letter_writer: DeadLetterWriter,
        recorder: Recorder,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._mailboxes = mailboxes
        self.consumers = consumers
        self.breakers = breakers
        self.handling = handling
        self.commits = commits
        self.dead_letter_writer = dead_letter_writer
        self.recorder = recorder
        self.clock = clock
        self.tasks = tasks
        self._pools = pools
        self._busy: set[str] = set()
        """The hashes of busy mailboxes."""
        self.concurrent: Counter[str] = Counter()
        """Messages in flight in concurrent tasks, by mailbox."""
        self._timers: dict[str, Timer] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.closing = False
        """Whether no further message begins."""
        self._turns = Turns(self)
        self.on_turn: Callable[[], None] = lambda: None
        """Called after each turn, in which messages may have been handed over (turns.py)."""

    def wake(self, mailbox: Mailbox) -> None:
        """Let a mailbox begin a message, unless it is busy or has nothing to do."""
        if mailbox.hash in self._busy or self.closing or mailbox.head() is None:
            return
        if not self.consumers(mailbox)[0]:
            return
        self._busy.add(mailbox.hash)
        self._idle.clear()
        self._turns.offer(mailbox)

    def take_turn(self) -> None:
        """Begin messages that were stored just now, without another iteration of the event loop."""
        self._turns.take()

    def start_dispatcher(self, mailbox: Mailbox) -> None:
        """Serve a busy mailbox in a task: it has several consumers, or pools."""
        if self.tasks.start(_Dispatcher(self, mailbox).run(), name=f"dispatch {mailbox.subject}") is None:
            self.ended(mailbox)

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

    def admit(self, mailbox: Mailbox, head: str) -> bool | None:
        """Ask the breaker to admit the oldest message; return whether it is a probe, or None if it has to wait."""
        if mailbox.fresh:
            held = mailbox.fresh.get(head)
            if held is not None and held.probe:
                return True
        verdict = self.breakers.check(mailbox.hash)
        if verdict.state is CircuitState.CLOSED:
            return False
        probe = verdict.state is CircuitState.HALF_OPEN
        if verdict.allowed or (probe and self._take_permit(mailbox)):
            return probe
        self.wake_after_cooldown(mailbox)
        return None

    @staticmethod
    def _take_permit(mailbox: Mailbox) -> bool:
        """Take a half-open breaker's permit from a younger message; return False if none has one."""
        for message in mailbox.fresh.values():
            if message.probe:
                message.probe = False
                return True
        return False

    def release_permits(self, mailbox: Mailbox) -> None:
        """Return the permits of waiting messages: the mailbox has no consumer left."""
        while self._take_permit(mailbox):
            self.breakers.release(mailbox.hash)

    def claim(self, mailbox: Mailbox, probe: bool) -> StoredMessage | BadFile | OSError | None:
        """Claim the oldest message, or return the reason why it could not be claimed; `begin` must follow."""
        taken: StoredMessage | BadFile | OSError | None
        try:
            taken = mailbox.claim_next()
        except OSError as error:
            logger.error("%s: cannot claim: %s", mailbox.subject, error)
            taken = error
        if mailbox.episode is not None:
            self.recorder.pressure_cleared(mailbox)
        if probe and not isinstance(taken, StoredMessage):
            self.breakers.release(mailbox.hash)
        return taken

    def ended(self, mailbox: Mailbox) -> None:
        """Note that a mailbox is no longer busy."""
        self._busy.discard(mailbox.hash)
        self._check_idle()

    def ended_concurrent(self, mailbox: Mailbox) -> None:
        """Remove a concurrent task, and wake its mailbox."""
        self.concurrent[mailbox.hash] -= 1
        if not self.concurrent[mailbox.hash]:
            del self.concurrent[mailbox.hash]
        self.wake(mailbox)
        self._check_idle()

    def _check_idle(self) -> None:
        if not self._busy and not self.concurrent:
            self._idle.set()

    async def idle(self) -> None:
        """Return when no mailbox is busy."""
        while self._busy or self.concurrent:
            await self._idle.wait()

    def stop(self) -> None:
        """Begin no further message; those in flight continue."""
        if not self.closing:
            self.closing = True
            self.tasks.start(self._finish(), name="finish messages in flight")
        self._pools.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def _finish(self) -> None:
        """Let the close wait for messages that are in no task; end them when its grace period is over."""
        try:
            await self.idle()
        except asyncio.CancelledError:
            await self._turns.interrupt()
            raise
        finally:
            self._turns.stop()


class _Dispatcher:
    """Hands out the messages of one busy mailbox in a task."""

    __slots__ = ("_bus", "_mailbox")

    def __init__(self, bus: Dispatch, mailbox: Mailbox) -> None:
        self._bus = bus
        self._mailbox = mailbox

    async def run(self) -> None:
        bus, mailbox = self._bus, self._mailbox
        handled = 0
        known: Sequence[Consumer] | None = None
        pools: list[Pool] = []
        is_simple = False
        try:
            while not bus.closing and (head := mailbox.head()) is not None:
                consumers, timeout = bus.consumers(mailbox)
                if not consumers:
                    bus.release_permits(mailbox)
                    break
                if consumers is not known:
                    known, pools = consumers, _pools(consumers)
                    if mailbox.hash in bus.concurrent and _outside_pools(consumers):
                        break  # one at a time from now on: the last concurrent task wakes the mailbox
                    is_simple = len(consumers) == 1 and not pools
                    if is_simple:
                        break
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
            if is_simple:
                bus.wake(mailbox)  # turns.py takes over

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
            probe = bus.admit(mailbox, head)
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
        probe = bus.admit(mailbox, head)
        if probe is None:
            return False
        taken = self._claim(probe)
        if not isinstance(taken, StoredMessage):
            return await self._skip(taken)
        if not await bus.handling.deliver(mailbox, taken, consumers, timeout, probe, lease):
            bus.wake_after_error(mailbox)
            return False
        return True

    def _claim(self, probe: bool) -> StoredMessage | BadFile | OSError | None:
        """Claim the oldest message and record it, or return the reason why that is not possible."""
        bus, mailbox = self._bus, self._mailbox
        taken = bus.claim(mailbox, probe)
        if isinstance(taken, StoredMessage):
            try:
                bus.handling.begin(mailbox, taken)
            except OSError as error:
                logger.error("%s: cannot claim: %s", mailbox.subject, error)
                if probe:
                    bus.breakers.release(mailbox.hash)
                return error
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
