"""Breakers: how often each opened, and for how long.

1. Durations of the states CLOSED, OPEN and HALF_OPEN follow intervals.py. A breaker forced open counts as OPEN.
2. Every OPEN event of the day is an opening, since the bus records only changes; OPEN → HALF_OPEN → OPEN is a flap and
   counts again. A duplicated line counts once. An opening of the day before does not count, but its duration does.
3. `longestOpenSecs` is the longest time from an opening to the next change, within the day.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.days import Day
from spark.intervals import latest, secs, states

CLOSED, OPEN, HALF_OPEN = "CLOSED", "OPEN", "HALF_OPEN"

STATUSES = (HALF_OPEN, OPEN, CLOSED)
"""In their order within one millisecond: a probe that fails at once leads back to OPEN."""


def breakers(incidents: DataFrame, day: Day) -> DataFrame:
    """Return each breaker's openings and durations."""
    is_open = F.col("status") == OPEN
    open_ms = F.when(is_open, F.col("ms"))
    return (
        states(incidents, day, EventKind.BREAKER, "target", STATUSES)
        .groupBy("target")
        .agg(
            latest("name", F.col("name").isNotNull()).alias("name"),
            F.count_if(is_open & ~F.col("repeated") & (F.col("time") >= day.start_ms)).alias("openings"),
            secs(F.sum(open_ms)).alias("openSecs"),
            secs(F.sum(F.when(F.col("status") == HALF_OPEN, F.col("ms")))).alias("halfOpenSecs"),
            secs(F.max(open_ms)).alias("longestOpenSecs"),
            F.bool_or(is_open & F.col("lasts")).alias("openAtEnd"),
            latest("detail").alias("lastDetail"),
        )
    )
