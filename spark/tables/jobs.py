"""Jobs: how often each ran, how it ended, and how long it took.

1. A run is a start and the following end, or one of them if the other is unknown: the run is in progress, was killed,
   or began the day before. A run over midnight counts on both days, and has its outcome on the second.
2. A job has one run at a time. A duplicated line counts once, other statuses are skipped.
3. `p50Us` is the nearest-rank median of the runs' durations.
4. `lastOutcome` and `lastDetail` are those of the last run that ended.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.intervals import latest, rank_of

STARTED = "started"
OUTCOMES = {"ok": "ok", "failed": "failed", "timed_out": "timedOut", "cancelled": "cancelled"}
"""The status of an end, and its column."""

_STATUSES = (STARTED, *OUTCOMES)


def jobs(incidents: DataFrame) -> DataFrame:
    """Return each job's runs, outcomes and durations."""
    rank = rank_of(F.col("status"), _STATUSES)
    events = incidents.where((F.col("kind") == EventKind.JOB) & F.col("code").isNotNull() & (rank > 0)).select(
        F.col("code").alias("job"), "time", "status", "handleUs", "detail", rank.alias("rank")
    )
    order = Window.partitionBy("job").orderBy("time", "rank", "handleUs", "detail")
    status, before = F.col("status"), F.lag("status").over(order)
    repeated = (F.lag("time").over(order) == F.col("time")) & (before == status)
    started = status == STARTED
    runs = (
        events.select("*", F.coalesce(repeated, F.lit(False)).alias("repeated"))
        .where(~F.col("repeated"))
        .select("*", (started | before.isNull() | (before != STARTED)).alias("begins"))
    )
    return runs.groupBy("job").agg(
        F.count_if("begins").alias("runs"),
        *(F.count_if(status == outcome).alias(column) for outcome, column in OUTCOMES.items()),
        F.expr("percentile_disc(0.5) within group (order by handleUs)").cast("long").alias("p50Us"),
        F.max("handleUs").alias("maxUs"),
        latest("status", ~started).alias("lastOutcome"),
        latest("detail", ~started).alias("lastDetail"),
    )
