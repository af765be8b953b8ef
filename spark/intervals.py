"""How long states lasted: shared by the tables of breakers, pressure and adapters.

The log records only when a state began. Here each of these events gets the time until its state ended.

1. A state lasts from its event to the next event about the same target or adapter.
2. A start or a stop of the bus ends every state, because the bus does not keep states across a restart. An event in the
   same millisecond as a stop counts as before it; one in the same millisecond as a start counts as after it.
3. Only time within the day counts, up to `until_ms`. A state still open at midnight is carried over as its original
   event, with its time on the day before (tables/carry_over.py), and counts from midnight.
4. Events are ordered by time, so no duration is negative or counted twice, whatever the order of lines in the log. If
   the clock was set back, an event may come before its cause. Within one millisecond, events follow the order in which
   the table lists its statuses.
5. A duplicated line has no duration and is marked `repeated`.
6. Events with an unknown status, without a time or a target, or at or after `until_ms`, are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.days import Day


def states(incidents: DataFrame, day: Day, kind: EventKind, key: str, statuses: Sequence[str]) -> DataFrame:
    """Return the events of a kind with the time that each state lasted within the day.

    Adds the columns `name`, `rank` (the position of the status in `statuses`), `before` (the previous status, null if
    unknown), `repeated`, `ms` (how long the state lasted within the day) and `lasts` (True if it is still open).
    """
    time, rank = F.col("time"), rank_of(F.col("status"), statuses)
    about = incidents.where(
        (F.col("kind") == kind) & F.col(key).isNotNull() & (time < day.until_ms) & (rank > 0)
    ).select("*", name(), rank.alias("rank"))
    order = Window.partitionBy(key).orderBy("time", "rank", "detail", "subject", "depth", "limit")
    ordered = about.select(
        "*",
        F.lag("time").over(order).alias("lastTime"),
        F.lag("status").over(order).alias("lastStatus"),
        F.lead("time").over(order).alias("nextTime"),
    )
    # The bus restarts a few times a day: one small array, which is not shuffled if it is joined after the window.
    with_restarts = ordered.crossJoin(F.broadcast(restarts(incidents, day)))
    reset, ended = _next_restart(F.col("lastTime")), _next_restart(time)
    until = F.least(F.col("nextTime"), F.floor(ended), F.lit(day.until_ms))
    return with_restarts.select(
        *about.columns,
        F.when(reset.isNull() | (reset > time), F.col("lastStatus")).alias("before"),
        F.coalesce((F.col("lastTime") == time) & (F.col("lastStatus") == F.col("status")), F.lit(False)).alias(
            "repeated"
        ),
        F.greatest(until - F.greatest(time, F.lit(day.start_ms)), F.lit(0)).alias("ms"),
        (F.col("nextTime").isNull() & ended.isNull()).alias("lasts"),
    )


def restarts(incidents: DataFrame, day: Day) -> DataFrame:
    """Return one row with the array `restarts`: the times of starts, and of stops plus half a millisecond.

    A state ends at the first of these that is greater than its time.
    """
    edge = F.when(F.col("status") == "started", F.col("time").cast("double")).when(
        F.col("status") == "stopped", F.col("time") + 0.5
    )
    bus = incidents.where((F.col("kind") == EventKind.BUS) & (F.col("time") < day.until_ms))
    return bus.agg(F.collect_set(edge).alias("restarts"))


def rank_of(value: Column, values: Sequence[str]) -> Column:
    """Return the 1-based position of a value among `values`; 0 for others, null for null."""
    return F.array_position(F.array(*map(F.lit, values)), value)


def name() -> Column:
    """Return the display name of a target."""
    return F.coalesce("adapter", "subject").alias("name")


def latest(column: str, among: Column | None = None) -> Column:
    """Return the column's value in the last event of a group, or in the last event that satisfies `among`."""
    last = F.struct("time", "rank", F.col(column).alias("value"))
    return F.max(last if among is None else F.when(among, last))["value"]


def secs(ms: Column) -> Column:
    """Return milliseconds as seconds; null becomes 0."""
    return F.coalesce(ms, F.lit(0)) / 1000


def _next_restart(time: Column) -> Column:
    return F.array_min(F.filter("restarts", lambda edge: edge > time))
