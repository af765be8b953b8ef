"""The trigger for jobs at intervals, and descriptions of schedules."""

from __future__ import annotations

from datetime import datetime, timedelta

from apscheduler.triggers.base import BaseTrigger  # type: ignore[import-untyped]

from relay_core.config import JobConfig, NightlyConfig
from relay_core.text.units import format_duration

FIRST_RUN_SECS = 300
"""Jobs at intervals first run within this time after the start; a missed night is made up for after it."""


class Every(BaseTrigger):  # type: ignore[misc]
    """Fire at an interval; unlike APScheduler's IntervalTrigger, never for a time in the past."""

    def __init__(self, seconds: int) -> None:
        self._interval = timedelta(seconds=seconds)
        self._first = timedelta(seconds=min(seconds, FIRST_RUN_SECS))

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """Return one interval after the previous time, or after now if the clock has jumped."""
        if previous_fire_time is None:
            return now + self._first
        due = previous_fire_time + self._interval
        return due if now < due <= now + self._interval else now + self._interval


def describe_schedule(section: JobConfig | NightlyConfig) -> str:
    """Return a schedule in words."""
    if isinstance(section, NightlyConfig):
        return f"daily at {section.at} UTC"
    return f"every {format_duration(section.every_secs, spaced=True)}"
