"""Anomalies: the day's numbers against the usual of the days before."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterable
from datetime import date, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark.days import Day
from spark.tables import anomalies as module
from spark.tables.anomalies import anomalies
from spark.tables.daily import METRICS
from tests.spark.events import DATE, DAY, at

BY_NAME = {metric.name: metric for metric in METRICS}
Number = tuple[str, str, float]


def back(days: int) -> date:
    return DATE - timedelta(days=days)


def numbers(spark: SparkSession, rows: Iterable[Number]) -> DataFrame:
    return spark.createDataFrame(
        [(metric, key, float(value)) for metric, key, value in rows], "metric string, key string, value double"
    )


def history(spark: SparkSession, rows: Iterable[tuple[date, str, str, float]]) -> DataFrame:
    return spark.createDataFrame([*rows], "date date, metric string, key string, value double")


def days(metric: str, key: str, values: Iterable[float | None]) -> list[tuple[date, str, str, float]]:
    """Return a number's history: yesterday's value first, None for a day without it."""
    return [(back(ago), metric, key, float(value)) for ago, value in enumerate(values, 1) if value is not None]


def found(frame: DataFrame) -> dict[tuple[str, str], Any]:
    rows = frame.collect()
    by_key = {(row["metric"], row["key"]): row for row in rows}
    assert len(by_key) == len(rows)
    return by_key


def reasons(row: Any) -> list[tuple[str, str, float, float]]:
    return [tuple(reason) for reason in row["because"]]


def test_random_history_agrees_with_statistics_median(spark: SparkSession) -> None:
    chance = random.Random(6)
    keys = {
        "messagesBySender": 20,
        "messagesBySubject": 4,
        "messages": 1,
        "p95TotalUs": 6,
        "p95QueueUs": 6,
        "jobsFailed": 1,
    }
    past: dict[tuple[str, str], dict[date, float]] = defaultdict(dict)
    today: dict[tuple[str, str], float] = {}
    for metric, count in keys.items():
        for number in range(count):
            key = "" if BY_NAME[metric].key is None else f"k{number}"
            middle = chance.choice([3.0, 400.0, 90_000.0])
            for ago in range(1, 15):
                if chance.random() < 0.7:
                    past[metric, key][back(ago)] = float(round(chance.gauss(middle, middle / 8)))
            if chance.random() < 0.9:
                today[metric, key] = float(round(middle * chance.choice([0.2, 1, 1.3, 9])))
    dates = {day for values in past.values() for day in values}
    compared: dict[tuple[str, str], tuple[float, float, float, float]] = {}
    for metric, key in past.keys() | today.keys():
        is_zero = BY_NAME[metric].missing_is_zero
        seen = past[metric, key]
        values = [seen.get(day, 0.0) for day in dates] if is_zero else list(seen.values())
        if len(values) < 5 or ((metric, key) not in today and not is_zero):
            continue
        usual = statistics.median(values)
        mad = statistics.median(abs(value - usual) for value in values)
        spread = max(1.4826 * mad, 0.05 * usual, BY_NAME[metric].floor / 3.5)
        value = today.get((metric, key), 0.0)
        compared[metric, key] = (value, usual, spread, (value - usual) / spread)
    flagged = {name: numbers for name, numbers in compared.items() if abs(numbers[3]) >= 3.5}
    assert len(flagged) > 8

    past_rows = [(day, *name, value) for name, values in past.items() for day, value in values.items()]
    chance.shuffle(past_rows)
    made = found(
        anomalies(numbers(spark, [(*name, value) for name, value in today.items()]), history(spark, past_rows), DAY)
    )

    assert made.keys() == flagged.keys()
    for name, (value, usual, spread, score) in flagged.items():
        row = made[name]
        assert (row["value"], row["usual"]) == (value, usual)
        assert (row["spread"], row["score"]) == (pytest.approx(spread), pytest.approx(score))
        assert row["direction"] == ("up" if score > 0 else "down")
        explaining = [
            (-abs(part[0] - part[1]), other, key, part[0], part[1])
            for (other, key), part in compared.items()
            if other in BY_NAME[name[0]].explained_by and name[1] in ("", key) and (part[0] - part[1]) * score > 0
        ]
        assert reasons(row) == [reason[1:] for reason in sorted(explaining)[:5]]


def test_what_is_flagged_and_what_is_not(spark: SparkSession) -> None:
    past = [
        # The same every day: a spread of 5 % of it, so 17.5 % off is flagged, or what the metric's floor asks for.
        *days("messages", "", [1000] * 8),
        *days("messagesBySender", "steady", [800] * 8),
        *days("messagesBySender", "silent", [200] * 8),
        *days("messagesBySubject", "vanished", [500] * 8),
        *days("messagesBySubject", "rare", [15, None, None, None, None, None, None, None]),
        *days("deadLetters", "", [0] * 8),
        *days("jobsFailed", "", [0] * 8),
        # Latencies: not known on days without traffic, so the first is too short and the second is not.
        *days("p95TotalUs", "often", [10_000] * 5),
        *days("p95QueueUs", "often", [2_000] * 5),
        *days("p95HandleUs", "often", [8_000] * 5),
        *days("p95QueueUs", "other", [2_000] * 5),
        *days("p95TotalUs", "seldom", [10_000] * 4),
        *days("p95TotalUs", "gone", [10_000] * 8),
        *days("noLongerAMetric", "", [5] * 8),
    ]
    now: list[Number] = [
        ("messages", "", 1180),
        ("messagesBySender", "steady", 939),
        ("messagesBySender", "new", 241),
        ("messagesBySubject", "rare", 19),
        ("deadLetters", "", 4),
        ("jobsFailed", "", 1),
        ("p95TotalUs", "often", 90_000),
        ("p95QueueUs", "often", 80_000),
        ("p95HandleUs", "often", 9_000),
        ("p95QueueUs", "other", 90_000),
        ("p95TotalUs", "seldom", 90_000),
    ]
    made = found(anomalies(numbers(spark, now), history(spark, past), DAY))
    assert {name: row["direction"] for name, row in made.items()} == {
        ("messages", ""): "up",
        ("messagesBySender", "new"): "up",
        ("messagesBySender", "silent"): "down",
        ("messagesBySubject", "vanished"): "down",
        ("jobsFailed", ""): "up",
        ("p95TotalUs", "often"): "up",
        ("p95QueueUs", "often"): "up",
        ("p95QueueUs", "other"): "up",
    }
    up = made["messages", ""]
    assert (up["value"], up["usual"], up["spread"]) == (1180, 1000, 50)
    assert up["score"] == pytest.approx(3.6)
    assert reasons(up) == [
        ("messagesBySender", "new", 241, 0),
        ("messagesBySender", "steady", 939, 800),
        ("messagesBySubject", "rare", 19, 0),
    ]
    assert reasons(made["p95TotalUs", "often"]) == [
        ("p95QueueUs", "often", 80_000, 2_000),
        ("p95HandleUs", "often", 9_000, 8_000),
    ]
    assert reasons(made["messagesBySender", "new"]) == []
    # A day that is not over has had no time yet for the rest.
    unfinished = found(anomalies(numbers(spark, now), history(spark, past), Day.of(DATE, at(12))))
    assert unfinished.keys() == {name for name, row in made.items() if row["direction"] == "up"}


def test_days_outside_the_history_do_not_count(spark: SparkSession) -> None:
    outside = [(back(ago), "messages", "", 1000.0) for ago in (-1, 0, 15, 16)]
    four = history(spark, [*outside, *days("messages", "", [1000] * 4)])
    assert found(anomalies(numbers(spark, [("messages", "", 1)]), four, DAY)) == {}


def test_a_day_without_numbers_has_lost_all_of_them(spark: SparkSession) -> None:
    past = [
        *days("messages", "", [1000] * 5),
        *days("messagesBySubject", "s", [1000] * 5),
        *days("jobsFailed", "", [0] * 5),
    ]
    made = found(anomalies(numbers(spark, []), history(spark, past), DAY))
    assert {name: row["value"] for name, row in made.items()} == {("messages", ""): 0, ("messagesBySubject", "s"): 0}
    assert reasons(made["messages", ""]) == [("messagesBySubject", "s", 0, 1000)]


def test_a_key_that_was_cut_off_may_have_had_as_much_as_the_least_that_was_kept(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 2)
    past = [*days("messagesBySender", "great", [9000] * 6), *days("messagesBySender", "edge", [500] * 6)]
    now: list[Number] = [("messagesBySender", "great", 9000), ("messagesBySender", "newcomer", 510)]
    assert found(anomalies(numbers(spark, now), history(spark, past), DAY)) == {}
