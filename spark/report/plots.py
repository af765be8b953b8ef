"""What is drawn: the day's hours, the days before it, and how long deliveries took. Pure numbers; svg.py draws.

1. Each plot has one scale and one unit: messages in thousands never flatten three dead letters beside them.
2. A plot of nothing but zeros is left out: the headline says so already.
3. An hour that is not over, or not there yet, is unknown and not zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from relay_core.protocol.report import Plot, Series
from spark.report.inputs import ReportInputs, Row, name_of

HOUR_MS = 3_600_000
_TARGETS = 12
_BY_HOUR = {
    "messages": ("Messages by hour", "Published, by hour of the day in UTC."),
    "refused": ("Refused by hour", "Turned away by a rule, by hour of the day in UTC."),
    "deadLetters": ("Dead letters by hour", "Could not be delivered, by hour of the day in UTC."),
}
_BY_DAY = {
    "messages": ("Messages by day", "This day and the 14 before it; the dashed line is the usual day."),
    "deadLetters": ("Dead letters by day", "This day and the 14 before it; the dashed line is the usual day."),
}


def draw(seen: ReportInputs) -> list[Plot]:
    """Return the plots of a day."""
    return [*_hours(seen), *_latency(seen), *_days(seen)]


def _hours(seen: ReportInputs) -> Iterator[Plot]:
    rows = _hourly(seen)
    if rows is None:
        return
    whole = 24 if seen.day.is_over else seen.day.until_ms % (24 * HOUR_MS) // HOUR_MS + 1
    for name, (title, about) in _BY_HOUR.items():
        counts: dict[int, float] = defaultdict(float)
        for row in rows:
            counts[row["hour"]] += row.get(name) or 0  # a throughput that stands in for it has no dead letters
        if not any(counts.values()):
            continue
        yield Plot(
            name=f"{name}ByHour",
            title=title,
            about=about,
            form="hours",
            unit="count",
            labels=[f"{hour:02}:00" for hour in range(24)],
            series=[Series(name=name, values=[counts[hour] if hour < whole else None for hour in range(24)])],
        )


def _hourly(seen: ReportInputs) -> list[Row] | None:
    """Return rows by hour: the table made for it, or throughput if all of it is here."""
    if "hours" in seen.tables:
        return list(seen.rows("hours"))
    table = seen.tables.get("throughput")
    return list(table.rows) if table is not None and table.total <= len(table.rows) else None


def _latency(seen: ReportInputs) -> Iterator[Plot]:
    """Yield the slowest of the busier targets, end to end."""
    rows = [row for row in seen.rows("latency") if row.get("step") == "total" and row.get("p95Us") is not None]
    if not rows:
        return
    slowest = sorted(rows, key=lambda row: (-row["p95Us"], name_of(row)))[:_TARGETS]
    yield Plot(
        name="latency",
        title="Slowest targets",
        about="From publish to the end of handling: half were done by p50, 95 % by p95, 99 % by p99.",
        form="range",
        unit="us",
        labels=[name_of(row) for row in slowest],
        series=[Series(name=part, values=[row.get(f"{part}Us") for row in slowest]) for part in ("p50", "p95", "p99")],
    )


def _days(seen: ReportInputs) -> Iterator[Plot]:
    if not seen.known_days():
        return
    for name, (title, about) in _BY_DAY.items():
        values = [*seen.before(name), seen.today(name) or 0.0]
        if not any(values):
            continue
        usual = seen.usual(name)
        yield Plot(
            name=f"{name}ByDay",
            title=title,
            about=about if seen.day.is_over else f"{about} This day is not over.",
            form="days",
            unit="count",
            labels=[str(day) for day in [*seen.days_before(), seen.day.date]],
            series=[Series(name=name, values=values), Series(name="usual", values=[usual] * len(values))],
        )
