"""A clock for tests: time that moves only when told to."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

_NS = 1_000_000_000
# A first reading of zero would hide code that takes a time for a truth value.
_MONOTONIC_START_NS = 1_000 * _NS


class FakeTimer:
    """A call that `FakeClock.advance` will make, unless it is cancelled."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Forget the call."""
        self._callback = None

    def fire(self) -> None:
        """Make the call, once."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class FakeClock:
    """A `Clock` that stands still until it is advanced; it counts whole nanoseconds, so steps add up exactly."""

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
        """Move both clocks on, firing what falls due in order of time, each at its own moment.

        Raises:
            ValueError: if `seconds` is negative; `jump_wall` moves the wall clock backwards.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back by {-seconds} s: use jump_wall")
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
        # A callback may itself advance the clock beyond the next timer's moment.
        step = max(monotonic_ns - self._monotonic_ns, 0)
        self._monotonic_ns += step
        self._wall_ns += step
