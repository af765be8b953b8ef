"""Mailbox pressure: how long each mailbox was above its warning level, and its worst depth.

1. An episode lasts from a warning until normal, or until the bus stops or starts; critical is part of it. An episode
   over midnight counts on both days, and its duration is divided between them.
2. `worstDepth` is the greatest depth of any event of the episode, including its last one; for an episode of the day
   before it includes the depth reached there. `limit` is the mailbox's maximum at that time (the smallest, if it was
   changed), and `worstShare` the share of it.
3. Of an episode whose beginning is unknown only the depth counts.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.days import Day
from spark.intervals import latest, secs, states

NORMAL = "normal"

STATUSES = ("warning", "critical", NORMAL)
"""In their order within one millisecond."""


def pressure(incidents: DataFrame, day: Day) -> DataFrame:
    """Return each mailbox's episodes above its warning, their time and their worst depth."""
    above = F.col("status") != NORMAL
    begins = above & (F.col("before").isNull() | (F.col("before") == NORMAL))
    depth = F.when(F.col("depth").isNotNull(), F.struct("depth", (-F.col("limit")).alias("minusLimit")))
    by_target = (
        states(incidents, day, EventKind.PRESSURE, "target", STATUSES)
        .groupBy("target")
        .agg(
            latest("name", F.col("name").isNotNull()).alias("name"),
            F.count_if(begins).alias("episodes"),
            secs(F.sum(F.when(above, F.col("ms")))).alias("aboveSecs"),
            F.max(depth).alias("worst"),
            F.bool_or(above & F.col("lasts")).alias("aboveAtEnd"),
        )
    )
    worst, limit = F.col("worst.depth"), -F.col("worst.minusLimit")
    return by_target.select(
        "target",
        "name",
        "episodes",
        "aboveSecs",
        worst.alias("worstDepth"),
        limit.alias("limit"),
        F.try_divide(worst, limit).alias("worstShare"),
        "aboveAtEnd",
    )
