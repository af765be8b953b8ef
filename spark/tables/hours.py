"""The day by hour: what was published, refused, and could not be delivered.

1. Only hours in which something happened have a row. Lines are counted, as in sources.py.
2. A dead letter counts in the hour in which it became one; one that was carried over from the day before does not.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.days import Day
from spark.tables.dead_letters import BORN, turn

COUNTS = ("messages", "bytes", "refused", "deadLetters")


def hours(traffic: DataFrame, incidents: DataFrame, day: Day) -> DataFrame:
    """Return what happened in each hour of the day."""
    published, refused = (F.col("kind") == kind for kind in (EventKind.PUBLISH, EventKind.REFUSED))
    passed = traffic.select(
        F.floor(F.col("minute") / 60).cast("int").alias("hour"),
        _if(published, F.col("messages")).alias("messages"),
        _if(published, F.col("bytes")).alias("bytes"),
        _if(refused, F.col("messages")).alias("refused"),
        F.lit(0).alias("deadLetters"),
    )
    dead = incidents.where((turn() == BORN) & F.col("time").between(day.start_ms, day.until_ms - 1)).select(
        F.floor((F.col("time") - day.start_ms) / 3_600_000).cast("int").alias("hour"),
        *(F.lit(0).alias(name) for name in COUNTS[:-1]),
        F.lit(1).alias("deadLetters"),
    )
    sums = (F.sum(name).cast("long").alias(name) for name in COUNTS)
    return passed.unionByName(dead).groupBy("hour").agg(*sums)


def _if(condition: Column, value: Column) -> Column:
    return F.when(condition, value).otherwise(0)
