"""Anomalies: the day's numbers that are far from their usual values, and the rows that explain them.

1. The usual value is the median of the trailing `HISTORY_DAYS` days, the spread 1.4826 × the median absolute deviation:
   one odd day moves neither. The spread is at least 5 % of the usual value, and so wide that a difference below the
   metric's floor is never flagged. The score is the difference over the spread; a number is flagged from `FLAGGED_AT`
   on, in either direction.
2. A day counts if the history has any row of it. A key missing on such a day, or today, counts as 0, or, where the
   break-down was cut at `MOST_KEYS`, as the least value kept (it may have had that much); a latency is then unknown.
   So new senders and vanished subjects are found, and keys at the edge of the cut are not.
3. With fewer than `FEWEST_DAYS` known days nothing is flagged.
4. For a day that is not over, only high numbers are flagged.
5. `because` holds the rows of the metric's explaining break-downs that differ most from their own usual value in the
   same direction: at most `MOST_REASONS`, the greatest difference first, then by metric and key.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.days import HISTORY_DAYS, Day
from spark.tables.daily import METRICS, MOST_KEYS

FEWEST_DAYS = 5
FLAGGED_AT = 3.5
MOST_REASONS = 5


def anomalies(today: DataFrame, history: DataFrame, day: Day) -> DataFrame:
    """Return the flagged numbers of a day, given its numbers and those of earlier days (with their `date`)."""
    difference = F.col("value") - F.col("usual")
    score = difference / F.col("spread")
    compared = _compared(today, history, day).withColumns({"difference": difference, "score": score})
    is_flagged = F.abs("score") >= FLAGGED_AT if day.is_over else F.col("score") >= FLAGGED_AT
    return (
        _explained(compared)
        .where(is_flagged)
        .select(
            "metric",
            "key",
            "value",
            "usual",
            "spread",
            "score",
            F.when(F.col("score") > 0, "up").otherwise("down").alias("direction"),
            "because",
        )
    )


def _compared(today: DataFrame, history: DataFrame, day: Day) -> DataFrame:
    """Return each number of today or of the history with its value, usual value and spread."""
    now = F.lit(day.date)
    earliest = day.date - timedelta(days=HISTORY_DAYS)
    before = history.where((F.col("date") < now) & (F.col("date") >= F.lit(earliest)))
    columns = ("date", "metric", "key", "value")
    rows = before.select(*columns).unionAll(today.withColumn("date", now).select(*columns))
    rows = rows.where(F.col("metric").isin([metric.name for metric in METRICS]))
    cut = (
        rows.groupBy("metric", "date")
        .agg(F.count("*").alias("keys"), F.min("value").alias("least"))
        .where(F.col("keys") >= MOST_KEYS)
        .groupBy("metric")
        .agg(_by_date("least").alias("cut"))
    )
    dates = before.agg(F.sort_array(F.collect_set("date")).alias("dates"))
    numbers = rows.groupBy("metric", "key").agg(_by_date("value").alias("seen"))
    joined = numbers.join(F.broadcast(cut), "metric", "left").crossJoin(F.broadcast(dates))
    known = joined.select(
        "metric",
        "key",
        _on(now).alias("value"),
        F.sort_array(F.array_compact(F.transform("dates", _on))).alias("days"),
    ).where((F.size("days") >= FEWEST_DAYS) & F.col("value").isNotNull())
    usual = known.withColumn("usual", _median(F.col("days")))
    distances = F.sort_array(F.transform("days", lambda value: F.abs(value - F.col("usual"))))
    floors = F.create_map(*(F.lit(part) for metric in METRICS for part in (metric.name, metric.floor / FLAGGED_AT)))
    spread = F.greatest(1.4826 * _median(distances), 0.05 * F.abs("usual"), floors[F.col("metric")])
    return usual.select("metric", "key", "value", "usual", spread.alias("spread"))


def _by_date(column: str) -> Column:
    return F.map_from_entries(F.collect_list(F.struct("date", column)))


def _on(date: Column) -> Column:
    """Return a key's value on a date, from the columns `seen` and `cut`; null if unknown."""
    measured = [metric.name for metric in METRICS if not metric.missing_is_zero]
    absent = F.when(~F.col("metric").isin(measured), F.coalesce(F.col("cut")[date], F.lit(0.0)))
    return F.coalesce(F.col("seen")[date], absent)


def _median(ordered: Column) -> Column:
    size = F.size(ordered)
    lower, upper = F.get(ordered, F.floor((size - 1) / 2).cast("int")), F.get(ordered, F.floor(size / 2).cast("int"))
    return (lower + upper) / 2


def _explained(compared: DataFrame) -> DataFrame:
    """Return the numbers with `because`: each row is grouped under its own metric and those that it explains."""
    explains: dict[str, list[str]] = {metric.name: [metric.name] for metric in METRICS}
    for metric in METRICS:
        for part in metric.explained_by:
            explains[part].append(metric.name)
    pairs = ((F.lit(name), F.array(*map(F.lit, names))) for name, names in explains.items())
    to = F.create_map(*(column for pair in pairs for column in pair))[F.col("metric")]
    is_keyed = F.col("of").isin([metric.name for metric in METRICS if metric.key is not None])
    is_own = F.col("of") == F.col("metric")
    # The first field makes the greatest difference sort first.
    reason = F.struct((-F.abs("difference")).alias("order"), "metric", "key", "value", "usual", "difference")
    grouped = (
        compared.select("*", F.explode(to).alias("of"))
        .groupBy("of", F.when(is_keyed, F.col("key")).otherwise("").alias("ofKey"))
        .agg(
            F.max(F.when(is_own, F.struct(*compared.columns))).alias("own"),
            F.sort_array(F.collect_list(F.when(~is_own, reason))).alias("parts"),
        )
    )
    same = F.filter("parts", lambda part: F.signum(part["difference"]) == F.signum("own.difference"))
    because = F.transform(
        F.slice(same, 1, MOST_REASONS),
        lambda part: F.struct(*(part[name].alias(name) for name in ("metric", "key", "value", "usual"))),
    )
    return grouped.select("own.*", because.alias("because"))
