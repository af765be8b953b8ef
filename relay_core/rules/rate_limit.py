"""Rate limits: how often a sender may publish within a sliding window.

1. The window is a log: one wall-clock time per admitted publish. A refused publish is not recorded, so a sender that
   keeps trying is admitted as soon as its oldest publish is a whole window old.
2. An override applies to its prefix, cut at a token boundary: ``relay.agent.a`` covers ``relay.agent.a.b``, never
   ``relay.agent.ab``. The longest prefix wins.
3. Counting and recording are one step, so concurrent publishes cannot overshoot.
4. When the wall clock jumps back, publishes that are now in the future count as made now: no sender is blocked
   for longer than a window, and none gets a second allowance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from relay_core.clock import Clock, SystemClock
from relay_core.config import RateLimitConfig
from relay_core.messages.base import WireModel

DEFAULT_RATE_LIMIT = RateLimitConfig()


class RateLimitVerdict(NamedTuple):
    """Whether a sender may publish; the count excludes this publish, and the limit is None while limits are off."""

    allowed: bool
    reason: str | None = None
    current_count: int = 0
    limit: int | None = None


class SenderWindow(WireModel):
    """A sender's usage of its window."""

    count: int
    """Publishes within the window that ends now."""
    limit: int
    """Publishes allowed within the window."""
    window_secs: int


class SenderUsage(SenderWindow):
    """A sender in a listing."""

    sender: str
    resets_in_ms: int
    """Time until the oldest publish leaves the window."""


_NOT_LIMITED = RateLimitVerdict(True)


def resolve_limit(sender: str, config: RateLimitConfig = DEFAULT_RATE_LIMIT) -> int:
    """Return the limit of the longest override prefix that covers the sender, or the general limit."""
    best, limit = 0, config.max_per_window
    for key, override in config.per_sender_overrides.items():
        prefix = key.rstrip(".")
        covers = sender == prefix or sender.startswith(prefix + ".")
        if covers and len(prefix) > best:
            best, limit = len(prefix), override
    return limit


def check_rate_limit(
    sender: str, count_in_window: int, config: RateLimitConfig = DEFAULT_RATE_LIMIT
) -> RateLimitVerdict:
    """Decide whether a sender with this many publishes in the window may make one more."""
    if not config.enabled:
        return RateLimitVerdict(True, None, count_in_window)
    return _judge(count_in_window, resolve_limit(sender, config), config.window_secs)


def _judge(count: int, limit: int, window_secs: int) -> RateLimitVerdict:
    if count >= limit:
        reason = f"rate limit exceeded: {count}/{limit} messages in {window_secs}s window"
        return RateLimitVerdict(False, reason, count, limit)
    return RateLimitVerdict(True, None, count, limit)


class _Window:
    __slots__ = ("limit", "log")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.log: deque[int] = deque()

    def slide(self, now: int, window_ms: int) -> int:
        """Drop publishes that have left the window and return the number in it."""
        log = self.log
        if not log:
            return 0
        if log[-1] > now:
            future = 0
            while log and log[-1] > now:
                log.pop()
                future += 1
            log.extend([now] * future)
        start = now - window_ms
        while log and log[0] <= start:
            log.popleft()
        return len(log)


class RateLimiter:
    """Every sender's window, in memory."""

    def __init__(self, config: RateLimitConfig = DEFAULT_RATE_LIMIT, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._windows: dict[str, _Window] = {}
        self.update_config(config)

    def __len__(self) -> int:
        return len(self._windows)

    def update_config(self, config: RateLimitConfig) -> None:
        """Use another configuration; recorded publishes stay."""
        self._config = config
        # Read on every publish; plain attributes are twice as fast as a model's.
        self._enabled = config.enabled
        self._window_secs = config.window_secs
        self._window_ms = config.window_secs * 1000
        for sender, window in self._windows.items():
            window.limit = resolve_limit(sender, config)

    def take(self, sender: str, now: int) -> bool:
        """Record a publish at wall time `now` in milliseconds, if allowed; return True if so."""
        if not self._enabled:
            return True
        window = self._windows.get(sender) or self._open(sender)
        log = window.log
        # Usually nothing has left the window and the clock has not gone back.
        if log and (log[0] <= now - self._window_ms or log[-1] > now):
            window.slide(now, self._window_ms)
        if len(log) >= window.limit:
            return False
        log.append(now)
        return True

    def check(self, sender: str, now: int) -> RateLimitVerdict:
        """Return whether the sender may publish at wall time `now`, without recording it."""
        if not self._enabled:
            return _NOT_LIMITED
        window = self._windows.get(sender) or self._open(sender)
        return _judge(window.slide(now, self._window_ms), window.limit, self._window_secs)

    def warm(self, entries: Iterable[tuple[str, int]]) -> None:
        """Record earlier publishes (sender, wall time in ms), in any order; a restart finds them in the index."""
        if not self._enabled:
            return
        start = self._clock.now_ms() - self._window_ms
        warmed: dict[str, list[int]] = {}
        for sender, created_ms in entries:
            if created_ms > start:
                warmed.setdefault(sender, []).append(created_ms)
        for sender, times in warmed.items():
            window = self._windows.get(sender) or self._open(sender)
            window.log = deque(sorted([*window.log, *times]))

    def forget_idle(self) -> int:
        """Drop senders with an empty window and return their number."""
        now = self._clock.now_ms()
        idle = [sender for sender, window in self._windows.items() if not window.slide(now, self._window_ms)]
        for sender in idle:
            del self._windows[sender]
        return len(idle)

    def usage(self) -> list[SenderUsage]:
        """Return the senders that have published within the window, busiest first."""
        now = self._clock.now_ms()
        used = [
            SenderUsage(
                sender=sender,
                count=count,
                limit=window.limit,
                window_secs=self._window_secs,
                resets_in_ms=window.log[0] + self._window_ms - now,
            )
            for sender, window in self._windows.items()
            if (count := window.slide(now, self._window_ms))
        ]
        return sorted(used, key=lambda usage: (-usage.count, usage.sender))

    def _open(self, sender: str) -> _Window:
        window = self._windows[sender] = _Window(resolve_limit(sender, self._config))
        return window
