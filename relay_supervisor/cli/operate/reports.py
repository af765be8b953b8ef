"""``relay report``: list, show (report_text.py) and create nightly reports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_core.text.units import ago, format_duration, plural
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import Failed, UsageError
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.operate.jobs import NoWait, exit_code, run_lines, run_now
from relay_supervisor.cli.output import Painted, paint

if TYPE_CHECKING:
    from pathlib import Path

    from relay_core.messages.operator_views import JobArguments, JobRun
    from relay_core.protocol.report import NightlyReport
    from relay_core.protocol.reporting import Report, ReportContent

app = new_group("Nightly reports.")

JOB = "metrics"
"""The job that creates the reports."""

_DAY = "YYYY-MM-DD"


@command(app, "list", examples=["relay report", "relay report list --json"])
async def list_reports(session: Session) -> None:
    """List the nightly reports, newest first."""
    from relay_core.clock import SystemClock

    reports = await session.client.reports()
    now = SystemClock().now_ms()
    session.show_table(
        reports.to_wire(),
        ["DATE", "DAY", "CREATED", "EVENTS", "BYTES", "ATTENTION"],
        [_row(report, now, newest=at == 0) for at, report in enumerate(reports.reports)],
        empty="no reports yet: create one with 'relay report run'",
    )


@command(
    app,
    "show",
    examples=["relay report show", "relay report show 2026-01-31 --json", "relay report show --table senders"],
)
async def show_report(
    session: Session,
    date: Annotated[str | None, typer.Argument(help="Day of the report; by default the newest.", metavar=_DAY)] = None,
    table: Annotated[str | None, typer.Option(help="Show one table with all its rows, such as latency.")] = None,
) -> None:
    """Show a nightly report, problems first."""
    if date is not None and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        raise UsageError(f"{date!r} is not a day: write it as {_DAY}, or leave it out for the newest report")
    content = await session.client.report(date)
    if table is not None:
        _show_table(session, content, table)
    else:
        session.show(content.to_wire(), lambda: _lines(content))


@command(
    app,
    "run",
    examples=["relay report run", "relay report run --date 2026-01-31", "relay report run --since 2026-01-01"],
    more="Without options: every day with new events, and today so far.",
)
async def run_report(
    session: Session,
    date: Annotated[str | None, typer.Option(help="This day (UTC), even if it has a report.", metavar=_DAY)] = None,
    since: Annotated[str | None, typer.Option(help="Every day from this one on.", metavar=_DAY)] = None,
    until: Annotated[str | None, typer.Option(help="Last day with --since; by default today.", metavar=_DAY)] = None,
    backfill: Annotated[bool, typer.Option("--backfill", help="Every day with events.")] = False,
    no_wait: NoWait = False,
) -> int:
    """Create nightly reports now and show the progress."""
    run = await run_now(session, JOB, no_wait, _arguments(date, since, until, backfill))
    if run.outcome == "ok" and run.reports is not None and not session.as_json:
        session.print(_report_lines(run, await _reports_dir(session)))
    else:
        session.show(run.to_wire(), lambda: run_lines(JOB, run))
    return exit_code(run)


def _show_table(session: Session, content: ReportContent, name: str) -> None:
    from relay_supervisor.cli.operate.report_text import table_lines

    document = _document(content)
    if name not in document.tables:
        raise Failed(f"the report of {content.date} has no table {name}: it has {', '.join(document.tables) or 'none'}")
    session.show(content.report["tables"][name], lambda: table_lines(content.date, name, document.tables[name]))


def _lines(content: ReportContent) -> Iterator[str]:
    from relay_supervisor.cli.operate.report_text import report_lines

    return report_lines(_document(content))


def _document(content: ReportContent) -> NightlyReport:
    from relay_core.protocol.report import read_nightly, unreadable

    document = read_nightly(content.report)
    if document is None:
        raise Failed(unreadable(content.date))
    return document


def _row(report: Report, now_ms: int, *, newest: bool) -> list[Any]:
    findings = report.attention
    return [
        report.date,
        _state(report, now_ms, newest=newest),
        ago(report.made_at, now_ms),
        report.events,
        report.bytes,
        None if findings is None else Painted(plural(findings, "finding"), "yellow") if findings else "none",
    ]


def _state(report: Report, now_ms: int, *, newest: bool) -> Painted | str:
    """Return whether a report covers its whole day, or how old the newest report is if it is overdue."""
    if report.complete is False:
        return Painted("so far", "yellow")
    if newest and (days := report.days_overdue(now_ms)):
        return Painted(f"{days} d old", "yellow")
    return "complete" if report.complete else "-"


def _arguments(date: str | None, since: str | None, until: str | None, backfill: bool) -> JobArguments:
    """Return the job's arguments for the options.

    Raises:
        UsageError: if they contradict each other.
    """
    from pydantic import ValidationError

    from relay_core.messages.operator_views import JobArguments

    today = date is None and since is None and until is None and not backfill
    try:
        return JobArguments(date=date, since=since, until=until, backfill=backfill, today=today)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        option = f"--{first['loc'][0]}: " if first["loc"] else ""
        text = f"write a day as {_DAY}" if first["type"] == "string_pattern_mismatch" else first["msg"]
        raise UsageError(option + text.removeprefix("Value error, ")) from None


async def _reports_dir(session: Session) -> Path | None:
    """Return the directory of the reports, if it is local."""
    from pathlib import Path

    from relay_core.config import NightlyConfig

    server, state = await session.client.info(), await session.client.config()
    nightly = NightlyConfig.model_validate(state.config["jobs"][JOB])
    return nightly.reports_dir(Path(server.data_dir) / "reports")


def _report_lines(run: JobRun, directory: Path | None) -> Iterator[str]:
    """Yield which reports a run has created, and how to open them."""
    from urllib.parse import quote

    days, counts, took = sorted(run.reports or ()), run.counts, format_duration(run.took_secs)
    if not days:
        yield f"no new events, so no report was created ({took}); recreate one with --date"
        return
    created = f"the report of {days[0]}" if len(days) == 1 else f"{len(days)} reports, {days[0]} to {days[-1]},"
    events = f" from {plural(counts['events'], 'event')}" if "events" in counts else ""
    yield f"created {created}{events} in {took}"
    if bad := counts.get("bad_lines"):
        yield paint(f"  {plural(bad, 'unreadable line')} of the event log quarantined", "yellow")
    yield f"  relay report show {days[-1]}"
    if directory is not None and (page := directory / f"date={days[-1]}" / "report.html").is_file():
        yield f"  file://{quote(str(page), safe='/=')}"
