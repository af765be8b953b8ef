"""Mailbox pressure: episodes, their time, and the worst depth."""

from __future__ import annotations

from random import Random
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.days import Day
from spark.tables.pressure import STATUSES, pressure
from tests.spark.events import DAY, at, events
from tests.spark.replay import Spell, random_day, walk

TODAY = Day.of(DAY.date, at(20))


def mailbox(target: str, time: int, status: str, depth: int | None, limit: int | None = 1000) -> dict[str, Any]:
    about = {"kind": "pressure", "target": target, "subject": f"s.{target}"}
    return about | {"time": time, "status": status, "depth": depth, "limit": limit}


def line(
    target: str,
    episodes: int,
    secs: float,
    worst: int | None,
    share: float | None,
    at_end: bool = False,
    limit: int | None = 1000,
) -> Row:
    return Row(
        target=target,
        name=f"s.{target}",
        episodes=episodes,
        aboveSecs=secs,
        worstDepth=worst,
        limit=limit,
        worstShare=share,
        aboveAtEnd=at_end,
    )


def test_a_day_without_events_has_no_pressure(spark: SparkSession) -> None:
    table = pressure(events(spark), DAY)
    assert table.columns == list(line("a", 0, 0, None, None).asDict())
    assertDataFrameEqual(table, [])


def test_an_episode_lasts_from_the_warning_until_normal(spark: SparkSession) -> None:
    rows = [
        mailbox("twice", at(7), "warning", 800),
        mailbox("twice", at(7, secs=10), "critical", 1000),
        mailbox("twice", at(7, secs=15), "normal", 1100),  # its worst was between the events
        mailbox("twice", at(8), "warning", 850),
        mailbox("twice", at(8, secs=5), "normal", 850),
        mailbox("begun-before", at(-1), "critical", 990),
        mailbox("begun-before", at(0, secs=7), "normal", 990),
        mailbox("goes-on", at(23), "warning", 810),
        mailbox("since-long", at(-50), "warning", 900),  # ended by the restart below
        mailbox("one-event", at(23, minutes=59), "warning", 801),
        mailbox("doubled", at(7), "warning", 800),
        mailbox("doubled", at(7), "warning", 800),
        mailbox("doubled", at(7, secs=4), "normal", 820),
        mailbox("doubled", at(7, secs=4), "normal", 820),
        mailbox("out-of-order", at(7, secs=4), "normal", 820),
        mailbox("out-of-order", at(7, secs=1), "warning", 800),
        mailbox("clock", at(7, secs=9), "warning", 800),  # the clock was put back after it, so its end is before it
        mailbox("clock", at(7, secs=1), "normal", 830),
        mailbox("clock", at(7, secs=20), "warning", 800),
        mailbox("clock", at(7, secs=21), "normal", 800),
        mailbox("unknown", at(7), "warning", 800),
        mailbox("unknown", at(7, secs=1), "tense", 999),
        mailbox("unknown", at(7, secs=2), "normal", 800),
        mailbox("no-beginning", at(7), "normal", 930),
        mailbox("limit-changed", at(7), "warning", 90, 100),
        mailbox("limit-changed", at(7, secs=1), "normal", 90, 95),
        mailbox("no-numbers", at(7), "warning", None, None),
        mailbox("no-numbers", at(7, secs=1), "normal", 5, 0),
        {"kind": "bus", "time": at(10), "status": "stopped"},
        {"kind": "bus", "time": at(11), "status": "started"},
    ]
    assertDataFrameEqual(
        pressure(events(spark, *rows), DAY),
        [
            line("begun-before", 1, 7, 990, 0.99),
            line("clock", 1, 12, 830, 0.83),
            line("doubled", 1, 4, 820, 0.82),
            line("goes-on", 1, 3600, 810, 0.81, at_end=True),
            line("limit-changed", 1, 1, 90, 90 / 95, limit=95),
            line("no-beginning", 0, 0, 930, 0.93),
            line("no-numbers", 1, 1, 5, None, limit=0),
            line("one-event", 1, 60, 801, 0.801, at_end=True),
            line("out-of-order", 1, 3, 820, 0.82),
            line("since-long", 1, 36_000, 900, 0.9),
            line("twice", 2, 20, 1100, 1.1),
            line("unknown", 1, 2, 800, 0.8),
        ],
    )


def test_a_random_day_is_told_as_by_walking_through_it(spark: SparkSession) -> None:
    rows = random_day(Random(2), TODAY, "pressure", "target", (*STATUSES, "tense"), 300)
    spells = walk(rows, TODAY, "pressure", "target", STATUSES)
    assertDataFrameEqual(
        pressure(events(spark, *rows), TODAY),
        [expected([spell for spell in spells if spell.row["target"] == target]) for target in "abcde"],
    )


def expected(spells: list[Spell]) -> Row:
    above = [spell for spell in spells if spell.row["status"] != "normal"]
    worst = max(spell.row["depth"] for spell in spells)
    episodes = sum(spell.before in (None, "normal") for spell in above)
    assert episodes > 1, "the case is too small"
    ms = sum(spell.ms for spell in above)
    at_end = any(spell.lasts for spell in above)
    return line(above[0].row["target"], episodes, ms / 1000, worst, worst / 100, at_end, limit=100)
