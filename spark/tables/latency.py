"""Latency: how long the messages to each target waited, were handled, and took from publish to end.

1. `step` is `queue` (stored until a handler began), `handle` (from its beginning to its end) or `total` (publish to
   end). `name` is what a reader knows the target by: its adapter, else its subject.
2. Percentiles are nearest ranks, rounded down to three significant digits (percentiles.py).
3. Lines are counted: one that stands twice counts twice (sources.py).
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark.percentiles import percentiles


def latency(steps: DataFrame) -> DataFrame:
    """Return messages, p50, p95, p99 and maximum in µs by target and step."""
    return percentiles(steps, ("target", "name", "targetKind", "step"), (50, 95, 99))
