"""One adapter at work: how it is doing, its lanes, and its leaving.

1. Mail is offered only while the adapter is connected, its last probe was not bad and it is not
   leaving. Otherwise it waits in ``new/``: nothing is burned on a dead platform.
2. Every adapter has a mailbox, and with lanes one more for each lane, made when its first message comes. A mailbox
   of a lane that is found on disk is taken over, whether or not the adapter has such a lane today.
3. Leaving: nothing more is offered; the messages under way get until the drain timeout; then the
   adapter is stopped. What it still has in hand after that is cut off and parked as `interrupted`.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from relay_core.adapters.interface import DEFAULT_TIMEOUT_SECS, Adapter, AdapterContext, AdapterStatus
from relay_core.adapters.lane import Lane
from relay_core.adapters.validation import AdapterTraits
from relay_core.clock import Clock
from relay_core.dispatch.dispatcher import Dispatch
from relay_core.dispatch.mailbox_lifecycle import MailboxLifecycle
from relay_core.limited_log import LimitedLog
from relay_core.messages.delivery import TargetKind
from relay_core.messages.operator_views import AdapterState
from relay_core.messages.subjects import is_subject, subject_hash
from relay_core.pipeline.routing import OpenTarget, Target
from relay_core.records.events import EventKind
from relay_core.records.recorder import Recorder
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.mailboxes import Mailboxes

logger = logging.getLogger(__name__)

STOP_TIMEOUT_SECS = 10.0
HEALTH_TIMEOUT_SECS = 10.0
_BAD_STATES = ("disconnected", "error")

Redact = Callable[[str], str]
"""Cuts an adapter's secrets out of a text."""


@dataclass(slots=True)
class Tally:
    """What an adapter has done; it outlives a replacement."""

    delivered: int = 0
    failed: int = 0
    last_error: str | None = None


