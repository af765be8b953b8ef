"""Conversations: the chains of messages that share a trace, how far they went and which loops the bus stopped.

1. What was published tells a trace's messages: each id counts once, also if its line is doubled or it was published
   again by a replay. The first message (earliest time, then smallest id) gives sender, subject and `firstAt`.
2. A loop is stopped by a dead letter with one of `LOOP_CODES`, or by a target that refuses with `budget_exceeded`,
   which it does only if it stands in the chain already. A message that is stopped counts once, at however many
   targets. One that was published on another day counts here if it is stopped here.
3. `depth` is the most hops, `fanOut` the most messages that answer the same one, `callsSpent` the most calls left less
   the fewest, `durationMs` from the first message to the latest time of any event, so that a clock that went
   back cannot make it negative. What was handled counts for these only.
4. Only traces with more than one message or a stopped loop are in the table.

The cost is one shuffle, by trace, and one sort, whose order serves all three groupings: each holds the state of one
group at a time. A loop of a million messages in one trace makes one long task, not a big one: a sort spills.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind

LOOP_CODES = ("cycle", "max_hops", "call_budget")


def conversations(events: DataFrame) -> DataFrame:
    """Return one row for each trace of the day with more than one message or a stopped loop."""
    # Asked for here, the shuffle by trace serves every grouping; the widest would else bring one of its own.
    rows = _rows(events).repartition("traceId")
    # Where a message is stopped, sender and subject may be the target's: its publish goes first.
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
    """Return what matters of each event; of one that was handled, only when and how far it had come."""
    kind, code = F.col("kind"), F.col("code")
    went_on = (EventKind.PUBLISH, EventKind.HANDLED)
    is_gone = F.coalesce(F.col("status").isin("purged", "replaced"), F.lit(False))
    is_stopped = ((kind == EventKind.DEAD_LETTER) & code.isin(*LOOP_CODES) & ~is_gone) | (
        (kind == EventKind.REFUSED) & (code == "budget_exceeded")
    )
    # The first condition lets Spark leave out the files of all other kinds.
    return (
        events.where(kind.isin(*went_on, EventKind.DEAD_LETTER, EventKind.REFUSED) & F.col("traceId").isNotNull())
        .where(kind.isin(*went_on) | is_stopped)
        .select(
            "traceId",
            *(
                F.when(kind != EventKind.HANDLED, F.col(name)).alias(name)
                for name in ("parentId", "messageId", "sender", "subject")
            ),
            F.when(kind.isin(*went_on), 0).otherwise(1).alias("stopped"),
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
