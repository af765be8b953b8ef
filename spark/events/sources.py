"""The passes over a day's events that tables share: each reads the events once, and what it returns is small.

::

    pass          kinds                          columns read
    traffic       publish, refused               time, subject, sender, target, status, code, bytes
    steps         handled                        target, targetKind, subject, adapter, queueUs, handleUs, totalUs
    incidents     all but publish, stored,       all
                  handled

1. Events lie in directories by kind. A pass says its kinds in one plain list and nothing else about them, so that the
   list picks directories and no other file is opened. Of all lines only refusals, which are few, are read by two.
2. Every pass counts lines. A line that stands twice in the log counts twice, as it does on the bus's own counters.
3. Nothing is lost for its time: an event from outside the day (the clock was put back, or forward) counts in the
   day's first or last minute, whichever is nearer.
4. A null is a value like another: messages without a sender are one group.
5. Of unknown kinds only `incidents` has rows, and no table asks for them.
6. `steps` has no row for a step that was not measured.
7. In `traffic`, a replay is no message, whatever it was replayed to. `tried` counts publishes, whether or not they
   passed; `turnedAway` counts those that no target was allowed to take. A refusal by one target of several is neither.
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

_PLENTIFUL = (EventKind.PUBLISH, EventKind.STORED, EventKind.HANDLED)


def traffic(events: DataFrame, day: Day) -> DataFrame:
    """Return how many messages and bytes were published and refused, by minute, subject, sender, target and code."""
    by_minute = events.where(F.col("kind").isin(EventKind.PUBLISH, EventKind.REFUSED)).withColumn(
        "minute", _minute_of(day)
    )
    is_publish, status = F.col("kind") == EventKind.PUBLISH, F.coalesce("status", F.lit(""))
    is_whole = F.coalesce(F.col("target") == EVERY_TARGET, F.lit(False))  # a refusal that has no publish beside it
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
    # Spark expands a row to three within the scan's generated code, so that one pass and one aggregate do: three
    # aggregates would read the day three times.
    about = ("target", "targetKind", "name", "adapter")
    return (
        handled.unpivot(about, STEPS, "step", "us")
        .where(F.col("us").isNotNull())
        .groupBy(*about, "step", bucket(F.col("us")).alias("us"))
        .agg(F.count(F.lit(1)).alias("messages"))
    )


def incidents(events: DataFrame) -> DataFrame:
    """Return the events of every kind that is not one of many, as they are."""
    return events.where(~F.col("kind").isin(*_PLENTIFUL))


def time_of_day(minute: Column) -> Column:
    """Return a minute of the day as ``HH:MM``."""
    # Not format_string, which would make "null:null" of no minute at all.
    hours, minutes = F.floor(minute / 60).cast("string"), (minute % 60).cast("string")
    return F.concat(F.lpad(hours, 2, "0"), F.lit(":"), F.lpad(minutes, 2, "0"))


def _minute_of(day: Day) -> Column:
    # Clamped before anything is subtracted: a time near the ends of LONG must not overflow.
    last = day.start_ms + DAY_MS - 1
    time = F.least(F.greatest(F.col("time"), F.lit(day.start_ms)), F.lit(last))
    return F.call_function("div", time - day.start_ms, F.lit(60_000)).cast("int")
