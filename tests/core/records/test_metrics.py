"""Metrics: percentiles within 5 %, rates by whole seconds, and counts apart by what they mean."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.records.metrics import BUDGET_CODES, Histogram, Metrics, Percentiles
from relay_core.testing import FakeClock

durations = st.one_of(st.integers(0, 100), st.integers(0, 1_000_000), st.integers(0, (1 << 40) - 1))


@given(st.lists(durations, min_size=1, max_size=300), st.integers(0, 100))
def test_a_percentile_is_within_5_percent_of_the_exact_one(values: list[int], percent: int) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    exact = sorted(values)[max(ceil(len(values) * percent / 100), 1) - 1]
    assert histogram.percentile(percent) == pytest.approx(exact, rel=0.05, abs=0)
    assert (histogram.count, histogram.longest) == (len(values), max(values))


@given(durations, durations)
def test_longer_durations_never_have_shorter_percentiles(one: int, other: int) -> None:
    found = []
    for value in sorted((one, other)):
        histogram = Histogram()
        histogram.record(value)
        found.append(histogram.percentile(50))
    assert found[0] is not None
    assert found[1] is not None
    assert found[0] <= found[1]


@pytest.mark.parametrize("value", range(32))
def test_short_durations_are_exact(value: int) -> None:
    histogram = Histogram()
    histogram.record(value)
    assert histogram.percentile(50) == value


def test_no_duration_has_no_percentile() -> None:
    assert Histogram().percentile(50) is None


def test_absurd_durations_are_counted_and_break_nothing() -> None:
    histogram = Histogram()
    for value in (-1, -(1 << 70), 1 << 70):
        histogram.record(value)
    assert histogram.count == 3
    assert histogram.percentile(50) == 0
    assert histogram.percentile(99) == pytest.approx(1 << 40, rel=0.05)


def publish(metrics: Metrics, clock: FakeClock, *, times: int = 1) -> None:
    for _ in range(times):
        metrics.published(100, clock.monotonic())


def test_a_steady_rate_is_that_rate_at_any_moment(clock: FakeClock) -> None:
    metrics = Metrics(clock)
    for step in range(1200):
        publish(metrics, clock)
        clock.advance(0.1)
        if step > 700:
            assert metrics.rate(10) == 10
            assert metrics.rate(60) == 10
    assert metrics.per_second(5) == [10] * 5


def test_a_young_bus_is_measured_over_its_uptime(clock: FakeClock) -> None:
    metrics = Metrics(clock)
    publish(metrics, clock, times=8)
    assert metrics.rate(10) == 8  # never more than what was published, in the first second
    clock.advance(4)
    assert metrics.rate(10) == 2


def test_a_rate_falls_to_nothing_when_nobody_publishes(clock: FakeClock) -> None:
    metrics = Metrics(clock)
    publish(metrics, clock, times=600)
    clock.advance(30.5)
    assert metrics.rate(10) == 0
    clock.advance(20)
    assert metrics.rate(60) == pytest.approx(600 / 50.5)
    clock.advance(30)
    assert metrics.rate(60) == 0


def test_the_ring_holds_300_seconds_and_forgets_older_ones(clock: FakeClock) -> None:
    metrics = Metrics(clock)
    for second in range(400):
        publish(metrics, clock, times=second % 7)
        clock.advance(1)
    assert metrics.per_second() == [second % 7 for second in range(100, 400)]
    clock.advance(10_000)
    assert metrics.per_second() == [0] * 300
    assert metrics.publishes == sum(second % 7 for second in range(400))


def test_a_snapshot_says_everything(clock: FakeClock) -> None:
    metrics = Metrics(clock)
    publish(metrics, clock, times=5)
    metrics.deliveries["delivered"] += 3
    metrics.deliveries["failed"] += 1
    metrics.no_subscriber += 1
    metrics.refusals["rate_limited"] += 2
    metrics.budget_rejections["cycle"] += 1
    metrics.dead_letters["cycle"] += 1
    for _ in range(100):
        metrics.handled(10, 20, 31)
    clock.advance(2.5)
    assert metrics.snapshot().to_wire() == {
        "uptimeSecs": 2.5,
        "publishes": 5,
        "bytes": 500,
        "rate10s": 2.0,
        "rate60s": 2.0,
        "deliveries": {"delivered": 3, "failed": 1},
        "noSubscriber": 1,
        "refusals": {"rate_limited": 2},
        "budgetRejections": {"max_hops": 0, "cycle": 1, "expired": 0, "call_budget": 0},
        "deadLetters": {"cycle": 1},
        "queueUs": {"count": 100, "p50": 10.0, "p95": 10.0, "p99": 10.0, "longest": 10},
        "handleUs": {"count": 100, "p50": 20.0, "p95": 20.0, "p99": 20.0, "longest": 20},
        "totalUs": {"count": 100, "p50": 31.0, "p95": 31.0, "p99": 31.0, "longest": 31},
    }


def test_a_snapshot_does_not_change_afterwards(clock: FakeClock) -> None:
    metrics = Metrics(clock)
    before = metrics.snapshot()
    metrics.deliveries["delivered"] += 1
    assert before.deliveries == {}
    assert before.queue_us.p50 is None
    assert set(before.budget_rejections) == set(BUDGET_CODES)


@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 10**7)), max_size=40), st.floats(0, 70))
def test_recent_latencies_are_of_the_last_minute_but_for_5_seconds(
    steps: list[tuple[float, int]], later: float
) -> None:
    clock = FakeClock()
    metrics = Metrics(clock)
    handled: list[tuple[float, int]] = []
    for pause, took in steps:
        clock.advance(pause)
        metrics.handled(0, 0, took)
        handled.append((clock.monotonic(), took))
    clock.advance(later)
    now = clock.monotonic()
    surely = [took for at, took in handled if at >= now - 55 + 1e-6]
    perhaps = [took for at, took in handled if at > now - 60 - 1e-6]
    found = metrics.recent_us()
    assert len(surely) <= found.count <= len(perhaps)
    if found.count:
        assert found.p50 is not None
        assert max(surely, default=0) * 0.96 <= found.longest <= max(perhaps) * 1.04


def test_recent_latencies_forget_a_slow_hour(clock: FakeClock) -> None:
    metrics = Metrics(clock)
    for _ in range(100):
        metrics.handled(0, 0, 5_000_000)
    clock.advance(3600)
    assert metrics.recent_us() == Percentiles(count=0)
    for _ in range(10):
        metrics.handled(0, 0, 20)
    assert metrics.recent_us() == Percentiles(count=10, p50=20, p95=20, p99=20, longest=20)
    assert metrics.snapshot().total_us.p50 > 4_000_000  # type: ignore[operator]
