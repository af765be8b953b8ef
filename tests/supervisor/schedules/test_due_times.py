"""When a schedule is due: as cron says, in UTC, whenever the supervisor started."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.clock import iso, parse_iso
from relay_core.config import ScheduleConfig
from relay_supervisor.schedules.due_times import describe_timing, due_times, newest_due

NOW = "2026-03-29T00:30:00Z"
"""A Sunday, on which Europe's clocks change."""


def schedule(**timing: Any) -> ScheduleConfig:
    return ScheduleConfig(id="s", to="relay.agent.a", **timing)


@pytest.mark.parametrize(
    ("cron", "due"),
    [
        ("* * * * *", ["2026-03-29T00:31", "2026-03-29T00:32"]),
        ("30 0 * * *", ["2026-03-30T00:30", "2026-03-31T00:30"]),
        ("0 9 * * 0", ["2026-03-29T09:00", "2026-04-05T09:00"]),
        ("0 9 * * 1-5", ["2026-03-30T09:00", "2026-03-31T09:00"]),
        ("0 9 * * sat,sun", ["2026-03-29T09:00", "2026-04-04T09:00"]),
        ("*/15 1-2 * * *", ["2026-03-29T01:00", "2026-03-29T01:15"]),
        ("0 0 31 * *", ["2026-03-31T00:00", "2026-05-31T00:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 1 * mon", ["2026-03-30T00:00", "2026-04-01T00:00"]),
    ],
)
def test_cron_is_due_in_utc_and_counts_days_from_sunday(cron: str, due: list[str]) -> None:
    after = due_times(schedule(cron=cron))
    first = after(parse_iso(NOW))
    assert first is not None
    second = after(first)
    assert second is not None
    assert [iso(first)[:16], iso(second)[:16]] == due


def test_an_interval_is_counted_from_the_epoch() -> None:
    after = due_times(schedule(every_secs=900))
    at = parse_iso("2026-03-29T00:30:00.001Z")
    assert [after(at - 2), after(at - 1), after(at)] == [at - 1, at + 899_999, at + 899_999]


def test_after_the_end_of_the_calendar_nothing_is_due() -> None:
    assert due_times(schedule(cron="0 0 1 1 *"))(parse_iso("9999-06-01T00:00:00Z")) is None


@given(
    cron=st.sampled_from(["* * * * *", "*/7 * * * *", "0 9 * * mon-fri", "5 4 1,15 * *", "0 0 29 2 *", "0 0 1 * mon"]),
    now=st.integers(1_600_000_000_000, 1_900_000_000_000),
    span=st.integers(0, 20 * 86_400_000),
)
def test_the_newest_is_the_last_of_all(cron: str, now: int, span: int) -> None:
    after = due_times(schedule(cron=cron))
    newest = newest_due(after, now - span, now)
    if newest is None:
        first = after(now - span)
        assert first is not None
        assert first > now
    else:
        assert now - span < newest <= now
        following = after(newest)
        assert following is not None
        assert following > now


def test_years_take_few_steps() -> None:
    steps = []
    after = due_times(schedule(cron="* * * * *"))

    def counting(ms: int) -> int | None:
        steps.append(ms)
        return after(ms)

    now = parse_iso("2036-03-29T00:30:10Z")
    assert newest_due(counting, parse_iso(NOW), now) == now - 10_000
    assert len(steps) < 60


def test_a_timing_is_described() -> None:
    assert describe_timing(schedule(every_secs=900)) == "every 15 min"
    assert describe_timing(schedule(cron="0 9 * * mon")) == "0 9 * * mon UTC"
    assert datetime.fromisoformat(NOW).astimezone(UTC).weekday() == 6
