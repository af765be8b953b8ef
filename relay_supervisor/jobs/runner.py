"""Scheduled upkeep: what runs, when, and how it went.

`JOBS` is the list of all there is. APScheduler says when; the running is ours, by hand and by schedule alike:

1. A job runs once at a time. Whoever asks for one that is under way gets that run, and an error if it was asked for
   something else.
2. A run ends as ok, failed, timed_out or cancelled, and never takes anything else with it: what it raises becomes its
   error, and it runs again at its next time. Its beginning and its end are events of kind `job`, with its name as
   `code`, and its counts (or its error) as `detail`.
3. Upkeep runs on the loop and is cancelled when it takes too long. Spark runs in a process of its own (child.py),
   which says how far it has come (nightly.py).
4. Every job first runs within minutes of the start, so that a supervisor which never lives for a day is tidy, too.
5. Times are wall time, which jumps. Forwards: what fell due in between runs once (`Every` never lists missed times).
   Backwards: a look at the clock each minute finds jobs whose next run has become too distant, and sets it anew. The
   same look wakes the scheduler, whose own timer stands still while the machine sleeps.
6. A night that was missed (the supervisor was down, the machine asleep, another run under way) is made up for once, not
   before a few minutes after the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from apscheduler.executors.debug import DebugExecutor  # type: ignore[import-untyped]
from apscheduler.schedulers.asyncio import AsyncIOScheduler  # type: ignore[import-untyped]
from apscheduler.triggers.cron import CronTrigger  # type: ignore[import-untyped]

from relay_core.clock import Clock
from relay_core.config import JobConfig, JobsConfig, NightlyConfig
from relay_core.core import RelayCore
from relay_core.errors import Closed, NotFound, RelayError
from relay_core.maintenance import Maintenance
from relay_core.messages.operator_views import JobArguments, JobRun, JobState, Outcome
from relay_core.records.events import EventKind
from relay_core.tasks import Tasks
from relay_supervisor.jobs.nightly import (
    NO_SPARK,
    RunOutput,
    call_of,
    check_days,
    day_due,
    has_spark,
    how_it_ended,
    lacks_report,
)
from relay_supervisor.jobs.schedule import FIRST_RUN_SECS, Every, in_words
from relay_supervisor.jobs.subprocess import run_child

logger = logging.getLogger(__name__)

Step = Callable[[Maintenance], Awaitable[int | dict[str, int]]]

UPKEEP_TIMEOUT_SECS = 600.0
NIGHTLY_GRACE_SECS = 6 * 3600
"""How late the nightly job may still begin; other upkeep is right at any time."""
LOOK_SECS = 60.0
OUTPUT_KEPT = 16 * 1024  # state watchers get it
CLOSE_GRACE_SECS = 2.0

_ERROR_KEPT = 500


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be done again and again; its name is also its key in config.json's `jobs`."""

    name: str
    description: str
    steps: Mapping[str, Step] = field(default_factory=dict)
    """What it calls, by the name of the count that this returns; without any, it is Spark's process."""


JOBS = [
    Job("expire", "Make dead letters of messages whose TTL has passed", {"expired": Maintenance.expire}),
    Job("purge", "Remove dead letters that are older than they are kept", {"purged": Maintenance.purge_dead_letters}),
    Job("unread", "Make dead letters of messages nobody has read for long", {"retired": Maintenance.expire_unread}),
    Job(
        "retention",
        "Forget old traces and events, and tidy up what nobody uses",
        {
            "traces": Maintenance.forget_traces,
            "event_days": Maintenance.expire_events,
            "tmp_files": Maintenance.sweep_tmp,
            "mailboxes": Maintenance.drop_empty_mailboxes,
        },
    ),
    Job(
        "index",
        "Bring the index in line with the Maildir and write its log back",
        {"repaired": Maintenance.checkpoint_index},
    ),
    Job("metrics", "Have Spark make the nightly report"),
]


