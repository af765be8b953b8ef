"""A nightly report as text: what needs attention, the numbers with their change, spark lines, tables with bars.

1. A line fits the terminal: texts are wrapped, columns that have no room are left out from the right, but for the first
   and the one that is drawn as bars. ``--table`` shows all rows, and in a pipe all columns.
2. Everything in a report is foreign: it passes `safe`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from relay_core.protocol.report import NUMERIC, Finding, KeyNumber, NightlyReport, Plot, ReportTable, TableColumn
from relay_core.text.bars import bar, spark
from relay_core.text.columns import columns, cut, padded, wrapped
from relay_core.text.units import change, format_duration, format_value, plural
from relay_supervisor.cli.output import paint, safe, terminal_width

FEW_ROWS = 10
_READABLE = 100
_WIDEST = 40
_BAR = 20
_BAR_LEAST = 6
_MARKS = {"bad": ("✗", "red"), "warn": ("▲", "yellow"), "good": ("✓", "green"), "info": ("•", "dim")}


def report_lines(report: NightlyReport) -> Iterator[str]:
    """Yield a whole report, long tables cut."""
    yield from _opening(report)
    for finding in report.attention:
        yield from _finding(finding)
    yield ""
    yield from _numbers(report.headline)
    if report.plots:
        yield ""
        yield from _plots(report.plots)
    for name, one in report.tables.items():
        if one.rows:
            yield ""
            yield from table_lines(report.date, name, one, FEW_ROWS)
    if empty := [one.title.lower() for one in report.tables.values() if not one.rows]:
        yield ""
        width = min(terminal_width(), _READABLE)
        yield from (paint(line, "dim") for line in _wrapped(f"nothing in: {', '.join(empty)}", width))


def table_lines(date: str, name: str, one: ReportTable, most: int | None = None) -> Iterator[str]:
    """Yield a table: its title, what it says, and its rows."""
    shown_rows, title = one.rows[:most], safe(one.title)
    room = terminal_width() - columns(title) - 2
    yield f"{paint(title, 'bold')}  {paint(cut(safe(one.about), room), 'dim') if room > _WIDEST else ''}".rstrip()
    yield from _grid(one, shown_rows)
    if len(shown_rows) < len(one.rows):
        yield paint(f"… {one.total:,} rows: relay report show {safe(date)} --table {safe(name)}", "dim")
    elif len(one.rows) < one.total:
        yield paint(f"… the first of {one.total:,} rows; the Parquet table {safe(name)} has them all", "dim")


def _opening(report: NightlyReport) -> Iterator[str]:
    count = report.attention_count
    needs = f"{plural(count, 'thing needs', 'things need')} attention"
    words = paint(needs, "yellow") if count else paint("nothing needs attention", "green")
    yield f"{paint(f'Report of {safe(report.date)}', 'bold')}  {words}"
    if not report.complete:
        yield paint(f"so far, until {safe(report.until[11:16])} UTC: the day was not over", "yellow")
    made = report.made_at.replace("T", " ").removesuffix("Z")
    about = f"{report.events:,} events, made {made} UTC in {format_duration(report.took_secs, spaced=True)}"
    yield from (paint(line, "dim") for line in _wrapped(about, terminal_width()))
    yield ""


def _finding(one: Finding) -> Iterator[str]:
    mark, colour = _MARKS.get(one.level, _MARKS["info"])
    width = min(terminal_width(), _READABLE)
    title, *more = _wrapped(one.title, width - 2)
    yield f"{paint(mark, colour)} {paint(title, 'bold')}"
    yield from (f"  {paint(line, 'bold')}" for line in more)
    yield from (f"  {line}" for line in _wrapped(one.text, width - 2))
    if one.command:
        yield f"  {paint('$', 'dim')} {safe(one.command)}"


def _wrapped(text: str, width: int) -> list[str]:
    return wrapped(safe(text), max(width, 20))


def _numbers(numbers: Sequence[KeyNumber]) -> Iterator[str]:
    cells = [
        (
            safe(one.title),
            format_value(one.value, one.unit, spaced=True),
            format_value(one.usual, one.unit, spaced=True),
            change(one.change),
            spark(one.trend),
        )
        for one in numbers
    ]
    if not cells:
        return
    heads = ("", "this day", "usual", "change", "days before, and this one")
    widths = [max(columns(row[at]) for row in (heads, *cells)) for at in range(4)]
    room = terminal_width() - sum(widths) - 8
    for at, row in enumerate((heads, *cells)):
        name, *values = (padded(row[column], widths[column], right=column > 0) for column in range(4))
        trend = cut(row[4], room) if room >= 2 else ""
        line = "  ".join([name, *values, trend]).rstrip()
        yield paint(line, "dim") if at == 0 else line


def _plots(plots: Sequence[Plot]) -> Iterator[str]:
    lines = [plot for plot in plots if plot.form != "range"]
    width = max((columns(safe(plot.title)) for plot in lines), default=0)
    for plot in lines:
        values = plot.series[0].values
        known = [at for at in range(min(len(values), len(plot.labels))) if values[at]]
        peak = max(known, key=lambda at: values[at] or 0, default=None)
        most = "nothing"
        if peak is not None:
            most = f"most {format_value(values[peak], plot.unit, spaced=True)} at {safe(plot.labels[peak])}"
        drawn = f"{padded(safe(plot.title), width)}  {spark(values)}"
        yield f"{drawn}  {paint(most, 'dim')}" if columns(drawn) + columns(most) + 2 <= terminal_width() else drawn


class _Laid(NamedTuple):
    """A column with its texts, as wide as they are."""

    column: TableColumn
    texts: list[str]
    width: int


def _grid(one: ReportTable, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    laid = []
    for column in one.columns:
        texts = [_cell(column, row) for row in rows]
        width = min(max(map(columns, (safe(column.title), *texts))), _WIDEST if terminal_width() < 200 else 120)
        laid.append(_Laid(column, [cut(text, width) for text in texts], width))
    kept = [at for at, each in enumerate(laid) if at == 0 or each.column.name == one.bar]
    drawn_values = [_number(row.get(one.bar)) for row in rows] if one.bar else []
    drawn = len(kept) > 1 and any(drawn_values)
    fits = terminal_width() - (_BAR_LEAST + 2 if drawn else 0)
    chosen = list(range(len(laid)))
    while sum(laid[at].width + 2 for at in chosen) - 2 > fits and (less := [at for at in chosen if at not in kept]):
        chosen.remove(less[-1])
    room = min(terminal_width() - sum(laid[at].width + 2 for at in chosen), _BAR)
    heads = [padded(safe(laid[at].column.title).upper(), laid[at].width, right=_is_right(laid[at])) for at in chosen]
    yield paint("  ".join(heads).rstrip(), "dim")
    largest = max(map(abs, drawn_values), default=0) or 1
    for at in range(len(rows)):
        cells = [padded(laid[column].texts[at], laid[column].width, right=_is_right(laid[column])) for column in chosen]
        if drawn and room >= _BAR_LEAST:
            cells.append(bar(abs(drawn_values[at]) / largest, room))
        yield "  ".join(cells).rstrip()


def _cell(column: TableColumn, row: dict[str, Any]) -> str:
    unit = str(row.get("unit", "count")) if column.unit == "varies" else column.unit
    return format_value(row.get(column.name), unit, spaced=True)


def _is_right(laid: _Laid) -> bool:
    return laid.column.unit in NUMERIC


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
