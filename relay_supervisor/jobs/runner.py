"""Run the jobs, by schedule and on request.

`JOBS` lists them all. APScheduler triggers the scheduled runs.

1. A job has one run at a time. A request for a running job joins that run, or is an error if its arguments differ.
2. A run ends as ok, failed, timed_out or cancelled. An exception becomes its error and affects nothing else; the next
   scheduled run follows as usual. The start and the end of a run are events of kind `job`, with the job's name as
   `code` and the counts (or the error) as `detail`.
3. Maintenance runs on the event loop and is cancelled when it takes too long. Spark runs in a subprocess
   (subprocess.py), which reports its progress (nightly.py).
4. Every maintenance job first runs within minutes of the start, for supervisors that never run for a whole day.
5. Schedules follow wall time, which may jump. Forwards: a job that became due in between runs once (`Every` never
   returns a time in the past). Backwards: a check every minute reschedules jobs whose next run is too far away. It also
   wakes the scheduler, whose timer stands still while the machine sleeps.
6. A missed night (the supervisor was down, the machine asleep, or another run in progress) is made up for once, some
   minutes after the start at the earliest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
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
    build_command,
    check_days,
    describe_failure,
    has_spark,
    is_report_missing,
    newest_due_day,
)
from relay_supervisor.jobs.schedule import FIRST_RUN_SECS, Every, describe_schedule
from relay_supervisor.jobs.subprocess import run_child

logger = logging.getLogger(__name__)

Step = Callable[[Maintenance], Awaitable[int | dict[str, int]]]

MAINTENANCE_TIMEOUT_SECS = 600.0
NIGHTLY_GRACE_SECS = 6 * 3600
"""How late the nightly job may begin; maintenance may run at any time."""
CHECK_SECS = 60.0
OUTPUT_KEPT = 16 * 1024  # it is part of the state stream
CLOSE_GRACE_SECS = 2.0

_ERROR_KEPT = 500


@dataclass(frozen=True, slots=True)
class Job:
    """A job; its name is also its key in the section `jobs` of config.json."""

    name: str
    description: str
    steps: Mapping[str, Step] = field(default_factory=dict)
    """The steps by the name of the count that each returns; a job without steps is the Spark process."""


JOBS = [
    Job("expire", "Dead-letter messages whose TTL has passed", {"expired": Maintenance.expire}),
    Job("purge", "Remove dead letters after their retention", {"purged": Maintenance.purge_dead_letters}),
    Job("unread", "Dead-letter messages that have long been unread", {"retired": Maintenance.expire_unread}),
    Job(
        "retention",
        "Remove old traces, events, temporary files and unused mailboxes",
        {
            "traces": Maintenance.forget_traces,
            "event_days": Maintenance.expire_events,
            "tmp_files": Maintenance.sweep_tmp,
            "mailboxes": Maintenance.drop_empty_mailboxes,
        },
    ),
    Job(
        "index",
        "Compare the index with the Maildir and checkpoint its log",
        {"repaired": Maintenance.checkpoint_index},
    ),
    Job("metrics", "Make the nightly report with Spark"),
]


class Jobs:
    """Run the jobs of a bus, as an async context manager."""

    def __init__(self, relay: RelayCore, clock: Clock, *, timeout: float = MAINTENANCE_TIMEOUT_SECS) -> None:
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
        """The newest due day when the nightly job was last started."""
        self.on_change: Callable[[], None] | None = None
        """Called when a run has begun or ended."""

    async def __aenter__(self) -> Self:
        """Start the schedule."""
        self._entered = self._clock.monotonic()
        # DebugExecutor calls `_run_due` on the event loop, and `Tasks` owns the run.
        executors, defaults = {"default": DebugExecutor()}, {"coalesce": True, "max_instances": 1}
        self.scheduler = AsyncIOScheduler(timezone=UTC, executors=executors, job_defaults=defaults)
        self.scheduler.start()
        self.apply(self._relay.config.jobs)
        self._check_again()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the schedule; maintenance gets a grace period, Spark is killed."""
        self._next_check.cancel()
        self.scheduler.pause()  # takes effect immediately, unlike shutdown
        self.scheduler.shutdown(wait=False)
        for run in self._running.values():
            if not run.job.steps:
                run.task.cancel()
        await self._tasks.close(grace=CLOSE_GRACE_SECS)
        await asyncio.sleep(0)

    def apply(self, config: JobsConfig) -> None:
        """Apply a configuration: reschedule the jobs that it changes; current runs continue."""
        old, self._config = self._config, config
        for name in self._jobs:
            section = getattr(config, name)
            if old is None or getattr(old, name) != section:
                self._schedule(name, section)

    def states(self) -> list[JobState]:
        """Return every job, in the order of `JOBS`."""
        return [self._state(job) for job in JOBS]

    async def run(self, name: str, arguments: JobArguments | None = None) -> JobRun:
        """Run a job now, or join its current run, and return the ended run.

        Raises:
            NotFound: if there is no such job.
            RelayError: with code `job_unavailable`, if it cannot run; with `job_busy`, if it is running with other
                arguments; with `invalid_params`, if the arguments are not allowed.
            Closed: if the schedule has been stopped.
        """
        # Shielded: others may wait for the same run.
        return await asyncio.shield(self._begin(self._job(name), arguments).ended)

    def start(self, name: str, arguments: JobArguments | None = None) -> JobRun:
        """Start a job, or join its current run, without waiting for its end.

        Raises:
            NotFound, RelayError, Closed: as `run`.
        """
        return self._begin(self._job(name), arguments).snapshot()

    async def cancel(self, name: str) -> JobRun:
        """Cancel the current run of a job and return the ended run.

        Raises:
            NotFound: if there is no such job, or it is not running.
        """
        run = self._running.get(self._job(name).name)
        if run is None:
            raise NotFound(f"the job {name} is not running", what=name)
        run.task.cancel()
        return await asyncio.shield(run.ended)

    def check_schedule(self) -> None:
        """Reschedule jobs after the clock went back, wake the scheduler, and make up for a missed night."""
        now = datetime.now(UTC)  # the scheduler's clock
        for scheduled in self.scheduler.get_jobs():
            section = self._section(scheduled.id)
            period = section.every_secs if isinstance(section, JobConfig) else 86_400
            if scheduled.next_run_time > now + timedelta(seconds=period + CHECK_SECS):
                self._schedule(scheduled.id, section)
        self.scheduler.wakeup()
        self._has_spark = has_spark()  # cached for `states`, which is called often
        if self._clock.monotonic() - self._entered >= FIRST_RUN_SECS:
            self._run_missed_night()

    def _check_again(self) -> None:
        self.check_schedule()
        self._next_check = asyncio.get_running_loop().call_later(CHECK_SECS, self._check_again)

    def _job(self, name: str) -> Job:
        job = self._jobs.get(name)
        if job is None:
            raise NotFound(f"no job {name}: choose one of {', '.join(self._jobs)}", what=name)
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
        self.scheduler.add_job(self._run_due, trigger, args=[name], id=name, name=name, misfire_grace_time=grace)

    def _state(self, job: Job) -> JobState:
        section, run, problem = self._section(job.name), self._running.get(job.name), self._problem(job)
        scheduled = self.scheduler.get_job(job.name) if problem is None else None
        return JobState(
            name=job.name,
            description=job.description,
            schedule=describe_schedule(section),
            enabled=section.enabled,
            problem=problem,
            next_run=round(scheduled.next_run_time.timestamp() * 1000) if scheduled is not None else None,
            running=run is not None,
            last=run.snapshot() if run is not None else self._last.get(job.name),
        )

    def _problem(self, job: Job) -> str | None:
        section = self._section(job.name)
        return None if isinstance(section, JobConfig) or section.command or self._has_spark else NO_SPARK

    def _run_due(self, name: str) -> None:
        if name not in self._running and self._problem(self._jobs[name]) is None:
            self._begin(self._jobs[name])

    def _run_missed_night(self) -> None:
        """Run the nightly job for a missed night, unless it has been tried."""
        for name in self._jobs:
            section = self._section(name)
            if isinstance(section, NightlyConfig) and section.enabled:
                day = newest_due_day(section, self._clock.now_ms())
                if day != self._night and is_report_missing(section, self._relay.data_dir, day):
                    self._run_due(name)

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
        task = self._tasks.start(self._execute(run), name=f"job {job.name}")
        if task is None:
            raise Closed("the supervisor is stopping and starts no job")
        run.task = task
        section = self._section(job.name)
        if isinstance(section, NightlyConfig) and arguments in (None, JobArguments(today=True)):
            self._night = newest_due_day(section, now)
        self._running[job.name] = run
        self._relay.events.emit(EventKind.JOB, code=job.name, status="started")
        # A callback, because a task that is cancelled before its first step never runs its `finally`.
        task.add_done_callback(lambda _: self._end(run))
        self._changed()
        return run

    async def _execute(self, run: _Run) -> None:
        limit = asyncio.timeout(self._timeout)
        try:
            if run.job.steps:
                async with limit:
                    await self._maintain(run)
            else:
                await self._spark(run)
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError):
                run.fail("timed_out", f"took longer than {self._timeout:g} s")
            else:
                run.fail("failed", _describe(error), error)
        else:
            run.outcome = run.outcome or "ok"

    async def _maintain(self, run: _Run) -> None:
        """Run every step, even after a failed one: on a full disk, a later step may free space."""
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
            await asyncio.wrap_future(self._relay.events.seal())  # so that the report includes the latest events
        command, env = build_command(config, self._relay.data_dir, run.arguments)
        result = await run_child(
            command, env=env, timeout=config.timeout_secs, output_limit=OUTPUT_KEPT, on_line=run.reported.parse
        )
        run.output = result.output
        if result.timed_out:
            run.fail("timed_out", f"took longer than {config.timeout_secs} s and was killed")
        elif result.returncode != 0:
            run.fail("failed", describe_failure(result))

    def _end(self, run: _Run) -> None:
        took = self._clock.monotonic() - run.started
        outcome = run.outcome or "cancelled"
        if outcome in ("failed", "timed_out"):
            logger.error(
                "the job %s has %s: %s", run.job.name, outcome.replace("_", " "), run.error, exc_info=run.cause
            )
        counts = run.counts | run.reported.counts
        ended = JobRun(
            started_at=run.started_at,
            ended_at=self._clock.now_ms(),
            outcome=outcome,
            arguments=run.arguments,
            counts=counts,
            reports=run.reported.reports,
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
    """A current run."""

    job: Job
    arguments: JobArguments | None
    started_at: int
    started: float
    ended: asyncio.Future[JobRun]
    reported: RunOutput = field(default_factory=RunOutput)
    counts: dict[str, int] = field(default_factory=dict)
    outcome: Outcome | None = None
    error: str | None = None
    output: str | None = None
    cause: Exception | None = None
    task: asyncio.Task[Any] = field(init=False)

    def snapshot(self) -> JobRun:
        """Return the run as it is now, before its end."""
        return JobRun(started_at=self.started_at, arguments=self.arguments, progress=self.reported.progress)

    def fail(self, outcome: Outcome, error: str, cause: Exception | None = None) -> None:
        """Record the outcome of a run that did not succeed."""
        self.outcome, self.error, self.cause = outcome, error, cause


def _busy(run: _Run) -> str:
    name = run.job.name
    options = f"with {' '.join(run.arguments.options())}" if run.arguments is not None else "without arguments"
    return f"the job {name} is running {options}: wait for its end, or run 'relay jobs cancel {name}'"


def _describe(error: Exception) -> str:
    if isinstance(error, ExceptionGroup):
        return "; ".join(map(_describe, error.exceptions))
    text = error.message if isinstance(error, RelayError) else f"{type(error).__name__}: {error}".removesuffix(": ")
    # File names may contain lone surrogates, which JSON cannot encode.
    return text[:_ERROR_KEPT].encode(errors="replace").decode()
