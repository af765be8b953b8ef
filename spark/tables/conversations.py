"""Conversations: chains of messages that share a trace, their extent, and the loops that the bus stopped.

1. A trace's messages are those published: each id counts once, even if its line is duplicated or a replay published it
   again. The first message (earliest time, then smallest id) gives sender, subject and `firstAt`.
2. A loop is stopped by a dead letter with one of `LOOP_CODES`, or by a target that refuses with `budget_exceeded`,
   which happens only if the target is already in the chain. A stopped message counts once, at however many targets, on
   the day it is stopped.
3. `depth` is the most hops, `fanOut` the most replies to one message, `callsSpent` the most calls left minus the
   fewest, `durationMs` from the first message to the latest time of any event, so that a clock set back cannot make it
   negative. Handled events count only for these.
4. Only traces with more than one message or a stopped loop are in the table.

The cost is one shuffle, by trace, and one sort, whose order serves all three groupings: each holds the state of one
group at a time. A loop of a million messages in one trace makes a long task, but not a large one: a sort spills.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind

LOOP_CODES = ("cycle", "max_hops", "call_budget")


def conversations(events: DataFrame) -> DataFrame:
    """Return one row for each trace of the day with more than one message or a stopped loop."""
    # This shuffle by trace serves every grouping; without it, the widest grouping would add its own.
    rows = _rows(events).repartition("traceId")
    # In the event of a stop, sender and subject may be those of the target: the publish event takes precedence.
    first = F.min(F.when(F.col("messageId").isNotNull(), F.struct("time", "stopped", "sender", "subject")))
    messages = rows.groupBy("traceId", "parentId", "messageId").agg(
        first.alias("first"),
        F.max("stopped").alias("stopped"),
        F.max("time").alias("lastAt"),
        F.max("hopCount").alias("hops"),
        F.max("callsLeft").alias("mostCalls"),
        F.min("callsLeft").alias("fewestCalls"),
    )
    opening = F.when(
        F.col("first").isNotNull(),
        F.struct("first.time", "messageId", "first.sender", "first.subject"),
    )
    siblings = messages.groupBy("traceId", "parentId").agg(
        F.min(opening).alias("opening"),
        F.sum("stopped").alias("stopped"),
        F.count("messageId").alias("messages"),
        *_extremes(),
    )
    traces = siblings.groupBy("traceId").agg(
        F.min("opening").alias("opening"),
        F.sum("stopped").alias("loopsStopped"),
        F.sum("messages").alias("messages"),
        F.max(F.when(F.col("parentId").isNotNull(), F.col("messages")).otherwise(0)).alias("fanOut"),
        *_extremes(),
    )
    return traces.where("messages > 1 OR loopsStopped > 0").select(
        "traceId",
        "opening.sender",
        "opening.subject",
        F.col("opening.time").alias("firstAt"),
        "messages",
        F.coalesce("hops", F.lit(0)).alias("depth"),
        "fanOut",
        (F.col("lastAt") - F.col("opening.time")).alias("durationMs"),
        F.coalesce(F.col("mostCalls") - F.col("fewestCalls"), F.lit(0)).alias("callsSpent"),
        "loopsStopped",
    )


def _rows(events: DataFrame) -> DataFrame:
    """Return the columns used of each event; of a handled event, only its time, hops and calls."""
    kind, code = F.col("kind"), F.col("code")
    progress = (EventKind.PUBLISH, EventKind.HANDLED)
    is_removed = F.coalesce(F.col("status").isin("purged", "replaced"), F.lit(False))
    is_stopped = ((kind == EventKind.DEAD_LETTER) & code.isin(*LOOP_CODES) & ~is_removed) | (
        (kind == EventKind.REFUSED) & (code == "budget_exceeded")
    )
    # The first condition lets Spark skip the files of all other kinds.
    return (
        events.where(kind.isin(*progress, EventKind.DEAD_LETTER, EventKind.REFUSED) & F.col("traceId").isNotNull())
        .where(kind.isin(*progress) | is_stopped)
        .select(
            "traceId",
            *(
                F.when(kind != EventKind.HANDLED, F.col(name)).alias(name)
                for name in ("parentId", "messageId", "sender", "subject")
            ),
            F.when(kind.isin(*progress), 0).otherwise(1).alias("stopped"),
            "time",
            "hopCount",
            "callsLeft",
        )
    )


def _extremes() -> list[Column]:
    return [
        F.max("lastAt").alias("lastAt"),
        F.max("hops").alias("hops"),
        F.max("mostCalls").alias("mostCalls"),
        F.min("fewestCalls").alias("fewestCalls"),
    ]
