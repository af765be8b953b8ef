"""One adapter at work: the mail it is offered, the message it has in hand, and its leaving.

1. Mail is offered only while the adapter is connected, its last probe was not bad and it is not
   leaving. Otherwise it waits in ``new/``: nothing is burned on a dead platform.
2. So does mail that comes faster than its rate. The wait is before the claim, so it costs nothing of
   the delivery's timeout, and a process killed meanwhile leaves no `interrupted` message behind.
3. Leaving: nothing more is offered; the message under way gets until the drain timeout; then the
   adapter is stopped. What it still has in hand after that is cut off and parked as `interrupted`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relay_core.adapter import Adapter, AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult
from relay_core.adapter_shape import AdapterShape
from relay_core.clock import Timer, call_later
from relay_core.deadletters import Code
from relay_core.dispatch import Consumer
from relay_core.envelope import Envelope
from relay_core.events import EventKind
from relay_core.mailbox import Mailbox
from relay_core.operations import AdapterState
from relay_core.publication import Target

if TYPE_CHECKING:
    from relay_core.bus import Bus

logger = logging.getLogger(__name__)

STOP_TIMEOUT_SECS = 10.0
HEALTH_TIMEOUT_SECS = 10.0


class DeliveryFailed(Exception):
    """An adapter did not deliver."""


class CutOff(DeliveryFailed):
    """An adapter was stopped with the message in hand."""

    dead_letter_code = Code.INTERRUPTED


@dataclass(slots=True)
class Tally:
    """What an adapter has done; it outlives a replacement."""

    delivered: int = 0
    failed: int = 0
    last_error: str | None = None


class AdapterHost:
    """An adapter that was started, and its mailbox."""

    slots = None
    """It has one mailbox, and so one message in hand."""

    def __init__(
        self, bus: Bus, adapter: Adapter, shape: AdapterShape, context: AdapterContext, mailbox: Mailbox
    ) -> None:
        self.shape = shape
        self.mailbox = mailbox
        self.tally = Tally()
        self._bus = bus
        self._adapter = adapter
        self._context = context
        self._me: tuple[Consumer, ...] = (self,)
        self._healthy: bool | None = None
        self._illness: str | None = None
        self._leaving = False
        self._status = AdapterStatus("starting")
        self._since = bus.clock.now_ms()
        self._next_at = 0.0
        self._timer: Timer | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._limit: asyncio.Timeout | None = None
        """Ends the delivery under way when it is rescheduled."""
        context.on_status = self._announced

    @property
    def name(self) -> str:
        """Return what an outcome is listed under."""
        return self.shape.id

    def target(self) -> Target:
        """Return where a message for this adapter goes, and how long its publisher waits for the answer."""
        waits = self._look() and not self.shape.detached
        return Target(self.mailbox, adapter=self.shape.id, awaited=self.shape.timeout if waits else None)

    def consumers(self) -> tuple[Sequence[Consumer], float]:
        """Return who handles the next message: the adapter, if it can take one now."""
        if not self._look():
            return (), 0.0
        wait = self._next_at - self._bus.clock.monotonic()
        if wait > 0:
            if self._timer is None:
                self._timer = call_later(self._bus.clock, wait, self._due)
            return (), 0.0
        return self._me, self.shape.timeout

    def offer(self) -> None:
        """Begin with the mail that waits, if the adapter can take it."""
        if self._look():
            self._bus.dispatch.kick(self.mailbox)

    async def deliver(self, envelope: Envelope) -> None:
        """Have the adapter take one message; whatever is raised is a failure."""
        if self.shape.rate is not None:
            self._next_at = self._bus.clock.monotonic() + 1 / self.shape.rate
        delivery = self.mailbox.claimed[envelope.id].delivery
        self._idle.clear()
        try:
            result = await self._ask(envelope, DeliveryContext(self._context, envelope, delivery))
            if not isinstance(result, DeliveryResult):
                raise DeliveryFailed(f"deliver must return a DeliveryResult, not {type(result).__name__}")
            if not result.ok:
                error = result.error or result.detail or "not accepted"
                raise DeliveryFailed(f"{error} ({result.code})" if result.code else error)
            if result.detail is not None:
                delivery.outcomes = [{"handler": self.name, "ok": True, "detail": result.detail}]
        except BaseException as error:
            self.tally.failed += 1
            timed_out = isinstance(error, asyncio.CancelledError)
            self.tally.last_error = "no answer in time" if timed_out else f"{type(error).__name__}: {error}"
            raise
        else:
            self.tally.delivered += 1
        finally:
            self._idle.set()

    async def probe(self) -> None:
        """Ask the adapter whether it is well, if it can tell, and offer it mail accordingly."""
        health = getattr(self._adapter, "health", None)
        if health is not None:
            self._illness = await _find_illness(health)
            self._healthy = self._illness is None
        self.offer()

    async def leave(self, drain_timeout: float, why: str) -> None:
        """Finish the message under way, or cut it off, and stop the adapter; errors are logged."""
        self._leaving = True
        if self._timer is not None:
            self._timer.cancel()
        self._note(AdapterStatus("stopping", why))
        try:
            async with asyncio.timeout(drain_timeout):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("adapter %s has not finished its message within %g s", self.name, drain_timeout)
        finally:
            try:
                await stop_adapter(self._adapter, self.name)
            finally:
                self._context.close()
            await self._cut_off()

    def state(self) -> AdapterState:
        """Return what an operator sees."""
        self._look()
        return AdapterState(
            id=self.shape.id,
            state=self._status.state,
            detail=self._status.detail,
            since=self._since,
            healthy=self._healthy,
            patterns=self.shape.patterns,
            priority=self.shape.priority,
            detached=self.shape.detached,
            delivered=self.tally.delivered,
            failed=self.tally.failed,
            depth=self.mailbox.depth,
            last_error=self.tally.last_error,
        )

    async def _ask(self, envelope: Envelope, context: DeliveryContext) -> object:
        """Let the adapter deliver until it is done or cut off; its own cancelling is just an error."""
        limit = self._limit = asyncio.timeout(None)
        try:
            async with limit:
                return await self._adapter.deliver(envelope, context)
        except TimeoutError:
            if limit.expired():
                raise CutOff("the adapter was stopped before it had answered") from None
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise DeliveryFailed("the adapter cancelled its own delivery") from None

    async def _cut_off(self) -> None:
        if self._idle.is_set() or self._limit is None:
            return
        self._limit.reschedule(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(STOP_TIMEOUT_SECS):
                await self._idle.wait()
        except TimeoutError:
            logger.error("adapter %s goes on with its message although it was stopped and cancelled", self.name)

    def _look(self) -> bool:
        """Look how the adapter is doing, and tell whether it can take mail."""
        if self._leaving:
            return False
        status = read_status(self._adapter)
        if status.state == "connected" and self._illness is not None:
            status = AdapterStatus("error", self._illness)
        self._note(status)
        self.mailbox.keep = status.state == "connected"
        return self.mailbox.keep

    def _note(self, status: AdapterStatus) -> None:
        if status.state != self._status.state:
            self._since = status.since or self._bus.clock.now_ms()
            note_adapter(self._bus, self.mailbox, self.name, status.state, status.detail)
        self._status = status

    def _announced(self) -> None:
        """Take the adapter's word for how it is doing over that of an older probe."""
        self._healthy = self._illness = None
        self.offer()

    def _due(self) -> None:
        self._timer = None
        self.offer()


