from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from relay_core.config import RateLimitConfig
from relay_core.rules.rate_limit import resolve_limit
from spark.events.sources import traffic
from spark.tables.senders import Limits, senders
from tests.spark.events import DAY, at, events

SCHEMA = (
    "sender string, messages long, bytes long, peakMinute string, peakMessages long, limitPerMinute double,"
    " peakShare double, refused long, rateLimited long, refusedShare double"
)


def test_usage_against_the_limit(spark: SparkSession) -> None:
    doubled = {"kind": "publish", "time": at(5), "subject": "s", "sender": "twice", "bytes": 3}
    refused = {"kind": "refused", "time": at(1), "subject": "s", "target": "*", "code": "rate_limited"}
    day = events(
        spark,
        # Nine in ten of one sender: its peak is at 10:01 over two subjects, not in the hour with more messages.
        *(
            {"kind": "publish", "time": at(20, minutes=n), "subject": "s", "sender": "loud", "bytes": 1}
            for n in range(60)
        ),
        *({"kind": "publish", "time": at(10, minutes=1, secs=n), "subject": "s", "sender": "loud"} for n in range(15)),
        *({"kind": "publish", "time": at(10, minutes=1, secs=n), "subject": "t", "sender": "loud"} for n in range(15)),
        refused | {"sender": "loud"},
        refused | {"sender": "loud", "code": "backpressure", "target": "0123456789ab"},
        # Two peaks: the earlier counts, though its events come later.
        {"kind": "publish", "time": at(4, minutes=5), "sender": "even", "bytes": 2},
        {"kind": "publish", "time": at(3, minutes=4), "sender": "even", "bytes": 2},
        # Refusals alone, and more in one minute than anyone's messages; a reason is not always known.
        *(refused | {"sender": "denied"} for _ in range(40)),
        refused | {"sender": "denied", "code": None},
        doubled,
        doubled,
        {"kind": "publish", "time": at(-9)},
        {"kind": "publish", "time": at(99)},
        {"kind": "publish", "time": at(99)},
        # A publish has no code, whatever it says.
        {"kind": "publish", "time": at(1), "sender": "odd", "code": "rate_limited"},
        {"kind": "teleported", "time": at(3), "sender": "even", "bytes": 1},
    )
    limits = Limits(enabled=True, max_per_window=5, window_secs=30, per_sender_overrides={"loud": 30})
    expected = [
        ("loud", 90, 60, "10:01", 30, 60.0, 0.5, 2, 1, 1 / 91),
        ("even", 2, 4, "03:04", 1, 10.0, 0.1, 0, 0, 0.0),
        ("denied", 0, 0, None, 0, 10.0, 0.0, 41, 40, 1.0),
        ("twice", 2, 6, "05:00", 2, 10.0, 0.2, 0, 0, 0.0),
        (None, 3, 0, "23:59", 2, 10.0, 0.2, 0, 0, 0.0),
        ("odd", 1, 0, "01:00", 1, 10.0, 0.1, 0, 0, 0.0),
    ]
    assertDataFrameEqual(senders(traffic(day, DAY), limits), spark.createDataFrame(expected, SCHEMA))


def test_a_limit_is_resolved_as_the_bus_does(spark: SparkSession) -> None:
    overrides = {
        "relay.agent": 10,
        "relay.agent.a.b": 30,
        "relay.agent.a": 20,
        "relay.human.": 40,
        "relay.human": 41,
        "relay.system_x": 50,
        ".": 60,
        "": 70,
    }
    names = [
        "relay",
        "relay.agent",
        "relay.agent.a",
        "relay.agent.ab",
        "relay.agent.a.b",
        "relay.agent.a.b.c",
        "relay.agent.a.bc",
        "relay.agents",
        "relay.human",
        "relay.human.x",
        "relay.systemax.y",
        "relay.system_x.y",
        "Relay.agent.a",
        "",
    ]
    config = RateLimitConfig(max_per_window=7, per_sender_overrides=overrides)
    limits = Limits(enabled=True, max_per_window=7, window_secs=60, per_sender_overrides=overrides)
    rows = spark.createDataFrame([(name,) for name in names], "sender string")
    found = rows.select("sender", limits.of(F.col("sender")).alias("limit")).collect()
    assert {row["sender"]: row["limit"] for row in found} == {name: resolve_limit(name, config) for name in names}


def test_no_limit_is_known_while_limits_are_off(spark: SparkSession) -> None:
    limits = Limits(enabled=False, max_per_window=5, window_secs=60, per_sender_overrides={"a": 1})
    day = events(spark, {"kind": "publish", "time": at(23, minutes=59), "sender": "a", "bytes": 1})
    expected = [("a", 1, 1, "23:59", 1, None, None, 0, 0, 0.0)]
    assertDataFrameEqual(senders(traffic(day, DAY), limits), spark.createDataFrame(expected, SCHEMA))


def test_the_refused_share_is_of_what_the_sender_tried(spark: SparkSession) -> None:
    publish = {"kind": "publish", "sender": "a", "bytes": 1}
    refused = {"kind": "refused", "code": "rate_limited"}
    day = events(
        spark,
        # Five of fifteen: refused by the one target each, which leaves a publish beside the refusal ...
        *(publish | {"status": "accepted"} for _ in range(10)),
        *(publish | {"status": "refused"} for _ in range(5)),
        *(refused | {"sender": "a", "target": "0123456789ab", "code": "backpressure"} for _ in range(5)),
        # ... or refused altogether, which does not ...
        *(publish | {"sender": "b", "status": "accepted"} for _ in range(10)),
        *(refused | {"sender": "b", "target": "*"} for _ in range(5)),
        # ... and a message that four of five targets refused was accepted. A replay is none.
        publish | {"sender": "c", "status": "accepted"},
        *(refused | {"sender": "c", "target": f"{n:012}"} for n in range(4)),
        publish | {"sender": "c", "status": "replayed"},
    )
    rows = senders(traffic(day, DAY), Limits()).select("sender", "messages", "refused", "refusedShare").collect()
    assert sorted(map(tuple, rows)) == [("a", 15, 5, 5 / 15), ("b", 10, 5, 5 / 15), ("c", 1, 4, 0.0)]


def test_an_empty_day_has_no_rows_and_every_column(spark: SparkSession) -> None:
    limits = Limits(enabled=True, max_per_window=5, window_secs=60, per_sender_overrides={})
    assertDataFrameEqual(senders(traffic(events(spark), DAY), limits), spark.createDataFrame([], SCHEMA))
