"""A lane of an adapter: one mailbox, and its message in flight.

1. Messages wait in ``new/`` while the adapter is not connected, exceeds its rate, or has been told to retry later. The
   wait is before the claim, so it does not count against the delivery's timeout, and a process killed meanwhile leaves
   no `interrupted` message.
2. Any result or exception of the adapter becomes one outcome. Secrets are redacted from every text first.
3. `interrupt` ends the delivery in flight, which is dead-lettered as `interrupted`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from relay_core.adapters.interface import Adapter, AdapterContext, DeliveryContext, DeliveryResult
from relay_core.adapters.validation import AdapterTraits
from relay_core.clock import Clock, Timer, call_later
from relay_core.dispatch.consumer import Ack, Consumer, Requeue
from relay_core.dispatch.slots import Slots
from relay_core.limited_log import LimitedLog
from relay_core.messages.dead_letter import Code
from relay_core.messages.envelope import Envelope
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.stored_message import StoredMessage

logger = logging.getLogger(__name__)

LEAST_RETRY_SECS = 0.1
_INTERRUPT_SECS = 10.0

Redact = Callable[[str], str]
"""Removes an adapter's secrets from a text."""


@dataclass(slots=True)
class Tally:
    """Counts of an adapter's deliveries; they outlive a replacement."""

    delivered: int = 0
    failed: int = 0
    last_error: str | None = None


@dataclass(slots=True)
class AdapterWork:
    """A started adapter, and the state that its lanes share."""

    adapter: Adapter
    shape: AdapterTraits
    context: AdapterContext
    redact: Redact
    clock: Clock
    log: LimitedLog
    tally: Tally
    slots: Slots | None
    """Limits its messages in flight over all lanes."""
    next_at: float = 0.0
    """Monotonic time of the next delivery that its rate allows."""
    is_leaving: bool = False
    """True once it is being stopped."""


class DeliveryFailed(Exception):
    """An adapter did not deliver; the message is for operators."""

    dead_letter_code = Code.HANDLER_FAILED


class Interrupted(DeliveryFailed):
    """An adapter was stopped with the message in flight."""

    dead_letter_code = Code.INTERRUPTED


class Lane:
    """A mailbox of an adapter, and its message in flight."""

    pool = None
    enforces_timeout = False
    hands_over = False

    def __init__(
        self, work: AdapterWork, mailbox: Mailbox, is_ready: Callable[[], bool], on_due: Callable[[Lane], None]
    ) -> None:
        self.mailbox = mailbox
        self._work = work
        self._is_ready = is_ready
        """Returns True if the adapter can accept a message."""
        self._on_due = on_due
        """Called when a wait is over."""
        self._me: tuple[Consumer, ...] = (self,)
        self._not_before = 0.0
        self._timer: Timer | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._limit: asyncio.Timeout | None = None
        """Ends the delivery in flight when it is rescheduled."""

    @property
    def name(self) -> str:
        """Return the adapter's id, under which outcomes are listed."""
        return self._work.shape.id

    @property
    def id(self) -> str:
        """Return the mailbox's hash, which is unique among the adapter's lanes."""
        return self.mailbox.hash

    @property
    def slots(self) -> Slots | None:
        """Return the limit of the adapter's messages in flight over all lanes."""
        return self._work.slots

    @property
    def is_told_to_wait(self) -> bool:
        """Return True if the platform has asked for a later retry, so that a publish need not wait for its answer."""
        return self._not_before > self._work.clock.monotonic()

    def consumers(self) -> tuple[Sequence[Consumer], float]:
        """Return the consumers of the next message: this lane, if the adapter can accept one now."""
        work = self._work
        if not self._is_ready():
            return (), 0.0
        self.mailbox.is_handled = True
        wait = max(self._not_before, work.next_at) - work.clock.monotonic()
        if wait > 0:
            if self._timer is None:
                self._timer = call_later(work.clock, wait, self._due)
            return (), 0.0
        return self._me, work.shape.timeout

    async def deliver(self, message: StoredMessage, ack: Ack) -> None:
        """Deliver a message through the adapter; any exception but `Requeue` is a failure."""
        work, envelope, delivery = self._work, message.envelope, message.delivery
        if work.shape.rate is not None:
            work.next_at = work.clock.monotonic() + 1 / work.shape.rate
        self._idle.clear()
        try:
            context = DeliveryContext(work.context, envelope, delivery)
            result = await self._ask(envelope, context)
            self._check(result, context.remaining)
            if result.detail is not None:
                delivery.outcomes = [{"handler": self.name, "ok": True, "detail": work.redact(result.detail)}]
        except Requeue as error:
            work.tally.last_error = str(error)
            work.log.warning("requeued", "adapter %s did not take %s: %s", self.name, envelope.id, error)
            raise
        except BaseException as error:
            work.tally.failed += 1
            timed_out = isinstance(error, asyncio.CancelledError)
            work.tally.last_error = "no answer in time" if timed_out else str(error)
            if timed_out and not work.is_leaving:
                timeout = work.shape.timeout
                work.log.warning("timeout", "adapter %s: no answer to %s within %g s", self.name, envelope.id, timeout)
            else:
                why = "the bus is closing" if timed_out else work.tally.last_error
                work.log.warning("failed", "adapter %s did not deliver %s: %s", self.name, envelope.id, why)
            raise
        else:
            work.tally.delivered += 1
        finally:
            self._idle.set()

    async def drained(self) -> None:
        """Return when no message is in flight."""
        await self._idle.wait()

    def stop_offering(self) -> None:
        """Cancel the timer of the next attempt."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def interrupt(self) -> None:
        """End the delivery in flight, if any."""
        if self._idle.is_set() or self._limit is None:
            return
        self._limit.reschedule(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(_INTERRUPT_SECS):
                await self._idle.wait()
        except TimeoutError:
            logger.error("adapter %s is still delivering a message although it was stopped and cancelled", self.name)

    def _check(self, result: DeliveryResult, remaining: float) -> None:
        if result.ok:
            return
        work = self._work
        error = work.redact(result.error or result.detail or "not accepted")
        if result.code:
            error = f"{error} ({work.redact(result.code)})"
        if result.retry_after is None:
            raise DeliveryFailed(error)
        if not isfinite(result.retry_after):
            raise DeliveryFailed(f"{error}; retry_after is not finite: {result.retry_after}")
        # Not later than its expiry: then it is found to have expired and unblocks the lane.
        after = max(min(result.retry_after, remaining), LEAST_RETRY_SECS)
        self._not_before = work.clock.monotonic() + after
        raise Requeue(f"{error}: asked again in {after:.3g} s")

    async def _ask(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Let the adapter deliver until it is done or interrupted; if it cancels itself, that is an error."""
        limit = self._limit = asyncio.timeout(None)
        try:
            async with limit:
                result: object = await self._work.adapter.deliver(envelope, context)
        except TimeoutError as error:
            if limit.expired():
                raise Interrupted("the adapter was stopped before it answered") from None
            raise self._described(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise DeliveryFailed("the adapter cancelled its own delivery") from None
        except Exception as error:
            raise self._described(error) from None  # no cause: its text may quote secrets
        if not isinstance(result, DeliveryResult):
            raise DeliveryFailed(f"deliver must return a DeliveryResult, not {type(result).__name__}")
        return result

    def _described(self, error: Exception) -> DeliveryFailed:
        return DeliveryFailed(self._work.redact(f"{type(error).__name__}: {error}" if str(error) else repr(error)))

    def _due(self) -> None:
        self._timer = None
        self._on_due(self)
