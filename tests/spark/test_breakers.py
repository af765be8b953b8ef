"""Breakers: openings, and time open."""

from __future__ import annotations

from random import Random
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from relay_core.rules.breaker import CircuitState
from spark.days import Day
from spark.tables.breakers import STATUSES, breakers
from tests.spark.events import DAY, START, at, events
from tests.spark.replay import Spell, random_day, walk

TODAY = Day.of(DAY.date, at(20))


def breaker(target: str, time: int, status: str, why: str | None = None) -> dict[str, Any]:
    return {
        "kind": "breaker",
        "target": target,
        "subject": f"s.{target}",
        "time": time,
        "status": status,
        "detail": why,
    }


def line(
    target: str,
    openings: int,
    open_secs: float,
    half_open_secs: float,
    longest: float,
    open_at_end: bool,
    detail: str | None = None,
) -> Row:
    return Row(
        target=target,
        name=f"s.{target}",
        openings=openings,
        openSecs=open_secs,
        halfOpenSecs=half_open_secs,
        longestOpenSecs=longest,
        openAtEnd=open_at_end,
        lastDetail=detail,
    )


def test_a_day_without_events_has_no_breakers(spark: SparkSession) -> None:
    table = breakers(events(spark), DAY)
    assert table.columns == list(line("a", 0, 0, 0, 0, False).asDict())
    assertDataFrameEqual(table, [])


def test_openings_and_times_are_those_of_the_day(spark: SparkSession) -> None:
    rows = [
        breaker("flaps", at(1), "OPEN", "CLOSED → OPEN: consecutive failures: 5"),
        breaker("flaps", at(1, secs=30), "HALF_OPEN"),
        breaker("flaps", at(1, secs=31), "OPEN"),
        breaker("flaps", at(1, secs=71), "HALF_OPEN"),
        breaker("flaps", at(1, secs=73, ms=500), "CLOSED", "HALF_OPEN → CLOSED: successful probes: 2"),
        breaker("over-midnight", at(-2), "OPEN"),
        breaker("over-midnight", at(1), "CLOSED"),
        breaker("still-open", at(23), "OPEN", "CLOSED → OPEN: operator"),
        breaker("still-half-open", at(23), "HALF_OPEN"),
        breaker("doubled", at(1), "OPEN"),
        breaker("doubled", at(2), "CLOSED"),
        breaker("doubled", at(2), "CLOSED"),
        breaker("doubled", at(1), "OPEN"),
        # The clock was put back by 10 s after it opened: the order is the clock's, and nothing is negative.
        breaker("clock", at(1, secs=10), "OPEN"),
        breaker("clock", at(1, secs=5), "HALF_OPEN"),
        breaker("clock", at(1, secs=6), "OPEN"),
        breaker("clock", at(1, secs=12), "CLOSED"),
        breaker("unknown", at(1), "OPEN"),
        breaker("unknown", at(2), "MELTED"),
        breaker("unknown", at(3), "CLOSED"),
        breaker("killed", at(5), "OPEN"),
        {"kind": "bus", "time": at(6), "status": "started"},  # what lasts until the end begins later
    ]
    assertDataFrameEqual(
        breakers(events(spark, *rows), DAY),
        [
            line("clock", 2, 6, 1, 4, False),
            line("doubled", 1, 3600, 0, 3600, False),
            line("flaps", 2, 70, 3.5, 40, False, "HALF_OPEN → CLOSED: successful probes: 2"),
            line("killed", 1, 3600, 0, 3600, False),
            line("over-midnight", 0, 3600, 0, 3600, False),
            line("still-half-open", 0, 0, 3600, 0, False),
            line("still-open", 1, 3600, 0, 3600, True, "CLOSED → OPEN: operator"),
            line("unknown", 1, 7200, 0, 7200, False),
        ],
    )


def test_the_states_are_those_of_the_bus() -> None:
    assert set(STATUSES) == set(CircuitState)


def test_a_random_day_is_told_as_by_walking_through_it(spark: SparkSession) -> None:
    rows = random_day(Random(1), TODAY, "breaker", "target", (*STATUSES, "MELTED"), 300)
    spells = walk(rows, TODAY, "breaker", "target", STATUSES)
    assertDataFrameEqual(
        breakers(events(spark, *rows), TODAY),
        [expected([spell for spell in spells if spell.row["target"] == target]) for target in "abcde"],
    )


def expected(spells: list[Spell]) -> Row:
    opened = [spell for spell in spells if spell.row["status"] == "OPEN"]
    assert opened, "the case is too small"
    last = spells[-1].row
    return line(
        last["target"],
        sum(not spell.repeated and spell.row["time"] >= START for spell in opened),
        sum(spell.ms for spell in opened) / 1000,
        sum(spell.ms for spell in spells if spell.row["status"] == "HALF_OPEN") / 1000,
        max(spell.ms for spell in opened) / 1000,
        any(spell.lasts for spell in opened),
        last["detail"],
    )
