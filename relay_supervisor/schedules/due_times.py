"""When a schedule is due: instants in epoch milliseconds, all in UTC.

1. The due times of a schedule depend on its configuration alone, not on when the supervisor started. So they are the
   same after a restart, and one due time has one dedupe id.
2. The newest due time of a span is found by bisection: a span of years takes a few dozen steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime

from apscheduler.triggers.combining import OrTrigger  # type: ignore[import-untyped]
from apscheduler.triggers.cron import CronTrigger  # type: ignore[import-untyped]

from relay_core.config import ScheduleConfig
from relay_core.cron import WEEKDAYS, Cron, parse_cron
from relay_core.text.units import format_duration

After = Callable[[int], int | None]
"""Returns the first due time after an instant; None if the calendar ends before."""


def due_times(section: ScheduleConfig) -> After:
    """Return the function that computes a schedule's due times."""
    if section.every_secs is not None:
        step = section.every_secs * 1000
        return lambda ms: (ms // step + 1) * step
    assert section.cron is not None
    trigger = _trigger(parse_cron(section.cron))

    def after(ms: int) -> int | None:
        # The trigger finds whole seconds from an instant on; it returns None after the year 9999.
        found = trigger.get_next_fire_time(None, datetime.fromtimestamp(ms // 1000 + 1, UTC))
        return round(found.timestamp() * 1000) if found is not None else None

    return after


def newest_due(after: After, since_ms: int, now_ms: int) -> int | None:
    """Return the newest due time after `since_ms` that is not after `now_ms`, or None."""
    newest = after(since_ms)
    if newest is None or newest > now_ms:
        return None
    end = now_ms  # nothing between it and now is due
    while newest < end:
        middle = (newest + end) // 2
        due = after(middle)
        if due is not None and due <= now_ms:
            newest = due
        else:
            end = middle
    return newest


def describe_timing(section: ScheduleConfig) -> str:
    """Return a schedule's timing in words."""
    if section.every_secs is not None:
        return f"every {format_duration(section.every_secs, spaced=True)}"
    return f"{section.cron} UTC"


def _trigger(cron: Cron) -> CronTrigger | OrTrigger:
    fields = {"minute": _listed(cron.minutes, 60), "hour": _listed(cron.hours, 24), "month": _listed(cron.months, 12)}
    days = {"day": _listed(cron.days, 31)}
    # By name: APScheduler counts days of the week from Monday.
    weekdays = {"day_of_week": _listed([WEEKDAYS[day] for day in cron.weekdays], 7)}
    if cron.any_day or cron.any_weekday:
        return CronTrigger(**fields, **days, **weekdays, second=0, timezone=UTC)
    # Cron takes either, a single trigger needs both.
    return OrTrigger([CronTrigger(**fields, **either, second=0, timezone=UTC) for either in (days, weekdays)])


def _listed(values: Collection[int | str], all: int) -> str:
    return ",".join(map(str, values)) if len(values) < all else "*"
