"""A clock for tests, which the test advances."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

_NS = 1_000_000_000
# Starting at zero would hide code that uses a time as a truth value.
_MONOTONIC_START_NS = 1_000 * _NS


class FakeTimer:
    """A scheduled call of `FakeClock`, unless it is cancelled."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancel the call."""
        self._callback = None

    def fire(self) -> None:
        """Make the call, once."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class FakeClock:
    """A `Clock` that stands still until it is advanced; it counts whole nanoseconds, so that steps add up exactly."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._wall_ns = now_ms * 1_000_000
        self._monotonic_ns = _MONOTONIC_START_NS
        self._order = count()
        self._timers: list[tuple[int, int, FakeTimer]] = []

    def now_ms(self) -> int:
        """Return wall time in milliseconds since the epoch."""
        return self._wall_ns // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        return self._monotonic_ns / _NS

    def call_later(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        """Call back during the `advance` that reaches `delay` seconds from now."""
        timer = FakeTimer(callback)
        due = self._monotonic_ns + max(round(delay * _NS), 0)
        heappush(self._timers, (due, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Advance both clocks, firing the timers that fall due, in order, each at its time.

        Raises:
            ValueError: if `seconds` is negative; `jump_wall` moves the wall clock backwards.
        """
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s: use jump_wall to go back")
        end = self._monotonic_ns + round(seconds * _NS)
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heappop(self._timers)
            self._move_to(due)
            timer.fire()
        self._move_to(end)

    def jump_wall(self, seconds: float) -> None:
        """Move only the wall clock, forwards or backwards, as an operator or NTP would."""
        self._wall_ns += round(seconds * _NS)

    def _move_to(self, monotonic_ns: int) -> None:
        # A callback may itself advance the clock beyond the next timer.
        step = max(monotonic_ns - self._monotonic_ns, 0)
        self._monotonic_ns += step
        self._wall_ns += step
