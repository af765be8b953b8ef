"""The day's numbers, and the list that says what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark.tables import daily as module
from spark.tables.daily import METRICS, daily

COLUMNS = {
    "throughput": "hour int, subject string, sender string, messages bigint, bytes bigint, refused bigint",
    "refusals": "code string, sender string, subject string, target string, refused bigint",
    "dead_letters": "code string, target string, name string, letters bigint, standing bigint",
    "latency": "target string, name string, step string, messages bigint, p95Us bigint",
    "breakers": "target string, name string, openings bigint, openSecs double",
    "pressure": "target string, name string, aboveSecs double",
    "adapters": "adapter string, failed bigint, downSecs double",
    "jobs": "job string, runs bigint, failed bigint, timedOut bigint",
    "conversations": "traceId string, sender string, subject string, depth int, fanOut bigint, loopsStopped bigint",
}
KEYLESS = {metric.name for metric in METRICS if metric.key is None}


def tables(spark: SparkSession, rows: Mapping[str, list[tuple[Any, ...]]]) -> dict[str, DataFrame]:
    return {name: spark.createDataFrame(rows.get(name, []), columns) for name, columns in COLUMNS.items()}


def numbers(frame: DataFrame) -> dict[tuple[str, str], float]:
    rows = frame.collect()
    found = {(row["metric"], row["key"]): row["value"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_sums_maxima_and_break_downs(spark: SparkSession) -> None:
    made = daily(
        tables(
            spark,
            {
                "throughput": [(1, "s1", "a", 10, 100, 0), (2, "s1", "b", 5, 50, 9), (2, "s2", "a", 1, 7, 0)],
                "refusals": [("rate_limited", "a", "s1", "*", 3), ("rate_limited", None, "s2", "*", 4)],
                "dead_letters": [
                    ("timeout", "t1", "one", 2, 5),
                    ("expired", "t1", "one", 1, 0),
                    ("x", "t2", None, 0, 8),
                ],
                "latency": [
                    ("t1", "one", "total", 50, 900),
                    ("t2", "one", "total", 50, 1200),
                    ("t1", "one", "queue", 50, 400),
                    ("t3", "rare", "total", 19, 9999),
                ],
                "breakers": [("t1", "one", 2, 30.5)],
                "pressure": [("t1", "one", 12.0), ("t2", "two", 0.5)],
                "adapters": [("telegram", 4, 60.0), ("webhook", 0, 0.0)],
                "jobs": [("report", 9, 1, 2)],
                "conversations": [("T", "a", "s1", 3, 7, 1), ("U", "a", "s2", 2, 9, 0)],
            },
        )
    )
    assert made.columns == ["metric", "key", "value"]
    assert dict(made.dtypes) == {"metric": "string", "key": "string", "value": "double"}
    assert numbers(made) == {
        ("messages", ""): 16,
        ("messagesBySubject", "s1"): 15,
        ("messagesBySubject", "s2"): 1,
        ("messagesBySender", "a"): 11,
        ("messagesBySender", "b"): 5,
        ("bytes", ""): 157,
        ("bytesBySender", "a"): 107,
        ("bytesBySender", "b"): 50,
        ("refusals", ""): 7,
        ("refusalsByCode", "rate_limited"): 7,
        ("refusalsBySender", "a"): 3,
        ("refusalsBySender", "?"): 4,
        ("refusalsBySubject", "s1"): 3,
        ("refusalsBySubject", "s2"): 4,
        ("deadLetters", ""): 3,
        ("deadLettersByCode", "timeout"): 2,
        ("deadLettersByCode", "expired"): 1,
        ("deadLettersByTarget", "one"): 3,
        ("standingLetters", ""): 13,
        ("standingLettersByTarget", "one"): 5,
        ("standingLettersByTarget", "t2"): 8,
        ("p95TotalUs", "one"): 1200,
        ("p95QueueUs", "one"): 400,
        ("breakerOpenSecs", ""): 30.5,
        ("breakerOpenSecsByTarget", "one"): 30.5,
        ("breakerOpenings", ""): 2,
        ("breakerOpeningsByTarget", "one"): 2,
        ("pressureSecs", ""): 12.5,
        ("pressureSecsByTarget", "one"): 12,
        ("pressureSecsByTarget", "two"): 0.5,
        ("adapterFailures", ""): 4,
        ("adapterFailuresByAdapter", "telegram"): 4,
        ("adapterDownSecs", ""): 60,
        ("adapterDownSecsByAdapter", "telegram"): 60,
        ("jobsFailed", ""): 3,
        ("jobsFailedByJob", "report"): 3,
        ("loopsStopped", ""): 1,
        ("loopsStoppedBySender", "a"): 1,
        ("loopsStoppedBySubject", "s1"): 1,
        ("deepestChain", ""): 3,
        ("widestFanOut", ""): 9,
    }


def test_a_break_down_keeps_its_greatest_keys_and_a_quiet_table_has_zeros(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 3)
    traffic = [(0, "s", f"sender {number}", 10 if number < 5 else 1, 1, 0) for number in (4, 3, 9, 8, 2, 1)]
    made = numbers(daily(tables(spark, {"throughput": [*traffic, (0, "s", "last", 99, 1, 0)]})))
    assert made["messages", ""] == 141
    # A day on which little happened has zeros for the whole bus, and no empty break-downs.
    assert {metric: value for (metric, key), value in made.items() if key == "" and value == 0} == dict.fromkeys(
        KEYLESS - {"messages", "bytes"}, 0.0
    )
    assert {metric for metric, key in made if key != ""} == {"messagesBySubject", "messagesBySender", "bytesBySender"}
    kept = [key for metric, key in made if metric == "messagesBySender"]
    assert sorted(kept) == ["last", "sender 1", "sender 2"]


def test_the_list_of_metrics_holds_together() -> None:
    by_name = {metric.name: metric for metric in METRICS}
    assert len(by_name) == len(METRICS)
    for metric in METRICS:
        assert metric.floor > 0
        for name in metric.explained_by:
            part = by_name[name]
            assert part.table == metric.table
            assert part.key is not None
            assert metric.key is None or metric.key == part.key
