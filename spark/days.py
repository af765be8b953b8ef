"""Days: how much of a day can be analysed, and which days a run makes.

1. A report is *behind* if it is missing, if events were ingested since it was made, or if it was made before its day
   was over and the day is over now.
2. Without dates, a run makes every report that is behind, except today's unless the request includes today.
3. A date, a range and a backfill remake reports that are up to date. Days without events are skipped, except a day
   named by date.
4. Days are made oldest first, because each day starts from the states that the day before left open.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection
from dataclasses import dataclass

DAY_MS = 86_400_000
HISTORY_DAYS = 14
"""Days before a day that it is compared with."""


@dataclass(frozen=True, slots=True)
class Day:
    """A UTC date, and how much of it can be analysed."""

    date: dt.date
    until_ms: int
    """The end of the analysed time: the day's end, or now while the day is not over."""

    @classmethod
    def of(cls, day: dt.date, now_ms: int) -> Day:
        """Return a day as of now."""
        start = _start_ms(day)
        return cls(day, min(start + DAY_MS, max(now_ms, start)))

    @property
    def start_ms(self) -> int:
        """Return the day's first moment."""
        return _start_ms(self.date)

    @property
    def is_over(self) -> bool:
        """Return True if the whole day can be analysed."""
        return self.until_ms - self.start_ms >= DAY_MS


@dataclass(frozen=True, slots=True)
class Request:
    """The days a run was asked to make."""

    date: dt.date | None = None
    since: dt.date | None = None
    until: dt.date | None = None
    backfill: bool = False
    today: bool = False
    """Include the current day."""

    def __post_init__(self) -> None:
        """Check that the options fit together.

        Raises:
            ValueError: if they do not; says what to change.
        """
        if sum((self.date is not None, self.since is not None, self.backfill)) > 1:
            raise ValueError("give only one of a date, a range and a backfill")
        if self.until is not None and (self.since is None or self.until < self.since):
            raise ValueError("the end of a range needs a start that is not after it")

    def covers(self, day: dt.date, today: dt.date) -> bool:
        """Return True if the request covers a day."""
        if self.date is not None:
            return day == self.date
        if self.since is not None:
            return self.since <= day <= (self.until or today)
        return day < today or (day == today and (self.today or self.backfill))

    @property
    def remakes(self) -> bool:
        """Return True if reports that are up to date are remade."""
        return self.date is not None or self.since is not None or self.backfill


def choose(
    request: Request,
    today: dt.date,
    *,
    fresh: Collection[dt.date],
    known: Collection[dt.date],
    is_behind: Callable[[dt.date], bool],
) -> list[dt.date]:
    """Return the days to make, oldest first: `fresh` have new segments, `known` were ingested before.

    Raises:
        ValueError: if the first day is in the future.
    """
    first = request.date or request.since
    if first is not None and first > today:
        raise ValueError(f"{first} is in the future; today is {today} (UTC)")
    if request.date is not None:
        return [request.date]
    chosen = set(fresh)
    chosen.update(day for day in known if request.remakes or (day not in chosen and is_behind(day)))
    return sorted(day for day in chosen if request.covers(day, today))


def _start_ms(day: dt.date) -> int:
    return int(dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC).timestamp()) * 1000
