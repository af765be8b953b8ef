"""Publish the messages of `schedules` in config.json at their times, from ``relay.system.pulse.ID``.

1. A publish passes the ordinary pipeline: access rules, rate limit, budget. Its dedupe id is made of the schedule's id
   and the due time, so no due time is published twice, even if the supervisor dies before it has recorded the publish.
2. However many due times have passed since the last check, at most the newest is published. If it is more than a minute
   late (the supervisor was down, the machine asleep, the clock set forwards), `catchUp` decides: `once` publishes it,
   `skip` does not.
3. A schedule that is new, resumed, enabled again or has another timing begins now: earlier times were not missed.
4. If the clock is set back, schedules continue from the new time; the dedupe ids prevent a second publish.
5. One publish of a schedule at a time. A failed or refused one is not repeated, except when the disk refused it: then
   the next check tries again, as for a missed time.
6. Nothing is published in the first seconds after the start, so that clients have connected again.
7. While schedule-state.json is broken, schedules run only by hand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from relay_core.clock import Clock, Timer, call_later, iso
from relay_core.config import ScheduleConfig
from relay_core.core import RelayCore
from relay_core.errors import ConfigError, NotFound, RelayError, StorageError
from relay_core.messages.results import PublishResult
from relay_core.messages.subjects import SYSTEM_PREFIX
from relay_core.protocol.scheduling import ScheduleRun, ScheduleState
from relay_core.tasks import Tasks
from relay_supervisor.schedules.due_times import After, describe_timing, due_times, newest_due
from relay_supervisor.schedules.state_file import STATE_FILE, ScheduleRecord, encode_state, load_state, save_state

logger = logging.getLogger(__name__)

START_SECS = 10.0
"""From the start to the first publish."""
CHECK_SECS = 60.0
"""At least this often the wall clock is read, since it may jump or the machine may have slept."""
LATE_MS = 60_000
"""A due time that is older was missed."""
CLOSE_GRACE_SECS = 2.0

_DETAIL_KEPT = 500


def pulse_sender(schedule_id: str) -> str:
    """Return the sender of a schedule's messages."""
    return f"{SYSTEM_PREFIX}pulse.{schedule_id}"


@dataclass(slots=True)
class _Schedule:
    section: ScheduleConfig
    after: After
    record: ScheduleRecord
    publishing: bool = False

    @property
    def active(self) -> bool:
        return self.section.enabled and not self.record.paused


