"""Numbers, sizes, durations and instants as people read them.

1. Any number is accepted: NaN, infinity and instants outside the calendar are a dash, and huge numbers stay short.
2. Durations have two styles: narrow for terminals (``3m10s``) and spaced for prose and pages (``3 min 10 s``).
3. People type durations as a number and a unit (``90s``, ``1.5h``); `parse_duration` reads them everywhere.
4. `format_count` is exact, for tables and reports; `number` is at most six characters or so, for the dashboard.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, TypeGuard

from relay_core.text.sanitize import clean

NOTHING = "–"
_LARGEST = 1e300
_SECONDS_IN = {"us": 1e-6, "ms": 1e-3, "secs": 1.0}
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_TYPED = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*(ms|s|m|h|d|w)")
_LONGEST_MS = 10**15
"""The longest duration that can be typed: some 30,000 years, which every number on the wire can hold."""
_LONG = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def format_duration(seconds: float | None, *, spaced: bool = False) -> str:
    """Return a duration in its one or two largest units: ``850µs``, ``12ms``, ``4.2s``, ``3m10s``, ``5h02m``."""
    if not _is_known(seconds):
        return NOTHING
    if seconds <= 0:
        return "0 s" if spaced else "0s"
    for scale, unit, limit in ((1e6, "µs", 999.5), (1e3, "ms", 999.5), (1, "s", 59.5)):
        value = seconds * scale
        if value < limit:
            if spaced:
                digits = f"{value:.1f}" if value < 99.95 and unit != "µs" else f"{value:.0f}"
                return f"{digits.removesuffix('.0')} {unit}"
            return f"{value:.1f}s" if unit == "s" and value < 9.95 else f"{value:.0f}{unit}"
    whole = round(seconds)
    length, unit, part_length, part_unit = next(row for row in _LONG if whole >= row[0])
    units, part = whole // length, whole % length // part_length
    if spaced:
        return f"{units:,} {unit} {part} {part_unit}" if part else f"{units:,} {unit}"
    return f"{units}{unit[0]}{part:02}{part_unit[0]}"


def parse_duration(text: str) -> int | None:
    """Return the milliseconds of a duration such as ``90s``, ``10m``, ``1.5h`` or ``7d``; None if it is not one."""
    found = _TYPED.fullmatch(text.strip())
    ms = round(float(found[1]) * _UNIT_MS[found[2]]) if found else None
    return ms if ms is not None and ms <= _LONGEST_MS else None


def typed_duration(ms: int) -> str:
    """Return a duration as a person types it, in the largest unit that divides it: the inverse of `parse_duration`."""
    unit = next(unit for unit in reversed(_UNIT_MS) if ms % _UNIT_MS[unit] == 0)
    return f"{ms // _UNIT_MS[unit]}{unit}"


def about(seconds: float | None) -> str:
    """Return a duration in whole units of one kind, for live counters: ``45s``, ``3m``, ``2h``, ``5d``."""
    if not _is_known(seconds):
        return NOTHING
    whole = max(round(seconds), 0)
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if whole >= 2 * length:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def ago(at_ms: float | None, now_ms: float) -> str:
    """Return how long ago an instant was."""
    return NOTHING if at_ms is None else f"{about((now_ms - at_ms) / 1000)} ago"


def time_until(at_ms: float | None, now_ms: float) -> str:
    """Return how long it is until an instant; ``now`` if that is less than a second."""
    if at_ms is None:
        return NOTHING
    return "now" if at_ms - now_ms < 1000 else f"in {about((at_ms - now_ms) / 1000)}"


def format_count(value: float) -> str:
    """Return a number with separators; below 100 with one decimal if it has a fraction."""
    if not _is_known(value):
        return NOTHING
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"


def number(value: float | None) -> str:
    """Return a number in at most six characters or so: ``0.4``, ``7``, ``1,234``, ``56.7k``, ``1.2M``."""
    if not _is_known(value):
        return NOTHING
    if value != int(value) and abs(value) < 10:
        return f"{value:.1f}"
    if abs(value) < 10_000:
        return f"{round(value):,}"
    if abs(value) < 1_000_000:
        return f"{value / 1000:.1f}k"
    return f"{value / 1_000_000:.1f}M" if abs(value) < 1e12 else f"{value:.1g}"


def size(value: float) -> str:
    """Return a number of bytes in its largest unit."""
    if not _is_known(value):
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 10 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{format_count(round(value, 1))} TiB"


def plural(value: float, singular: str, many: str | None = None) -> str:
    """Return a count with its noun: ``1 message``, ``1,200 messages``."""
    return f"{format_count(value)} {singular if value == 1 else many or singular + 's'}"


def percent(share: float) -> str:
    """Return a share in percent, with one decimal if it has a fraction and is below 100%."""
    if not _is_known(share):
        return NOTHING
    value = share * 100
    return f"{value:.1f}%" if value != round(value) and abs(value) < 99.95 else f"{format_count(round(value))}%"


def change(share: float | None) -> str:
    """Return a relative change: ``+12%``, ``−40%``, ``×3.4``."""
    if not _is_known(share):
        return NOTHING
    if share >= 1:
        return f"×{share + 1:.1f}" if share < 9 else f"×{format_count(round(share + 1))}"
    value = round(share * 100)
    return f"{'+' if value > 0 else '−' if value < 0 else '±'}{format_count(abs(value))}%"


def format_value(value: Any, unit: str, *, spaced: bool = False, limit: int = 300) -> str:
    """Return a value of a report with its unit; a value that does not fit its unit is shown as clean text."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return clean(str(value), limit)
    if not _is_known(value):
        return NOTHING
    match unit:
        case "hour":
            return f"{value:02.0f}:00" if 0 <= value < 24 else format_count(value)
        case "time":
            return clock_time(value)
        case "bytes":
            return size(value)
        case "us" | "ms" | "secs":
            duration = format_duration(abs(value) * _SECONDS_IN[unit], spaced=spaced)
            return duration if value >= 0 else f"−{duration}"
        case "share":
            return percent(value)
        case _:
            return format_count(value)


def clock_time(at_ms: float | None, *, millis: bool = False) -> str:
    """Return the UTC time of day of an instant."""
    return _formatted(at_ms, "%H:%M:%S.%f")[: 12 if millis else 8]


def date_time(at_ms: float | None) -> str:
    """Return the UTC date and time of an instant."""
    return _formatted(at_ms, "%Y-%m-%d %H:%M:%S")


def _formatted(at_ms: float | None, form: str) -> str:
    if at_ms is None:
        return NOTHING
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return NOTHING


def _is_known(value: float | None) -> TypeGuard[float]:
    """Return False for None, NaN, infinity and numbers that no float holds."""
    return value is not None and abs(value) < _LARGEST
