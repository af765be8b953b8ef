"""The data of the plots: the day by hour, the days before it, and the latency of targets. svg.py draws them.

1. Each plot has one scale and one unit, so that thousands of messages do not flatten three dead letters.
2. A plot with only zeros is omitted: the headline has the number.
3. An hour that has not begun is unknown, not zero.
"""

from __future__ import annotations

from collections.abc import Iterator

from relay_core.protocol.report import Plot, Series
from spark.report.inputs import ReportInputs, name_of

HOUR_MS = 3_600_000
_TARGETS = 12
_BY_HOUR = {
    "messages": ("Messages by hour", "Published, by hour of the day in UTC."),
    "refused": ("Refused by hour", "Refused by a rule, by hour of the day in UTC."),
    "deadLetters": ("Dead letters by hour", "Could not be delivered, by hour of the day in UTC."),
}
_BY_DAY = {
    "messages": ("Messages by day", "This day and the 14 before it; the dashed line is the usual day."),
    "deadLetters": ("Dead letters by day", "This day and the 14 before it; the dashed line is the usual day."),
}


def draw(inputs: ReportInputs) -> list[Plot]:
    """Return the plots of a day."""
    return [*_hours(inputs), *_latency(inputs), *_days(inputs)]


def _hours(inputs: ReportInputs) -> Iterator[Plot]:
    known = 24 if inputs.day.is_over else inputs.day.until_ms % (24 * HOUR_MS) // HOUR_MS + 1
    for name, (title, about) in _BY_HOUR.items():
        counts: dict[int, float] = {row["hour"]: row.get(name) or 0 for row in inputs.rows("hours")}
        if not any(counts.values()):
            continue
        yield Plot(
            name=f"{name}ByHour",
            title=title,
            about=about,
            form="hours",
            unit="count",
            labels=[f"{hour:02}:00" for hour in range(24)],
            series=[Series(name=name, values=[counts.get(hour, 0) if hour < known else None for hour in range(24)])],
        )


def _latency(inputs: ReportInputs) -> Iterator[Plot]:
    """Yield the slowest targets, end to end."""
    rows = [row for row in inputs.rows("latency") if row.get("step") == "total" and row.get("p95Us") is not None]
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


def _days(inputs: ReportInputs) -> Iterator[Plot]:
    if not inputs.known_days():
        return
    for name, (title, about) in _BY_DAY.items():
        values = [*inputs.before(name), inputs.today(name) or 0.0]
        if not any(values):
            continue
        usual = inputs.usual(name)
        yield Plot(
            name=f"{name}ByDay",
            title=title,
            about=about if inputs.day.is_over else f"{about} This day is not over.",
            form="days",
            unit="count",
            labels=[str(day) for day in [*inputs.days_before(), inputs.day.date]],
            series=[Series(name=name, values=values), Series(name="usual", values=[usual] * len(values))],
        )
