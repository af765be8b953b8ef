"""The day by hour."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.events.sources import incidents, traffic
from spark.tables.hours import hours
from tests.spark.events import DAY, at, events

SCHEMA = "hour INT, messages LONG, bytes LONG, refused LONG, deadLetters LONG"


def test_each_hour_has_what_happened_in_it(spark: SparkSession) -> None:
    log = events(
        spark,
        {"kind": "publish", "time": at(23, minutes=59), "bytes": 5, "sender": "a"},
        {"kind": "publish", "time": at(0), "bytes": 7, "sender": "a"},
        {"kind": "publish", "time": at(0, minutes=59, secs=59), "sender": "b"},
        {"kind": "refused", "time": at(0, minutes=30), "code": "rate_limited", "bytes": 99},
        {"kind": "dead_letter", "time": at(0), "status": "failed"},
        {"kind": "dead_letter", "time": at(4), "status": "no_subscriber"},
        {"kind": "dead_letter", "time": at(5), "status": "purged"},
        {"kind": "dead_letter", "time": at(-1), "status": "failed"},  # carried over
        {"kind": "handled", "time": at(6)},
    )
    made = hours(traffic(log, DAY), incidents(log), DAY)
    expected = [(0, 2, 7, 1, 1), (4, 0, 0, 0, 1), (23, 1, 5, 0, 0)]
    assertDataFrameEqual(made, spark.createDataFrame(expected, SCHEMA))


def test_a_day_without_events_has_no_hours(spark: SparkSession) -> None:
    made = hours(traffic(events(spark), DAY), incidents(events(spark)), DAY)
    assertDataFrameEqual(made, spark.createDataFrame([], SCHEMA))
