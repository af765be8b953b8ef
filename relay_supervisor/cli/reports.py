"""``relay report list`` and ``relay report show``; making one is jobs.py's part.

A report is read by its own rules if it is one that Spark made (relay_core/report.py), and is an outline otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import Failed
from relay_supervisor.cli.jobs import report_app
from relay_supervisor.cli.show import Painted, ago, number, safe, table

if TYPE_CHECKING:
    from relay_core.protocol import Report, ReportContent

app = report_app
"""The same group, with all its commands."""

_FRESH_MS = 28 * 3_600_000
"""After the end of its day: the next one is made in the night after, and takes its time."""
_DAY_MS = 86_400_000


@command(report_app, "list", examples=["relay report", "relay report list --json"])
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
    report_app,
    "show",
    examples=["relay report show", "relay report show 2026-01-31 --json", "relay report show --table senders"],
)
async def show_report(
    session: Session,
    date: Annotated[str | None, typer.Argument(help="Such as 2026-01-31; else the newest.")] = None,
    table: Annotated[str | None, typer.Option(help="One table with all its rows, such as latency.")] = None,
) -> None:
    """Show a nightly report, what needs attention first."""
    content = await session.client.report(date)
    if table is not None:
        _show_table(session, content, table)
    else:
        session.show(content.to_wire(), lambda: _lines(content))


def _show_table(session: Session, content: ReportContent, name: str) -> None:
    from relay_core.report import read_nightly
    from relay_supervisor.cli.report_text import table_lines

    document = read_nightly(content.report)
    if document is None:
        raise Failed(f"the report of {content.date} is of another shape: 'relay report show --json' has all of it")
    if name not in document.tables:
        raise Failed(f"the report of {content.date} has no table {name}; it has {', '.join(document.tables) or 'none'}")
    session.show(content.report["tables"][name], lambda: table_lines(content.date, name, document.tables[name]))


def _lines(content: ReportContent) -> Iterator[str]:
    from relay_core.report import read_nightly
    from relay_supervisor.cli.report_text import report_lines

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
        None if needs is None else Painted(f"{number(needs)} to look at", "yellow") if needs else "all is well",
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
            yield f"{space}{safe(key)}: {safe(number(part) if isinstance(part, int | float) else part)}"
