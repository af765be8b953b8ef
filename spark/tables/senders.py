"""Senders: how much each sent, and how close it came to its limit.

1. The peak is the minute with most published messages of a sender, the earlier of two. `peakShare` compares it with the
   limit per minute, which is null while limits are off.
2. The limit is that of the longest override that covers the sender at a token boundary, as the bus resolves it
   (relay_core/rules/rate_limit.py), from the configuration at the time of the report. The share of a minute may exceed
   1: a window shorter than a minute can be filled more than once, and limits change.
3. A sender with only refusals has a row without messages and without a peak minute. `refused` counts refusals, one for
   each target that refused. `refusedShare` is the share of publishes that no target accepted: 5 of 15 is a third.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.events.sources import MINUTES_OF_DAY, time_of_day
from spark.tables.throughput import sum_of


class Limits(BaseModel):
    """How many messages a sender may publish in a window: config.json's `reliability.rateLimit`."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    enabled: bool = True
    max_per_window: int = Field(default=100, ge=1)
    window_secs: int = Field(default=60, ge=1)
    per_sender_overrides: dict[str, int] = Field(default_factory=dict)

    def of(self, sender: Column) -> Column:
        """Return a sender's limit in a window."""
        limits: dict[str, int] = {}
        for key, override in self.per_sender_overrides.items():
            limits.setdefault(key.rstrip("."), override)  # of two keys for the same prefix, the bus uses the first
        limits.pop("", None)
        limit = F.lit(self.max_per_window)
        # The last condition added is evaluated first, so the longest prefix is added last.
        for prefix in sorted(limits, key=len):
            covers = (sender == prefix) | sender.startswith(f"{prefix}.")
            limit = F.when(covers, F.lit(limits[prefix])).otherwise(limit)
        return limit

    def per_minute(self, sender: Column) -> Column:
        """Return a sender's limit in messages per minute; null while limits are off."""
        if not self.enabled:
            return F.lit(None).cast("double")
        return self.of(sender).cast("double") * 60 / self.window_secs


def senders(traffic: DataFrame, limits: Limits) -> DataFrame:
    """Return each sender's messages, peak minute, limit and refusals."""
    rate_limited = (F.col("kind") == EventKind.REFUSED) & (F.col("code") == "rate_limited")
    by_minute = traffic.groupBy("sender", "minute").agg(
        sum_of("messages", EventKind.PUBLISH).alias("messages"),
        sum_of("bytes", EventKind.PUBLISH).alias("bytes"),
        sum_of("messages", EventKind.REFUSED).alias("refused"),
        F.sum(F.when(rate_limited, F.col("messages")).otherwise(0)).alias("rateLimited"),
        *(F.sum(name).alias(name) for name in ("tried", "turnedAway")),
    )
    # Count and minute in one number: its maximum is the peak, at the earlier of two equal minutes. A struct would be
    # clearer, but Spark cannot hash-aggregate the maximum of a struct; it sorts.
    ranked = F.col("messages") * MINUTES_OF_DAY + (MINUTES_OF_DAY - 1 - F.col("minute"))
    by_sender = by_minute.groupBy("sender").agg(
        F.max(ranked).alias("peak"),
        *(F.sum(name).alias(name) for name in ("messages", "bytes", "refused", "rateLimited", "tried", "turnedAway")),
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
