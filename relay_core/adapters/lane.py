"""One line of an adapter's mail: what it is offered next, and the message it has in hand.

1. Mail waits in ``new/`` while the adapter cannot take it, comes faster than its rate, or was told to ask again
   later. The wait is before the claim, so it costs nothing of the delivery's timeout, and a process killed
   meanwhile leaves no `interrupted` message behind.
2. Whatever the adapter says or raises becomes one outcome. Its secrets are cut out of every text before it
   goes anywhere.
3. `cut_off` ends the delivery under way: parked as `interrupted`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from relay_core.adapters.interface import DeliveryContext, DeliveryResult
from relay_core.clock import Timer, call_later
from relay_core.dispatch.consumer import Ack, Consumer, Requeue
from relay_core.messages.dead_letter import Code
from relay_core.messages.envelope import Envelope
from relay_core.storage.mailbox import Mailbox

if TYPE_CHECKING:
    from relay_core.adapters.host import AdapterHost

logger = logging.getLogger(__name__)

LEAST_RETRY_SECS = 0.1
_PATIENCE_SECS = 10.0


class DeliveryFailed(Exception):
    """An adapter did not deliver; the text is for operators."""

    dead_letter_code = Code.HANDLER_FAILED


class CutOff(DeliveryFailed):
    """An adapter was stopped with the message in hand."""

    dead_letter_code = Code.INTERRUPTED


class Lane:
    """A mailbox of an adapter, and the message that the adapter has of it."""

    pool = None
    enforces_timeout = False

    def __init__(self, host: AdapterHost, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self._host = host
        self._me: tuple[Consumer, ...] = (self,)
        self._not_before = 0.0
        self._timer: Timer | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._limit: asyncio.Timeout | None = None
        """Ends the delivery under way when it is rescheduled."""

    @property
    def name(self) -> str:
        """Return what an outcome is listed under."""
        return self._host.name

    @property
    def id(self) -> str:
        """Return what tells the lane from others of the adapter."""
        return self.mailbox.hash

    @property
    def slots(self) -> asyncio.Semaphore | None:
        """Return what bounds the adapter's messages in hand over all lanes."""
        return self._host.slots

    @property
    def is_told_to_wait(self) -> bool:
        """Tell whether the platform has yet to be asked again, so that nobody need wait for its answer."""
        return self._not_before > self._host.clock.monotonic()

    def consumers(self) -> tuple[Sequence[Consumer], float]:
        """Return who handles the next message: this lane, if the adapter can take one now."""
        host = self._host
        if not host.look():
            return (), 0.0
        self.mailbox.is_handled = True
        wait = max(self._not_before, host.next_at) - host.clock.monotonic()
        if wait > 0:
            if self._timer is None:
                self._timer = call_later(host.clock, wait, self._due)
            return (), 0.0
        return self._me, host.shape.timeout

    async def deliver(self, envelope: Envelope, ack: Ack) -> None:
        """Have the adapter take one message; whatever is raised is a failure, but for a `Requeue`."""
        host = self._host
        host.begin()
        delivery = self.mailbox.claimed[envelope.id].delivery
        self._idle.clear()
        try:
            context = DeliveryContext(host.context, envelope, delivery)
            result = await self._ask(envelope, context)
            self._judge(result, context.remaining)
            if result.detail is not None:
                delivery.outcomes = [{"handler": self.name, "ok": True, "detail": host.redact(result.detail)}]
        except Requeue as error:
            host.tally.last_error = str(error)
            host.log.warning("put back", "adapter %s did not take %s: %s", self.name, envelope.id, error)
            raise
        except BaseException as error:
            host.tally.failed += 1
            timed_out = isinstance(error, asyncio.CancelledError)
            host.tally.last_error = "no answer in time" if timed_out else str(error)
            if timed_out and not host.is_leaving:
                timeout = host.shape.timeout
                host.log.warning("timeout", "adapter %s: no answer to %s within %g s", self.name, envelope.id, timeout)
            else:
                why = "the bus is closing" if timed_out else host.tally.last_error
                host.log.warning("failed", "adapter %s did not deliver %s: %s", self.name, envelope.id, why)
            raise
        else:
            host.tally.delivered += 1
        finally:
            self._idle.set()

    async def drained(self) -> None:
        """Return when nothing is in hand."""
        await self._idle.wait()

    def stop_offering(self) -> None:
        """Forget when to ask again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def cut_off(self) -> None:
        """End the delivery under way, if there is one."""
        if self._idle.is_set() or self._limit is None:
            return
        self._limit.reschedule(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(_PATIENCE_SECS):
                await self._idle.wait()
        except TimeoutError:
            logger.error("adapter %s goes on with its message although it was stopped and cancelled", self.name)

    def _judge(self, result: DeliveryResult, remaining: float) -> None:
        if result.ok:
            return
        host = self._host
        error = host.redact(result.error or result.detail or "not accepted")
        if result.code:
            error = f"{error} ({host.redact(result.code)})"
        if result.retry_after is None:
            raise DeliveryFailed(error)
        if not isfinite(result.retry_after):
            raise DeliveryFailed(f"{error}, and to be asked again after {result.retry_after} s")
        # Not after its time is up: then it is found to have expired, and makes room.
        after = max(min(result.retry_after, remaining), LEAST_RETRY_SECS)
        self._not_before = host.clock.monotonic() + after
        raise Requeue(f"{error}: asked again in {after:.3g} s")

    async def _ask(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Let the adapter deliver until it is done or cut off; its own cancelling is just an error."""
        limit = self._limit = asyncio.timeout(None)
        try:
            async with limit:
                result: object = await self._host.adapter.deliver(envelope, context)
        except TimeoutError as error:
            if limit.expired():
                raise CutOff("the adapter was stopped before it had answered") from None
            raise self._described(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise DeliveryFailed("the adapter cancelled its own delivery") from None
        except Exception as error:
            raise self._described(error) from None  # what it quotes of its config is not to be logged either
        if not isinstance(result, DeliveryResult):
            raise DeliveryFailed(f"deliver must return a DeliveryResult, not {type(result).__name__}")
        return result

    def _described(self, error: Exception) -> DeliveryFailed:
        return DeliveryFailed(self._host.redact(f"{type(error).__name__}: {error}" if str(error) else repr(error)))

    def _due(self) -> None:
        self._timer = None
        self._host.offer(self)
