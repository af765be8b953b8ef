"""Mailbox pressure: how long each mailbox was above its warning, and how full it got.

1. An episode lasts from a warning until normal, or until the bus stops or starts; critical is a part of it. One that
   goes on over midnight is an episode of both days, and its time is divided between them.
2. `worstDepth` is the greatest depth of any of its events, the one at the end included, which says how bad it was; for
   an episode from the day before also the depth that it had reached there. `limit` is the mailbox's maximum then (the
   smallest, if it was changed), and `worstShare` the depth's part of it.
3. Of an episode whose beginning is not known only the depth is.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.days import Day
from spark.intervals import latest, secs, states

NORMAL = "normal"

STATUSES = ("warning", "critical", NORMAL)
"""In the order that they have within one millisecond."""


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
