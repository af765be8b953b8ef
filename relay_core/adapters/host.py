"""A running adapter: its status, its lanes, and its shutdown.

1. Messages are offered only while the adapter is connected, its last probe did not fail and it is not leaving.
   Otherwise they wait in ``new/``: no message is wasted on a dead platform.
2. Every adapter has a main mailbox, and one more for each lane, created for its first message. Mailboxes of lanes found
   on disk are taken over, whether or not the adapter still has such a lane.
3. Leaving: nothing more is offered; messages in flight have until the drain timeout; then the adapter is stopped.
   Messages still in flight after that are interrupted and dead-lettered as `interrupted`.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from relay_core.adapters.interface import (
    DEFAULT_TIMEOUT_SECS,
    DRAIN_TIMEOUT_SECS,
    Adapter,
    AdapterContext,
    AdapterStatus,
)
from relay_core.adapters.lane import AdapterWork, Lane, Tally
from relay_core.adapters.lane import Redact as Redact
from relay_core.adapters.validation import AdapterTraits
from relay_core.clock import Clock
from relay_core.dispatch.dispatcher import Dispatch
from relay_core.dispatch.mailbox_lifecycle import MailboxLifecycle
from relay_core.dispatch.slots import Slots
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


@dataclass(slots=True)
class _Turn:
    """The publishes that wait for a lane to be created."""

    waiting: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class AdapterHost:
    """A started adapter and its mailboxes."""

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
        self.shape = shape
        self.context = context
        self.mailbox = mailbox
        """The main mailbox, of the adapter's own subject."""
        slots = Slots(shape.max_in_flight) if shape.max_in_flight is not None else None
        self.work = AdapterWork(
            adapter, shape, context, redact, clock, log=LimitedLog(logger, clock), tally=Tally(), slots=slots
        )
        self._mailboxes = mailboxes
        self._lifecycle = lifecycle
        self._dispatch = dispatch
        self._recorder = recorder
        self._lanes: dict[str, Lane] = {}
        self._opening: dict[str, _Turn] = {}
        """Publishes that wait for a lane to be created, by its subject."""
        self._healthy: bool | None = None
        self._problem: str | None = None
        self._connected = False
        self._drain: asyncio.Timeout | None = None
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
    def brief_drain(self) -> float:
        """Return the seconds to finish messages in flight while a caller waits for it to stop."""
        return min(self.shape.drain, DRAIN_TIMEOUT_SECS)

    def lane(self, mailbox: Mailbox) -> Lane:
        """Return the lane of one of the adapter's mailboxes."""
        lane = self._lanes.get(mailbox.hash)
        if lane is None or lane.mailbox is not mailbox:  # it was removed as empty, and created again
            lane = self._lanes[mailbox.hash] = Lane(self.work, mailbox, self.is_ready, self.offer)
            mailbox.is_handled = self._connected
        return lane

    def find_mailbox(self, subject: str) -> Mailbox | None:
        """Return the mailbox for messages of a subject, if it exists."""
        address = self._mailbox_subject(subject)
        if address == self.mailbox.subject:
            return self.mailbox
        mailbox = self._mailboxes.get(subject_hash(address))
        return mailbox if mailbox is not None and mailbox.about.kind == TargetKind.ADAPTER else None

    def target(self, subject: str, address: str | None = None) -> Target | OpenTarget:
        """Return the target of a message for this adapter, or a function that creates its lane first."""
        mailbox = self.find_mailbox(subject)
        if mailbox is None or mailbox.subject in self._opening:  # those that wait for the lane go first
            return partial(self._open, self._mailbox_subject(subject), address)
        return self._target(mailbox, address)

    def offer(self, lane: Lane | None = None) -> None:
        """Dispatch waiting messages, of one lane or of all, if the adapter can accept them."""
        if not self.is_ready():
            return
        if lane is None:
            known = self._mailboxes
            self._lanes = {hash: kept for hash, kept in self._lanes.items() if known.get(hash) is kept.mailbox}
        for offered in list(self._lanes.values()) if lane is None else [lane]:
            offered.mailbox.is_handled = True
            self._dispatch.wake(offered.mailbox)

    async def probe(self) -> None:
        """Run the adapter's health probe, if it has one, and offer it messages accordingly."""
        health = getattr(self.work.adapter, "health", None)
        if health is not None:
            problem = await _run_probe(health)
            self._problem = problem and self.work.redact(problem)
            self._healthy = self._problem is None
            if self._problem is not None:
                self.work.log.warning("probe", "adapter %s: %s", self.name, self._problem)
        self.offer()

    async def leave(self, drain_timeout: float, why: str) -> None:
        """Finish the messages in flight, or interrupt them, and stop the adapter; errors are logged."""
        self.work.is_leaving = True
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.stop_offering()
        self._note(AdapterStatus("stopping", why))
        try:
            async with asyncio.timeout(drain_timeout) as self._drain:
                for lane in lanes:
                    await lane.drained()
        except TimeoutError:
            logger.warning("adapter %s has not finished its messages within %g s", self.name, drain_timeout)
        finally:
            self._drain = None
            try:
                await stop_adapter(self.work.adapter, self.name, self.work.redact)
            finally:
                self.context.close()
            async with asyncio.TaskGroup() as group:
                for lane in lanes:
                    group.create_task(lane.interrupt())

    def take_over(self, old: AdapterHost) -> None:
        """Continue the counts of the replaced adapter, and share its slots, which it may still be using."""
        self.work.tally = old.work.tally
        old.context.published.add(self.context.published)  # of its start
        self.context.published = old.context.published
        if self.shape.max_in_flight == old.shape.max_in_flight:
            self.work.slots = old.work.slots
        elif old.work.slots is not None:
            for _ in old.mailboxes():  # lanes that wait for a slot of the old adapter must look again
                old.work.slots.release()

    def hurry(self) -> None:
        """End the draining of an adapter that is leaving."""
        if self._drain is not None:
            with suppress(RuntimeError):  # it has just ended
                self._drain.reschedule(asyncio.get_running_loop().time())

    def state(self) -> AdapterState:
        """Return the state for operators."""
        self.is_ready()
        return AdapterState(
            id=self.shape.id,
            state=self._status.state,
            detail=self._status.detail,
            since=self._since,
            healthy=self._healthy,
            patterns=self.shape.patterns,
            priority=self.shape.priority,
            rate=self.shape.rate,
            drain_secs=self.shape.drain,
            detached=self.shape.detached,
            delivered=self.work.tally.delivered,
            failed=self.work.tally.failed,
            published=self.context.published.accepted,
            refused=self.context.published.refused,
            depth=sum(lane.mailbox.depth for lane in self._lanes.values()),
            last_error=self.work.tally.last_error,
        )

    def mailboxes(self) -> list[Mailbox]:
        """Return the mailboxes of all its lanes."""
        return [lane.mailbox for lane in self._lanes.values()]

    def is_ready(self) -> bool:
        """Read the adapter's status; return True if it can accept messages."""
        if self.work.is_leaving:
            return False
        status = self._read_status()
        if status.state == "connected" and self._problem is not None:
            status = AdapterStatus("error", self._problem)
        self._note(status)
        connected = status.state == "connected"
        if connected != self._connected:
            self._connected = connected
            for lane in self._lanes.values():
                lane.mailbox.is_handled = connected
        return connected

    def _read_status(self) -> AdapterStatus:
        status = read_status(self.work.adapter)
        if status.detail is None or (detail := self.work.redact(status.detail)) == status.detail:
            return status
        return AdapterStatus(status.state, detail, status.since)

    async def _open(self, mailbox_subject: str, address: str | None) -> Target:
        turn = self._opening.setdefault(mailbox_subject, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:  # fair: messages keep their order while the lane is created
                mailbox = await self._lifecycle.open(mailbox_subject, TargetKind.ADAPTER)
            return self._target(mailbox, address)
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._opening[mailbox_subject]

    def _target(self, mailbox: Mailbox, address: str | None) -> Target:
        waits = self.is_ready() and not self.shape.detached and not self.lane(mailbox).is_told_to_wait
        # A publish does not wait longer for an adapter with a long timeout: its copy is stored.
        awaited = min(self.shape.timeout, DEFAULT_TIMEOUT_SECS) if waits else None
        return Target(mailbox, adapter=self.shape.id, awaited=awaited, address=address)

    def _mailbox_subject(self, subject: str) -> str:
        """Return the subject of the mailbox for messages of a subject: the lane's or the main one."""
        main = self.mailbox.subject
        if self.shape.lane is None:
            return main
        try:
            lane = self.shape.lane(subject)
        except Exception as error:
            why = self.work.redact(f"{type(error).__name__}: {error}")
            logger.error("adapter %s: lane() failed for %s (%s): using the main lane", self.name, subject, why)
            return main
        lane_subject = f"{main}.{lane}"
        return lane_subject if lane and "." not in lane and is_subject(lane_subject) else main

    def _note(self, status: AdapterStatus) -> None:
        if status.state != self._status.state:
            self._since = status.since or self.work.clock.now_ms()
            note_adapter(self._recorder, self.mailbox, self.name, status.state, status.detail)
            self._log_status(status, status.state)
        elif status.detail != self._status.detail and status.state in _BAD_STATES:
            self._log_status(status, "detail")
        self._status = status

    def _log_status(self, status: AdapterStatus, cause: str) -> None:
        if self._problem is not None and status.detail == self._problem:
            return  # logged by the probe
        level = logging.WARNING if status.state in _BAD_STATES else logging.INFO
        detail = f": {status.detail}" if status.detail else ""
        self.work.log.log(level, ("state", cause), "adapter %s: %s%s", self.name, status.state, detail)

    def _announced(self) -> None:
        """Replace the result of an older probe by the adapter's own status."""
        self._healthy = self._problem = None
        self.offer()


def read_status(adapter: Adapter) -> AdapterStatus:
    """Return an adapter's status; an unreadable status is an error."""
    try:
        status: object = adapter.status
    except Exception as error:
        return AdapterStatus("error", f"its status cannot be read: {type(error).__name__}: {error}")
    if not isinstance(status, AdapterStatus):
        return AdapterStatus("error", f"its status must be an AdapterStatus, not {type(status).__name__}")
    return status


async def _run_probe(health: Callable[[], Awaitable[bool]]) -> str | None:
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_SECS):
            return None if await health() else "the health probe returned False"
    except TimeoutError:
        return "the health probe did not answer in time"
    except (Exception, SystemExit) as error:
        return f"the health probe failed: {type(error).__name__}: {error}"


async def stop_adapter(adapter: Adapter, name: str, redact: Redact) -> None:
    """Stop an adapter; errors are logged."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_SECS):
            await adapter.stop()
    except TimeoutError:
        logger.error("adapter %s did not stop within %g s", name, STOP_TIMEOUT_SECS)
    except (Exception, SystemExit) as error:
        text = redact("".join(traceback.format_exception(error)))
        logger.error("adapter %s failed to stop: %s", name, text)


def note_adapter(recorder: Recorder, mailbox: Mailbox, adapter_id: str, status: str, detail: str | None) -> None:
    """Record a change of an adapter."""
    recorder.event(
        EventKind.ADAPTER,
        adapter=adapter_id,
        subject=mailbox.subject,
        target=mailbox.hash,
        target_kind=mailbox.about.kind,
        status=status,
        detail=detail,
    )
