"""``relay jobs``, and ``relay report run``: the scheduled upkeep. What the nightly job leaves is reports.py's part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import ExitCode, UsageError
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.show import Painted, ago, lasting, number, paint, safe, table

if TYPE_CHECKING:
    from pathlib import Path

    from relay_core.operations import JobArguments, JobRun, JobState

app = new_group("Scheduled upkeep.")
report_app = new_group("Nightly reports.")

REPORT_JOB = "metrics"
_DAY = "YYYY-MM-DD"

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
    run = await _run(session, name, no_wait)
    session.show(run.to_wire(), lambda: _run_lines(name, run))
    return _exit_code(run)


@command(app, "cancel", examples=["relay jobs cancel metrics"])
async def cancel_job(session: Session, name: Name) -> None:
    """Break off the run of a job that is under way, with all its processes."""
    run = await session.client.cancel_job(name)
    session.show(run.to_wire(), lambda: _run_lines(name, run))


@command(
    report_app,
    "run",
    examples=["relay report run", "relay report run --date 2026-01-31", "relay report run --since 2026-01-01"],
    more="Without options: of every day that has new events, and of today as far as it has come.",
)
async def run_report(
    session: Session,
    date: Annotated[str | None, typer.Option(help="Of this day, in UTC, also if there is one.", metavar=_DAY)] = None,
    since: Annotated[str | None, typer.Option(help="Of every day from this one on.", metavar=_DAY)] = None,
    until: Annotated[str | None, typer.Option(help="With --since: the last day; else today.", metavar=_DAY)] = None,
    backfill: Annotated[bool, typer.Option("--backfill", help="Of every day that has events.")] = False,
    no_wait: NoWait = False,
) -> int:
    """Make nightly reports now, and show how far it is."""
    run = await _run(session, REPORT_JOB, no_wait, _arguments(date, since, until, backfill))
    if run.outcome == "ok" and run.reports is not None and not session.as_json:
        session.print(_report_lines(run, await _reports_dir(session)))
    else:
        session.show(run.to_wire(), lambda: _run_lines(REPORT_JOB, run))
    return _exit_code(run)


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


async def _run(session: Session, name: str, no_wait: bool, arguments: JobArguments | None = None) -> JobRun:
    if no_wait:
        return await session.client.run_job(name, wait=False, arguments=arguments)
    from relay_supervisor.cli.follow import run_and_follow

    return await run_and_follow(session, name, arguments)


def _exit_code(run: JobRun) -> int:
    return ExitCode.OK if run.outcome in ("ok", None) else ExitCode.ERROR


def _arguments(date: str | None, since: str | None, until: str | None, backfill: bool) -> JobArguments:
    """Return the days that the options mean.

    Raises:
        UsageError: if they mean none.
    """
    from pydantic import ValidationError

    from relay_core.operations import JobArguments

    whole = date is None and since is None and until is None and not backfill
    try:
        return JobArguments(date=date, since=since, until=until, backfill=backfill, today=whole)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        option = f"--{first['loc'][0]}: " if first["loc"] else ""
        text = "a day is YYYY-MM-DD" if first["type"] == "string_pattern_mismatch" else first["msg"]
        raise UsageError(option + text.removeprefix("Value error, ")) from None


async def _reports_dir(session: Session) -> Path | None:
    """Return where the reports are, if that is on this machine."""
    from pathlib import Path

    from relay_core.config import NightlyConfig

    server, state = await session.client.info(), await session.client.config()
    nightly = NightlyConfig.model_validate(state.config["jobs"][REPORT_JOB])
    return nightly.reports_dir(Path(server.data_dir) / "reports")


def _report_lines(run: JobRun, directory: Path | None) -> Iterator[str]:
    """Yield what a run has made, and how to look at it."""
    from urllib.parse import quote

    days, counts = sorted(run.reports or ()), run.counts
    took = lasting((run.ended_at - run.started_at) / 1000) if run.ended_at is not None else "?"
    if not days:
        yield f"no day that was asked for has new events: no report was made ({took}); --date makes one anew"
        return
    made = f"the report of {days[0]}" if len(days) == 1 else f"{len(days)} reports, {days[0]} to {days[-1]},"
    events = f" from {number(counts['events'])} events" if "events" in counts else ""
    yield f"made {made}{events} in {took}"
    if bad := counts.get("bad_lines"):
        lines, were = ("1 line", "it was") if bad == 1 else (f"{number(bad)} lines", "they were")
        yield paint(f"  {lines} of the event log could not be read: {were} put aside", "yellow")
    yield f"  relay report show {days[-1]}"
    if directory is not None and (page := directory / f"date={days[-1]}" / "report.html").is_file():
        yield f"  file://{quote(str(page), safe='/=')}"


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
    if run.progress is not None:
        from relay_supervisor.cli.follow import progress_words

        return f"running: {progress_words(run.progress)}"
    counts = ", ".join(f"{count} {what}" for what, count in run.counts.items() if count)
    return f"{run.outcome or 'running'}{': ' + counts if counts else ''}"
