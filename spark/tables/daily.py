"""The day's numbers, in long form: the baseline for the anomalies of later days.

1. `METRICS` lists them. A metric is a sum, or a maximum, over one table. A metric with a `key` is a break-down with a
   row per key; one without has a single row with the key ``''``, even on a day without events.
2. The numbers come from the day's other tables, which are small, and never from events. Each table is read once.
3. A break-down keeps its greatest `MOST_KEYS` values, so the cost of a run does not grow with the number of senders.
4. A key that is null in its table is ``?`` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from typing import Literal

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

MOST_KEYS = 200
_NO_KEY = "''"
FEWEST_FOR_P95 = 20
"""Targets with fewer messages have no meaningful 95th percentile."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One of the day's numbers, or a break-down of it; its title and unit are in report/headline.py."""

    name: str
    table: str
    value: str
    """An SQL expression over the table's columns."""
    floor: float
    """The least difference from the usual value that is reported."""
    key: str | None = None
    """An SQL expression for the key; None for a number of the whole bus."""
    explained_by: tuple[str, ...] = ()
    """Break-downs that explain a difference; those of a break-down have the same keys."""
    of: Literal["sum", "max"] = "sum"
    where: str = "true"
    """The rows of the table that count."""
    missing_is_zero: bool = True
    """True if a key without a row counts as 0 (a count), False if it is unknown (a latency)."""


_KEYS = {
    "Sender": "sender",
    "Subject": "subject",
    "Code": "code",
    "Target": "coalesce(name, target)",
    "Adapter": "adapter",
    "Job": "job",
}
"""The keys of break-downs."""


def _count(table: str, name: str, value: str, *by: str, floor: float) -> tuple[Metric, ...]:
    """Return a sum and its break-downs, such as ``messagesBySender``."""
    parts = [Metric(f"{name}By{key}", table, value, floor, _KEYS[key]) for key in by]
    return Metric(name, table, value, floor, explained_by=tuple(part.name for part in parts)), *parts


def _p95(name: str, step: str, *explained_by: str) -> Metric:
    where = f"step = '{step}' AND messages >= {FEWEST_FOR_P95}"
    return Metric(name, "latency", "p95Us", 5_000, "name", explained_by, "max", where, missing_is_zero=False)


METRICS: tuple[Metric, ...] = (
    *_count("throughput", "messages", "messages", "Subject", "Sender", floor=20),
    *_count("throughput", "bytes", "bytes", "Sender", floor=100_000),
    *_count("refusals", "refusals", "refused", "Code", "Sender", "Subject", floor=10),
    *_count("dead_letters", "deadLetters", "letters", "Code", "Target", floor=5),
    *_count("dead_letters", "standingLetters", "standing", "Target", floor=10),
    _p95("p95TotalUs", "total", "p95QueueUs", "p95HandleUs"),
    _p95("p95QueueUs", "queue"),
    _p95("p95HandleUs", "handle"),
    *_count("breakers", "breakerOpenSecs", "openSecs", "Target", floor=60),
    *_count("breakers", "breakerOpenings", "openings", "Target", floor=3),
    *_count("pressure", "pressureSecs", "aboveSecs", "Target", floor=60),
    *_count("adapters", "adapterFailures", "failed", "Adapter", floor=5),
    *_count("adapters", "adapterDownSecs", "downSecs", "Adapter", floor=60),
    *_count("jobs", "jobsFailed", "failed + timedOut", "Job", floor=1),
    *_count("conversations", "loopsStopped", "loopsStopped", "Sender", "Subject", floor=3),
    Metric("deepestChain", "conversations", "depth", floor=2, of="max"),
    Metric("widestFanOut", "conversations", "fanOut", floor=5, of="max"),
)


def daily(tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return the day's numbers (metric, key, value) from its other tables."""
    by_table = sorted(METRICS, key=lambda metric: metric.table)
    parts = [_numbers(tables[name], list(metrics)) for name, metrics in groupby(by_table, lambda metric: metric.table)]
    nothing = ", ".join(f"struct('{metric.name}', '', 0D)" for metric in METRICS if metric.key is None)
    zeros = parts[0].sparkSession.range(1).selectExpr(f"inline(array({nothing}))")
    greatest = [metric.name for metric in METRICS if metric.of == "max"]
    value = F.when(F.col("metric").isin(greatest), F.max("value")).otherwise(F.sum("value"))
    numbers = reduce(DataFrame.unionAll, [*parts, zeros]).groupBy("metric", "key").agg(value.alias("value"))
    rank = F.row_number().over(Window.partitionBy("metric").orderBy(F.desc("value"), "key"))
    return numbers.withColumn("rank", rank).where(F.col("rank") <= MOST_KEYS).drop("rank")


def _numbers(table: DataFrame, metrics: list[Metric]) -> DataFrame:
    """Return each row's contribution to each of the table's metrics, in one pass."""
    contributions = ", ".join(
        f"struct('{metric.name}' AS metric,"
        f" coalesce({metric.key or _NO_KEY}, '?') AS key,"
        f" CAST(if({metric.where}, {metric.value}, 0) AS DOUBLE) AS value)"
        for metric in metrics
    )
    return table.selectExpr(f"inline(array({contributions}))").where("value > 0")
