"""How long states last, for every kind of event alike."""

from __future__ import annotations

from datetime import date
from random import Random
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from relay_core.records.events import EventKind
from spark.days import Day
from spark.intervals import states
from tests.spark.events import DAY, START, at, events
from tests.spark.replay import random_day, walk

STATUSES = ("down", "up")
DAY_BEFORE = Day.of(date(2026, 3, 13), 2**53)
TODAY = Day.of(DAY.date, at(20))


def told(spark: SparkSession, day: Day, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return target, status, before, repeated, ms and lasts of each event, in order."""
    table = states(events(spark, *rows), day, EventKind.BREAKER, "target", STATUSES)
    columns = table.select("target", "time", "rank", "status", "before", "repeated", "ms", "lasts").collect()
    return [(row[0], *row[3:]) for row in sorted(columns, key=lambda row: tuple(row[:3]))]


def breaker(target: str | None, time: int | None, status: str | None) -> dict[str, Any]:
    return {"kind": "breaker", "target": target, "time": time, "status": status}


def bus(time: int, status: str) -> dict[str, Any]:
    return {"kind": "bus", "time": time, "status": status}


def test_a_state_lasts_until_the_next_event_and_only_within_the_day(spark: SparkSession) -> None:
    rows = [
        breaker("over-midnight", at(-1), "down"),
        breaker("over-midnight", at(secs=2), "up"),
        breaker("from-the-day-before", at(-30), "down"),
        breaker("at-midnight", at(-1), "down"),
        breaker("at-midnight", START, "up"),
        breaker("out-of-order", at(3), "up"),
        breaker("out-of-order", at(1), "down"),
        breaker("one-millisecond", at(1), "up"),
        breaker("one-millisecond", at(1), "down"),
        breaker("doubled", at(1), "down"),
        breaker("doubled", at(1), "down"),
        breaker("unknown", at(1), "down"),
        breaker("unknown", at(2), "sideways"),
        breaker("unknown", at(2), None),
        breaker("tomorrow", at(24), "down"),
        breaker(None, at(1), "down"),
        breaker("no-time", None, "down"),
        {"kind": "pressure", "target": "other-kind", "status": "down"},
        {"kind": "novelty", "target": "unknown", "time": at(3), "status": "up"},
    ]
    day, hour = 86_400_000, 3_600_000
    assert told(spark, DAY, *rows) == [
        ("at-midnight", "down", None, False, 0, False),
        ("at-midnight", "up", "down", False, day, True),
        ("doubled", "down", None, False, 0, False),
        ("doubled", "down", "down", True, 23 * hour, True),
        ("from-the-day-before", "down", None, False, day, True),
        ("one-millisecond", "down", None, False, 0, False),
        ("one-millisecond", "up", "down", False, 23 * hour, True),
        ("out-of-order", "down", None, False, 2 * hour, False),
        ("out-of-order", "up", "down", False, 21 * hour, True),
        ("over-midnight", "down", None, False, 2000, False),
        ("over-midnight", "up", "down", False, day - 2000, True),
        ("unknown", "down", None, False, 23 * hour, True),
    ]
    seen_before = [row for row in told(spark, DAY_BEFORE, *rows) if row[0] == "over-midnight"]
    assert seen_before == [("over-midnight", "down", None, False, hour, True)]


def test_a_start_or_stop_of_the_bus_ends_every_state(spark: SparkSession) -> None:
    rows = [
        breaker("killed", at(1), "down"),
        breaker("stopped", at(4), "down"),
        bus(at(3), "started"),
        bus(at(5), "stopped"),
        bus(at(6), "started"),
        bus(at(7), "rested"),
        bus(at(25), "stopped"),
        breaker("in-the-moment", at(5), "down"),  # of the stop: before it
        breaker("in-the-moment", at(6), "down"),  # of the start: after it
    ]
    hour = 3_600_000
    assert told(spark, DAY, *rows) == [
        ("in-the-moment", "down", None, False, 0, False),
        ("in-the-moment", "down", None, False, 18 * hour, True),
        ("killed", "down", None, False, 2 * hour, False),
        ("stopped", "down", None, False, hour, False),
    ]


def test_a_day_without_events_has_no_states(spark: SparkSession) -> None:
    assert told(spark, DAY) == []


def test_random_days_are_told_as_by_walking_through_them(spark: SparkSession) -> None:
    rows = random_day(Random(6), TODAY, "breaker", "target", (*STATUSES, "sideways"), 400)
    table = states(events(spark, *rows), TODAY, EventKind.BREAKER, "target", STATUSES)
    columns = ["target", "time", "status", "detail", "before", "repeated", "ms", "lasts"]
    expected = [
        spell.row | {"before": spell.before, "repeated": spell.repeated, "ms": spell.ms, "lasts": spell.lasts}
        for spell in walk(rows, TODAY, "breaker", "target", STATUSES)
    ]
    assert any(row["ms"] for row in expected)
    assertDataFrameEqual(table.select(*columns), [Row(**{name: row[name] for name in columns}) for row in expected])
