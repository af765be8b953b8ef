from __future__ import annotations

import random
from typing import Any

from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.events.sources import STEPS, steps
from spark.tables.latency import latency
from tests.spark.events import at, events
from tests.spark.ranks import nearest_rank, three_digits

SCHEMA = (
    "target string, name string, targetKind string, step string, messages long,"
    " p50Us long, p95Us long, p99Us long, maxUs long"
)


def summary(values: list[int]) -> tuple[int, ...]:
    """Return count, p50, p95, p99 and maximum of raw values by nearest rank, kept to three digits."""
    return (len(values), *(three_digits(nearest_rank(values, percent)) for percent in (50, 95, 99, 100)))


def test_percentiles_of_each_step_by_target(spark: SparkSession) -> None:
    chance = random.Random(61)
    busy = ("t1", "relay.agent.a", "endpoint")
    quiet = ("t2", "telegram", "adapter")
    about: dict[tuple[str | None, ...], dict[str, Any]] = {
        busy: {"target": "t1", "subject": "relay.agent.a", "targetKind": "endpoint"},
        quiet: {"target": "t2", "subject": "relay.human.x", "targetKind": "adapter", "adapter": "telegram"},
        (None, None, None): {},
    }
    durations: dict[tuple[str | None, ...], list[tuple[int, int]]] = {
        busy: [(int(chance.paretovariate(0.8) * 9), int(chance.lognormvariate(8, 2))) for _ in range(450)],
        quiet: [(chance.randint(0, 5), chance.randint(10**5, 10**8)) for _ in range(49)],
        (None, None, None): [(-7_000, 12_345)],
    }
    # One line of the quiet target stands twice in the log: lines are counted.
    durations[quiet].append(durations[quiet][0])
    rows = [
        about[key]
        | {"kind": "handled", "queueUs": q, "handleUs": h, "totalUs": q + h, "time": at(chance.uniform(-30, 50))}
        for key, pairs in durations.items()
        for q, h in pairs
    ]
    chance.shuffle(rows)
    # Not measured, and not handled.
    unmeasured = about[busy] | {"kind": "handled"}
    unknown = about[busy] | {"kind": "teleported", "queueUs": 1, "handleUs": 1, "totalUs": 1}
    expected = [
        (*key, step, *summary(values))
        for key, pairs in durations.items()
        for step, values in zip(
            STEPS, ([q for q, _ in pairs], [h for _, h in pairs], [q + h for q, h in pairs]), strict=True
        )
    ]
    table = latency(steps(events(spark, *rows, unmeasured, unknown)))
    assertDataFrameEqual(table, spark.createDataFrame(expected, SCHEMA))


def test_one_message_is_every_percentile(spark: SparkSession) -> None:
    handled = {"kind": "handled", "target": "t", "subject": "s", "targetKind": "endpoint"}
    day = events(spark, handled | {"queueUs": 0, "handleUs": 1_999, "totalUs": 2_001})
    expected = [
        ("t", "s", "endpoint", "queue", 1, 0, 0, 0, 0),
        ("t", "s", "endpoint", "handle", 1, 1_990, 1_990, 1_990, 1_990),
        ("t", "s", "endpoint", "total", 1, 2_000, 2_000, 2_000, 2_000),
    ]
    assertDataFrameEqual(latency(steps(day)), spark.createDataFrame(expected, SCHEMA))


def test_an_empty_day_has_no_rows_and_every_column(spark: SparkSession) -> None:
    assertDataFrameEqual(latency(steps(events(spark))), spark.createDataFrame([], SCHEMA))
