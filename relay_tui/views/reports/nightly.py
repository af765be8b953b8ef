"""Spark's report as sections, which are tables with units. The document is untrusted.

1. The order is that of the report: attention, key numbers, hours, days, tables, and its sources.
2. A finding is one row; its explanation is shown above the rows while the cursor is on it.
3. Plots over the same hours or days are one section with a column for each. Ranges are in their table only.
4. Numbers are drawn as bars if there are at most 50 rows.
5. A row with the id of a message or a trace links to it; one with a subject or a sender links to their traces.
6. Texts are cleaned; rows, columns and cells are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay_core.protocol.report import NUMERIC, Finding, KeyNumber, NightlyReport, Plot, ReportTable
from relay_core.text.bars import spark
from relay_core.text.sanitize import clean
from relay_core.text.units import change, format_duration, format_value

MAX_ROWS = 2000
MAX_COLUMNS = 24
_BAR_ROWS = 50
_CELL = 120
_EXPLANATION = 400
_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_SUBJECT = re.compile(r"relay(\.[A-Za-z0-9_*>-]+)+")
_LINKS = {"subject": "subject", "endpoint": "subject", "sender": "from", "from": "from"}
_MARKS = {"bad": ("✗", "bad"), "warn": ("▲", "warn"), "good": ("✓", "ok"), "info": ("•", "")}


@dataclass(frozen=True, slots=True)
class Section:
    """A table of a report; its texts are safe to show."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    links: list[str | None]
    """The search for the traces screen, by row."""
    sources: list[Any]
    """The JSON value of each row."""
    numeric: frozenset[int] = frozenset()
    """The numeric columns."""
    shares: dict[int, list[float]] = field(default_factory=dict)
    """Of each column that can be drawn: the values relative to the largest."""
    note: str = ""
    """What was left out."""
    about: str = ""
    """A description of the section."""
    bar: int | None = None
    """The column that is drawn unless another is chosen."""
    explanations: list[tuple[str, str]] | None = None
    """A text and a command for each row."""
    styles: list[str] | None = None
    """The styles of the first column; otherwise links stand out."""
    widest: int = 36
    """The maximum width of a column."""


def sections_of(report: NightlyReport) -> Iterator[Section]:
    """Yield the sections of a report."""
    yield _attention(report.attention)
    yield _numbers(report.headline)
    yield from _plots("by hour", [plot for plot in report.plots if plot.form == "hours"])
    yield from _plots("by day", [plot for plot in report.plots if plot.form == "days"])
    for table in report.tables.values():
        yield _table(table)
    yield _about(report)


def _attention(findings: Sequence[Finding]) -> Section:
    findings = findings[:MAX_ROWS]
    marks = [_MARKS.get(finding.level, _MARKS["info"]) for finding in findings]
    sources = [finding.to_wire() for finding in findings]
    return Section(
        title="attention",
        columns=("finding",),
        rows=[(f"{mark} {clean(finding.title, _CELL)}",) for (mark, _), finding in zip(marks, findings, strict=True)],
        links=[_link(source) for source in sources],
        sources=sources,
        explanations=[
            (clean(finding.text, _EXPLANATION), clean(finding.command or "", _EXPLANATION)) for finding in findings
        ],
        styles=[style for _, style in marks],
        widest=_CELL,
    )


def _numbers(numbers: Sequence[KeyNumber]) -> Section:
    numbers = numbers[:MAX_ROWS]
    return Section(
        title="key numbers",
        columns=("", "today", "usual", "change", "days"),
        rows=[
            (
                clean(number.title, _CELL),
                format_value(number.value, number.unit),
                format_value(number.usual, number.unit),
                change(number.change),
                spark(number.trend[-30:]),
            )
            for number in numbers
        ],
        numeric=frozenset({1, 2, 3}),
        links=[None] * len(numbers),
        sources=[number.to_wire() for number in numbers],
    )


def _plots(title: str, plots: Sequence[Plot]) -> Iterator[Section]:
    """Yield plots with the same labels as one table."""
    alike = [plot for plot in plots if plot.labels == plots[0].labels][: MAX_COLUMNS - 1]
    if not alike:
        return
    labels = alike[0].labels[:MAX_ROWS]
    values = [[*plot.series[0].values, *[None] * len(labels)][: len(labels)] for plot in alike]
    yield Section(
        title=title,
        columns=("", *(clean(plot.title, 40).removesuffix(f" {title}").lower() for plot in alike)),
        rows=[
            (
                clean(label, _CELL),
                *(format_value(column[at], plot.unit) for plot, column in zip(alike, values, strict=True)),
            )
            for at, label in enumerate(labels)
        ],
        numeric=frozenset(range(1, len(alike) + 1)),
        shares={at: _shares(column) for at, column in enumerate(values, 1)} if len(labels) <= _BAR_ROWS else {},
        links=[None] * len(labels),
        sources=[
            {plot.title: column[at] for plot, column in zip(alike, values, strict=True)} for at in range(len(labels))
        ],
    )


def _table(table: ReportTable) -> Section:
    columns, rows = table.columns[:MAX_COLUMNS], table.rows[:MAX_ROWS]
    numeric = {at for at, column in enumerate(columns) if column.unit in NUMERIC}
    values = {
        at: [_number(row.get(columns[at].name)) for row in rows] for at in numeric if columns[at].unit != "varies"
    }
    drawn = values if len(rows) <= _BAR_ROWS else {}
    left_out = table.total - len(rows)
    return Section(
        title=clean(table.title, 40).lower(),
        columns=tuple(clean(column.title, 40) for column in columns),
        rows=[tuple(format_value(row.get(column.name), column.unit_in(row)) for column in columns) for row in rows],
        numeric=frozenset(numeric),
        shares={at: _shares(column) for at, column in sorted(drawn.items())},
        links=[_link({"subject": row.get("name"), **row}) for row in rows],  # a target's name is often a subject
        sources=list(rows),
        note=f"{left_out:,} more are in the Parquet table" if left_out > 0 else "",
        bar=next((at for at in drawn if columns[at].name == table.bar), None),
        about=clean(table.about, _EXPLANATION),
    )


def _about(report: NightlyReport) -> Section:
    facts: dict[str, Any] = {
        "date": report.date,
        "complete": report.complete,
        "until": report.until,
        "made at": report.made_at,
        "took": format_duration(report.took_secs),
        "events": report.events,
    }
    for name, part in report.data.items():
        if isinstance(part, dict):
            facts |= {f"{name}, {key}": count for key, count in part.items()}
        else:
            facts.setdefault(name, part)
    pairs = list(facts.items())[:MAX_ROWS]
    return Section(
        title="made from",
        columns=("", "value"),
        rows=[(clean(name, 60), format_value(value, "count")) for name, value in pairs],
        links=[None] * len(pairs),
        sources=[{name: value} for name, value in pairs],
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _shares(values: Sequence[float | None]) -> list[float]:
    """Return the values relative to the largest."""
    sizes = [abs(value or 0.0) for value in values]
    largest = max(sizes, default=0.0) or 1.0
    return [value / largest for value in sizes]


def _link(named: Mapping[str, Any]) -> str | None:
    """Return the search for a row with named values: a message, a trace, else a subject or a sender."""
    texts = {key.replace("_", "").lower(): value for key, value in named.items() if isinstance(value, str)}
    for key in ("messageid", "traceid", "id"):
        if _ID.fullmatch(texts.get(key, "")):
            return texts[key]
    for key, field_name in _LINKS.items():
        if _SUBJECT.fullmatch(texts.get(key, "")):
            return f"{field_name}={texts[key]}"
    return None
