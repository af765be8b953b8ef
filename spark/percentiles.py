"""Percentiles from a histogram of durations rounded down to three significant digits.

1. A duration below 1000 µs keeps its value; a longer one keeps its first three digits: 1_239 counts as 1_230. The
   error is below 1 % and always downwards. Each power of ten has 900 buckets, so a target's day is a few thousand rows
   at most, however many messages it handled, and histograms can be added.
2. A negative duration (the clock was set back) counts as 0. An unknown duration is null and in no bucket: counts and
   percentiles ignore it.
3. The percentile is the nearest rank: the smallest duration that at least this share of the messages does not exceed.
   It is a duration that occurred, rounded down, never an interpolation. The largest bucket is `maxUs`.
4. Rounding down keeps the order, so the percentile of rounded durations is the rounded percentile of the durations.
5. Ranks are compared as integers (`upTo * 100 >= messages * percent`), so rounding cannot shift them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

_DIGITS_OF_LONG = 19


def bucket(us: Column) -> Column:
    """Return a duration rounded down to three significant digits."""
    # Integer comparisons and remainders instead of a logarithm: exact at every power of ten. Short durations are the
    # most common and come first.
    rounded = F.when(us < 1000, F.greatest(us, F.lit(0)))
    for digits in range(4, _DIGITS_OF_LONG):
        rounded = rounded.when(us < 10**digits, us - us % 10 ** (digits - 3))
    return rounded.otherwise(us - us % 10 ** (_DIGITS_OF_LONG - 3)).cast("long")


def percentiles(histogram: DataFrame, by: Sequence[str], percents: Sequence[int]) -> DataFrame:
    """Return messages, a column such as `p50Us` for each percent, and `maxUs` for each group of a histogram.

    The histogram has the columns `us` and `messages` beside those to group by, and may have several rows per bucket.
    """
    # One shuffle: the windows and the aggregate have the same partitioning, and both windows the same order.
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
        *(
            F.min(F.when(F.col("upTo") * 100 >= F.col("all") * percent, F.col("us"))).alias(f"p{percent}Us")
            for percent in percents
        ),
        F.max("us").alias("maxUs"),
    )
