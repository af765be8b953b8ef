"""Conversations: messages by trace, and the loops that were stopped."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.tables.conversations import conversations
from tests.spark.events import at, events


def publish(
    trace: str, message: str, parent: str | None = None, *, time: int, hops: int = 0, **more: Any
) -> dict[str, Any]:
    row = {"kind": "publish", "time": time, "traceId": trace, "messageId": message, "parentId": parent}
    names = {"sender": f"from {message}", "subject": f"to {message}", "status": "accepted"}
    return row | names | {"hopCount": hops, "callsLeft": 10 - hops} | more


def handled(trace: str, message: str, parent: str | None = None, *, time: int, hops: int = 1) -> dict[str, Any]:
    return publish(trace, message, parent, time=time, hops=hops, kind="handled", subject="a mailbox", status="done")


def stopped(trace: str, message: str, code: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    return publish(trace, message, parent, **({"kind": "dead_letter", "status": "failed", "code": code} | more))


def table(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in rows.collect())


def test_a_row_tells_how_far_a_trace_went(spark: SparkSession) -> None:
    rows = [
        # A question with three answers, one of them asked again, out of order and one line doubled.
        handled("T", "c", "b", time=at(2, ms=900), hops=3),
        publish("T", "c", "b", time=at(2, ms=700), hops=2),
        publish("T", "b", "a", time=at(2, ms=500), hops=1),
        publish("T", "b", "a", time=at(2, ms=500), hops=1),
        publish("T", "b2", "a", time=at(2, ms=600), hops=1),
        publish("T", "b3", "a", time=at(2, ms=600), hops=1),
        publish("T", "a", time=at(2)),
        # Published again by a replay: still one message.
        publish("T", "a", time=at(2, ms=800), status="replayed", subject="another"),
        # Without an answer these are not conversations, however often they were handled.
        publish("alone", "d", time=at(3)),
        publish("alone", "d", time=at(3)),
        handled("alone", "d", time=at(3, ms=5)),
        handled("alone", "d", time=at(3, ms=9)),
        # Two messages in the same millisecond: the smaller id is first. The clock went back after.
        publish("same", "y", time=at(4)),
        publish("same", "x", time=at(4), sender="zeta"),
        handled("same", "x", time=at(3)),
        # Other kinds and events without a trace say nothing here.
        publish("T", "z", "a", time=at(9), hops=9, kind="stored"),
        publish("T", "z", "a", time=at(9), hops=9, kind="telepathy"),
        publish("T", "z", "a", time=at(9), hops=9, kind="refused", code="rate_limited"),
        {"kind": "publish", "messageId": "n1"},
        {"kind": "publish", "messageId": "n2"},
    ]
    expected = spark.createDataFrame(
        [
            ("T", "from a", "to a", at(2), 5, 3, 3, 900, 3, 0),
            ("same", "zeta", "to x", at(4), 2, 1, 0, 0, 1, 0),
        ],
        "traceId string, sender string, subject string, firstAt bigint, messages bigint, depth int, fanOut bigint, "
        "durationMs bigint, callsSpent int, loopsStopped bigint",
    )
    assertDataFrameEqual(conversations(events(spark, *rows)), expected)


def test_stopped_loops_count_once_for_each_message(spark: SparkSession) -> None:
    rows = [
        # At the gate, one message alone; its dead letter has the publish's own time.
        publish("gate", "g", time=at(1), status="failed"),
        stopped("gate", "g", "cycle", time=at(1), subject="a mailbox"),
        # At two targets of one message, which stand in its chain already.
        publish("target", "t", time=at(1), status="refused"),
        stopped("target", "t", "budget_exceeded", kind="refused", status="refused", time=at(1)),
        stopped("target", "t", "budget_exceeded", kind="refused", status="refused", time=at(1, ms=1)),
        # Published before midnight, stopped after it.
        stopped("late", "l", "max_hops", time=at(0, ms=3), hops=5),
        # Two messages of one trace.
        publish("two", "u", time=at(1)),
        stopped("two", "u", "call_budget", time=at(1), hops=10),
        stopped("two", "v", "cycle", "u", time=at(1)),
        # A purged one is no new one, and what failed otherwise is no loop.
        stopped("old", "o", "cycle", status="purged", time=at(1)),
        stopped("old", "p", "max_hops", status="replaced", time=at(1)),
        stopped("broken", "q", "handler_failed", time=at(1)),
        stopped("broken", "r", "expired", time=at(1)),
    ]
    found = conversations(events(spark, *rows)).select("traceId", "subject", "messages", "loopsStopped", "callsSpent")
    assert table(found) == [
        ("gate", "to g", 1, 1, 0),
        ("late", "to l", 1, 1, 0),
        ("target", "to t", 1, 1, 0),
        ("two", "to u", 2, 2, 10),
    ]


def test_an_empty_day_has_no_conversations(spark: SparkSession) -> None:
    assert conversations(events(spark)).collect() == []


def test_random_traces_agree_with_a_plain_count(spark: SparkSession) -> None:
    chance = random.Random(1)
    rows: list[dict[str, Any]] = []
    for number in range(30):
        trace, ids = f"t{number:02d}", list[str]()
        # One trace has most of the messages.
        for place in range(400 if number == 7 else chance.randrange(5)):
            message = f"{trace}-{place}"
            parent = chance.choice([None, *ids[-3:]])
            ids.append(message)
            sent = publish(trace, message, parent, time=at(chance.randrange(23)), hops=chance.randrange(5))
            rows += [sent] * chance.choice([1, 1, 2])
            if chance.random() < 0.7:
                rows.append(handled(trace, message, parent, time=at(23), hops=chance.randrange(6)))
            if chance.random() < 0.1:
                rows.append(stopped(trace, message, "cycle", parent, time=at(23)))
    chance.shuffle(rows)
    by_trace = defaultdict(list)
    for row in rows:
        by_trace[row["traceId"]].append(row)
    expected = []
    for trace, part in by_trace.items():
        sent = {row["messageId"]: row for row in part if row["kind"] == "publish"}
        loops = {row["messageId"] for row in part if row["kind"] == "dead_letter"}
        first = min(sent.values(), key=lambda row: (row["time"], row["messageId"]))
        children = Counter(row["parentId"] for row in sent.values() if row["parentId"] is not None)
        calls = [row["callsLeft"] for row in part]
        if len(sent) > 1 or loops:
            expected.append(
                (
                    trace,
                    first["sender"],
                    first["subject"],
                    first["time"],
                    len(sent),
                    max(row["hopCount"] for row in part),
                    max(children.values(), default=0),
                    max(row["time"] for row in part) - first["time"],
                    max(calls) - min(calls),
                    len(loops),
                )
            )
    assert table(conversations(events(spark, *rows))) == sorted(expected)


def test_one_shuffle_and_one_sort_serve_all_groupings(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    conversations(events(spark)).explain()
    plan = capsys.readouterr().out
    assert plan.count("Exchange ") == 1
    assert plan.count("Sort [") == 1
