"""The carry-over of a day to the next: the events that opened states which are still open at its end.

1. One event for each open state and each standing dead letter::

       dead letter   its last birth
       breaker       the event of its state, unless CLOSED
       pressure      the event with the worst depth of its episode, which is all that the next day needs
       adapter       the event of its state, whatever it is, so that the state is known on a day without events; not for
                     a removed adapter

2. States that ended with a start or stop of the bus are not carried; dead letters survive it. The bus's own events need
   not be carried.
3. Events are carried unchanged, with their original time. A state that lasts for many days is carried as the same event
   each day, and a day without events passes on the carry-over it received.
4. Only events before `until_ms` count, in the order that the tables use.
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
    changes = incidents.where((F.col("time") < day.until_ms) & (rank > 0) & ~is_replaced()).select(
        *EVENT_SCHEMA.fieldNames(),
        rank.alias("rank"),
        F.when(letter, F.lit("letter")).otherwise(kind).alias("topic"),
        F.when(kind == EventKind.ADAPTER, F.col("adapter")).otherwise(F.col("target")).alias("owner"),
        F.when(letter, F.col("messageId")).alias("message"),
        F.when(letter, turn().isin(*ENDS)).otherwise(F.col("status").isin(CLOSED, NORMAL, REMOVED)).alias("ends"),
    )
    same = Window.partitionBy("topic", "owner", "message")
    newest = [F.desc(name) for name in ("time", "rank", "code", "detail", "subject", "depth", "limit")]
    # From the end of the day backwards, until a state ended.
    later = same.orderBy(*newest).rowsBetween(Window.unboundedPreceding, 0)
    is_over = F.col("over") | ((F.col("topic") != "letter") & (F.array_max("restarts") > F.col("time")))
    lasting = (
        changes.where(F.col("owner").isNotNull() & ~(letter & F.col("messageId").isNull()))
        .select("*", F.bool_or("ends").over(later).alias("over"))
        .crossJoin(F.broadcast(restarts(incidents, day)))
        .where(~F.coalesce(is_over, F.lit(False)))
    )
    depth = F.when(kind == EventKind.PRESSURE, F.col("depth"))
    worst = F.row_number().over(same.orderBy(F.desc(depth), F.asc("limit"), *newest))
    return lasting.select("*", worst.alias("place")).where(F.col("place") == 1).select(*EVENT_SCHEMA.fieldNames())
