"""Clocks: time is injected, never read directly.

Wall time (``now_ms``) is for timestamps. Monotonic time is for durations and cooldowns, so that a clock that jumps
neither opens a breaker nor expires a lease. A clock may also have ``call_later``; ``relay_core.testing.FakeClock``
does, so that tests control timers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

_FIRST_MS = -62_135_596_800_000
LAST_MS = 253_402_300_799_999
"""The end of the year 9999: the time of an id may be later, a date cannot."""


class Clock(Protocol):
    """A source of time."""

    def now_ms(self) -> int:
        """Return wall time in milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Return wall time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        return time.monotonic()


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call."""
        ...


def call_later(clock: Clock, delay: float, callback: Callable[[], None]) -> Timer:
    """Call back after `delay` seconds of the clock's time (of the loop's, if the clock has no timers)."""
    own: Callable[[float, Callable[[], None]], Timer] | None = getattr(clock, "call_later", None)
    if own is not None:
        return own(delay, callback)
    return asyncio.get_running_loop().call_later(max(delay, 0.0), callback)


async def sleep(clock: Clock, delay: float) -> None:
    """Sleep for `delay` seconds of the clock's time."""
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    timer = call_later(clock, delay, wake)
    try:
        await woken
    finally:
        timer.cancel()


@lru_cache(maxsize=256)
def iso(ms: int) -> str:
    """Format milliseconds since the epoch as an ISO 8601 instant in UTC."""
    seconds, millis = divmod(ms, 1000)
    return f"{_iso_second(seconds)}.{millis:03d}Z"


@lru_cache(maxsize=16)
def _iso_second(seconds: int) -> str:
    # Not strftime, which does not pad the year 1.
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


def parse_iso(text: str) -> int:
    """Return the milliseconds since the epoch of an ISO 8601 instant.

    Raises:
        ValueError: if the text is not an instant between the years 1 and 9999.
    """
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    ms = round(instant.timestamp() * 1000)
    if not _FIRST_MS <= ms <= LAST_MS:
        raise ValueError(f"{text} is outside the years 1 to 9999")
    return ms
