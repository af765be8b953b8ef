"""Counters and latencies since the start, cheap enough to be bumped on every publish.

1. Everything is bumped and read on the event loop's thread: no locks.
2. Memory is fixed: a histogram has 592 buckets, the throughput ring 301 seconds, and the counters are keyed by codes
   and statuses, never by subjects or senders.
3. A histogram's buckets are exact below 32 µs; above, 16 per power of two. A bucket is then at most 1/16 of its value
   wide, and its middle at most 3.2 % away from any value in it.
4. The latencies of the last minute are those counted since a mark: every 5 seconds in which a delivery ends, a copy of
   the histogram is kept for a minute, and the oldest copy is subtracted from the present one. That covers the last 55
   to 60 seconds, costs one read of the clock per delivery, and `longest` is a bucket's middle.
5. Rates count whole seconds, so that they do not dip at the start of each. Time is the clock's monotonic time: a jump
   of the wall clock makes no gap.
"""

from __future__ import annotations

from collections import Counter, deque
from math import ceil
from typing import Annotated

from pydantic import Field

from relay_core.clock import Clock
from relay_core.messages.base import WireModel

BUDGET_CODES = ("max_hops", "cycle", "expired", "call_budget")
RING_SECS = 300
RECENT_SECS = 60
MARK_SECS = 5

# 12 days; anything longer is counted as that.
_LONGEST_US = (1 << 40) - 1
_BUCKETS = 37 * 16


class Histogram:
    """Count durations in µs and return their percentiles within 5 %."""

    __slots__ = ("_counts", "count", "longest")

    def __init__(self) -> None:
        self.count = 0
        self.longest = 0
        self._counts = [0] * _BUCKETS

    def record(self, us: int) -> None:
        """Count one duration; a negative one (no clock should give it) counts as 0."""
        if us > self.longest:
            self.longest = us
        if us < 32:
            self._counts[us if us > 0 else 0] += 1
        else:
            if us > _LONGEST_US:
                us = _LONGEST_US
            shift = us.bit_length() - 5
            self._counts[(shift << 4) + (us >> shift)] += 1
        self.count += 1

    def mark(self) -> list[int]:
        """Return a copy of the present counts."""
        return self._counts[:]

    def since(self, mark: list[int]) -> Histogram:
        """Return the durations counted since a mark; its longest is known only to its bucket."""
        recent = Histogram()
        recent._counts = [now - then for now, then in zip(self._counts, mark, strict=True)]
        recent.count = sum(recent._counts)
        last = next((bucket for bucket in range(_BUCKETS - 1, -1, -1) if recent._counts[bucket]), 0)
        recent.longest = min(int(_middle(last)), self.longest)
        return recent

    def percentile(self, percent: float) -> float | None:
        """Return the duration that `percent` of all are at or below (nearest rank), or None if none was counted."""
        if not self.count:
            return None
        rank = max(ceil(self.count * percent / 100), 1)
        counted = 0
        for bucket, count in enumerate(self._counts):
            counted += count
            if counted >= rank:
                return min(_middle(bucket), float(self.longest))
        return float(self.longest)


def _middle(bucket: int) -> float:
    if bucket < 32:
        return float(bucket)
    shift = (bucket >> 4) - 1
    return float((bucket - (shift << 4)) << shift) + ((1 << shift) - 1) / 2


class Percentiles(WireModel):
    """The latency of one step in µs, over all deliveries since the start or a later mark."""

    count: int
    """Deliveries that were measured."""
    p50: float | None = None
    """None if none was measured, like the others."""
    p95: float | None = None
    p99: float | None = None
    longest: int = 0


class TrafficCounts(WireModel):
    """Traffic since the start."""

    publishes: int
    bytes: int
    """Payload bytes published."""
    rate_10s: Annotated[float, Field(alias="rate10s")]
    """Publishes per second over the last 10 seconds."""
    rate_60s: Annotated[float, Field(alias="rate60s")]
    """Publishes per second over the last 60 seconds."""
    deliveries: dict[str, int]
    """By status."""
    refusals: dict[str, int]
    """Refused publishes and deliveries by code."""
    dead_letters: dict[str, int]
    """By code."""
    queue_us: Percentiles
    """From store to the start of handling."""
    handle_us: Percentiles
    """From the start of handling to its end."""
    total_us: Percentiles
    """From publish, or from the store of a replay, to the end of handling."""


