"""Turns: messages of mailboxes with one consumer outside of pools are begun and ended in batches.

1. A turn comes once per iteration of the event loop, and when publishes have been stored. It takes the messages that
   were reported as handled since the last one, and the oldest message of every mailbox that may begin one. One append
   to the journal records all of this, first the ends, then the claims.
2. The consumers get their messages after that append (P5). If it fails, the begun messages are requeued and retried
   after a while, and the ended ones stay claimed until the disk accepts their ends (dead_lettering.py).
3. A mailbox has one message in flight, from its claim until its end or failure is settled. Its next one may begin in
   the turn that records the end.
4. A message that is handed over (`Consumer.deliver`) costs no task: `InFlight` receives the report, and `Deadlines`
   ends it if none comes in time.
5. The coroutines of other consumers run one after the other in a task, with a turn in between. One that waits keeps
   the task, for it may depend on it (`asyncio.timeout`), and another task continues with the rest.
6. A consumer with slots has at most that many messages in flight. A mailbox that finds none free is offered again when
   it gets one (slots.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from relay_core.dispatch.consumer import Requeue
from relay_core.dispatch.handling import EXPIRED, Failure, call, no_answer, outcome
from relay_core.dispatch.in_flight import Deadlines, InFlight
from relay_core.dispatch.slots import Slots
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.stored_message import BadFile, StoredMessage

if TYPE_CHECKING:
    from relay_core.dispatch.dispatcher import Dispatch

logger = logging.getLogger(__name__)

_YIELD_EVERY = 32
_MOST = 64
"""Messages that begin in one turn."""


class Turns:
    """Begin and end messages that have a single consumer."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self.handling = dispatch.handling
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Mailbox] = deque()
        """Mailboxes that may begin a message."""
        self._granted: dict[str, Slots] = {}
        """The slots that mailboxes have waited for, by mailbox."""
        self._ended: list[InFlight] = []
        """Handled messages whose ends are to be recorded."""
        self._handlers: deque[InFlight] = deque()
        """Begun messages whose consumers need a task."""
        self._runner: asyncio.Task[Any] | None = None
        """The task that runs these, unless its handler waits."""
        self._deadlines = Deadlines(dispatch.clock, self._take_too_long)
        self._is_due = False
        self._is_taking = False

    def offer(self, mailbox: Mailbox) -> None:
        """Let a mailbox begin its oldest message in the next turn."""
        self._ready.append(mailbox)
        self._take_soon()

    def reported(self, flight: InFlight) -> None:
        """Take the report of a consumer that a message was handed over to."""
        self._deadlines.remove(flight)
        self._conclude(flight, flight.error)

    def stop(self) -> None:
        """Cancel the deadlines: the bus is closing."""
        self._deadlines.stop()

    async def interrupt(self) -> None:
        """End the handed-over messages: the bus closes, and its grace period is over."""
        for flight in list(self._deadlines):
            self._deadlines.remove(flight)
            flight.abandon()
            await self.handling.interrupt(flight.mailbox, flight.message)

    # The turn

    def _take_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._come)

    def _come(self) -> None:
        self._is_due = False
        self.take()

    def take(self) -> None:
        """Take a turn now."""
        if self._is_taking:
            self._take_soon()
            return
        self._is_taking = True
        try:
            self._take()
        finally:
            self._is_taking = False
        self._dispatch.on_turn()

    def _take(self) -> None:
        ended, self._ended = self._ended, []
        for flight in ended:
            self._free(flight)
        begun: list[InFlight] = []
        for _ in range(min(len(self._ready), _MOST)):
            flight_or_none = self._claim(self._ready.popleft())
            if flight_or_none is not None:
                begun.append(flight_or_none)
        if self._ready:
            self._take_soon()
        if ended or begun:
            self._record(ended, begun)

    def _record(self, ended: list[InFlight], begun: list[InFlight]) -> None:
        commits, handling = self._dispatch.commits, self.handling
        finished = [flight for flight in ended if not flight.message.ended]
        failed: OSError | None = None
        try:
            commits.note_turn(
                [(flight.mailbox.hash, flight.message.delivery.message_id) for flight in finished],
                [(flight.mailbox.hash, flight.message.delivery.message_id) for flight in begun],
            )
        except OSError as error:
            failed = error
        for flight in ended:
            if flight.message.ended:
                handling.complete(flight.mailbox, flight.message)
            else:
                if failed is None:
                    commits.remove_file(flight.mailbox.maildir, flight.message.delivery.message_id)
                handling.complete(flight.mailbox, flight.message, failed)
        for flight in begun:
            if failed is None:
                self._start(flight)
            else:
                self._put_back(flight, failed)
        if self._handlers and self._runner is None:
            self._run_handlers()

    def _put_back(self, flight: InFlight, error: OSError) -> None:
        """Requeue a message whose claim could not be recorded."""
        logger.error("%s: cannot claim: %s", flight.mailbox.subject, error)
        with suppress(OSError):  # then it stays in cur/ until the next start
            flight.mailbox.requeue(flight.message)
        if flight.probe:
            self._dispatch.breakers.release(flight.mailbox.hash)
        self._dispatch.wake_after_error(flight.mailbox)
        self._end(flight.mailbox, flight.slots)

    # Beginning

    def _claim(self, mailbox: Mailbox) -> InFlight | None:
        """Claim the oldest message of a mailbox, if its consumer, the breaker and the disk allow it."""
        dispatch = self._dispatch
        slots = self._granted.pop(mailbox.hash, None) if self._granted else None
        while not dispatch.closing and (head := mailbox.head()) is not None:
            consumers, timeout = dispatch.consumers(mailbox)
            if not consumers:
                dispatch.release_permits(mailbox)
                break
            consumer = consumers[0]
            if mailbox.hash in dispatch.concurrent and consumer.pool is None:
                break  # one at a time from now on: the last concurrent task wakes the mailbox
            if len(consumers) > 1 or consumer.pool is not None:
                if slots is not None:
                    slots.release()
                dispatch.start_dispatcher(mailbox)
                return None
            if slots is not consumer.slots:
                if slots is not None:
                    slots.release()  # the consumers have changed meanwhile
                slots = consumer.slots
                if slots is not None and not slots.take(partial(self._grant, mailbox, slots)):
                    return None
            probe = dispatch.admit(mailbox, head)
            if probe is None:
                break
            taken = dispatch.claim(mailbox, probe)
            if isinstance(taken, StoredMessage):
                return InFlight(self, mailbox, taken, consumer, timeout, probe, slots)
            if isinstance(taken, OSError):
                dispatch.wake_after_error(mailbox)
                break
            if isinstance(taken, BadFile):
                self._quarantine(mailbox, taken, slots)
                return None
        self._end(mailbox, slots)
        return None

    def _grant(self, mailbox: Mailbox, slots: Slots) -> None:
        self._granted[mailbox.hash] = slots
        self.offer(mailbox)

    def _quarantine(self, mailbox: Mailbox, bad: BadFile, slots: Slots | None) -> None:
        async def quarantine() -> None:
            try:
                await self._dispatch.dead_letter_writer.quarantine(mailbox, bad)
            finally:
                self._next(mailbox, slots)

        if self._dispatch.tasks.start(quarantine(), name=f"quarantine {mailbox.subject}") is None:
            self._end(mailbox, slots)

    def _start(self, flight: InFlight) -> None:
        """Give a begun message to its consumer, or to the task that runs handlers."""
        if not flight.consumer.hands_over:
            self._handlers.append(flight)
            return
        started = self.handling.start(flight.mailbox, flight.message, flight.probe)
        if started is None:
            self._fail(flight, EXPIRED)
            return
        flight.started = started
        try:
            flight.work = flight.consumer.deliver(flight.message, flight)
        except Exception as error:
            self._conclude(flight, error)
            return
        if flight.work is None:
            flight.is_handed_over = True
            self._deadlines.add(flight)
        else:
            self._handlers.append(flight)

    # Running handlers

    def _run_handlers(self) -> None:
        """Start a task for the waiting handlers."""
        self._runner = self._dispatch.tasks.start(self._run(), name="run handlers")
        if self._runner is None:  # the bus closes: none of these has begun
            for flight in self._handlers:
                self.handling.requeue(flight.mailbox, flight.message)
                self._end(flight.mailbox, flight.slots)
            self._handlers.clear()

    async def _run(self) -> None:
        me = asyncio.current_task()
        handled = 0
        try:
            while self._handlers:
                flight = self._handlers.popleft()
                await self._handle(flight)
                if self._runner is not me:
                    self._take_soon()
                    return
                handled += 1
                if handled % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
                if not self._handlers:
                    self.take()
        finally:
            self._step_aside()

    def _step_aside(self) -> None:
        """Let another task run the other handlers: this one belongs to its own."""
        if asyncio.current_task() is self._runner:
            self._runner = None
            if self._handlers:
                self._run_handlers()
            elif self._ended:
                self._take_soon()

    async def _handle(self, flight: InFlight) -> None:
        mailbox, message = flight.mailbox, flight.message
        try:
            if flight.work is None:
                started = self.handling.start(mailbox, message, flight.probe)
                if started is None:
                    self._step_aside()
                    await self.handling.fail(mailbox, message, EXPIRED)
                    self._free(flight)
                    return
                flight.started = started
            work, flight.work = flight.work, None
            found = await call(flight.consumer, message, flight.timeout, flight, work=work, on_wait=self._step_aside)
            flight.finished = True
            found = self.handling.judge(mailbox, message, (flight.consumer,), (found,), flight.started, flight.probe)
            if found is None:
                self._ended.append(flight)
                return
            self._step_aside()
            await self.handling.fail(mailbox, message, found)
        except Requeue as why:
            self._step_aside()
            if not await self.handling.requeue_or_fail(mailbox, message, flight.probe, why):
                self._dispatch.wake_after_error(mailbox)
                self._end(mailbox, flight.slots)
                return
        except asyncio.CancelledError:
            await self.handling.interrupt(mailbox, message)
            self._end(mailbox, flight.slots)
            raise
        self._free(flight)

    # Ending

    def _take_too_long(self, flight: InFlight) -> None:
        flight.abandon()
        self._settle(flight, no_answer(flight.consumer, flight.timeout))

    def _conclude(self, flight: InFlight, error: Exception | None) -> None:
        """Complete, requeue or fail a message by the report of its consumer."""
        try:
            found = outcome(flight.consumer, error)
        except Requeue as why:
            self._requeue(flight, why)
        else:
            self._settle(flight, found)

    def _settle(self, flight: InFlight, found: Failure | None) -> None:
        failure = self.handling.judge(
            flight.mailbox, flight.message, (flight.consumer,), (found,), flight.started, flight.probe
        )
        if failure is None:
            self._ended.append(flight)
            self._take_soon()
        else:
            self._fail(flight, failure)

    def _fail(self, flight: InFlight, failure: Failure) -> None:
        async def fail() -> None:
            try:
                await self.handling.fail(flight.mailbox, flight.message, failure)
            finally:
                self._free(flight)

        if self._dispatch.tasks.start(fail(), name=f"dead-letter {flight.message.id}") is None:
            self._end(flight.mailbox, flight.slots)  # the bus closes: the next start finds it in cur/

    def _requeue(self, flight: InFlight, why: Requeue) -> None:
        async def requeue() -> None:
            requeued = await self.handling.requeue_or_fail(flight.mailbox, flight.message, flight.probe, why)
            if requeued:
                self._free(flight)
            else:
                self._dispatch.wake_after_error(flight.mailbox)
                self._end(flight.mailbox, flight.slots)

        if self._dispatch.tasks.start(requeue(), name=f"requeue {flight.message.id}") is None:
            self._end(flight.mailbox, flight.slots)

    def _free(self, flight: InFlight) -> None:
        """Let a mailbox begin its next message."""
        self._next(flight.mailbox, flight.slots)

    def _next(self, mailbox: Mailbox, slots: Slots | None) -> None:
        if slots is not None:
            slots.release()
        if self._dispatch.closing or mailbox.head() is None:
            self._dispatch.ended(mailbox)
        else:
            self.offer(mailbox)

    def _end(self, mailbox: Mailbox, slots: Slots | None) -> None:
        """Leave a mailbox that cannot begin a message now."""
        if slots is not None:
            slots.release()
        self._dispatch.ended(mailbox)
