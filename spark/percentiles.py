"""Percentiles from a histogram: counts of durations that were rounded down to three significant digits.

1. A duration below 1000 µs keeps its value; a longer one keeps its first three digits: 1_239 counts as 1_230. The
   error is less than 1 % of the duration, always downwards. There are 900 buckets to each power of ten, so a
   target's day is a few thousand rows at most, however many messages it handled, and histograms can be added up.
2. A negative duration (the clock was put back meanwhile) counts as 0. A duration that is not known stays null, and
   null is no bucket: it is left out of the counts and the percentiles.
3. The percentile is the nearest rank: the smallest duration that at least so many percent of the messages do not
   exceed. It is a duration that occurred, rounded down, never one between two. The largest bucket is `maxUs`.
4. Rounding down keeps the order, so the percentile of rounded durations is the rounded percentile of the durations.
5. Ranks are compared in whole numbers (`upTo * 100 >= messages * percent`), so no rounding moves one.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

_DIGITS_OF_LONG = 19


def bucket(us: Column) -> Column:
    """Return a duration rounded down to three significant digits."""
    # Comparisons and remainders of whole numbers, not a logarithm: exact at every power of ten. Short durations are the
    # common ones and come first.
    rounded = F.when(us < 1000, F.greatest(us, F.lit(0)))
    for digits in range(4, _DIGITS_OF_LONG):
        rounded = rounded.when(us < 10**digits, us - us % 10 ** (digits - 3))
    return rounded.otherwise(us - us % 10 ** (_DIGITS_OF_LONG - 3)).cast("long")


def percentiles(histogram: DataFrame, by: Sequence[str], percents: Sequence[int]) -> DataFrame:
    """Return messages, a column such as `p50Us` for each percent, and `maxUs` for each group of a histogram.

    The histogram has the columns `us` and `messages` beside those to group by, and may have several rows to a bucket.
    """
    # One shuffle: the two windows and the aggregate need the same rows together, and the windows the same order.
    group = Window.partitionBy(*by)
    ranked = histogram.where(F.col("us").isNotNull()).select(
        *by,
        "us",
        "messages",
        F.sum("messages").over(group.orderBy("us").rowsBetween(Window.unboundedPreceding, 0)).alias("upTo"),
        F.sum("messages").over(group).alias("all"),
    )
    return ranked.groupBy(*by).agg(
        F.sum("messages").alias("messages"),
        *(_nearest_rank(percent).alias(f"p{percent}Us") for percent in percents),
        F.max("us").alias("maxUs"),
    )


def _nearest_rank(percent: int) -> Column:
    return F.min(F.when(F.col("upTo") * 100 >= F.col("all") * percent, F.col("us")))
