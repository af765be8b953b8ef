"""Dispatch: each mailbox hands its messages to its handlers, one at a time, oldest first.

1. A dispatcher runs while its mailbox has mail and somebody to handle it; it is one task, made when
   there is work and gone when there is none.
2. For each message: the breaker admits it, it is claimed, its TTL is checked, all handlers run side
   by side, each with its own timeout, and it is completed or parked. Then the next.
3. All handlers failed → ``failed/``. Some failed → completed, status `partial`, every outcome kept.
4. The breaker learns exactly one outcome per delivery, after the handlers. While it is open the
   mail waits; after the cooldown the head of the line is the probe.
5. A consumer that takes only so many at a time is waited for before the claim, mailbox after mailbox in turn:
   what waits in ``new/`` costs nothing of a timeout, and nobody thinks that it was begun.
6. At most once: a message is claimed before a handler sees it. It goes back to the head of the line only when
   its one consumer says that it was not taken (`PutBack`): no outcome for the breaker then, and none for the message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from math import isinf
from types import coroutine
from typing import Any, Protocol

from relay_core.breaker import CircuitBreakers, CircuitState
from relay_core.clock import Clock, Timer, call_later
from relay_core.commit import Commits
from relay_core.deadletters import Code
from relay_core.delivery import Status, TargetKind
from relay_core.envelope import Envelope
from relay_core.mailbox import BadFile, Item, Mailbox
from relay_core.parking import Parking
from relay_core.recorder import Recorder
from relay_core.tasks import Tasks

logger = logging.getLogger(__name__)

_YIELD_EVERY = 32
_RETRY_SECS = 1.0
_LOOK_AGAIN_SECS = 0.01


class PutBack(Exception):
    """A consumer did not take a message, and knows when to be asked again."""


class Consumer(Protocol):
    """What a mailbox's messages are handed to."""

    @property
    def name(self) -> str:
        """Return what an outcome is listed under."""
        ...

    @property
    def slots(self) -> asyncio.Semaphore | None:
        """Return what bounds its messages in hand over all mailboxes, if anything does."""
        ...

    def deliver(self, envelope: Envelope) -> Coroutine[Any, Any, None]:
        """Handle one message; whatever is raised is a failure, but for a `PutBack`."""
        ...


class Consumers(Protocol):
    """Who handles a mailbox's messages, and for how long."""

    def __call__(self, mailbox: Mailbox) -> tuple[Sequence[Consumer], float]:
        """Return the consumers and the timeout of each in seconds."""
        ...


