"""report.html: one self-contained file, readable on a phone, on paper, in light and in dark mode.

1. It opens with the day and its findings, then the numbers, the plots, the tables, and the input.
2. No script and nothing from the network. Every text passes `markup.element`, which escapes it.
3. No text makes the page wider: long words break or are cut, wide tables scroll.
4. Rows beyond the first twenty of a table, findings beyond the first eight, and notes are folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from importlib.resources import files
from typing import Any

from relay_core.protocol.report import NUMERIC, Finding, KeyNumber, NightlyReport, Plot, ReportTable, TableColumn
from relay_core.text.units import change, plural
from spark.report import svg
from spark.report.findings import needs_attention
from spark.report.markup import Markup, element, joined
from spark.report.wording import format_duration, format_value

OPEN_ROWS = 20
OPEN_FINDINGS = 8
_LEVELS = {"bad": "✕ Problem", "warn": "▲ Warning", "info": "• Note", "good": "✓ Good"}
_NOTABLE = 0.1
"""A smaller change is not marked as better or worse."""


def page(report: NightlyReport) -> str:
    """Return report.html."""
    day = date.fromisoformat(report.date)
    empty = ", ".join(table.title.lower() for table in report.tables.values() if not table.rows)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content="relay"),
        element("title", f"Relay, {report.date}: {_attention_words(report)}"),
        element("style", Markup(files("spark.report").joinpath("report.css").read_text("utf-8"))),
    )
    body = element(
        "main",
        _opening(report, day),
        *_findings(report.attention),
        element("dl", *(_number(number, at) for at, number in enumerate(report.headline)), class_="numbers"),
        element("h2", "The day in pictures", id="plots") if report.plots else None,
        element("div", *map(_figure, report.plots), class_="plots") if report.plots else None,
        element("h2", "Tables", id="tables") if report.tables else None,
        *(_section(name, table) for name, table in report.tables.items() if table.rows),
        element("p", f"This day has nothing in: {empty}.", class_="nothing") if empty else None,
        _data(report),
        element("footer", f"Relay, report version {report.version}. Times are UTC."),
    )
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def _opening(report: NightlyReport, day: date) -> Markup:
    made = f"{plural(report.events, 'event')} · made {report.made_at.replace('T', ' ').removesuffix('Z')} UTC"
    so_far = element("span", f"So far, until {report.until[11:16]} UTC", class_="so-far")
    places = {"#plots": "Plots"} if report.plots else {}
    places |= {f"#{name}": table.title for name, table in report.tables.items() if table.rows}
    return element(
        "header",
        element("p", "Relay · daily report", class_="eyebrow"),
        element("h1", f"{day:%A}, {day.day} {day:%B %Y}"),
        element(
            "p",
            *([] if report.complete else [so_far, " · "]),
            f"{_attention_words(report).capitalize()} · {made} in {format_duration(report.took_secs)}",
            class_="made",
        ),
        element("nav", *(element("a", title, href=place) for place, title in places.items()), aria_label="Parts"),
    )


def _attention_words(report: NightlyReport) -> str:
    number = report.attention_count
    return f"{plural(number, 'thing needs', 'things need')} attention" if number else "nothing needs attention"


def _findings(found: Sequence[Finding]) -> Iterator[Markup]:
    """Yield the first findings, and the rest and the notes folded."""
    first = [finding for at, finding in enumerate(found[:OPEN_FINDINGS]) if needs_attention(finding) or not at]
    rest = found[len(first) :]
    yield element("ul", *map(_finding, first), class_="findings")
    if rest:
        folded = element("ul", *map(_finding, rest), class_="findings")
        words = "note" if not any(map(needs_attention, rest)) else "finding"
        yield element("details", element("summary", plural(len(rest), f"more {words}")), folded, class_="folded")


def _finding(finding: Finding) -> Markup:
    more = element("a", "More", href=f"#{finding.table}") if finding.table else None
    command = element("code", finding.command) if finding.command else None
    text = element("p", finding.text, class_="text") if finding.text else None
    return element(
        "li",
        element("span", _LEVELS[finding.level], class_="level"),
        element("div", element("h3", finding.title), text),
        element("p", command, " " if command and more else None, more, class_="next") if command or more else None,
        class_=f"finding {finding.level}",
    )


def _number(number: KeyNumber, at: int) -> Markup:
    changed = _change(number.change, number.less_is_better) if number.change is not None else None
    usual = f"usually {format_value(number.usual, number.unit)}" if number.usual is not None else None
    trend = svg.trend(f"trend-{at}", f"{number.title} by day", number.trend, number.unit) if any(number.trend) else None
    return element(
        "div",
        element("dt", number.title),
        element("dd", format_value(number.value, number.unit), class_="value"),
        element("dd", changed, " " if changed and usual else None, usual, class_="usual"),
        element("dd", trend) if trend else None,
        class_="number",
    )


def _change(share: float, less_is_better: bool) -> Markup:
    if abs(share) < _NOTABLE:
        return element("span", change(share), class_="change")
    arrow, tone = ("▲", " worse") if share > 0 else ("▼", " better")
    return element("span", f"{arrow} {change(share)}", class_=f"change{tone if less_is_better else ''}")


def _figure(plot: Plot) -> Markup:
    caption = element("figcaption", element("h3", plot.title), element("p", plot.about, class_="about"))
    drawn = {"hours": _hours, "days": _days, "range": _ranges}[plot.form](plot)
    return element("figure", caption, drawn, class_=plot.form)


def _hours(plot: Plot) -> Markup:
    values = plot.series[0].values
    ticks = [(at, plot.labels[at]) for at in (0, 6, 12, 18, 23)]
    return svg.columns(plot.name, plot.title, _describe(plot), values, labels=plot.labels, ticks=ticks, unit=plot.unit)


def _days(plot: Plot) -> Markup:
    last = len(plot.labels) - 1
    return svg.columns(
        plot.name,
        plot.title,
        _describe(plot),
        plot.series[0].values,
        labels=plot.labels,
        ticks=[(at, _short_day(plot.labels[at])) for at in (0, 7, last) if at <= last],
        unit=plot.unit,
        usual=next((series.values[0] for series in plot.series[1:] if series.values), None),
        chosen=last,
    )


def _ranges(plot: Plot) -> Markup:
    scale = svg.log_scale([value for series in plot.series for value in series.values])
    rows = []
    for at, label in enumerate(plot.labels):
        low, middle, high = (series.values[at] for series in plot.series)
        words = [format_value(value, plot.unit) for value in (low, middle, high)]
        about = f"p50 {words[0]}, p95 {words[1]}, p99 {words[2]}"
        rows.append(
            element(
                "div",
                element("span", label, class_="name", title=label),
                element("span", f"{words[0]} · ", element("b", words[1]), f" · {words[2]}", class_="values"),
                svg.ranges(f"{plot.name}-{at}", label, about, low, middle, high, scale),
                class_="row",
            )
        )
    key = element("p", "○ p50 · ◆ p95 · | p99, on a scale where each step is ten times the one before.", class_="about")
    return joined([*rows, svg.scale_row(scale, plot.unit), key])


def _describe(plot: Plot) -> str:
    """Describe a plot in a sentence."""
    values = plot.series[0].values
    known = [at for at, value in enumerate(values) if value is not None]
    most = max(known, key=lambda at: values[at] or 0, default=None)
    if most is None or not values[most]:
        return "No data."
    total = format_value(sum(values[at] or 0 for at in known), plot.unit)
    return f"{total} in total; most at {plot.labels[most]} with {format_value(values[most], plot.unit)}."


def _section(name: str, table: ReportTable) -> Markup:
    parts: list[Any] = [element("h3", table.title), element("p", table.about, class_="about")]
    parts += _rows(table)
    if table.total > len(table.rows):
        left = f"The first {len(table.rows):,} of {table.total:,} rows; the Parquet table {name} has them all."
        parts.append(element("p", left, class_="more"))
    return element("section", *parts, class_="table", id=name)


def _rows(table: ReportTable) -> Iterator[Markup]:
    largest = max((abs(_as_number(row.get(table.bar or ""))) for row in table.rows), default=0) or 1
    yield _grid(table, table.rows[:OPEN_ROWS], largest, table.title)
    if rest := table.rows[OPEN_ROWS:]:
        grid = _grid(table, rest, largest, f"{table.title}, continued")
        yield element("details", element("summary", plural(len(rest), "more row")), grid)


def _grid(table: ReportTable, rows: Sequence[dict[str, Any]], largest: float, label: str) -> Markup:
    heads = (element("th", column.title, scope="col", class_=_kind(column)) for column in table.columns)
    body = (
        element("tr", *(_cell(column, row, largest, column.name == table.bar) for column in table.columns))
        for row in rows
    )
    grid = element("table", element("thead", element("tr", *heads)), element("tbody", *body))
    return element("div", grid, class_="scroll", tabindex="0", role="region", aria_label=label)


def _cell(column: TableColumn, row: dict[str, Any], largest: float, has_bar: bool) -> Markup:
    value = row.get(column.name)
    kinds = [_kind(column)]
    if not value and column.unit in NUMERIC:
        kinds.append("zero")
    style = None
    if has_bar:
        kinds.append("bar")
        style = f"--share:{min(abs(_as_number(value)) / largest, 1) * 100:.1f}%"
    return element("td", format_value(value, column.unit_in(row)), class_=" ".join(kinds), style=style)


def _kind(column: TableColumn) -> str:
    return "number-cell" if column.unit in NUMERIC else "words" if column.unit == "text" else "short"


def _data(report: NightlyReport) -> Markup:
    data = report.data
    facts = {"Events": format_value(data["events"], "count"), "Segments": format_value(data["segments"], "count")}
    facts |= {f"Bad lines, {reason}": format_value(count, "count") for reason, count in data["badLines"].items()}
    facts |= {f"Unknown kind {kind}": format_value(count, "count") for kind, count in data["unknownKinds"].items()}
    parts = [part for name, words in facts.items() for part in (element("dt", name), element("dd", words))]
    return element(
        "section", element("h3", "Made from"), element("dl", *parts, class_="facts"), class_="table", id="data"
    )


def _as_number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _short_day(label: str) -> str:
    day = date.fromisoformat(label)
    return f"{day.day} {day:%b}"
