from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.events.sources import traffic
from spark.tables.refusals import refusals
from tests.spark.events import DAY, at, events

SCHEMA = "code string, sender string, subject string, target string, refused long, firstAt string, lastAt string"


def test_refusals_by_reason_with_who_and_where(spark: SparkSession) -> None:
    limited = {"kind": "refused", "subject": "s", "sender": "loud", "target": "*", "code": "rate_limited"}
    full = {"kind": "refused", "subject": "s", "sender": "a", "target": "0123456789ab", "code": "backpressure"}
    day = events(
        spark,
        # Nine in ten of one sender, the last before the first.
        limited | {"time": at(18, minutes=5, secs=59)},
        *(limited | {"time": at(12, minutes=n)} for n in range(88)),
        limited | {"time": at(8, minutes=7)},
        full | {"time": at(3, minutes=2)},
        # The same line once more.
        full | {"time": at(3, minutes=2)},
        full | {"time": at(3), "target": "ba9876543210"},
        full | {"time": at(3), "sender": "b"},
        full | {"time": at(3), "subject": "other"},
        {"kind": "refused", "time": at(-5)},
        {"kind": "refused", "time": at(48)},
        # Neither counts.
        {"kind": "publish", "time": at(3), "subject": "s", "sender": "a"},
        {"kind": "teleported", "time": at(3), "subject": "s", "sender": "a", "code": "backpressure"},
    )
    expected = [
        ("rate_limited", "loud", "s", "*", 90, "08:07", "18:05"),
        ("backpressure", "a", "s", "0123456789ab", 2, "03:02", "03:02"),
        ("backpressure", "a", "s", "ba9876543210", 1, "03:00", "03:00"),
        ("backpressure", "b", "s", "0123456789ab", 1, "03:00", "03:00"),
        ("backpressure", "a", "other", "0123456789ab", 1, "03:00", "03:00"),
        (None, None, None, None, 2, "00:00", "23:59"),
    ]
    assertDataFrameEqual(refusals(traffic(day, DAY)), spark.createDataFrame(expected, SCHEMA))


def test_one_refusal_is_one_row(spark: SparkSession) -> None:
    day = events(spark, {"kind": "refused", "time": at(1), "subject": "s", "sender": "a", "target": "*", "code": "c"})
    expected = [("c", "a", "s", "*", 1, "01:00", "01:00")]
    assertDataFrameEqual(refusals(traffic(day, DAY)), spark.createDataFrame(expected, SCHEMA))


def test_a_day_without_refusals_has_no_rows_and_every_column(spark: SparkSession) -> None:
    quiet = events(spark, {"kind": "publish", "time": at(1), "subject": "s", "sender": "a"})
    assertDataFrameEqual(refusals(traffic(quiet, DAY)), spark.createDataFrame([], SCHEMA))
    assertDataFrameEqual(refusals(traffic(events(spark), DAY)), spark.createDataFrame([], SCHEMA))
