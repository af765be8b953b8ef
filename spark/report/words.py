"""Numbers, times and foreign texts as a reader wants them: with separators and units, and harmless."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from unicodedata import combining

NOTHING = "–"
_WORD = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)
_MARKS_ON_ONE = 2
_CODES = {
    "max_hops": "too many hops",
    "cycle": "a loop was stopped",
    "call_budget": "call budget spent",
    "no_match": "nobody there",
}


def shown(value: Any, unit: str) -> str:
    """Return a value with its unit; what does not fit its unit is shown as it is."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "hour" and isinstance(value, int):
        return f"{value:02}:00"
    if unit == "time" and isinstance(value, int | float):
        return clock(value)
    if not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return NOTHING
    match unit:
        case "bytes":
            return size(value)
        case "us":
            return lasting(value / 1e6)
        case "ms":
            return lasting(value / 1e3)
        case "secs":
            return lasting(value)
        case "share":
            return percent(value)
        case _:
            return count(value)


def count(value: float) -> str:
    """Return a number with separators; a fraction only where it says something."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"


def size(value: float) -> str:
    """Return a number of bytes in its largest unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def lasting(seconds: float) -> str:
    """Return a duration: three digits below a minute, then its two largest units."""
    if seconds <= 0:
        return f"−{lasting(-seconds)}" if seconds else "0 s"
    for scale, unit in ((1e6, "µs"), (1e3, "ms"), (1, "s")):
        value = seconds * scale
        if value < (999.5 if unit != "s" else 59.95):
            if value >= 100 or value == int(value) or unit == "µs":
                return f"{value:.0f} {unit}"
            return f"{value:.1f} {unit}"
    whole = round(seconds)
    for length, unit, below, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= length:
            rest = whole % length // below
            return f"{whole // length:,} {unit} {rest} {smaller}" if rest else f"{whole // length:,} {unit}"
    return f"{whole} s"


def percent(share: float) -> str:
    """Return a share in percent; a digit after the point where it is small."""
    value = share * 100
    return f"{value:,.0f}%" if value == round(value) or abs(value) >= 99.95 else f"{value:.1f}%"


def change(share: float | None) -> str:
    """Return how far a number is from what is usual: ``+12%``, ``−40%``, ``×3.4``."""
    if share is None:
        return ""
    if share >= 1:
        return f"×{share + 1:.1f}" if share < 9 else f"×{share + 1:,.0f}"
    value = round(share * 100)
    return f"{'+' if value > 0 else '−' if value < 0 else '±'}{abs(value)}%"


def clock(at_ms: float) -> str:
    """Return the time of day of an instant in UTC, also of one that no calendar has."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return NOTHING


def iso(at_ms: float) -> str:
    """Return an instant as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def plural(number: float, one: str, many: str | None = None) -> str:
    """Return a count with its word."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def listed(parts: Sequence[str]) -> str:
    """Return parts as a sentence lists them."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def short(text: Any, limit: int) -> str:
    """Return a foreign text in at most so many characters, as one line."""
    joined = " ".join(str(text).split())
    return joined if len(joined) <= limit else joined[: limit - 1].rstrip() + "…"


def harmless(text: str) -> str:
    """Return a foreign text with everything invisible named, and at most two marks on a letter."""
    if text.isascii() and text.isprintable():
        return text
    found, marks = [], 0
    for char in text:
        marks = marks + 1 if combining(char) else 0
        if marks <= _MARKS_ON_ONE:
            found.append(char if char.isprintable() else " " if char in "\n\t\r" else f"‹U+{ord(char):04X}›")
    return "".join(found)


def word(name: Any) -> str | None:
    """Return a name as a command line may take it, or None: names from outside may hold anything at all."""
    return name if isinstance(name, str) and _WORD.fullmatch(name) else None


def code_words(code: Any) -> str:
    """Return a reason code in words."""
    return _CODES.get(str(code), str(code).replace("_", " ")) if code is not None else "no reason"
