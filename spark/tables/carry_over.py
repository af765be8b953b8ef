"""What a day hands on to the next: the events that opened something which is still open at its end.

1. One event for each state that lasts and each letter that stands::

       dead letter   its last birth
       breaker       the event of its state, if that is not CLOSED
       pressure      the event of the worst depth of its episode: it says all that the next day wants to know
       adapter       the event of its state, whatever it is, so that it is known on a day without events; but not of
                     one that was removed

2. What the bus ended by a start or stop is not carried; dead letters outlive it. The bus's own events need not be
   carried for that: what comes before them is over already.
3. The events go on as they are, with the time at which they happened. So what lasts for many days is carried each day
   as the same event, and a day on which nothing happens hands on what it was handed.
4. Only what happened before `until_ms` counts, in the order that the tables have.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.days import Day
from spark.events.schema import EVENT_SCHEMA
from spark.intervals import rank_of, restarts
from spark.tables.adapters import REMOVED, is_replaced
from spark.tables.adapters import STATUSES as ADAPTER
from spark.tables.breakers import CLOSED
from spark.tables.breakers import STATUSES as BREAKER
from spark.tables.dead_letters import ENDS, TURNS, turn
from spark.tables.pressure import NORMAL
from spark.tables.pressure import STATUSES as PRESSURE


def carry_over(incidents: DataFrame, day: Day) -> DataFrame:
    """Return the events to carry to the next day."""
    kind, letter = F.col("kind"), turn().isNotNull()
    rank = (
        F.when(kind == EventKind.BREAKER, rank_of(F.col("status"), BREAKER))
        .when(kind == EventKind.PRESSURE, rank_of(F.col("status"), PRESSURE))
        .when(kind == EventKind.ADAPTER, rank_of(F.col("status"), ADAPTER))
        .when(letter, rank_of(turn(), TURNS))
    )
    told = incidents.where((F.col("time") < day.until_ms) & (rank > 0) & ~is_replaced()).select(
        *EVENT_SCHEMA.fieldNames(),
        rank.alias("rank"),
        F.when(letter, F.lit("letter")).otherwise(kind).alias("what"),
        F.when(kind == EventKind.ADAPTER, F.col("adapter")).otherwise(F.col("target")).alias("whose"),
        F.when(letter, F.col("messageId")).alias("message"),
        F.when(letter, turn().isin(*ENDS)).otherwise(F.col("status").isin(CLOSED, NORMAL, REMOVED)).alias("ends"),
    )
    same = Window.partitionBy("what", "whose", "message")
    newest = [F.desc(name) for name in ("time", "rank", "code", "detail", "subject", "depth", "limit")]
    # From the end of the day backwards, up to where something was over.
    later = same.orderBy(*newest).rowsBetween(Window.unboundedPreceding, 0)
    is_over = F.col("over") | ((F.col("what") != "letter") & (F.array_max("restarts") > F.col("time")))
    lasting = (
        told.where(F.col("whose").isNotNull() & ~(letter & F.col("messageId").isNull()))
        .select("*", F.bool_or("ends").over(later).alias("over"))
        .crossJoin(F.broadcast(restarts(incidents, day)))
        .where(~F.coalesce(is_over, F.lit(False)))
    )
    depth = F.when(kind == EventKind.PRESSURE, F.col("depth"))
    worst = F.row_number().over(same.orderBy(F.desc(depth), F.asc("limit"), *newest))
    return lasting.select("*", worst.alias("place")).where(F.col("place") == 1).select(*EVENT_SCHEMA.fieldNames())
