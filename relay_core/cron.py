"""Cron expressions: five fields, as in crontab(5), in UTC.

1. The fields are minute, hour, day of the month, month and day of the week. A field is a list of ``*``, values and
   ranges, separated by commas; ``/n`` after ``*`` or a range takes every n-th value.
2. Months and days of the week may be names of three letters. Sunday is 0 and 7.
3. If both the day of the month and the day of the week are restricted, either is enough.
4. An expression that never matches, such as 30 February, is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS_IN = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PART = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d{1,4}))?", re.ASCII)


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: dict[str, int]


_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of the month", 1, 31, {}),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of the week", 0, 7, {name: number for number, name in enumerate(WEEKDAYS)}),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """The values of each field at which an expression matches."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 to 6; Sunday is 0."""

    @property
    def any_day(self) -> bool:
        """Return True if every day of the month matches."""
        return len(self.days) == 31

    @property
    def any_weekday(self) -> bool:
        """Return True if every day of the week matches."""
        return len(self.weekdays) == 7


def parse_cron(text: str) -> Cron:
    """Return the parsed expression.

    Raises:
        ValueError: the text names the field at fault.
    """
    parts = text.split()
    if len(parts) != len(_FIELDS):
        names = ", ".join(field.name for field in _FIELDS)
        raise ValueError(f"a cron expression has 5 fields ({names}), {text!r} has {len(parts)}")
    minutes, hours, days, months, weekdays = (_parse(part, field) for part, field in zip(parts, _FIELDS, strict=True))
    cron = Cron(minutes, hours, days, months, frozenset(day % 7 for day in weekdays))
    if cron.any_weekday and min(days) > max(_DAYS_IN[month - 1] for month in months):
        raise ValueError(f"{text!r} never matches: no such month has {min(days)} days")
    return cron


def _parse(text: str, field: _Field) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{field.name}: {part!r} is not a value, a range or '*'")
        first, last, step = match["first"], match["last"], int(match["step"] or 1)
        if step == 0:
            raise ValueError(f"{field.name}: {part!r} has a step of 0")
        if first is None:
            low, high = field.low, min(field.high, 6) if field.name == "day of the week" else field.high
        else:
            low = high = _value(first, field)
            if last is None and match["step"] is not None:
                raise ValueError(f"{field.name}: {part!r} needs a range before '/', such as {low}-{field.high}")
            if last is not None:
                high = _value(last, field)
        if high == 0 < low and field.names:  # a range that ends with Sunday
            high = 7
        if high < low:
            raise ValueError(f"{field.name}: {part!r} ends before it begins")
        found.update(range(low, high + 1, step))
    return frozenset(found)


def _value(text: str, field: _Field) -> int:
    value = field.names.get(text.lower())
    if value is None:
        value = int(text) if text.isdigit() and len(text) <= 2 else -1
    if not field.low <= value <= field.high:
        raise ValueError(f"{field.name}: {text!r} is not between {field.low} and {field.high}")
    return value
