from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.days import Day
from spark.events.schema import EVENT_SCHEMA
from spark.events.sources import incidents, steps, time_of_day, traffic
from tests.spark.events import DATE, DAY, at, events

TRAFFIC = (
    "minute int, kind string, subject string, sender string, target string, code string, messages long, bytes long,"
    " tried long, turnedAway long"
)
STEPS = "target string, targetKind string, name string, adapter string, step string, us long, messages long"
LONG_AGO, FAR_AHEAD = -(2**63), 2**63 - 1


def plan_of(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the physical plan without the numbers of its columns."""
    frame.explain("formatted")
    return re.sub(r"#\d+L?", "", capsys.readouterr().out)


def test_traffic_counts_publishes_and_refusals_by_minute(spark: SparkSession) -> None:
    doubled = {
        "kind": "publish",
        "time": at(23, minutes=59, secs=59, ms=999),
        "subject": "s",
        "sender": "a",
        "bytes": 7,
    }
    day = events(
        spark,
        doubled,
        # Out of order, and the next minute begins exactly on the minute.
        {"kind": "publish", "time": at(minutes=1), "subject": "s", "sender": "a", "bytes": 10},
        {"kind": "publish", "time": at(secs=59, ms=999), "subject": "s", "sender": "a", "bytes": 20},
        {"kind": "publish", "time": at(minutes=1, secs=30), "subject": "s", "sender": "a"},
        {
            "kind": "refused",
            "time": at(minutes=1),
            "subject": "s",
            "sender": "a",
            "target": "*",
            "code": "rate_limited",
        },
        {"kind": "refused", "time": at(minutes=1), "subject": "s", "sender": "a", "target": "t", "code": None},
        doubled,
        # No target was allowed to take it.
        {"kind": "publish", "time": at(minutes=1), "subject": "s", "sender": "a", "status": "refused"},
        # None of these counts.
        {"kind": "publish", "time": at(minutes=1), "subject": "s", "sender": "a", "status": "replayed", "bytes": 5},
        {"kind": "handled", "time": at(minutes=1), "subject": "s", "sender": "a", "bytes": 5},
        {"kind": "teleported", "time": at(minutes=1), "subject": "s", "sender": "a", "bytes": 5},
    )
    expected = [
        (0, "publish", "s", "a", None, None, 1, 20, 1, 0),
        (1, "publish", "s", "a", None, None, 3, 10, 3, 1),
        (1, "refused", "s", "a", "*", "rate_limited", 1, 0, 1, 1),
        (1, "refused", "s", "a", "t", None, 1, 0, 0, 0),
        (1439, "publish", "s", "a", None, None, 2, 14, 2, 0),
    ]
    assertDataFrameEqual(traffic(day, DAY), spark.createDataFrame(expected, TRAFFIC))


def test_traffic_loses_no_event_whose_clock_jumped(spark: SparkSession) -> None:
    times = [LONG_AGO, 0, at(-1), at(0), at(24), at(50), FAR_AHEAD]
    day = events(spark, *({"kind": "publish", "time": time, "bytes": 1} for time in times))
    expected = [
        (0, "publish", None, None, None, None, 4, 4, 4, 0),
        (1439, "publish", None, None, None, None, 3, 3, 3, 0),
    ]
    assertDataFrameEqual(traffic(day, DAY), spark.createDataFrame(expected, TRAFFIC))


def test_traffic_of_a_day_that_is_not_over_has_the_same_minutes(spark: SparkSession) -> None:
    today = Day.of(DATE, at(12))
    day = events(spark, {"kind": "publish", "time": at(13), "bytes": 1})
    assert [row["minute"] for row in traffic(day, today).collect()] == [13 * 60]


def test_steps_are_a_histogram_of_three_durations(spark: SparkSession) -> None:
    endpoint = {"kind": "handled", "target": "t1", "targetKind": "endpoint", "subject": "relay.agent.a"}
    adapter = {"kind": "handled", "target": "t2", "targetKind": "adapter", "subject": "relay.human.x", "adapter": "tg"}
    day = events(
        spark,
        endpoint | {"queueUs": 12, "handleUs": 1_239, "totalUs": 1_300},
        endpoint | {"queueUs": 12, "handleUs": 1_231, "totalUs": 1_310, "time": FAR_AHEAD},
        endpoint | {"queueUs": -40, "handleUs": None, "totalUs": 0, "status": "partial"},
        adapter | {"queueUs": 0, "handleUs": 98_765, "totalUs": 99_999},
        {"kind": "handled", "queueUs": 1, "handleUs": 1, "totalUs": 1},
        # No target was allowed to take it.
        {"kind": "publish", "time": at(minutes=1), "subject": "s", "sender": "a", "status": "refused"},
        # None of these counts.
        {"kind": "publish", "time": at(minutes=1), "subject": "s", "sender": "a", "status": "replayed", "bytes": 5},
        endpoint | {"kind": "stored", "queueUs": 1, "totalUs": 1},
        endpoint | {"kind": "teleported", "queueUs": 1, "totalUs": 1},
    )
    a, tg = ("t1", "endpoint", "relay.agent.a", None), ("t2", "adapter", "tg", "tg")
    expected = [
        (*a, "queue", 12, 2),
        (*a, "queue", 0, 1),
        (*a, "handle", 1_230, 2),
        (*a, "total", 1_300, 1),
        (*a, "total", 1_310, 1),
        (*a, "total", 0, 1),
        (*tg, "queue", 0, 1),
        (*tg, "handle", 98_700, 1),
        (*tg, "total", 99_900, 1),
        *((None, None, None, None, step, 1, 1) for step in ("queue", "handle", "total")),
    ]
    assertDataFrameEqual(steps(day), spark.createDataFrame(expected, STEPS))


def test_incidents_are_whole_events_of_every_kind_that_is_not_one_of_many(spark: SparkSession) -> None:
    kinds = ["publish", "stored", "handled", "refused", "failed", "dead_letter", "breaker", "bus", "teleported"]
    day = events(spark, *({"kind": kind, "detail": "as it is", "limit": 7, "time": 1} for kind in kinds))
    assertDataFrameEqual(incidents(day), day.offset(3), checkRowOrder=False)


def test_an_empty_day_has_no_rows_and_every_column(spark: SparkSession) -> None:
    nothing = events(spark)
    for source, columns in ((traffic(nothing, DAY), TRAFFIC), (steps(nothing), STEPS)):
        assertDataFrameEqual(source, spark.createDataFrame([], columns))
    assert incidents(nothing).schema == EVENT_SCHEMA
    assert incidents(nothing).isEmpty()


def test_a_minute_is_written_as_a_time_of_day(spark: SparkSession) -> None:
    minutes = spark.createDataFrame([(0,), (59,), (60,), (1439,), (None,)], "minute int")
    assert [row[0] for row in minutes.select(time_of_day(minutes["minute"])).collect()] == [
        "00:00",
        "00:59",
        "01:00",
        "23:59",
        None,
    ]


def test_a_pass_opens_its_kinds_and_columns_alone_and_shuffles_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "events"
    rows = [{"kind": kind, "totalUs": 1, "bytes": 1} for kind in ("publish", "handled", "refused", "bus")]
    day = events(spark, *rows)
    for kind in ("publish", "handled", "refused", "bus"):
        day.where(day["kind"] == kind).drop("kind").write.parquet(str(root / f"date={DATE}" / f"kind={kind}"))
    stored = spark.read.schema(EVENT_SCHEMA).parquet(str(root / f"date={DATE}"))

    plan = plan_of(traffic(stored, DAY), capsys)
    assert "kind IN (publish,refused)" in _line(plan, "PartitionFilters")
    assert _line(plan, "ReadSchema").count(":") == 1 + 7
    assert plan.count("- Exchange (") == plan.count("- Scan parquet") == 1
    assert [row["kind"] for row in traffic(stored, DAY).sort("kind").collect()] == ["publish", "refused"]

    plan = plan_of(steps(stored), capsys)
    assert "handled" in _line(plan, "PartitionFilters")
    assert _line(plan, "ReadSchema").count(":") == 1 + 7
    assert plan.count("- Exchange (") == plan.count("- Scan parquet") == 1

    plan = plan_of(incidents(stored), capsys)
    assert "NOT kind" in _line(plan, "PartitionFilters")
    assert "Exchange" not in plan


def _line(plan: str, word: str) -> str:
    return next(line for line in plan.splitlines() if word in line)
