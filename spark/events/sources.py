"""The passes over a day's events that tables share: each reads the events once and returns few rows.

::

    pass          kinds                          columns read
    traffic       publish, refused               time, subject, sender, target, status, code, bytes
    steps         handled                        target, targetKind, subject, adapter, queueUs, handleUs, totalUs
    incidents     all but publish, stored,       all
                  handled

1. Events are stored in directories by kind. A pass filters kinds with one plain list, so that Spark prunes directories
   and opens no other file. Only refusals, which are few, are read by two passes.
2. Every pass counts lines. A duplicated line counts twice, as it does in the bus's own counters.
3. No event is dropped for its time: an event outside the day (the clock was changed) counts in the day's first or last
   minute, whichever is nearer.
4. Null is a value like any other: messages without a sender are one group.
5. Unknown kinds appear only in `incidents`, and no table uses them.
6. `steps` has no row for a step that was not measured.
7. In `traffic`, a replay does not count as a message. `tried` counts publishes, accepted or not; `turnedAway` counts
   those that no target accepted. A refusal by one of several targets is neither.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.days import DAY_MS, Day
from spark.percentiles import bucket

MINUTES_OF_DAY = 1440
STEPS = ("queue", "handle", "total")

EVERY_TARGET = "*"
_REPLAYED, _REFUSED = "replayed", "refused"

_FREQUENT = (EventKind.PUBLISH, EventKind.STORED, EventKind.HANDLED)


def traffic(events: DataFrame, day: Day) -> DataFrame:
    """Return how many messages and bytes were published and refused, by minute, subject, sender, target and code."""
    by_minute = events.where(F.col("kind").isin(EventKind.PUBLISH, EventKind.REFUSED)).withColumn(
        "minute", _minute_of(day)
    )
    is_publish, status = F.col("kind") == EventKind.PUBLISH, F.coalesce("status", F.lit(""))
    is_whole = F.coalesce(F.col("target") == EVERY_TARGET, F.lit(False))  # a refusal without a publish event
    return (
        by_minute.where(~is_publish | (status != _REPLAYED))
        .groupBy("minute", "kind", "subject", "sender", "target", "code")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.coalesce(F.sum("bytes"), F.lit(0)).cast("long").alias("bytes"),
            F.count_if(is_publish | is_whole).alias("tried"),
            F.count_if(F.when(is_publish, status == _REFUSED).otherwise(is_whole)).alias("turnedAway"),
        )
    )


def steps(events: DataFrame) -> DataFrame:
    """Return a histogram of how long each step of a delivery took (see percentiles.py), by target."""
    handled = events.where(F.col("kind").isin(EventKind.HANDLED)).select(
        "target",
        "targetKind",
        F.coalesce("adapter", "subject").alias("name"),
        "adapter",
        *(F.col(f"{step}Us").alias(step) for step in STEPS),
    )
    # Spark expands a row to three within the scan's generated code, so one pass and one aggregate are enough. Three
    # aggregates would read the day three times.
    about = ("target", "targetKind", "name", "adapter")
    return (
        handled.unpivot(about, STEPS, "step", "us")
        .where(F.col("us").isNotNull())
        .groupBy(*about, "step", bucket(F.col("us")).alias("us"))
        .agg(F.count(F.lit(1)).alias("messages"))
    )


def incidents(events: DataFrame) -> DataFrame:
    """Return the events of every infrequent kind, unchanged."""
    return events.where(~F.col("kind").isin(*_FREQUENT))


def time_of_day(minute: Column) -> Column:
    """Return a minute of the day as ``HH:MM``."""
    # Not format_string, which would turn a null into "null:null".
    hours, minutes = F.floor(minute / 60).cast("string"), (minute % 60).cast("string")
    return F.concat(F.lpad(hours, 2, "0"), F.lit(":"), F.lpad(minutes, 2, "0"))


def _minute_of(day: Day) -> Column:
    # Clamped before the subtraction: a time near the ends of LONG must not overflow.
    last = day.start_ms + DAY_MS - 1
    time = F.least(F.greatest(F.col("time"), F.lit(day.start_ms)), F.lit(last))
    return F.call_function("div", time - day.start_ms, F.lit(60_000)).cast("int")
