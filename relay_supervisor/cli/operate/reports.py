"""``relay report``: the nightly reports, listed, shown (report_text.py) and made.

A report that Spark made is read by its schema (relay_core/protocol/report.py); any other is an outline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_core.text.units import ago, format_count
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import Failed, UsageError
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.operate.jobs import NoWait, exit_code, run_lines, run_now, took
from relay_supervisor.cli.output import Painted, paint, safe, table

if TYPE_CHECKING:
    from pathlib import Path

    from relay_core.messages.operator_views import JobArguments, JobRun
    from relay_core.protocol.reporting import Report, ReportContent

app = new_group("Nightly reports.")

JOB = "metrics"
"""The job that makes them."""

_FRESH_MS = 28 * 3_600_000
"""After the end of its day: the next one is made in the night after, and takes its time."""
_DAY_MS = 86_400_000
_DAY = "YYYY-MM-DD"


@command(app, "list", examples=["relay report", "relay report list --json"])
async def list_reports(session: Session) -> None:
    """List the nightly reports, newest first, and how fresh each is."""
    from relay_core.clock import SystemClock

    reports = await session.client.reports()
    now = SystemClock().now_ms()
    session.show(
        reports.to_wire(),
        lambda: table(
            ["DATE", "DAY", "MADE", "EVENTS", "BYTES", "ATTENTION"],
            [_row(one, now, newest=at == 0) for at, one in enumerate(reports.reports)],
            empty="no report yet: 'relay report run' makes one",
        ),
    )


@command(
    app,
    "show",
    examples=["relay report show", "relay report show 2026-01-31 --json", "relay report show --table senders"],
)
async def show_report(
    session: Session,
    date: Annotated[str | None, typer.Argument(help="Such as 2026-01-31; else the newest.")] = None,
    table: Annotated[str | None, typer.Option(help="One table with all its rows, such as latency.")] = None,
) -> None:
    """Show a nightly report, what needs attention first."""
    if date is not None and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        raise UsageError(f"{date!r} is no day: a day is {_DAY}, and without one it is the newest report")
    content = await session.client.report(date)
    if table is not None:
        _show_table(session, content, table)
    else:
        session.show(content.to_wire(), lambda: _lines(content))


@command(
    app,
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
    run = await run_now(session, JOB, no_wait, _arguments(date, since, until, backfill))
    if run.outcome == "ok" and run.reports is not None and not session.as_json:
        session.print(_report_lines(run, await _reports_dir(session)))
    else:
        session.show(run.to_wire(), lambda: run_lines(JOB, run))
    return exit_code(run)


def _show_table(session: Session, content: ReportContent, name: str) -> None:
    from relay_core.protocol.report import read_nightly
    from relay_supervisor.cli.operate.report_text import table_lines

    document = read_nightly(content.report)
    if document is None:
        raise Failed(f"the report of {content.date} is of another shape: 'relay report show --json' has all of it")
    if name not in document.tables:
        raise Failed(f"the report of {content.date} has no table {name}; it has {', '.join(document.tables) or 'none'}")
    session.show(content.report["tables"][name], lambda: table_lines(content.date, name, document.tables[name]))


def _lines(content: ReportContent) -> Iterator[str]:
    from relay_core.protocol.report import read_nightly
    from relay_supervisor.cli.operate.report_text import report_lines

    document = read_nightly(content.report)
    if document is not None:
        yield from report_lines(document)
    else:
        yield f"report of {content.date}"
        yield from _outline(content.report)


def _row(report: Report, now_ms: int, *, newest: bool) -> list[Any]:
    needs = report.attention
    return [
        report.date,
        _state(report, now_ms, newest=newest),
        ago(report.made_at, now_ms),
        report.events,
        report.bytes,
        None if needs is None else Painted(f"{needs:,} to look at", "yellow") if needs else "all is well",
    ]


def _state(report: Report, now_ms: int, *, newest: bool) -> Painted | str:
    """Return whether a report is about the whole day, and whether the newest is as new as it should be."""
    from datetime import UTC, datetime

    if report.complete is False:
        return Painted("so far", "yellow")
    try:
        ended = int(datetime.fromisoformat(report.date).replace(tzinfo=UTC).timestamp() * 1000) + _DAY_MS
    except ValueError:  # a day that no calendar has
        ended = report.made_at
    if newest and now_ms - ended >= _FRESH_MS:
        return Painted(f"{(now_ms - ended) // _DAY_MS} d old", "yellow")
    return "complete" if report.complete else "-"


def _outline(value: Any, indent: int = 1) -> Iterator[str]:
    """Yield a report's parts as an indented outline."""
    space = "  " * indent
    for key, part in value.items() if isinstance(value, dict) else enumerate(value, 1):
        if isinstance(part, dict | list) and part:
            yield f"{space}{safe(key)}"
            yield from _outline(part, indent + 1)
        else:
            yield f"{space}{safe(key)}: {safe(format_count(part) if isinstance(part, int | float) else part)}"


def _arguments(date: str | None, since: str | None, until: str | None, backfill: bool) -> JobArguments:
    """Return the days that the options mean.

    Raises:
        UsageError: if they mean none.
    """
    from pydantic import ValidationError

    from relay_core.messages.operator_views import JobArguments

    whole = date is None and since is None and until is None and not backfill
    try:
        return JobArguments(date=date, since=since, until=until, backfill=backfill, today=whole)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        option = f"--{first['loc'][0]}: " if first["loc"] else ""
        text = f"a day is {_DAY}" if first["type"] == "string_pattern_mismatch" else first["msg"]
        raise UsageError(option + text.removeprefix("Value error, ")) from None


async def _reports_dir(session: Session) -> Path | None:
    """Return where the reports are, if that is on this machine."""
    from pathlib import Path

    from relay_core.config import NightlyConfig

    server, state = await session.client.info(), await session.client.config()
    nightly = NightlyConfig.model_validate(state.config["jobs"][JOB])
    return nightly.reports_dir(Path(server.data_dir) / "reports")


def _report_lines(run: JobRun, directory: Path | None) -> Iterator[str]:
    """Yield what a run has made, and how to look at it."""
    from urllib.parse import quote

    days, counts = sorted(run.reports or ()), run.counts
    if not days:
        yield f"no day that was asked for has new events: no report was made ({took(run)}); --date makes one anew"
        return
    made = f"the report of {days[0]}" if len(days) == 1 else f"{len(days)} reports, {days[0]} to {days[-1]},"
    events = f" from {counts['events']:,} events" if "events" in counts else ""
    yield f"made {made}{events} in {took(run)}"
    if bad := counts.get("bad_lines"):
        lines, were = ("1 line", "it was") if bad == 1 else (f"{bad:,} lines", "they were")
        yield paint(f"  {lines} of the event log could not be read: {were} put aside", "yellow")
    yield f"  relay report show {days[-1]}"
    if directory is not None and (page := directory / f"date={days[-1]}" / "report.html").is_file():
        yield f"  file://{quote(str(page), safe='/=')}"