class Schedules:
    """Publish scheduled messages, as an async context manager."""

    def __init__(self, relay: RelayCore, clock: Clock) -> None:
        self._relay = relay
        self._clock = clock
        self._path = relay.data_dir.path / STATE_FILE
        self._tasks = Tasks()
        self._schedules: dict[str, _Schedule] = {}
        self._loaded: dict[str, ScheduleRecord] = {}
        """Records of the file that `apply` has not used yet."""
        self._saving = asyncio.Lock()
        self._saved = b""
        self._timer: Timer | None = None
        self._begins = 0.0
        self._closed = False
        self.broken: str | None = None
        """The error in schedule-state.json, or None."""

    async def __aenter__(self) -> Self:
        """Load the state and start the schedules."""
        self._begins = self._clock.monotonic() + START_SECS
        self._load()
        self.apply(self._relay.config.schedules)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop: a publish in progress gets a grace period."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close(grace=CLOSE_GRACE_SECS)
        await self._try_to_save()

    def apply(self, sections: Sequence[ScheduleConfig]) -> None:
        """Apply a configuration; schedules that it does not change continue."""
        if self.broken is not None:
            self._load()
        now, old = self._clock.now_ms(), self._schedules
        self._schedules = {}
        for section in sections:
            schedule = old.get(section.id)
            if schedule is None or self._loaded:
                record = self._loaded.get(section.id) or (schedule.record if schedule else ScheduleRecord())
                schedule = _Schedule(section, due_times(section), record)
            elif schedule.section != section:
                schedule.section, schedule.after = section, due_times(section)
            self._schedules[section.id] = schedule
            _begin(schedule, now)
        self._loaded = {}
        if self.broken is None:
            self._tasks.start(self._try_to_save(), name="save schedules")
        self._check()

    def states(self) -> list[ScheduleState]:
        """Return every schedule, in file order."""
        return [self._state(schedule) for schedule in self._schedules.values()]

    async def run(self, schedule_id: str) -> ScheduleRun:
        """Publish a schedule's message now, whether or not it is paused or enabled.

        Raises:
            NotFound: if there is no such schedule.
        """
        schedule = self._schedule(schedule_id)
        run = await self._publish(schedule.section, None)
        schedule.record.last = run
        await self._try_to_save()
        return run

    async def pause(self, schedule_id: str) -> ScheduleState:
        """Publish no more messages of a schedule until it is resumed, also after a restart.

        Raises:
            NotFound: if there is no such schedule.
            ConfigError: if schedule-state.json is broken.
            StorageError: if the state cannot be saved; nothing has changed.
        """
        return await self._set_paused(self._schedule(schedule_id), paused=True)

    async def resume(self, schedule_id: str) -> ScheduleState:
        """Publish the messages of a paused schedule again, from now on.

        Raises:
            NotFound, ConfigError, StorageError: as `pause`.
        """
        return await self._set_paused(self._schedule(schedule_id), paused=False)

    def _schedule(self, schedule_id: str) -> _Schedule:
        schedule = self._schedules.get(schedule_id)
        if schedule is None:
            known = f": choose one of {', '.join(self._schedules)}" if self._schedules else " in config.json"
            raise NotFound(f"no schedule {schedule_id}{known}", what=schedule_id)
        return schedule

    def _state(self, schedule: _Schedule) -> ScheduleState:
        section, record = schedule.section, schedule.record
        runs = schedule.active and self.broken is None
        return ScheduleState(
            id=section.id,
            to=section.to,
            timing=describe_timing(section),
            catch_up=section.catch_up,
            enabled=section.enabled,
            paused=record.paused,
            next_run=schedule.after(self._clock.now_ms()) if runs else None,
            last=record.last,
        )

    async def _set_paused(self, schedule: _Schedule, *, paused: bool) -> ScheduleState:
        if self.broken is not None:
            raise ConfigError(f"repair or remove the file first: {self.broken}", path=str(self._path))
        record = schedule.record
        if record.paused != paused:
            record.paused, before = paused, (record.paused, record.handled_until)
            _begin(schedule, self._clock.now_ms())
            try:
                await self._save()
            except StorageError:
                record.paused, record.handled_until = before
                raise
            finally:
                self._check()
        return self._state(schedule)

    def _check(self) -> None:
        """Publish what is due, and come back for what is due next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        active = [schedule for schedule in self._schedules.values() if schedule.active]
        if not active or self.broken is not None or self._closed:
            return
        now, early = self._clock.now_ms(), self._begins - self._clock.monotonic()
        if early > 0:
            self._timer = call_later(self._clock, early, self._check)
            return
        for schedule in active:
            self._check_one(schedule, now)
        dues = [due for schedule in active if (due := schedule.after(now)) is not None]
        delay = min([CHECK_SECS, *((due - now) / 1000 for due in dues)])
        self._timer = call_later(self._clock, delay, self._check)

    def _check_one(self, schedule: _Schedule, now: int) -> None:
        record = schedule.record
        if schedule.publishing or record.handled_until is None:
            return
        if record.handled_until > now + LATE_MS:
            record.handled_until = now  # the clock was set back
        due = newest_due(schedule.after, record.handled_until, now)
        if due is None:
            return
        if now - due > LATE_MS and schedule.section.catch_up == "skip":
            logger.warning("schedule %s: skipped, it was due at %s", schedule.section.id, iso(due))
            record.handled_until = due
            record.last = ScheduleRun(at=now, due=due, outcome="skipped", detail="missed by more than a minute")
            self._tasks.start(self._try_to_save(), name="save schedules")
        elif self._tasks.start(self._publish_due(schedule, due), name=f"schedule {schedule.section.id}"):
            schedule.publishing = True

    async def _publish_due(self, schedule: _Schedule, due: int) -> None:
        record = schedule.record
        try:
            run = await self._publish(schedule.section, due)
        except StorageError as error:
            record.last = self._failed(schedule.section, due, error)
            return  # the timer tries again
        finally:
            schedule.publishing = False
        record.last = run
        if record.handled_until is not None:  # it is None if it was paused meanwhile
            record.handled_until = max(record.handled_until, due)
        await self._try_to_save()
        self._check()

    async def _publish(self, section: ScheduleConfig, due: int | None) -> ScheduleRun:
        """Publish a schedule's message; by hand, a disk that refuses is an outcome like any other."""
        try:
            result = await self._relay.publish(
                section.to,
                section.payload,
                sender=pulse_sender(section.id),
                reply_to=section.reply_to,
                dedupe_id=f"{section.id}@{iso(due)}" if due is not None else None,
            )
        except StorageError as error:
            if due is not None:
                raise
            return self._failed(section, due, error)
        except Exception as error:
            return self._failed(section, due, error)
        return ScheduleRun(
            at=self._clock.now_ms(),
            due=due,
            outcome="published" if result.delivered_to else "refused",
            message_id=result.message_id,
            delivered_to=result.delivered_to,
            detail=None if result.delivered_to else _refusal(result),
        )

    def _failed(self, section: ScheduleConfig, due: int | None, error: Exception) -> ScheduleRun:
        known = isinstance(error, RelayError)
        detail = error.message if isinstance(error, RelayError) else f"{type(error).__name__}: {error}"
        logger.error("schedule %s: not published: %s", section.id, detail, exc_info=None if known else error)
        return ScheduleRun(at=self._clock.now_ms(), due=due, outcome="failed", detail=detail[:_DETAIL_KEPT])

    def _load(self) -> None:
        try:
            self._loaded, self.broken = load_state(self._path, self._relay.data_dir.read), None
        except ConfigError as error:
            if self.broken is None:
                logger.error("schedules run only by hand until this file is repaired or removed: %s", error.message)
            self.broken = error.message

    async def _save(self) -> None:
        """Save the state if it has changed.

        Raises:
            StorageError: if the disk refuses.
        """
        async with self._saving:
            data = encode_state({id: schedule.record for id, schedule in self._schedules.items()})
            if self.broken is None and data != self._saved and (self._schedules or self._path.exists()):
                await asyncio.to_thread(save_state, self._path, data)
                self._saved = data

    async def _try_to_save(self) -> None:
        try:
            await self._save()
        except StorageError as error:
            logger.warning("the state of the schedules is not saved: %s", error.message)


def _begin(schedule: _Schedule, now: int) -> None:
    """Let a schedule begin now if it is new, has been inactive or has another timing."""
    record, timing = schedule.record, describe_timing(schedule.section)
    if not schedule.active:
        record.handled_until = None
    elif record.handled_until is None or record.timing != timing:
        record.handled_until = now
    record.timing = timing


def _refusal(result: PublishResult) -> str:
    reasons = {rejection.reason for rejection in result.rejected or ()}
    reasons |= {adapter.error or adapter.status for adapter in result.adapter_results or ()}
    return ", ".join(sorted(reasons))[:_DETAIL_KEPT] or "no consumer matched: it is a dead letter"
