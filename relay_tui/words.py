"""Numbers, times and shares as an operator reads them: short, of known width, the same on every screen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite

_TICKS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"


def lasting(seconds: float | None) -> str:
    """Return a duration in its largest fitting unit: ``850µs``, ``12ms``, ``4.2s``, ``3m10s``, ``5h02m``, ``3d04h``."""
    if seconds is None or not isfinite(seconds):
        return "–"
    seconds = max(seconds, 0.0)
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f}µs"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole // 60 % 60:02}m"
    return f"{whole // 86_400}d{whole // 3600 % 24:02}h"


def about(seconds: float | None) -> str:
    """Return a duration in whole units of one kind, for what is counted down or up before the operator's eyes."""
    if seconds is None or not isfinite(seconds):
        return "–"
    whole = max(round(seconds), 0)
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if whole >= 2 * length:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def ago(at_ms: float | None, now_ms: float) -> str:
    """Return how long ago an instant was."""
    return "–" if at_ms is None else f"{about((now_ms - at_ms) / 1000)} ago"


def ahead(at_ms: float | None, now_ms: float) -> str:
    """Return how long it is until an instant; ``now`` from a second before it has come."""
    if at_ms is None:
        return "–"
    return "now" if at_ms - now_ms < 1000 else f"in {about((at_ms - now_ms) / 1000)}"


def number(value: float | None) -> str:
    """Return a number in at most six characters or so: ``0.4``, ``7``, ``1,234``, ``56.7k``, ``1.2M``."""
    if value is None or not isfinite(value):
        return "–"
    if value != int(value) and abs(value) < 10:
        return f"{value:.1f}"
    if abs(value) < 10_000:
        return f"{round(value):,}"
    if abs(value) < 1_000_000:
        return f"{value / 1000:.1f}k"
    return f"{value / 1_000_000:.1f}M"


def size(count: float) -> str:
    """Return a number of bytes."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its word: ``1 message``, ``1,200 messages``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def bar(share: float, width: int) -> str:
    """Return a bar that is filled to a share, in eighths of a character; anything above nothing shows."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8) if share == share else 0  # NaN is no share
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def spark(values: Sequence[float], width: int) -> str:
    """Return the newest values as one line of small bars; nothing at all is a space."""
    shown = list(values)[-width:] if width > 0 else []
    shown = [value if isfinite(value) else 0 for value in shown]
    top = max(shown, default=0) or 1
    ticks = "".join(" " if value <= 0 else _TICKS[min(int(value / top * 8), 7)] for value in shown)
    return ticks.rjust(width)


def clock_time(at_ms: float | None, *, millis: bool = False) -> str:
    """Return the time of day of an instant, in UTC."""
    return _dated(at_ms, "%H:%M:%S.%f")[: 12 if millis else 8]


def date_time(at_ms: float | None) -> str:
    """Return date and time of an instant, in UTC."""
    return _dated(at_ms, "%Y-%m-%d %H:%M:%S")


def _dated(at_ms: float | None, form: str) -> str:
    """Return an instant, of which strangers may have made up any: those beyond the calendar are a dash."""
    if at_ms is None:
        return "–"
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "–"
