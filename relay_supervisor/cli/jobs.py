"""``relay jobs`` and ``relay report``: the scheduled upkeep, and what the nightly job leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import ExitCode
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.show import Painted, ago, lasting, number, safe, table

if TYPE_CHECKING:
    from relay_core.operations import JobRun, JobState

app = new_group("Scheduled upkeep.")
report_app = new_group("Nightly reports.")

REPORT_JOB = "metrics"

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
async def run_job(
    session: Session, name: Annotated[str, typer.Argument(help="As in 'relay jobs'.")], no_wait: NoWait = False
) -> int:
    """Run a job now and show how it went."""
    return await _run(session, name, no_wait)


@command(report_app, "list", examples=["relay report", "relay report list --json"])
async def list_reports(session: Session) -> None:
    """List the nightly reports, newest first."""
    from relay_core.clock import SystemClock

    reports = await session.client.reports()
    now = SystemClock().now_ms()
    session.show(
        reports.to_wire(),
        lambda: table(
            ["DATE", "MADE", "BYTES"],
            [[one.date, ago(one.made_at, now), one.bytes] for one in reports.reports],
            empty="no report yet: 'relay report run' makes one",
        ),
    )


@command(report_app, "show", examples=["relay report show", "relay report show 2026-01-31 --json"])
async def show_report(
    session: Session, date: Annotated[str | None, typer.Argument(help="Such as 2026-01-31; else the newest.")] = None
) -> None:
    """Show a nightly report."""
    report = await session.client.report(date)
    session.show(report.to_wire(), lambda: [f"report of {report.date}", *_outline(report.report)])


@command(report_app, "run", examples=["relay report run"])
async def run_report(session: Session, no_wait: NoWait = False) -> int:
    """Make the nightly report now."""
    return await _run(session, REPORT_JOB, no_wait)


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


async def _run(session: Session, name: str, no_wait: bool) -> int:
    run = await session.client.run_job(name, wait=not no_wait)
    session.show(run.to_wire(), lambda: _run_lines(name, run))
    return ExitCode.OK if run.outcome in ("ok", None) else ExitCode.ERROR


def _run_lines(name: str, run: JobRun) -> Iterator[str]:
    if run.outcome is None:
        yield f"{safe(name)}: started; 'relay jobs' shows how it goes"
        return
    took = lasting((run.ended_at - run.started_at) / 1000) if run.ended_at is not None else "?"
    counts = ", ".join(f"{number(count)} {safe(what)}" for what, count in run.counts.items())
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
    return f"in {lasting(max(job.next_run - now_ms, 0) / 1000)}" if job.next_run is not None else "by hand"


def _outcome(run: JobRun) -> Painted | str:
    if run.outcome in ("failed", "timed_out"):
        return Painted(f"{run.outcome.replace('_', ' ')}: {run.error or ''}", "red")
    counts = ", ".join(f"{count} {what}" for what, count in run.counts.items() if count)
    return f"{run.outcome or 'running'}{': ' + counts if counts else ''}"


def _outline(value: Any, indent: int = 1) -> Iterator[str]:
    """Yield a report's parts as an indented outline."""
    space = "  " * indent
    for key, part in value.items() if isinstance(value, dict) else enumerate(value, 1):
        if isinstance(part, dict | list) and part:
            yield f"{space}{safe(key)}"
            yield from _outline(part, indent + 1)
        else:
            yield f"{space}{safe(key)}: {safe(number(part) if isinstance(part, int | float) else part)}"
