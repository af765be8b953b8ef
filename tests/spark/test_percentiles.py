from __future__ import annotations

import random
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from spark.percentiles import bucket, percentiles
from tests.spark.ranks import nearest_rank, three_digits

LONGEST = 2**63 - 1


def skewed_values() -> dict[str, list[int]]:
    """Return groups of durations as different as they come, the same in every run."""
    chance = random.Random(6)
    return {
        "pareto": [int(50 * chance.paretovariate(0.7)) for _ in range(997)],
        "lognormal": [int(chance.lognormvariate(9, 2.5)) for _ in range(1000)],
        "two peaks": [
            chance.randint(0, 30) if chance.random() < 0.94 else chance.randint(10**6, 10**9) for _ in range(640)
        ],
        "all the same": [123_456] * 50,
        "a hundred": list(range(1, 101)),
        "two": [7, 70_001],
        "one": [98_765_432],
        "clock put back": [-5_000_000, -1, 0, 4],
        "longest": [LONGEST, LONGEST - 1, 1],
    }


def test_a_bucket_keeps_three_digits_and_errs_by_less_than_one_percent(spark: SparkSession) -> None:
    edges = [10**power + by for power in range(19) for by in (-1, 0, 1)] + [999_999, 1_239, 5, LONGEST]
    chance = random.Random(7)
    values = edges + [chance.randrange(10 ** chance.randint(1, 18)) for _ in range(300)]
    rows = spark.createDataFrame([(value,) for value in values], "us long").select("us", bucket(F.col("us")).alias("b"))
    assert rows.schema["b"].dataType.simpleString() == "bigint"
    found = {row["us"]: row["b"] for row in rows.collect()}
    assert found == {value: three_digits(value) for value in values}
    assert all(us - kept < us / 100 for us, kept in found.items() if us)
    assert all(us == kept for us, kept in found.items() if us < 1000)


def test_a_negative_duration_counts_as_zero_and_an_unknown_one_stays_unknown(spark: SparkSession) -> None:
    odd = spark.createDataFrame([(1, -1), (2, -(2**63)), (3, None)], "id int, us long")
    expected = spark.createDataFrame([(1, 0), (2, 0), (3, None)], "id int, us long")
    assertDataFrameEqual(odd.select("id", bucket(F.col("us")).alias("us")), expected)


def test_percentiles_are_the_nearest_ranks_of_the_raw_values(spark: SparkSession) -> None:
    groups = skewed_values()
    rows: list[tuple[Any, ...]] = [(name, us, 1) for name, values in groups.items() for us in values]
    random.Random(8).shuffle(rows)
    raw = spark.createDataFrame(rows, "name string, us long, messages long")
    # Some buckets stand in two rows, as in a histogram that was added up from two.
    histogram = raw.groupBy("name", bucket(F.col("us")).alias("us"), (F.col("us") % 2).alias("half")).agg(
        F.sum("messages").alias("messages")
    )
    table = percentiles(histogram, ["name"], [50, 95, 99])
    assert table.schema.simpleString() == (
        "struct<name:string,messages:bigint,p50Us:bigint,p95Us:bigint,p99Us:bigint,maxUs:bigint>"
    )
    expected = [
        (name, len(values), *(three_digits(nearest_rank(values, percent)) for percent in (50, 95, 99, 100)))
        for name, values in groups.items()
    ]
    assertDataFrameEqual(table, spark.createDataFrame(expected, table.schema))


def test_unknown_durations_and_null_groups(spark: SparkSession) -> None:
    rows = [("a", 5, 2), ("a", None, 9), (None, 3, 1), (None, 4, 1), ("only unknown", None, 1)]
    table = percentiles(spark.createDataFrame(rows, "name string, us long, messages long"), ["name"], [50])
    expected = [("a", 2, 5, 5), (None, 2, 3, 4)]
    assertDataFrameEqual(table, spark.createDataFrame(expected, table.schema))


def test_no_rows_give_no_rows(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([], "name string, us long, messages long")
    assert percentiles(nothing, ["name"], [50]).collect() == []