class Dispatch:
    """All dispatchers."""

    def __init__(
        self,
        consumers: Consumers,
        breakers: CircuitBreakers,
        commits: Commits,
        parking: Parking,
        recorder: Recorder,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self.consumers = consumers
        self.breakers = breakers
        self.commits = commits
        self.parking = parking
        self.recorder = recorder
        self.clock = clock
        self._tasks = tasks
        self._running: dict[str, _Dispatcher] = {}
        self._timers: dict[str, Timer] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self.on_settled: Callable[[Item, bool], None] | None = None
        """Told of every delivery that has ended, and whether it was handled."""

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
        self._tasks.start(dispatcher.run(), name=f"dispatch {mailbox.subject}")

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
        if not self._running:
            self._idle.set()

    async def take_slots(self, slots: list[asyncio.Semaphore]) -> None:
        """Wait for a turn with every consumer that has but so many; they are given in the order they are asked for."""
        for slot in sorted(slots, key=id):  # in one order for all, so that no two wait for each other
            await slot.acquire()

    async def idle(self) -> None:
        """Return when no dispatcher has anything left to do."""
        while self._running:
            await self._idle.wait()

    def stop(self) -> None:
        """Begin no further message; those under way go on."""
        self._closing = True
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
        try:
            while not bus.closing and (head := mailbox.head()) is not None:
                consumers, timeout = bus.consumers(mailbox)
                if not consumers:
                    while self._take_permit():
                        bus.breakers.release(mailbox.hash)
                    break
                slots = [one.slots for one in consumers if one.slots is not None]
                if slots:
                    await bus.take_slots(slots)
                try:
                    if slots and (bus.closing or bus.consumers(mailbox)[0] != consumers or mailbox.head() != head):
                        continue  # things have changed while it waited for its turn
                    if not await self._one(head, consumers, timeout):
                        break
                finally:
                    for slot in slots:
                        slot.release()
                handled += 1
                if handled % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
        finally:
            bus.ended(mailbox)

    async def _one(self, head: str, consumers: Sequence[Consumer], timeout: float) -> bool:
        """See the oldest message through, if the breaker and the disk let it; return whether to go on."""
        bus, mailbox = self._bus, self._mailbox
        held = mailbox.fresh.get(head)
        probe = held is not None and held.probe
        if not probe:
            verdict = bus.breakers.check(mailbox.hash)
            probe = verdict.state is CircuitState.HALF_OPEN
            if not verdict.allowed and not (probe and self._take_permit()):
                bus.wait(mailbox)
                return False
        if not await self._next(consumers, timeout, probe):
            bus.retry(mailbox)
            return False
        return True

    def _take_permit(self) -> bool:
        """Take a half-open breaker's permit from a message further back, if one has it."""
        for item in self._mailbox.fresh.values():
            if item.probe:
                item.probe = False
                return True
        return False

    async def _next(self, consumers: Sequence[Consumer], timeout: float, probe: bool) -> bool:
        """Claim the oldest message and see it through; return False if the disk does not let it be claimed."""
        bus, mailbox = self._bus, self._mailbox
        taken: Item | BadFile | OSError | None
        try:
            taken = mailbox.claim_next()
        except OSError as error:
            logger.error("%s: cannot claim: %s", mailbox.subject, error)
            taken = error
        bus.recorder.eased(mailbox)
        if not isinstance(taken, Item):
            if probe:
                bus.breakers.release(mailbox.hash)
            if isinstance(taken, BadFile):
                await bus.parking.set_aside(mailbox, taken)
            return not isinstance(taken, OSError)
        try:
            await self._handle(taken, consumers, timeout, probe)
        except PutBack as error:
            if probe:
                bus.breakers.release(mailbox.hash)
            return await self._put_back(taken, error)
        except asyncio.CancelledError:
            # The bus is closing and its grace is over: nobody knows how far the handler came.
            if taken.id in mailbox.claimed:
                await bus.parking.park(mailbox, taken, code=Code.INTERRUPTED, reason="the bus was closed meanwhile")
            raise
        return True

    async def _handle(self, item: Item, consumers: Sequence[Consumer], timeout: float, probe: bool) -> None:
        bus, mailbox, delivery = self._bus, self._mailbox, item.delivery
        clock = bus.clock
        now = clock.now_ms()
        if now > item.envelope.budget.ttl:
            if probe:
                bus.breakers.release(mailbox.hash)
            await self._fail(item, Code.EXPIRED, "message expired (TTL)")
            return
        started = clock.monotonic()
        delivery.claimed_ms = claimed_ms = _continue(delivery.stored_ms, item.stored_at, started, now)
        if len(consumers) == 1:
            outcomes = [await _call(consumers[0], item.envelope, timeout)]
        else:
            outcomes = await asyncio.gather(*(_call(one, item.envelope, timeout) for one in consumers))
        delivery.handled_ms = claimed_ms + (clock.monotonic() - started) * 1000
        failures = [outcome for outcome in outcomes if outcome is not None]
        if len(failures) == len(outcomes):
            bus.breakers.record_failure(mailbox.hash)
            delivery.outcomes = _outcomes(consumers, outcomes)
            await self._fail(item, *failures[0])
            return
        bus.breakers.record_success(mailbox.hash)
        if failures:
            delivery.status = Status.PARTIAL
            delivery.code, delivery.reason = failures[0]
            delivery.outcomes = _outcomes(consumers, outcomes)
        else:
            delivery.status = Status.DONE
            if len(outcomes) > 1 or delivery.replays:  # a replay's take the place of the failed ones
                delivery.outcomes = _outcomes(consumers, outcomes)
        self._complete(item)

    async def _put_back(self, item: Item, why: PutBack) -> bool:
        mailbox = self._mailbox
        try:
            put_back = mailbox.put_back(item)
        except OSError as error:
            logger.error("%s: cannot put %s back: %s", mailbox.subject, item.id, error)
            put_back = False
        if put_back:
            if item.fanout is not None:
                item.fanout.postponed(item)
        else:
            await self._fail(item, Code.HANDLER_FAILED, f"{why}, and it could not be put back in line")
        return put_back

    def _complete(self, item: Item) -> None:
        bus, mailbox = self._bus, self._mailbox
        message_id = item.delivery.message_id
        try:
            bus.commits.note_gone(mailbox.hash, message_id)
            mailbox.maildir.complete(message_id)
        except OSError as error:
            logger.error(
                "%s: %s is handled, but stays in cur/ until the next start: %s", mailbox.subject, message_id, error
            )
        mailbox.claimed.pop(message_id, None)
        bus.recorder.handled(item.delivery)
        if item.fanout is not None:
            item.fanout.succeeded(item)
        if bus.on_settled is not None:
            bus.on_settled(item, True)

    async def _fail(self, item: Item, code: str, reason: str) -> None:
        bus = self._bus
        if item.delivery.kind == TargetKind.ADAPTER and code in (Code.HANDLER_FAILED, Code.TIMEOUT):
            code, reason = Code.ADAPTER_FAILED, f"adapter delivery failed: {reason}"
        if item.fanout is not None:
            item.fanout.failed(item, code, reason)
        else:
            await bus.parking.park(self._mailbox, item, code=code, reason=reason)
        if bus.on_settled is not None:
            bus.on_settled(item, False)


async def _call(consumer: Consumer, envelope: Envelope, timeout: float) -> tuple[str, str] | None:
    """Run one consumer; return its failure as (code, reason), or None."""
    limit = asyncio.timeout(timeout)
    work = consumer.deliver(envelope)
    try:
        try:
            # A handler that never waits needs no timer, which would cost more than all the rest here.
            first = work.send(None)
        except StopIteration:
            return None
        async with limit:
            await _resume(work, first)
    except TimeoutError as error:
        if limit.expired():
            return Code.TIMEOUT, f"{consumer.name}: no answer within {timeout:g} s"
        return Code.HANDLER_FAILED, f"{consumer.name}: {_describe(error)}"
    except PutBack:
        raise
    except Exception as error:
        own_code = getattr(error, "dead_letter_code", None)  # then its text is meant for operators
        return own_code or Code.HANDLER_FAILED, f"{consumer.name}: {error if own_code else _describe(error)}"
    return None


@coroutine
def _resume(work: Coroutine[Any, Any, None], waiting: Any) -> Generator[Any, Any, None]:
    """Go on with a coroutine that has been begun and waits for something."""
    while True:
        try:
            try:
                answer = yield waiting
            except BaseException as error:
                waiting = work.throw(error)
            else:
                waiting = work.send(answer)
        except StopIteration:
            return


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _outcomes(consumers: Sequence[Consumer], outcomes: Sequence[tuple[str, str] | None]) -> list[dict[str, Any]]:
    return [
        {"handler": consumer.name, "ok": outcome is None, "error": outcome[1] if outcome else None}
        for consumer, outcome in zip(consumers, outcomes, strict=True)
    ]


def _continue(stored_ms: float | None, stored_at: float, now: float, wall_ms: int) -> float:
    """Return the wall time of `now`, counted on from when the message was stored."""
    if stored_ms is None or not stored_at:
        return max(float(wall_ms), stored_ms or 0.0)
    return stored_ms + (now - stored_at) * 1000
