"""Refusals: for what reason, whose messages, and where.

1. A row counts the refusals of one sender's messages to one subject by one target, for one reason (`code`). The target
   is ``*`` where the whole publish was refused.
2. `firstAt` and `lastAt` are minutes of the day (UTC), by the events' own times, in whatever order they came.
3. Lines are counted: one that stands twice counts twice (sources.py).
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.events.sources import time_of_day


def refusals(traffic: DataFrame) -> DataFrame:
    """Return the refusals by code, sender, subject and target."""
    refused = traffic.where(F.col("kind") == EventKind.REFUSED)
    return refused.groupBy("code", "sender", "subject", "target").agg(
        F.sum("messages").alias("refused"),
        time_of_day(F.min("minute")).alias("firstAt"),
        time_of_day(F.max("minute")).alias("lastAt"),
    )
