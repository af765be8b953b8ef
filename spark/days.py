"""Days: how much of a day can be analysed, and which days a run is for.

1. A report is *behind* if there is none, if events have come in since it was made, or if it was made before its day was
   over and the day is over now.
2. Without dates a run makes what is behind. Today is left to tomorrow, unless the run says otherwise.
3. A date, or a range, is made again whatever there is; so is everything by a backfill. Days without events are
   passed over, except one that was named.
4. Oldest first, since each day begins with what the day before has left open.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection
from dataclasses import dataclass

DAY_MS = 86_400_000
HISTORY_DAYS = 14
"""How many preceding days a day is compared with."""


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
    """What a run was asked for."""

    date: dt.date | None = None
    since: dt.date | None = None
    until: dt.date | None = None
    backfill: bool = False
    today: bool = False
    """Whether the day that is not over is made, too."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            ValueError: with what to change.
        """
        if sum((self.date is not None, self.since is not None, self.backfill)) > 1:
            raise ValueError("give one of a date, a range and a backfill")
        if self.until is not None and (self.since is None or self.until < self.since):
            raise ValueError("the end of a range needs a beginning that is not after it")

    def wants(self, day: dt.date, today: dt.date) -> bool:
        """Tell whether a day may be made at all."""
        if self.date is not None:
            return day == self.date
        if self.since is not None:
            return self.since <= day <= (self.until or today)
        return day < today or (day == today and (self.today or self.backfill))

    @property
    def again(self) -> bool:
        """Tell whether days are made whatever there is."""
        return self.date is not None or self.since is not None or self.backfill


def choose(
    request: Request,
    today: dt.date,
    *,
    fresh: Collection[dt.date],
    known: Collection[dt.date],
    is_behind: Callable[[dt.date], bool],
) -> list[dt.date]:
    """Return the days to make, oldest first: `fresh` have new segments, `known` have been ingested before.

    Raises:
        ValueError: if a day was named that has not begun.
    """
    first = request.date or request.since
    if first is not None and first > today:
        raise ValueError(f"{first} has not begun yet; today is {today} (UTC)")
    if request.date is not None:
        return [request.date]
    found = set(fresh)
    found.update(day for day in known if request.again or (day not in found and is_behind(day)))
    return sorted(day for day in found if request.wants(day, today))


def _start_ms(day: dt.date) -> int:
    return int(dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC).timestamp()) * 1000