def read_status(adapter: Adapter) -> AdapterStatus:
    """Return how an adapter says it is doing; one that cannot say is in error."""
    try:
        status: object = adapter.status
    except Exception as error:
        return AdapterStatus("error", f"its status cannot be read: {type(error).__name__}: {error}")
    if not isinstance(status, AdapterStatus):
        return AdapterStatus("error", f"its status is no AdapterStatus but {type(status).__name__}")
    return status


async def _find_illness(health: Callable[[], Awaitable[bool]]) -> str | None:
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_SECS):
            return None if await health() else "the health probe says no"
    except TimeoutError:
        return "the health probe did not answer in time"
    except (Exception, SystemExit) as error:
        return f"the health probe failed: {type(error).__name__}: {error}"


async def stop_adapter(adapter: Adapter, name: str) -> None:
    """Stop an adapter; what goes wrong is logged."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_SECS):
            await adapter.stop()
    except TimeoutError:
        logger.error("adapter %s did not stop within %g s", name, STOP_TIMEOUT_SECS)
    except (Exception, SystemExit):
        logger.exception("adapter %s failed to stop", name)


def note_adapter(bus: Bus, mailbox: Mailbox, adapter_id: str, status: str, detail: str | None) -> None:
    """Write down a change of an adapter."""
    bus.recorder.event(
        EventKind.ADAPTER,
        adapter=adapter_id,
        subject=mailbox.subject,
        target=mailbox.hash,
        target_kind=mailbox.about.kind,
        status=status,
        detail=detail,
    )
