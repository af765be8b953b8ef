"""``relay jobs``: scheduled maintenance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_core.text.units import ago, format_duration
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import ExitCode
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.output import Painted, safe

if TYPE_CHECKING:
    from relay_core.messages.operator_views import JobArguments, JobRun, JobState

app = new_group("Scheduled maintenance jobs.")

JOB_HEADERS = ["JOB", "SCHEDULE", "NEXT", "LAST", "OUTCOME"]

Name = Annotated[str, typer.Argument(help="Job's name, from 'relay jobs'.", metavar="NAME")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Start it and return immediately.")]


@command(app, "list", examples=["relay jobs", "relay jobs list --json"])
async def list_jobs(session: Session) -> None:
    """List the jobs with their next run and last outcome."""
    from relay_core.clock import SystemClock

    jobs = await session.client.jobs()
    rows = job_rows(jobs, SystemClock().now_ms())
    session.show_table({"jobs": [job.to_wire() for job in jobs]}, JOB_HEADERS, rows, empty="no jobs")


@command(app, "run", examples=["relay jobs run expire", "relay jobs run metrics --no-wait"])
async def run_job(session: Session, name: Name, no_wait: NoWait = False) -> int:
    """Run a job now and show its outcome."""
    run = await run_now(session, name, no_wait)
    session.show(run.to_wire(), lambda: run_lines(name, run))
    return exit_code(run)


@command(app, "cancel", examples=["relay jobs cancel metrics"])
async def cancel_job(session: Session, name: Name) -> None:
    """Cancel a running job and kill its processes."""
    run = await session.client.cancel_job(name)
    session.show(run.to_wire(), lambda: run_lines(name, run))


def job_rows(jobs: Iterable[JobState], now_ms: int) -> list[list[Any]]:
    """Return a row for each job, as in `JOB_HEADERS`."""
    return [
        [
            job.name,
            job.schedule,
            _next(job, now_ms),
            ago(job.last.started_at, now_ms) if job.last else None,
            Painted(job.problem, "yellow") if job.problem else _outcome(job.last) if job.last else None,
        ]
        for job in jobs
    ]


async def run_now(session: Session, name: str, no_wait: bool, arguments: JobArguments | None = None) -> JobRun:
    """Run a job; return its run when it has ended, or with `no_wait` when it has started."""
    if no_wait:
        return await session.client.run_job(name, wait=False, arguments=arguments)
    from relay_supervisor.cli.operate.job_progress import run_and_follow

    return await run_and_follow(session, name, arguments)


def exit_code(run: JobRun) -> int:
    """Return the exit code for a job's run."""
    return ExitCode.OK if run.outcome in ("ok", None) else ExitCode.ERROR


def run_lines(name: str, run: JobRun) -> Iterator[str]:
    """Yield the outcome of a job as lines for people."""
    if run.outcome is None:
        yield f"{safe(name)}: started, see 'relay jobs'"
        return
    counts = ", ".join(f"{count:,} {safe(unit)}" for unit, count in run.counts.items())
    took = format_duration(run.took_secs)
    yield f"{safe(name)}: {run.outcome.replace('_', ' ')} in {took}{': ' + counts if counts else ''}"
    if run.error:
        yield f"  {safe(run.error)}"
    for line in (run.output or "").splitlines()[-20:] if run.outcome != "ok" else ():
        yield f"  | {safe(line)}"


def _next(job: JobState, now_ms: int) -> str:
    if job.running:
        return "running"
    if not job.enabled:
        return "off"
    return f"in {format_duration(max(job.next_run - now_ms, 0) / 1000)}" if job.next_run is not None else "manual"


def _outcome(run: JobRun) -> Painted | str:
    if run.outcome in ("failed", "timed_out"):
        return Painted(f"{run.outcome.replace('_', ' ')}: {run.error or ''}", "red")
    if run.progress is not None:
        from relay_supervisor.cli.operate.job_progress import progress_text

        return f"running: {progress_text(run.progress)}"
    counts = ", ".join(f"{count} {unit}" for unit, count in run.counts.items() if count)
    return f"{run.outcome or 'running'}{': ' + counts if counts else ''}"
