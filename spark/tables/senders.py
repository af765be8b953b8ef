"""Senders: what each has sent, and how near it came to its limit.

1. The peak is the minute in which most of a sender's messages were published, the earlier of two such. `peakShare`
   compares it with the limit for a minute, which is null while limits are off.
2. A limit is the one of the longest override that covers the sender at a token boundary, as the bus resolves it
   (relay_core/rules/rate_limit.py), and as it is configured at the time of the report. A minute's share may exceed 1: a
   window shorter than a minute can be filled more than once, limits change.
3. A sender with refusals alone has a row: no messages, no peak minute. `refused` counts refusals, one for each target
   that refused. `refusedShare` is the part of its publishes that were refused altogether: 5 of 15 is a third.
4. Lines are counted: one that stands twice counts twice (sources.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.events.sources import MINUTES_OF_DAY, time_of_day
from spark.tables.throughput import sum_of

_RATE_LIMITED = "rate_limited"


@dataclass(frozen=True, slots=True)
class Limits:
    """How many messages a sender may publish in a window, as configured."""

    enabled: bool = True
    max_per_window: int = 100
    window_secs: int = 60
    overrides: Mapping[str, int] = field(default_factory=dict)

    def of(self, sender: Column) -> Column:
        """Return a sender's limit in a window."""
        limits: dict[str, int] = {}
        for key, override in self.overrides.items():
            limits.setdefault(key.rstrip("."), override)  # of two keys for one prefix, the bus takes the first
        limits.pop("", None)
        limit = F.lit(self.max_per_window)
        # Each is wrapped around those before it and asked first, so the longest comes last.
        for prefix in sorted(limits, key=len):
            covers = (sender == prefix) | sender.startswith(f"{prefix}.")
            limit = F.when(covers, F.lit(limits[prefix])).otherwise(limit)
        return limit

    def per_minute(self, sender: Column) -> Column:
        """Return a sender's limit as so many messages in a minute, null while limits are off."""
        if not self.enabled:
            return F.lit(None).cast("double")
        return self.of(sender).cast("double") * 60 / self.window_secs


def senders(traffic: DataFrame, limits: Limits) -> DataFrame:
    """Return each sender's messages, peak minute, limit and refusals."""
    rate_limited = F.when(F.col("code") == _RATE_LIMITED, F.col("messages")).otherwise(0)
    by_minute = traffic.groupBy("sender", "minute").agg(
        sum_of("messages", EventKind.PUBLISH).alias("messages"),
        sum_of("bytes", EventKind.PUBLISH).alias("bytes"),
        sum_of("messages", EventKind.REFUSED).alias("refused"),
        F.sum(F.when(F.col("kind") == EventKind.REFUSED, rate_limited).otherwise(0)).alias("rateLimited"),
        F.sum("tried").alias("tried"),
        F.sum("turnedAway").alias("turnedAway"),
    )
    # Count and minute in one number: its maximum is the peak, the earlier minute of two that are equal. A struct would
    # say it better, but Spark can only sort for its maximum, not hash.
    ranked = F.col("messages") * MINUTES_OF_DAY + (MINUTES_OF_DAY - 1 - F.col("minute"))
    by_sender = by_minute.groupBy("sender").agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.max(ranked).alias("peak"),
        F.sum("refused").alias("refused"),
        F.sum("rateLimited").alias("rateLimited"),
        F.sum("tried").alias("tried"),
        F.sum("turnedAway").alias("turnedAway"),
    )
    peak_messages = F.call_function("div", F.col("peak"), F.lit(MINUTES_OF_DAY))
    peak_minute = MINUTES_OF_DAY - 1 - F.col("peak") % MINUTES_OF_DAY
    limit = limits.per_minute(F.col("sender"))
    return by_sender.select(
        "sender",
        "messages",
        "bytes",
        F.when(F.col("messages") > 0, time_of_day(peak_minute)).alias("peakMinute"),
        peak_messages.alias("peakMessages"),
        limit.alias("limitPerMinute"),
        (peak_messages / limit).alias("peakShare"),
        "refused",
        "rateLimited",
        F.coalesce(F.try_divide("turnedAway", "tried"), F.lit(0.0)).alias("refusedShare"),
    )
