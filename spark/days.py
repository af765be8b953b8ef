"""Which days a run is about.

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

HISTORY_DAYS = 14
"""Days before a day that it is compared with."""


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
