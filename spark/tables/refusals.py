"""Refusals by reason, sender, subject and target.

1. The target is ``*`` where the whole publish was refused.
2. `firstAt` and `lastAt` are minutes of the day (UTC), by the times of the events.
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
