"""The day by hour: messages published, refused, and dead-lettered.

1. Only hours with events have a row. Lines are counted, as in events/sources.py.
2. A dead letter counts in the hour of its birth; one carried over from the day before does not count.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.days import Day
from spark.tables.dead_letters import BORN, turn
from spark.tables.throughput import sum_of


def hours(traffic: DataFrame, incidents: DataFrame, day: Day) -> DataFrame:
    """Return the counts of each hour of the day."""
    passed = traffic.groupBy(F.floor(F.col("minute") / 60).cast("int").alias("hour")).agg(
        sum_of("messages", EventKind.PUBLISH).alias("messages"),
        sum_of("bytes", EventKind.PUBLISH).alias("bytes"),
        sum_of("messages", EventKind.REFUSED).alias("refused"),
    )
    dead = incidents.where((turn() == BORN) & F.col("time").between(day.start_ms, day.until_ms - 1)).select(
        F.floor((F.col("time") - day.start_ms) / 3_600_000).cast("int").alias("hour"), F.lit(1).alias("deadLetters")
    )
    counts = ("messages", "bytes", "refused", "deadLetters")
    sums = (F.coalesce(F.sum(name), F.lit(0)).cast("long").alias(name) for name in counts)
    return passed.unionByName(dead, allowMissingColumns=True).groupBy("hour").agg(*sums)
