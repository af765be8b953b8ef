"""What a report is made from: the day's tables and numbers as plain rows, with what is usual beside them."""

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
"""Characters of a text in a table."""


class Table(NamedTuple):
    """The first rows of a table, as SHOWN orders and limits them, and how many there are in all."""

    rows: Sequence[Row]
    total: int


@dataclass(frozen=True)
class ReportInputs:
    """All that is known of a day."""

    day: Day
    tables: Mapping[str, Table]
    daily: Sequence[Row] = ()
    """The day's numbers: metric, key, value. The key of what is about everything is empty."""
    history: Sequence[Row] = ()
    """The same of the days before, with their date."""
    ingest: Mapping[str, Any] = field(default_factory=dict)
    """What the events were taken from: events, segments, badLines by reason, unknownKinds, ingestedAt."""

    def rows(self, table: str) -> Sequence[Row]:
        """Return a table's rows, or none if it was not made."""
        return self.tables[table].rows if table in self.tables else ()

    def today(self, metric: str) -> float | None:
        """Return a number about all of the day."""
        return _whole(metric, self.daily)

    def days_before(self) -> list[date]:
        """Return the days of the baseline, oldest first, whether there is anything of them or not."""
        return [self.day.date - timedelta(days=back) for back in range(HISTORY_DAYS, 0, -1)]

    def known_days(self) -> set[str]:
        """Return the days before of which anything is known."""
        return set(self._by_day)

    def before(self, metric: str) -> list[float | None]:
        """Return a number about all of each day before; of a day that is not known, None."""
        days = self._by_day
        return [_whole(metric, days[str(day)]) if str(day) in days else None for day in self.days_before()]

    @cached_property
    def _by_day(self) -> dict[str, list[Row]]:
        days: dict[str, list[Row]] = {}
        for row in self.history:
            days.setdefault(str(row["date"]), []).append(row)
        return days

    def usual(self, metric: str) -> float | None:
        """Return the median of the days before, or None if there are none."""
        values = [value for value in self.before(metric) if value is not None]
        return median(values) if values else None


def _whole(metric: str, rows: Sequence[Row]) -> float | None:
    """Return a metric of one day: its total, else the greatest of its parts (a latency has no total).

    Where it has no row there was none of it: zero of what is counted, nothing of what is measured.
    """
    about = (row for row in rows if row["metric"] == metric and row["value"] is not None)
    found: dict[str, float] = {row.get("key") or "": row["value"] for row in about}
    if "" in found:
        return found[""]
    return max(found.values(), default=None) if metric.endswith("Us") else 0.0


def counts_of(ingest: Mapping[str, Any], name: str) -> dict[str, int]:
    """Return counts by reason or kind, the largest first, without those of none."""
    counts = {str(plain(key)): int(number) for key, number in (ingest.get(name) or {}).items() if number}
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def name_of(row: Row) -> str:
    """Return what a target is called."""
    return str(row.get("name") or row.get("target") or "an unnamed target")


def plain(value: Any) -> Any:
    """Return a value of a row as JSON can hold it, texts cut."""
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