@dataclass(slots=True)
class _Turn:
    """Who waits for a lane to be made."""

    waiting: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class AdapterHost:
    """An adapter that was started, and its mailboxes."""

    def __init__(
        self,
        adapter: Adapter,
        shape: AdapterTraits,
        context: AdapterContext,
        mailbox: Mailbox,
        redact: Redact,
        *,
        mailboxes: Mailboxes,
        lifecycle: MailboxLifecycle,
        dispatch: Dispatch,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self.adapter = adapter
        self.shape = shape
        self.context = context
        self.mailbox = mailbox
        """The main one, of the adapter's own subject."""
        self.redact = redact
        self.clock = clock
        self.log = LimitedLog(logger, clock)
        self.tally = Tally()
        self.slots = asyncio.Semaphore(shape.max_in_flight) if shape.max_in_flight is not None else None
        self.next_at = 0.0
        """Monotonic time before which its rate allows nothing."""
        self._mailboxes = mailboxes
        self._lifecycle = lifecycle
        self._dispatch = dispatch
        self._recorder = recorder
        self._lanes: dict[str, Lane] = {}
        self._opening: dict[str, _Turn] = {}
        """Publishes that wait for a lane to be made, by its subject."""
        self._healthy: bool | None = None
        self._illness: str | None = None
        self._leaving = False
        self._connected = False
        self._patience: asyncio.Timeout | None = None
        """Ends the draining when it is rescheduled."""
        self._status = AdapterStatus("starting")
        self._since = clock.now_ms()
        context.on_status = self._announced
        for box in mailboxes:
            if box.about.kind == TargetKind.ADAPTER and f"{box.subject}.".startswith(f"{mailbox.subject}."):
                self.lane(box)

    @property
    def name(self) -> str:
        """Return the adapter's id."""
        return self.shape.id

    @property
    def is_leaving(self) -> bool:
        """Return True once it is being stopped."""
        return self._leaving

    def lane(self, mailbox: Mailbox) -> Lane:
        """Return the line of one of the adapter's mailboxes."""
        lane = self._lanes.get(mailbox.hash)
        if lane is None or lane.mailbox is not mailbox:  # it was dropped as empty, and made again
            lane = self._lanes[mailbox.hash] = Lane(self, mailbox)
            mailbox.is_handled = self._connected
        return lane

    def find_mailbox(self, subject: str) -> Mailbox | None:
        """Return the mailbox for messages of a subject, if it has been made."""
        where = self._where(subject)
        if where == self.mailbox.subject:
            return self.mailbox
        found = self._mailboxes.get(subject_hash(where))
        return found if found is not None and found.about.kind == TargetKind.ADAPTER else None

    def target(self, subject: str, address: str | None = None) -> Target | OpenTarget:
        """Return where a message for this adapter goes, or what makes its lane if there is none yet."""
        mailbox = self.find_mailbox(subject)
        if mailbox is None or mailbox.subject in self._opening:  # those who had it made go first
            return partial(self._open, self._where(subject), address)
        return self._target(mailbox, address)

    def offer(self, lane: Lane | None = None) -> None:
        """Begin with the mail that waits, in one lane or in all, if the adapter can take it."""
        if not self.look():
            return
        if lane is None:
            known = self._mailboxes
            self._lanes = {hash: kept for hash, kept in self._lanes.items() if known.get(hash) is kept.mailbox}
        for ready in list(self._lanes.values()) if lane is None else [lane]:
            ready.mailbox.is_handled = True
            self._dispatch.wake(ready.mailbox)

    def begin(self) -> None:
        """Count a delivery that begins against the rate."""
        if self.shape.rate is not None:
            self.next_at = self.clock.monotonic() + 1 / self.shape.rate

    async def probe(self) -> None:
        """Ask the adapter whether it is well, if it can tell, and offer it mail accordingly."""
        health = getattr(self.adapter, "health", None)
        if health is not None:
            illness = await _find_illness(health)
            self._illness = illness and self.redact(illness)
            self._healthy = self._illness is None
            if self._illness is not None:
                self.log.warning("probe", "adapter %s: %s", self.name, self._illness)
        self.offer()

    async def leave(self, drain_timeout: float, why: str) -> None:
        """Finish the messages under way, or cut them off, and stop the adapter; errors are logged."""
        self._leaving = True
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.stop_offering()
        self._note(AdapterStatus("stopping", why))
        try:
            async with asyncio.timeout(drain_timeout) as self._patience:
                for lane in lanes:
                    await lane.drained()
        except TimeoutError:
            logger.warning("adapter %s has not finished its messages within %g s", self.name, drain_timeout)
        finally:
            self._patience = None
            try:
                await stop_adapter(self.adapter, self.name, self.redact)
            finally:
                self.context.close()
            async with asyncio.TaskGroup() as group:
                for lane in lanes:
                    group.create_task(lane.cut_off())

    def take_over(self, old: AdapterHost) -> None:
        """Count on where another one left off: its tally, and its slots, which it may still have messages in."""
        self.tally = old.tally
        if self.shape.max_in_flight == old.shape.max_in_flight:
            self.slots = old.slots
        elif old.slots is not None:
            for _ in old.mailboxes():  # lanes that wait for a slot of the old one look again, and find the new one's
                old.slots.release()

    def hurry(self) -> None:
        """Have a leaving adapter wait no longer for what it has in hand."""
        if self._patience is not None:
            with suppress(RuntimeError):  # it is over this very moment
                self._patience.reschedule(asyncio.get_running_loop().time())

    def state(self) -> AdapterState:
        """Return what an operator sees."""
        self.look()
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
            depth=sum(lane.mailbox.depth for lane in self._lanes.values()),
            last_error=self.tally.last_error,
        )

    def mailboxes(self) -> list[Mailbox]:
        """Return the mailboxes of all its lanes."""
        return [lane.mailbox for lane in self._lanes.values()]

    def look(self) -> bool:
        """Look how the adapter is doing, and tell whether it can take mail."""
        if self._leaving:
            return False
        status = self._read_status()
        if status.state == "connected" and self._illness is not None:
            status = AdapterStatus("error", self._illness)
        self._note(status)
        connected = status.state == "connected"
        if connected != self._connected:
            self._connected = connected
            for lane in self._lanes.values():
                lane.mailbox.is_handled = connected
        return connected

    def _read_status(self) -> AdapterStatus:
        status = read_status(self.adapter)
        if status.detail is None or (detail := self.redact(status.detail)) == status.detail:
            return status
        return AdapterStatus(status.state, detail, status.since)

    async def _open(self, where: str, address: str | None) -> Target:
        turn = self._opening.setdefault(where, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:  # first come, first served: the order of a lane begins before the lane does
                mailbox = await self._lifecycle.open(where, TargetKind.ADAPTER)
            return self._target(mailbox, address)
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._opening[where]

    def _target(self, mailbox: Mailbox, address: str | None) -> Target:
        waits = self.look() and not self.shape.detached and not self.lane(mailbox).is_told_to_wait
        # Nobody waits longer than usual for an adapter that may take long: it has it in line.
        awaited = min(self.shape.timeout, DEFAULT_TIMEOUT_SECS) if waits else None
        return Target(mailbox, adapter=self.shape.id, awaited=awaited, address=address)

    def _where(self, subject: str) -> str:
        """Return the subject of the mailbox for messages of a subject: the lane's, or the main one's."""
        main = self.mailbox.subject
        if self.shape.lane is None:
            return main
        try:
            lane = self.shape.lane(subject)
        except Exception as error:
            why = self.redact(f"{type(error).__name__}: {error}")
            logger.error("adapter %s cannot tell the lane of %s (%s): it goes to the main one", self.name, subject, why)
            return main
        where = f"{main}.{lane}"
        return where if lane and "." not in lane and is_subject(where) else main

    def _note(self, status: AdapterStatus) -> None:
        if status.state != self._status.state:
            self._since = status.since or self.clock.now_ms()
            note_adapter(self._recorder, self.mailbox, self.name, status.state, status.detail)
            self._say(status, status.state)
        elif status.detail != self._status.detail and status.state in _BAD_STATES:
            self._say(status, "detail")
        self._status = status

    def _say(self, status: AdapterStatus, cause: str) -> None:
        if self._illness is not None and status.detail == self._illness:
            return  # the probe has said so
        level = logging.WARNING if status.state in _BAD_STATES else logging.INFO
        detail = f": {status.detail}" if status.detail else ""
        self.log.log(level, ("state", cause), "adapter %s: %s%s", self.name, status.state, detail)

    def _announced(self) -> None:
        """Take the adapter's word for how it is doing over that of an older probe."""
        self._healthy = self._illness = None
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


async def stop_adapter(adapter: Adapter, name: str, redact: Redact) -> None:
    """Stop an adapter; what goes wrong is logged."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_SECS):
            await adapter.stop()
    except TimeoutError:
        logger.error("adapter %s did not stop within %g s", name, STOP_TIMEOUT_SECS)
    except (Exception, SystemExit) as error:
        text = redact("".join(traceback.format_exception(error)))
        logger.error("adapter %s failed to stop: %s", name, text)


def note_adapter(recorder: Recorder, mailbox: Mailbox, adapter_id: str, status: str, detail: str | None) -> None:
    """Write down a change of an adapter."""
    recorder.event(
        EventKind.ADAPTER,
        adapter=adapter_id,
        subject=mailbox.subject,
        target=mailbox.hash,
        target_kind=mailbox.about.kind,
        status=status,
        detail=detail,
    )
