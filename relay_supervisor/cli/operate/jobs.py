"""``relay jobs``: the scheduled upkeep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_core.text.units import ago, format_duration
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import ExitCode
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.output import Painted, safe, table

if TYPE_CHECKING:
    from relay_core.messages.operator_views import JobArguments, JobRun, JobState

app = new_group("Scheduled upkeep.")

Name = Annotated[str, typer.Argument(help="As in 'relay jobs'.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Start it and return at once.")]


@command(app, "list", examples=["relay jobs", "relay jobs list --json"])
async def list_jobs(session: Session) -> None:
    """List the jobs, when each runs next and how it went last."""
    from relay_core.clock import SystemClock

    jobs = await session.client.jobs()
    session.show(
        {"jobs": [one.to_wire() for one in jobs]},
        lambda: table(
            ["JOB", "SCHEDULE", "NEXT", "LAST", "OUTCOME"], job_rows(jobs, SystemClock().now_ms()), empty="no jobs"
        ),
    )


@command(app, "run", examples=["relay jobs run expire", "relay jobs run metrics --no-wait"])
async def run_job(session: Session, name: Name, no_wait: NoWait = False) -> int:
    """Run a job now and show how it went."""
    run = await run_now(session, name, no_wait)
    session.show(run.to_wire(), lambda: run_lines(name, run))
    return exit_code(run)


@command(app, "cancel", examples=["relay jobs cancel metrics"])
async def cancel_job(session: Session, name: Name) -> None:
    """Break off the run of a job that is under way, with all its processes."""
    run = await session.client.cancel_job(name)
    session.show(run.to_wire(), lambda: run_lines(name, run))


def job_rows(jobs: Iterable[JobState], now_ms: int) -> list[list[Any]]:
    """Return jobs as rows: name, schedule, next run, last run, outcome."""
    return [
        [
            one.name,
            one.schedule,
            _next(one, now_ms),
            ago(one.last.started_at, now_ms) if one.last else None,
            Painted(one.problem, "yellow") if one.problem else _outcome(one.last) if one.last else None,
        ]
        for one in jobs
    ]


async def run_now(session: Session, name: str, no_wait: bool, arguments: JobArguments | None = None) -> JobRun:
    """Run a job, and return how it went, or that it has begun."""
    if no_wait:
        return await session.client.run_job(name, wait=False, arguments=arguments)
    from relay_supervisor.cli.operate.job_progress import run_and_follow

    return await run_and_follow(session, name, arguments)


def exit_code(run: JobRun) -> int:
    """Return what a command exits with that ran a job."""
    return ExitCode.OK if run.outcome in ("ok", None) else ExitCode.ERROR


def run_lines(name: str, run: JobRun) -> Iterator[str]:
    """Yield how a job went, as lines for people."""
    if run.outcome is None:
        yield f"{safe(name)}: started; 'relay jobs' shows how it goes"
        return
    counts = ", ".join(f"{count:,} {safe(what)}" for what, count in run.counts.items())
    yield f"{safe(name)}: {run.outcome.replace('_', ' ')} in {took(run)}{': ' + counts if counts else ''}"
    if run.error:
        yield f"  {safe(run.error)}"
    for line in (run.output or "").splitlines()[-20:] if run.outcome != "ok" else ():
        yield f"  | {safe(line)}"


def took(run: JobRun) -> str:
    """Return how long a run has taken."""
    return format_duration((run.ended_at - run.started_at) / 1000) if run.ended_at is not None else "?"


def _next(job: JobState, now_ms: int) -> str:
    if job.running:
        return "running"
    if not job.enabled:
        return "off"
    return f"in {format_duration(max(job.next_run - now_ms, 0) / 1000)}" if job.next_run is not None else "by hand"


def _outcome(run: JobRun) -> Painted | str:
    if run.outcome in ("failed", "timed_out"):
        return Painted(f"{run.outcome.replace('_', ' ')}: {run.error or ''}", "red")
    if run.progress is not None:
        from relay_supervisor.cli.operate.job_progress import progress_words

        return f"running: {progress_words(run.progress)}"
    counts = ", ".join(f"{count} {what}" for what, count in run.counts.items() if count)
    return f"{run.outcome or 'running'}{': ' + counts if counts else ''}"
