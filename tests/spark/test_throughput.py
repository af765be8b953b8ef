from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.events.sources import traffic
from spark.tables.throughput import throughput
from tests.spark.events import DAY, at, events

SCHEMA = "hour int, subject string, sender string, messages long, bytes long, refused long"


def test_messages_bytes_and_refusals_by_hour_subject_and_sender(spark: SparkSession) -> None:
    doubled = {"kind": "publish", "time": at(7, minutes=30), "subject": "s", "sender": "twice", "bytes": 3}
    loud = [
        {"kind": "publish", "time": at(9, secs=n), "subject": "s", "sender": "loud", "bytes": 10} for n in range(90)
    ]
    day = events(
        spark,
        # The hour's last minute before its first, as an event log may have it.
        {"kind": "publish", "time": at(2, minutes=59), "subject": "s", "sender": "a", "bytes": 1},
        {"kind": "publish", "time": at(2), "subject": "s", "sender": "a", "bytes": 2},
        {
            "kind": "refused",
            "time": at(2),
            "subject": "s",
            "sender": "a",
            "target": "t",
            "code": "backpressure",
            "bytes": 9,
        },
        {"kind": "publish", "time": at(3), "subject": "s", "sender": "a", "bytes": 4},
        {"kind": "publish", "time": at(3), "subject": "other", "sender": "a"},
        *loud,
        # Refusals alone, of two reasons.
        {"kind": "refused", "time": at(9), "subject": "s", "sender": "denied", "target": "*", "code": "access_denied"},
        {"kind": "refused", "time": at(9), "subject": "s", "sender": "denied", "target": "*", "code": None},
        doubled,
        doubled,
        {"kind": "publish", "time": at(-3), "bytes": 5},
        {"kind": "publish", "time": at(99), "bytes": 6},
        {"kind": "teleported", "time": at(4), "subject": "s", "sender": "a", "bytes": 1},
    )
    expected = [
        (2, "s", "a", 2, 3, 1),
        (3, "s", "a", 1, 4, 0),
        (3, "other", "a", 1, 0, 0),
        (9, "s", "loud", 90, 900, 0),
        (9, "s", "denied", 0, 0, 2),
        (7, "s", "twice", 2, 6, 0),
        (0, None, None, 1, 5, 0),
        (23, None, None, 1, 6, 0),
    ]
    assertDataFrameEqual(throughput(traffic(day, DAY)), spark.createDataFrame(expected, SCHEMA))


def test_one_event_is_one_row(spark: SparkSession) -> None:
    day = events(spark, {"kind": "publish", "time": at(23, minutes=59), "subject": "s", "sender": "a", "bytes": 1})
    expected = [(23, "s", "a", 1, 1, 0)]
    assertDataFrameEqual(throughput(traffic(day, DAY)), spark.createDataFrame(expected, SCHEMA))


def test_an_empty_day_has_no_rows_and_every_column(spark: SparkSession) -> None:
    assertDataFrameEqual(throughput(traffic(events(spark), DAY)), spark.createDataFrame([], SCHEMA))