class MetricsSnapshot(TrafficCounts):
    """Every counter since the start."""

    uptime_secs: float
    no_subscriber: int
    """Messages without a consumer, which is not a failure."""
    budget_rejections: dict[str, int]
    """Messages stopped by their budget, by code; every code is present."""


class Metrics:
    """The counters; the hot path bumps the public ones directly."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self.publishes = 0
        self.bytes = 0
        self.no_subscriber = 0
        self.deliveries: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.budget_rejections: Counter[str] = Counter(dict.fromkeys(BUDGET_CODES, 0))
        self.dead_letters: Counter[str] = Counter()
        self.queue_us = Histogram()
        self.handle_us = Histogram()
        self.total_us = Histogram()
        self._marks: deque[tuple[float, list[int]]] = deque()
        self._next_mark = self._started
        self._second = int(self._started)
        self._slot = 0
        # One more slot than is shown: the present second.
        self._ring = [0] * (RING_SECS + 1)

    def published(self, size: int, now: float) -> None:
        """Count a publish of `size` payload bytes at monotonic time `now`."""
        self.publishes += 1
        self.bytes += size
        if now >= self._second + 1:
            self._roll(int(now))
        self._ring[self._slot] += 1

    def handled(self, queue_us: int, handle_us: int, total_us: int) -> None:
        """Count the latencies of a handled delivery."""
        self.queue_us.record(queue_us)
        self.handle_us.record(handle_us)
        now = self._clock.monotonic()
        if now >= self._next_mark:
            self._mark(now)
        self.total_us.record(total_us)

    def recent_us(self) -> Percentiles:
        """Return the latencies from publish to a handler's end over the last 55 to 60 seconds."""
        self._forget_marks(self._clock.monotonic())
        return _percentiles(self.total_us.since(self._marks[0][1]) if self._marks else Histogram())

    def _mark(self, now: float) -> None:
        self._next_mark = now + MARK_SECS
        self._marks.append((now, self.total_us.mark()))
        self._forget_marks(now)

    def _forget_marks(self, now: float) -> None:
        while self._marks and self._marks[0][0] <= now - RECENT_SECS:
            self._marks.popleft()

    def per_second(self, seconds: int = RING_SECS) -> list[int]:
        """Return the publishes in each of the last whole seconds (at most 300), oldest first."""
        now = int(self._clock.monotonic())
        if now > self._second:
            self._roll(now)
        whole = self._ring[self._slot + 1 :] + self._ring[: self._slot]
        return whole[-min(seconds, RING_SECS) :]

    def rate(self, seconds: int) -> float:
        """Return the publishes per second over the last `seconds` (at most 300), or since a later start."""
        uptime = self._clock.monotonic() - self._started
        if uptime < seconds:
            return self.publishes / max(uptime, 1.0)
        return sum(self.per_second(seconds)) / min(seconds, RING_SECS)

    def snapshot(self) -> MetricsSnapshot:
        """Return all counters."""
        return MetricsSnapshot(
            uptime_secs=round(self._clock.monotonic() - self._started, 3),
            publishes=self.publishes,
            bytes=self.bytes,
            rate_10s=round(self.rate(10), 3),
            rate_60s=round(self.rate(60), 3),
            deliveries=dict(self.deliveries),
            no_subscriber=self.no_subscriber,
            refusals=dict(self.refusals),
            budget_rejections=dict(self.budget_rejections),
            dead_letters=dict(self.dead_letters),
            queue_us=_percentiles(self.queue_us),
            handle_us=_percentiles(self.handle_us),
            total_us=_percentiles(self.total_us),
        )

    def _roll(self, second: int) -> None:
        ring = self._ring
        for _ in range(min(second - self._second, len(ring))):
            self._slot = (self._slot + 1) % len(ring)
            ring[self._slot] = 0
        self._second = second


def _percentiles(histogram: Histogram) -> Percentiles:
    return Percentiles(
        count=histogram.count,
        p50=histogram.percentile(50),
        p95=histogram.percentile(95),
        p99=histogram.percentile(99),
        longest=histogram.longest,
    )
