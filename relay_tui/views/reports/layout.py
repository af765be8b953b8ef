"""The texts and columns of the reports screen. No I/O.

1. A report covers a day, and is fresh until the next one is due. A report of an unfinished day says so.
2. Columns are as wide as their content. If they do not fit, the last ones are left out, except the first and the one
   that is drawn as bars: another key shows the whole row.
"""

from __future__ import annotations

from collections.abc import Iterator

from relay_core.messages.operator_views import JobState
from relay_core.protocol.reporting import Report
from relay_core.text.bars import bar
from relay_core.text.sanitize import clean
from relay_core.text.units import ago, plural, time_until
from relay_tui.views.facts import fact, long_fact
from relay_tui.views.job_runs import outcome, progress
from relay_tui.views.reports.nightly import Section
from relay_tui.widgets.styled_lines import Line, Piece, width_of
from relay_tui.widgets.table import Column

_BAR = 24
_BAR_LEAST = 8
_NEVER = 1 << 30


def freshness(report: Report, now_ms: int) -> Piece:
    """Return whether the next report is overdue."""
    if report.complete is False:
        return ("◌ so far", "accent")
    days = report.days_overdue(now_ms)
    return (f"▲ {plural(days, 'day')} old", "warn") if days else ("✓ fresh", "ok")


def attention(report: Report) -> Piece:
    """Return how many findings of a report need attention."""
    if report.attention is None:
        return ("–", "dim")
    return (f"▲ {report.attention:,} to check", "warn") if report.attention else ("✓ no findings", "ok")


def job_lines(job: JobState, now_ms: int, width: int) -> Iterator[Line]:
    """Yield the state of the job that makes the reports."""
    if job.problem is not None:
        yield from long_fact("nightly", f"✗ cannot run: {clean(job.problem)}", "bad", width)
        return
    last, pieces = job.last, [outcome(job, now_ms)]
    if job.running:
        yield fact("nightly", *pieces, "  ", *progress(last, width))
        return
    if last is not None and last.ended_at is not None:
        pieces.append((f"  {ago(last.ended_at, now_ms)}", "dim"))
    when = f"next run {time_until(job.next_run, now_ms)}, {clean(job.schedule)}" if job.enabled else "manual only"
    yield fact("nightly", *pieces, (f"  {when}", "dim"))
    if last is not None and last.error:
        yield from long_fact("error", f"{clean(last.error)} (details: J)", "bad", width)


def columns_of(section: Section, chart: int | None, width: int) -> list[Column]:
    """Return the columns of a section, as wide as their content; those that do not fit are hidden."""
    widths = []
    for at, title in enumerate(section.columns):
        widest = max([width_of([(title, "")]), *(width_of([(row[at], "")]) for row in section.rows)])
        widths.append(max(min(widest, section.widest, width - 3), 3) + 1)
    shown = list(range(len(widths)))
    left = width - 2 - (_BAR_LEAST + 1 if chart is not None else 0)
    while sum(widths[at] for at in shown) > left and (removable := [at for at in shown if at not in (0, chart)]):
        shown.remove(removable[-1])
    columns = [
        Column(title, widths[at] - 1, right=at in section.numeric, from_width=0 if at in shown else _NEVER)
        for at, title in enumerate(section.columns)
    ]
    if chart is not None:
        room = width - 3 - sum(widths[at] for at in shown)
        columns.append(Column(f"▇ {section.columns[chart]}", max(min(room, _BAR), _BAR_LEAST)))
    return columns


def cells_of(section: Section, at: int, chart: int | None, bar_width: int) -> tuple[Piece, ...]:
    """Return the cells of a row, the bar last."""
    first = section.styles[at] if section.styles is not None else "accent" if section.links[at] is not None else ""
    cells = [(text, "" if column else first) for column, text in enumerate(section.rows[at])]
    if chart is not None:
        cells.append((bar(section.shares[chart][at], bar_width), "accent"))
    return tuple(cells)