class Jobs:
    """Run the upkeep of one bus, from entering to leaving."""

    def __init__(self, relay: RelayCore, clock: Clock, *, timeout: float = UPKEEP_TIMEOUT_SECS) -> None:
        self._relay = relay
        self._clock = clock
        self._timeout = timeout
        self._tasks = Tasks()
        self._config: JobsConfig | None = None
        self._jobs = {job.name: job for job in JOBS}
        self._running: dict[str, _Run] = {}
        self._last: dict[str, JobRun] = {}
        self._has_spark = False
        self._entered = 0.0
        self._night: date | None = None
        """The newest day of which the nightly job was to make a report when it was last begun."""
        self.on_change: Callable[[], None] | None = None
        """Told when a run has begun or ended."""

    async def __aenter__(self) -> Self:
        """Start the schedule."""
        self._entered = self._clock.monotonic()
        # Despite its name the right executor: what falls due is begun on the loop, where `Tasks` has it.
        executors, defaults = {"default": DebugExecutor()}, {"coalesce": True, "max_instances": 1}
        self.scheduler = AsyncIOScheduler(timezone=UTC, executors=executors, job_defaults=defaults)
        self.scheduler.start()
        self.apply(self._relay.config.jobs)
        self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the schedule; upkeep gets a moment to end, Spark is killed."""
        self._next_look.cancel()
        self.scheduler.pause()  # at once, while its shutdown is a callback of the loop
        self.scheduler.shutdown(wait=False)
        for run in self._running.values():
            if not run.job.steps:
                run.task.cancel()
        await self._tasks.close(grace=CLOSE_GRACE_SECS)
        await asyncio.sleep(0)

    def apply(self, config: JobsConfig) -> None:
        """Use another configuration: what has changed is scheduled anew, what runs goes on."""
        old, self._config = self._config, config
        for name in self._jobs:
            section = getattr(config, name)
            if old is None or getattr(old, name) != section:
                self._schedule(name, section)

    def states(self) -> list[JobState]:
        """Return every job, in the order of `JOBS`."""
        return [self._state(job) for job in JOBS]

    async def run(self, name: str, arguments: JobArguments | None = None) -> JobRun:
        """Run a job now, or join the run that is under way, and return how it went.

        Raises:
            NotFound: if there is no such job.
            RelayError: with code `job_unavailable`, if it cannot run; with `job_busy`, if it is under way with other
                arguments; with `invalid_params`, if it does not take these.
            Closed: if the schedule has been stopped.
        """
        # Shielded: others may wait for the same run.
        return await asyncio.shield(self._begin(self._job(name), arguments).ended)

    def start(self, name: str, arguments: JobArguments | None = None) -> JobRun:
        """Run a job now, and return the run without waiting for its end.

        Raises:
            NotFound, RelayError, Closed: as `run`.
        """
        return self._begin(self._job(name), arguments).so_far()

    async def cancel(self, name: str) -> JobRun:
        """Break off the run that is under way, and return how far it came.

        Raises:
            NotFound: if there is no such job, or it is not running.
        """
        run = self._running.get(self._job(name).name)
        if run is None:
            raise NotFound(f"the job {name} is not running", what=name)
        run.task.cancel()
        return await asyncio.shield(run.ended)

    def look_around(self) -> None:
        """Set anew what has become too distant as the clock went back, begin what has fallen due or was missed."""
        now = datetime.now(UTC)  # as the scheduler reads it
        for scheduled in self.scheduler.get_jobs():
            section = self._section(scheduled.id)
            period = section.every_secs if isinstance(section, JobConfig) else 86_400
            if scheduled.next_run_time > now + timedelta(seconds=period + LOOK_SECS):
                self._schedule(scheduled.id, section)
        self.scheduler.wakeup()
        self._has_spark = has_spark()  # kept, as states are asked for all the time
        if self._clock.monotonic() - self._entered >= FIRST_RUN_SECS:
            self._make_up()

    def _look(self) -> None:
        self.look_around()
        self._next_look = asyncio.get_running_loop().call_later(LOOK_SECS, self._look)

    def _job(self, name: str) -> Job:
        job = self._jobs.get(name)
        if job is None:
            raise NotFound(f"no job {name}; there are {', '.join(self._jobs)}", what=name)
        return job

    def _section(self, name: str) -> JobConfig | NightlyConfig:
        section: JobConfig | NightlyConfig = getattr(self._config, name)
        return section

    def _schedule(self, name: str, section: JobConfig | NightlyConfig) -> None:
        if self.scheduler.get_job(name) is not None:
            self.scheduler.remove_job(name)
        if not section.enabled:
            return
        if isinstance(section, JobConfig):
            trigger, grace = Every(section.every_secs), None
        else:
            hour, minute = section.at.split(":")
            trigger, grace = CronTrigger(hour=hour, minute=minute, timezone=UTC), NIGHTLY_GRACE_SECS
        self.scheduler.add_job(self._fall_due, trigger, args=[name], id=name, name=name, misfire_grace_time=grace)

    def _state(self, job: Job) -> JobState:
        section, run, problem = self._section(job.name), self._running.get(job.name), self._problem(job)
        scheduled = self.scheduler.get_job(job.name) if problem is None else None
        return JobState(
            name=job.name,
            description=job.description,
            schedule=in_words(section),
            enabled=section.enabled,
            problem=problem,
            next_run=round(scheduled.next_run_time.timestamp() * 1000) if scheduled is not None else None,
            running=run is not None,
            last=run.so_far() if run is not None else self._last.get(job.name),
        )

    def _problem(self, job: Job) -> str | None:
        section = self._section(job.name)
        return None if isinstance(section, JobConfig) or section.command or self._has_spark else NO_SPARK

    def _fall_due(self, name: str) -> None:
        if name not in self._running and self._problem(self._jobs[name]) is None:
            self._begin(self._jobs[name])

    def _make_up(self) -> None:
        """Run the nightly job for a night that was missed, unless that was tried."""
        for name in self._jobs:
            section = self._section(name)
            if isinstance(section, NightlyConfig) and section.enabled:
                day = day_due(section, self._clock.now_ms())
                if day != self._night and lacks_report(section, self._relay.data_dir, day):
                    self._fall_due(name)

    def _begin(self, job: Job, arguments: JobArguments | None = None) -> _Run:
        if arguments == JobArguments():
            arguments = None
        if arguments is not None:
            if job.steps:
                raise RelayError(f"the job {job.name} takes no arguments", code="invalid_params")
            check_days(arguments, self._clock.now_ms())
        run = self._running.get(job.name)
        if run is not None:
            if run.arguments != arguments:
                raise RelayError(_busy(run), code="job_busy")
            return run
        if self._problem(job) is not None:
            self._has_spark = has_spark()
        problem = self._problem(job)
        if problem is not None:
            raise RelayError(f"the job {job.name} cannot run: {problem}", code="job_unavailable")
        now = self._clock.now_ms()
        run = _Run(job, arguments, now, self._clock.monotonic(), asyncio.get_running_loop().create_future())
        task = self._tasks.start(self._carry_out(run), name=f"job {job.name}")
        if task is None:
            raise Closed("the supervisor is stopping: no job begins any more")
        run.task = task
        section = self._section(job.name)
        if isinstance(section, NightlyConfig) and arguments in (None, JobArguments(today=True)):
            self._night = day_due(section, now)
        self._running[job.name] = run
        self._relay.events.emit(EventKind.JOB, code=job.name, status="started")
        # A callback, because a task that is cancelled before its first step runs nothing of its own.
        task.add_done_callback(lambda _: self._end(run))
        self._changed()
        return run

    async def _carry_out(self, run: _Run) -> None:
        limit = asyncio.timeout(self._timeout)
        try:
            if run.job.steps:
                async with limit:
                    await self._upkeep(run)
            else:
                await self._spark(run)
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError):
                run.fail("timed_out", f"took longer than {self._timeout:g} s")
            else:
                run.fail("failed", _describe(error), error)
        else:
            run.outcome = run.outcome or "ok"

    async def _upkeep(self, run: _Run) -> None:
        """Take every step, also after one that fails: what a full disk forbids must not stop what frees it."""
        errors = []
        for name, step in run.job.steps.items():
            try:
                count = await step(self._relay.maintenance)
            except Exception as error:
                errors.append(error)
            else:
                run.counts.update(count if isinstance(count, dict) else {name: count})
        if len(errors) > 1:
            raise ExceptionGroup("several steps failed", errors)
        if errors:
            raise errors[0]

    async def _spark(self, run: _Run) -> None:
        config = self._section(run.job.name)
        assert isinstance(config, NightlyConfig)
        async with asyncio.timeout(self._timeout):
            await asyncio.wrap_future(self._relay.events.seal())  # so that it finds the events of this moment, too
        command, env = call_of(config, self._relay.data_dir, run.arguments)
        result = await run_child(
            command, env=env, timeout=config.timeout_secs, output_limit=OUTPUT_KEPT, on_line=run.said.take
        )
        run.output = result.output
        if result.timed_out:
            run.fail("timed_out", f"took longer than {config.timeout_secs} s and was killed")
        elif result.returncode != 0:
            run.fail("failed", how_it_ended(result))

    def _end(self, run: _Run) -> None:
        took = self._clock.monotonic() - run.started
        outcome = run.outcome or "cancelled"
        if outcome in ("failed", "timed_out"):
            logger.error(
                "the job %s has %s: %s", run.job.name, outcome.replace("_", " "), run.error, exc_info=run.cause
            )
        counts = run.counts | run.said.counts
        ended = JobRun(
            started_at=run.started_at,
            ended_at=self._clock.now_ms(),
            outcome=outcome,
            arguments=run.arguments,
            counts=counts,
            reports=run.said.reports,
            error=run.error,
            output=run.output,
        )
        detail = run.error or " ".join(f"{name}={count}" for name, count in counts.items())
        self._relay.events.emit(
            EventKind.JOB, code=run.job.name, status=outcome, detail=detail or None, handle_us=int(took * 1_000_000)
        )
        self._last[run.job.name] = ended
        del self._running[run.job.name]
        run.ended.set_result(ended)
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()


@dataclass(slots=True)
class _Run:
    """A run under way."""

    job: Job
    arguments: JobArguments | None
    started_at: int
    started: float
    ended: asyncio.Future[JobRun]
    said: RunOutput = field(default_factory=RunOutput)
    counts: dict[str, int] = field(default_factory=dict)
    outcome: Outcome | None = None
    error: str | None = None
    output: str | None = None
    cause: Exception | None = None
    task: asyncio.Task[Any] = field(init=False)

    def so_far(self) -> JobRun:
        """Return what is known of it before its end."""
        return JobRun(started_at=self.started_at, arguments=self.arguments, progress=self.said.progress)

    def fail(self, outcome: Outcome, error: str, cause: Exception | None = None) -> None:
        """Say how it went wrong."""
        self.outcome, self.error, self.cause = outcome, error, cause


def _busy(run: _Run) -> str:
    name = run.job.name
    how = f"with {' '.join(run.arguments.options())}" if run.arguments is not None else "without arguments"
    return f"the job {name} is under way {how}: wait for its end, or end it with 'relay jobs cancel {name}'"


def _describe(error: Exception) -> str:
    if isinstance(error, ExceptionGroup):
        return "; ".join(map(_describe, error.exceptions))
    text = error.message if isinstance(error, RelayError) else f"{type(error).__name__}: {error}".removesuffix(": ")
    # Names of files may hold lone surrogates, which JSON cannot.
    return text[:_ERROR_KEPT].encode(errors="replace").decode()
