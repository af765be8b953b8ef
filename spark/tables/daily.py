"""The day's numbers, in long form: what the anomalies of later days are measured against.

1. `METRICS` is the list of them. A metric is a sum, or a maximum, over one table; one with a `key` is a break-down and
   has a row for each key, one without has a single row with the key ``''``, also on a day on which nothing happened.
2. The numbers come from the day's other tables, which are small, and never from events. Each table is read once.
3. A break-down keeps its greatest `MOST_KEYS` values, so that a night's cost does not grow with the number of senders.
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
FEWEST_FOR_P95 = 20
"""A target that handled fewer messages has no 95th percentile worth comparing."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One of the day's numbers, or a break-down of it."""

    name: str
    title: str
    """What it counts, in words."""
    unit: Literal["", "bytes", "µs", "s", "hops"]
    table: str
    value: str
    """An SQL expression over the table's columns."""
    worse: Literal["up", "down", "either"]
    floor: float
    """The least difference from the usual that is worth a word."""
    key: str | None = None
    """An SQL expression for the key; None for a number of the whole bus."""
    explained_by: tuple[str, ...] = ()
    """Break-downs that say where a difference comes from; those of a break-down have the same keys."""
    of: Literal["sum", "max"] = "sum"
    where: str = "true"
    """Which rows of the table count."""
    missing_is_zero: bool = True
    """Whether a key without a row had none of it (a count), or none to measure (a latency)."""


def _count(
    table: str,
    name: str,
    title: str,
    value: str,
    *,
    floor: float,
    by: Mapping[str, tuple[str, str]],
    worse: Literal["up", "down", "either"] = "up",
    unit: Literal["", "bytes", "s"] = "",
) -> tuple[Metric, ...]:
    """Return a sum and its break-downs, given as {``BySender``: (words, key)}."""
    parts = [
        Metric(f"{name}{suffix}", f"{title} {words}", unit, table, value, worse, floor, key)
        for suffix, (words, key) in by.items()
    ]
    names = tuple(part.name for part in parts)
    return Metric(name, title, unit, table, value, worse, floor, explained_by=names), *parts


def _p95(name: str, title: str, step: str, explained_by: tuple[str, ...] = ()) -> Metric:
    where = f"step = '{step}' AND messages >= {FEWEST_FOR_P95}"
    return Metric(name, title, "µs", "latency", "p95Us", "up", 5_000, "name", explained_by, "max", where, False)


def _most(name: str, title: str, value: str, unit: Literal["", "hops"], floor: float) -> Metric:
    return Metric(name, title, unit, "conversations", value, "up", floor, of="max")


_BY_SENDER = ("by sender", "sender")
_BY_SUBJECT = ("by subject", "subject")
_BY_CODE = ("by reason", "code")
_BY_TARGET = ("by target", "coalesce(name, target)")
_BY_ADAPTER = ("by adapter", "adapter")

METRICS: tuple[Metric, ...] = (
    *_count(
        "throughput",
        "messages",
        "messages published",
        "messages",
        floor=20,
        by={"BySubject": _BY_SUBJECT, "BySender": _BY_SENDER},
        worse="either",
    ),
    *_count(
        "throughput",
        "bytes",
        "bytes published",
        "bytes",
        floor=100_000,
        by={"BySender": _BY_SENDER},
        worse="either",
        unit="bytes",
    ),
    *_count(
        "refusals",
        "refusals",
        "messages refused",
        "refused",
        floor=10,
        by={"ByCode": _BY_CODE, "BySender": _BY_SENDER, "BySubject": _BY_SUBJECT},
    ),
    *_count(
        "dead_letters",
        "deadLetters",
        "new dead letters",
        "letters",
        floor=5,
        by={"ByCode": _BY_CODE, "ByTarget": _BY_TARGET},
    ),
    *_count(
        "dead_letters",
        "standingLetters",
        "dead letters at the day's end",
        "standing",
        floor=10,
        by={"ByTarget": _BY_TARGET},
    ),
    _p95("p95TotalUs", "95th percentile from publish to handled, by target", "total", ("p95QueueUs", "p95HandleUs")),
    _p95("p95QueueUs", "95th percentile of waiting, by target", "queue"),
    _p95("p95HandleUs", "95th percentile of handling, by target", "handle"),
    *_count(
        "breakers",
        "breakerOpenSecs",
        "time breakers were open",
        "openSecs",
        floor=60,
        by={"ByTarget": _BY_TARGET},
        unit="s",
    ),
    *_count("breakers", "breakerOpenings", "breakers opened", "openings", floor=3, by={"ByTarget": _BY_TARGET}),
    *_count(
        "pressure",
        "pressureSecs",
        "time mailboxes were too full",
        "aboveSecs",
        floor=60,
        by={"ByTarget": _BY_TARGET},
        unit="s",
    ),
    *_count("adapters", "adapterFailures", "failures of adapters", "failed", floor=5, by={"ByAdapter": _BY_ADAPTER}),
    *_count(
        "adapters",
        "adapterDownSecs",
        "time adapters were down",
        "downSecs",
        floor=60,
        by={"ByAdapter": _BY_ADAPTER},
        unit="s",
    ),
    *_count("jobs", "jobsFailed", "jobs that failed", "failed + timedOut", floor=1, by={"ByJob": ("by job", "job")}),
    *_count(
        "conversations",
        "loopsStopped",
        "loops stopped",
        "loopsStopped",
        floor=3,
        by={"BySender": _BY_SENDER, "BySubject": _BY_SUBJECT},
    ),
    _most("deepestChain", "most hops of a conversation", "depth", "hops", 2),
    _most("widestFanOut", "most answers to one message", "fanOut", "", 5),
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
    """Return each row's share in each of the table's metrics: one pass for all of them."""
    shares = ", ".join(
        f"struct('{metric.name}' AS metric,"
        f" {_key(metric)} AS key,"
        f" CAST(if({metric.where}, {metric.value}, 0) AS DOUBLE) AS value)"
        for metric in metrics
    )
    return table.selectExpr(f"inline(array({shares}))").where("value > 0")


def _key(metric: Metric) -> str:
    return "''" if metric.key is None else f"coalesce({metric.key}, '?')"
