"""A nightly report as text: findings, key numbers with their change, spark lines, tables with bars.

1. Every line fits the terminal: text is wrapped, and columns without room are dropped from the right, except the first
   and the one drawn as bars. ``--table`` shows all rows, and in a pipe all columns.
2. All text in a report is untrusted and passes through `safe`.
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
    """Yield a whole report; long tables are cut."""
    yield from _opening(report)
    for finding in report.attention:
        yield from _finding(finding)
    yield ""
    yield from _numbers(report.headline)
    if report.plots:
        yield ""
        yield from _plots(report.plots)
    for name, table in report.tables.items():
        if table.rows:
            yield ""
            yield from table_lines(report.date, name, table, FEW_ROWS)
    if empty := [table.title.lower() for table in report.tables.values() if not table.rows]:
        yield ""
        width = min(terminal_width(), _READABLE)
        yield from (paint(line, "dim") for line in _wrapped(f"empty tables: {', '.join(empty)}", width))


def table_lines(date: str, name: str, table: ReportTable, limit: int | None = None) -> Iterator[str]:
    """Yield a table: its title, its description and its rows."""
    rows, title = table.rows[:limit], safe(table.title)
    room = terminal_width() - columns(title) - 2
    yield f"{paint(title, 'bold')}  {paint(cut(safe(table.about), room), 'dim') if room > _WIDEST else ''}".rstrip()
    yield from _grid(table, rows)
    if len(rows) < len(table.rows):
        yield paint(f"… {table.total:,} rows: relay report show {safe(date)} --table {safe(name)}", "dim")
    elif len(table.rows) < table.total:
        yield paint(f"… {table.total:,} rows in all, in the Parquet table {safe(name)}", "dim")


def _opening(report: NightlyReport) -> Iterator[str]:
    count = report.attention_count
    needs = f"{plural(count, 'finding needs', 'findings need')} attention"
    summary = paint(needs, "yellow") if count else paint("nothing needs attention", "green")
    yield f"{paint(f'Report of {safe(report.date)}', 'bold')}  {summary}"
    if not report.complete:
        yield paint(f"incomplete day: until {safe(report.until[11:16])} UTC", "yellow")
    created = report.made_at.replace("T", " ").removesuffix("Z")
    about = (
        f"{plural(report.events, 'event')}, created {created} UTC in {format_duration(report.took_secs, spaced=True)}"
    )
    yield from (paint(line, "dim") for line in _wrapped(about, terminal_width()))
    yield ""


def _finding(finding: Finding) -> Iterator[str]:
    mark, colour = _MARKS.get(finding.level, _MARKS["info"])
    width = min(terminal_width(), _READABLE)
    title, *more = _wrapped(finding.title, width - 2)
    yield f"{paint(mark, colour)} {paint(title, 'bold')}"
    yield from (f"  {paint(line, 'bold')}" for line in more)
    yield from (f"  {line}" for line in _wrapped(finding.text, width - 2))
    if finding.command:
        yield f"  {paint('$', 'dim')} {safe(finding.command)}"


def _wrapped(text: str, width: int) -> list[str]:
    return wrapped(safe(text), max(width, 20))


def _numbers(numbers: Sequence[KeyNumber]) -> Iterator[str]:
    cells = [
        (
            safe(number.title),
            format_value(number.value, number.unit, spaced=True),
            format_value(number.usual, number.unit, spaced=True),
            change(number.change),
            spark(number.trend),
        )
        for number in numbers
    ]
    if not cells:
        return
    heads = ("", "this day", "usual", "change", "last days")
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
        most = "none"
        if peak is not None:
            most = f"most {format_value(values[peak], plot.unit, spaced=True)} at {safe(plot.labels[peak])}"
        drawn = f"{padded(safe(plot.title), width)}  {spark(values)}"
        yield f"{drawn}  {paint(most, 'dim')}" if columns(drawn) + columns(most) + 2 <= terminal_width() else drawn


class _Column(NamedTuple):
    """A column with its texts, cut to its width."""

    column: TableColumn
    texts: list[str]
    width: int

    def cell(self, text: str) -> str:
        """Return a text padded to the column's width, numbers on the right."""
        return padded(text, self.width, right=self.column.unit in NUMERIC)


def _grid(table: ReportTable, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    layout = []
    for column in table.columns:
        texts = [format_value(row.get(column.name), column.unit_in(row), spaced=True) for row in rows]
        width = min(max(map(columns, (safe(column.title), *texts))), _WIDEST if terminal_width() < 200 else 120)
        layout.append(_Column(column, [cut(text, width) for text in texts], width))
    kept = [column for at, column in enumerate(layout) if at == 0 or column.column.name == table.bar]
    bar_values = [_number(row.get(table.bar)) for row in rows] if table.bar else []
    has_bars = len(kept) > 1 and any(bar_values)
    fits = terminal_width() - (_BAR_LEAST + 2 if has_bars else 0)
    shown = list(layout)
    while sum(column.width + 2 for column in shown) - 2 > fits and len(shown) > len(kept):
        del shown[max(at for at, column in enumerate(shown) if column not in kept)]
    room = min(terminal_width() - sum(column.width + 2 for column in shown), _BAR)
    heads = [column.cell(safe(column.column.title).upper()) for column in shown]
    yield paint("  ".join(heads).rstrip(), "dim")
    largest = max(map(abs, bar_values), default=0) or 1
    for at in range(len(rows)):
        cells = [column.cell(column.texts[at]) for column in shown]
        if has_bars and room >= _BAR_LEAST:
            cells.append(bar(abs(bar_values[at]) / largest, room))
        yield "  ".join(cells).rstrip()


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
