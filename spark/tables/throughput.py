"""Throughput: messages published in each hour, by subject and sender.

1. `messages` and `bytes` count accepted publishes; `refused` counts refusals, of the whole publish or by one target.
   A subject and sender with only refusals also have a row.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind


def throughput(traffic: DataFrame) -> DataFrame:
    """Return messages, bytes and refusals by hour, subject and sender."""
    hour = F.call_function("div", F.col("minute"), F.lit(60)).cast("int").alias("hour")
    return traffic.groupBy(hour, "subject", "sender").agg(
        sum_of("messages", EventKind.PUBLISH).alias("messages"),
        sum_of("bytes", EventKind.PUBLISH).alias("bytes"),
        sum_of("messages", EventKind.REFUSED).alias("refused"),
    )


def sum_of(column: str, kind: EventKind) -> Column:
    """Return the sum of a column of `traffic` over the rows of a kind; 0 without such rows."""
    return F.sum(F.when(F.col("kind") == kind, F.col(column)).otherwise(0))
