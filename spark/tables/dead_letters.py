"""Dead letters: their reasons, their outcomes, and the age of those still standing.

1. A letter is one message at one target. A `dead_letter` event with status failed or no_subscriber creates it
   ("birth"); a `replayed` event, or `dead_letter` with status purged or replaced, ends it. It may be dead-lettered
   again; its last event decides whether it stands.
2. Every birth in the day counts in `letters`, and every end in the column of its kind, under the code of the preceding
   birth. An end without a known birth counts under its own code, which for a replay is null.
3. A duplicated line counts once.
4. Within one millisecond an end comes before a birth: a replay may fail at once, but no letter is replayed so soon.
5. A standing letter's age is the time from its last birth to `until_ms`. Letters of earlier days are carried over as
   their births (tables/carry_over.py), and count as standing each day until they end.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.days import DAY_MS, Day
from spark.intervals import name, rank_of

BORN = "born"
ENDS = ("replayed", "replaced", "purged")
TURNS = (*ENDS, BORN)
"""In their order within one millisecond."""

_HOUR_MS = DAY_MS // 24
_WEEK_MS = DAY_MS * 7


def dead_letters(incidents: DataFrame, day: Day) -> DataFrame:
    """Return births, ends and standing dead letters by code and target."""
    time = F.col("time")
    events = incidents.where(
        turn().isNotNull() & F.col("messageId").isNotNull() & F.col("target").isNotNull() & (time < day.until_ms)
    ).select("messageId", "target", "time", "code", name(), turn().alias("turn"))
    born = F.col("turn") == BORN
    order = Window.partitionBy("messageId", "target").orderBy("time", rank_of(F.col("turn"), TURNS), "code", "name")
    so_far = order.rowsBetween(Window.unboundedPreceding, 0)
    birth = F.last(F.when(born, F.struct("code", "name")), ignorenulls=True).over(so_far)
    repeated = (F.lag("time").over(order) == time) & (F.lag("turn").over(order) == F.col("turn"))
    letters = events.select(
        "*",
        F.coalesce(birth, F.struct("code", "name")).alias("of"),
        (~F.coalesce(repeated, F.lit(False)) & (time >= day.start_ms)).alias("today"),
        F.when(born & F.lead("time").over(order).isNull(), F.lit(day.until_ms) - time).alias("age"),
    )
    age = F.col("age")
    counted = letters.groupBy(F.col("of.code").alias("code"), "target").agg(
        F.max(F.struct("time", "of.name"))["name"].alias("name"),
        F.count_if(born & F.col("today")).alias("letters"),
        *(F.count_if((F.col("turn") == end) & F.col("today")).alias(end) for end in ENDS),
        F.count("age").alias("standing"),
        F.count_if(age < _HOUR_MS).alias("youngerThanHour"),
        F.count_if((age >= _HOUR_MS) & (age < DAY_MS)).alias("youngerThanDay"),
        F.count_if((age >= DAY_MS) & (age < _WEEK_MS)).alias("youngerThanWeek"),
        F.count_if(age >= _WEEK_MS).alias("older"),
    )
    # A carried letter that was dead-lettered again today for another reason leaves an empty row for the old one.
    happened = F.col("letters") + F.col("replayed") + F.col("replaced") + F.col("purged") + F.col("standing")
    return counted.where(happened > 0)


def turn() -> Column:
    """Return the effect of an event on a dead letter: BORN, or one of ENDS; null for other events."""
    kind, status = F.col("kind"), F.col("status")
    dead_letter = kind == EventKind.DEAD_LETTER
    return (
        F.when(kind == EventKind.REPLAYED, F.lit("replayed"))
        .when(dead_letter & status.isin("failed", "no_subscriber"), F.lit(BORN))
        .when(dead_letter & status.isin("replaced", "purged"), status)
    )
