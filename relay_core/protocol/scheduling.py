"""Models of schedules."""

from __future__ import annotations

from typing import Literal

from relay_core.protocol.base import Params, Result

ScheduleOutcome = Literal["published", "refused", "failed", "skipped"]


class ScheduleParams(Params):
    """A schedule."""

    id: str
    """From `schedules.list`."""


class ScheduleRun(Result):
    """One publish of a schedule, or the decision to skip it."""

    at: int
    """Wall time in milliseconds."""
    due: int | None = None
    """When it was due, in milliseconds; None for a run by hand."""
    outcome: ScheduleOutcome
    """`refused`: no target accepted the message; `failed`: it could not be published; `skipped`: it was missed."""
    message_id: str | None = None
    """For `traces.get`, if there was a message."""
    delivered_to: int = 0
    """Targets that accepted the message."""
    detail: str | None = None
    """Why it was refused, failed or skipped."""


class ScheduleState(Result):
    """A schedule, its next run and its last."""

    id: str
    to: str
    """A subject or a pattern."""
    timing: str
    """In words, such as `every 15 min` or `0 9 * * mon-fri UTC`."""
    catch_up: Literal["once", "skip"]
    enabled: bool
    """As in config.json."""
    paused: bool
    """By the operator."""
    next_run: int | None = None
    """Wall time in milliseconds; None if it is not enabled, or paused."""
    last: ScheduleRun | None = None


class ScheduleList(Result):
    """The schedules of config.json, in file order."""

    schedules: list[ScheduleState]
    problem: str | None = None
    """An error in schedule-state.json; until it is repaired, schedules run only by hand."""
