"""Adapters: deliveries, latency and downtime.

1. An adapter is down while it is starting, disconnected or in error. One that an operator stopped or removed is not
   down, nor is one whose bus has stopped.
2. An outage is a change during the day from connected to a down state; a change between down states is not.
3. In a hot reload the new adapter takes over first, and then the old one reports that it is stopping, "replaced". That
   event is skipped.
4. `handled` counts handled deliveries, `failed` failed ones, `refused` those that a rule refused before. They count
   lines, like all counts of messages. `successShare` is null without handled or failed deliveries.
5. `stateAtEnd` is null if the bus has stopped or started since the adapter's last event, or without any event.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from relay_core.records.events import EventKind
from spark.days import Day
from spark.intervals import latest, secs, states
from spark.percentiles import percentiles

CONNECTED, REMOVED = "connected", "removed"
DOWN = ("starting", "disconnected", "error")

STATUSES = (*DOWN, CONNECTED, "stopping", REMOVED)
"""In their order within one millisecond: towards the end of an adapter's life."""


def adapters(incidents: DataFrame, steps: DataFrame, day: Day) -> DataFrame:
    """Return each adapter's deliveries, latency and downtime."""
    kind, about = F.col("kind"), F.col("adapter").isNotNull()
    changes = states(incidents.where(~is_replaced()), day, EventKind.ADAPTER, "adapter", STATUSES)
    down = F.col("status").isin(*DOWN)
    lasting = changes.groupBy("adapter").agg(
        F.sum(F.when(down, F.col("ms"))).alias("downMs"),
        F.count_if(down & (F.col("before") == CONNECTED) & (F.col("time") >= day.start_ms)).alias("outages"),
        F.max(F.when(F.col("lasts"), F.col("status"))).alias("stateAtEnd"),
        latest("detail").alias("lastDetail"),
    )
    turned_away = incidents.where(
        kind.isin(EventKind.FAILED, EventKind.REFUSED) & (F.col("targetKind") == "adapter") & about
    ).select(
        "adapter",
        (kind == EventKind.FAILED).cast("long").alias("failed"),
        (kind == EventKind.REFUSED).cast("long").alias("refused"),
    )
    handled = steps.where((F.col("step") == "total") & about).select("adapter", F.col("messages").alias("handled"))
    latency = percentiles(steps.where((F.col("step") == "handle") & about), ["adapter"], (50, 95))
    # One grouping over the union instead of joins: an adapter may be missing from any part.
    parts = lasting
    for part in (turned_away, handled, latency.select("adapter", "p50Us", "p95Us")):
        parts = parts.unionByName(part, allowMissingColumns=True)
    whole = parts.groupBy("adapter").agg(
        *(_total(name) for name in ("handled", "failed", "refused")),
        *(F.max(name).alias(name) for name in ("p50Us", "p95Us")),
        secs(F.sum("downMs")).alias("downSecs"),
        _total("outages"),
        *(F.max(name).alias(name) for name in ("stateAtEnd", "lastDetail")),
    )
    share = F.try_divide(F.col("handled"), F.col("handled") + F.col("failed"))
    before, after = whole.columns[:4], whole.columns[4:]
    return whole.select(*before, share.alias("successShare"), *after)


def is_replaced() -> Column:
    """Return True for the stop of an adapter that was replaced in a hot reload."""
    leaving = (F.col("kind") == EventKind.ADAPTER) & (F.col("status") == "stopping") & (F.col("detail") == "replaced")
    return F.coalesce(leaving, F.lit(False))


def _total(name: str) -> Column:
    return F.coalesce(F.sum(name), F.lit(0)).cast("long").alias(name)
