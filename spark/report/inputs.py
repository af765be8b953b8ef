"""The inputs of a report: the day's tables and numbers, and those of earlier days, as plain rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple

from spark.days import HISTORY_DAYS, Day

Row = Mapping[str, Any]
MAX_TEXT = 300
"""Maximum length of a text in a table."""


class Table(NamedTuple):
    """The first rows of a table, as LAYOUT orders and limits them, and the total number of rows."""

    rows: Sequence[Row]
    total: int


@dataclass(frozen=True)
class ReportInputs:
    """The tables and numbers of a day, with its history."""

    day: Day
    tables: Mapping[str, Table]
    daily: Sequence[Row] = ()
    """The day's numbers: metric, key, value. A number of the whole bus has an empty key."""
    history: Sequence[Row] = ()
    """The numbers of the days before, with their date."""
    ingest: Mapping[str, Any] = field(default_factory=dict)
    """What was ingested: events, segments, badLines by reason, unknownKinds, ingestedAt."""

    def rows(self, table: str) -> Sequence[Row]:
        """Return a table's rows; none if it was not made."""
        return self.tables[table].rows if table in self.tables else ()

    def today(self, metric: str) -> float | None:
        """Return a number of the whole day."""
        return _whole(metric, self.daily)

    def days_before(self) -> list[date]:
        """Return the days of the baseline, oldest first, with and without data."""
        return [self.day.date - timedelta(days=back) for back in range(HISTORY_DAYS, 0, -1)]

    def known_days(self) -> set[str]:
        """Return the earlier days that have data."""
        return set(self._by_day)

    def before(self, metric: str) -> list[float | None]:
        """Return a number of each earlier day; None for a day without data."""
        days = self._by_day
        return [_whole(metric, days[str(day)]) if str(day) in days else None for day in self.days_before()]

    @cached_property
    def _by_day(self) -> dict[str, list[Row]]:
        days: dict[str, list[Row]] = {}
        for row in self.history:
            days.setdefault(str(row["date"]), []).append(row)
        return days

    def usual(self, metric: str) -> float | None:
        """Return the median of the earlier days, or None without any."""
        values = [value for value in self.before(metric) if value is not None]
        return median(values) if values else None


def _whole(metric: str, rows: Sequence[Row]) -> float | None:
    """Return a metric of one day: its total, else the greatest of its parts (a latency has no total).

    Without rows, a count is zero and a latency is unknown.
    """
    about = (row for row in rows if row["metric"] == metric and row["value"] is not None)
    found: dict[str, float] = {row.get("key") or "": row["value"] for row in about}
    if "" in found:
        return found[""]
    return max(found.values(), default=None) if metric.endswith("Us") else 0.0


def counts_of(ingest: Mapping[str, Any], name: str) -> dict[str, int]:
    """Return counts by reason or kind, the largest first, without zeros."""
    counts = {str(plain(key)): int(number) for key, number in (ingest.get(name) or {}).items() if number}
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def name_of(row: Row) -> str:
    """Return the display name of a target."""
    return str(row.get("name") or row.get("target") or "an unnamed target")


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it, with texts truncated."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"
        case Mapping():
            return {str(key): plain(part) for key, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case _:
            return plain(str(value))
