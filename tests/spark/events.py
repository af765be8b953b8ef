"""Hand-made events: rows that say only what a test is about."""

from __future__ import annotations

from datetime import date
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from relay_core.records.events import EVENT_SCHEMA_VERSION
from spark.days import Day
from spark.events.schema import EVENT_SCHEMA

DATE = date(2026, 3, 14)
DAY = Day.of(DATE, 2**53)
START = DAY.start_ms


def at(hours: float = 0, *, minutes: float = 0, secs: float = 0, ms: int = 0) -> int:
    """Return a moment of the day, in milliseconds since the epoch."""
    return START + int(hours * 3_600_000 + minutes * 60_000 + secs * 1000) + ms


def events(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Return events with these fields (camelCase), the others null; unless given, `time` is the day's start."""
    names = EVENT_SCHEMA.fieldNames()
    unknown = {key for row in rows for key in row} - set(names)
    if unknown:
        raise TypeError(f"events have no {', '.join(sorted(unknown))}")
    whole = [{"v": EVENT_SCHEMA_VERSION, "time": START} | row for row in rows]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in whole], EVENT_SCHEMA)
