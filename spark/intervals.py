"""How long a state lasted: what the tables of breakers, pressure and adapters have in common.

The log says only when a state began. Here each of these events becomes the time until the state was over.

1. A state lasts from its event to the next event about the same target or adapter.
2. A start or a stop of the bus ends every state, because what the bus knew of them begins anew. What happens in the
   millisecond of a stop was before it, what happens in that of a start is after it.
3. Only the time within the day counts, up to `until_ms`. What still lasted at midnight comes in as its own event, with
   its time of the day before (tables/carried.py), and counts from midnight.
4. Events are put in order by their time, so no time is negative and none counts twice, however the lines lie in the
   log. After the clock was put back the order is that of the clock, and an event may come before its cause. Events of
   one millisecond come in the order in which a table names its statuses.
5. A line that stands twice takes no time and is marked `repeated`.
6. Events with a status that is not known, without a time or a target, or not before `until_ms`, are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.days import Day


def states(incidents: DataFrame, day: Day, kind: EventKind, key: str, statuses: Sequence[str]) -> DataFrame:
    """Return the events of a kind with the time that each state lasted within the day.

    Beside the event's own columns: `name`, `rank` (the place of its status), `before` (the status until then, null if
    none is known), `repeated`, `ms` (the time it lasted within the day) and `lasts` (whether it did so at the end).
    """
    time, rank = F.col("time"), rank_of(F.col("status"), statuses)
    about = incidents.where(
        (F.col("kind") == kind) & F.col(key).isNotNull() & (time < day.until_ms) & (rank > 0)
    ).select("*", name(), rank.alias("rank"))
    order = Window.partitionBy(key).orderBy("time", "rank", "detail", "subject", "depth", "limit")
    told = about.select(
        "*",
        F.lag("time").over(order).alias("lastTime"),
        F.lag("status").over(order).alias("lastStatus"),
        F.lead("time").over(order).alias("nextTime"),
    )
    # The bus starts a few times a day: one small array for all. Joined after the window, it is not shuffled.
    whole = told.crossJoin(F.broadcast(restarts(incidents, day)))
    anew, over = _next_restart(F.col("lastTime")), _next_restart(time)
    until = F.least(F.col("nextTime"), F.floor(over), F.lit(day.until_ms))
    return whole.select(
        *about.columns,
        F.when(anew.isNull() | (anew > time), F.col("lastStatus")).alias("before"),
        F.coalesce((F.col("lastTime") == time) & (F.col("lastStatus") == F.col("status")), F.lit(False)).alias(
            "repeated"
        ),
        F.greatest(until - F.greatest(time, F.lit(day.start_ms)), F.lit(0)).alias("ms"),
        (F.col("nextTime").isNull() & over.isNull()).alias("lasts"),
    )


def restarts(incidents: DataFrame, day: Day) -> DataFrame:
    """Return one row with the array `restarts`: when the bus started (its time) or stopped (half a millisecond later).

    So a state is over at the first of these that is greater than its time.
    """
    edge = F.when(F.col("status") == "started", F.col("time").cast("double")).when(
        F.col("status") == "stopped", F.col("time") + 0.5
    )
    bus = incidents.where((F.col("kind") == EventKind.BUS) & (F.col("time") < day.until_ms))
    return bus.agg(F.collect_set(edge).alias("restarts"))


def rank_of(value: Column, values: Sequence[str]) -> Column:
    """Return the place of a value among these, from 1; 0 for others, null for none."""
    return F.array_position(F.array(*map(F.lit, values)), value)


def name() -> Column:
    """Return what people call a target."""
    return F.coalesce("adapter", "subject").alias("name")


def latest(column: str, among: Column | None = None) -> Column:
    """Return the value that the last event of a group has, or the last among those for which something holds."""
    last = F.struct("time", "rank", F.col(column).alias("value"))
    return F.max(last if among is None else F.when(among, last))["value"]


def secs(ms: Column) -> Column:
    """Return milliseconds as seconds, none as 0."""
    return F.coalesce(ms, F.lit(0)) / 1000


def _next_restart(time: Column) -> Column:
    return F.array_min(F.filter("restarts", lambda edge: edge > time))
