"""Bars and spark lines of block characters."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

_TICKS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int) -> str:
    """Return a bar filled to a share, in eighths of a character; any share above zero is visible."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8) if share == share else 0  # NaN is no share
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def spark(values: Sequence[float | None], width: int | None = None) -> str:
    """Return the newest values as a line of small bars: zero is a space, an unknown value a dot."""
    width = len(values) if width is None else width
    newest = [value if value is None or isfinite(value) else 0 for value in values[max(len(values) - width, 0) :]]
    top = max((value for value in newest if value is not None), default=0) or 1
    return "".join(_tick(value, top) for value in newest).rjust(width)


def _tick(value: float | None, top: float) -> str:
    if value is None:
        return "·"
    return " " if value <= 0 else _TICKS[min(int(value / top * 8), 7)]
