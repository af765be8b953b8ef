"""Latency: how long messages to each target waited, were handled, and took end to end.

1. `step` is `queue` (stored until the handler started), `handle` (the handler's run) or `total` (publish to the end of
   handling). `name` is the target's adapter, else its subject.
2. Percentiles are nearest ranks, rounded down to three significant digits (percentiles.py).
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark.percentiles import percentiles


def latency(steps: DataFrame) -> DataFrame:
    """Return messages, p50, p95, p99 and maximum in µs by target and step."""
    return percentiles(steps, ("target", "name", "targetKind", "step"), (50, 95, 99))
