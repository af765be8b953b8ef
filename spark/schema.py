"""The events as Spark sees them: the event log's columns, and the day that a table is made for.

`EVENT_SCHEMA` says of each column what `relay_core.events.Event` says of the field; a test holds the two together.
Columns keep their names on disk (camelCase), from the log through the tables to report.json.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

DAY_MS = 86_400_000

EVENT_SCHEMA = StructType(
    [
        StructField("v", IntegerType()),
        StructField("time", LongType()),
        StructField("kind", StringType()),
        StructField("messageId", StringType()),
        StructField("traceId", StringType()),
        StructField("parentId", StringType()),
        StructField("subject", StringType()),
        StructField("sender", StringType()),
        StructField("target", StringType()),
        StructField("targetKind", StringType()),
        StructField("status", StringType()),
        StructField("code", StringType()),
        StructField("storeUs", LongType()),
        StructField("queueUs", LongType()),
        StructField("handleUs", LongType()),
        StructField("totalUs", LongType()),
        StructField("hopCount", IntegerType()),
        StructField("callsLeft", IntegerType()),
        StructField("bytes", LongType()),
        StructField("adapter", StringType()),
        StructField("detail", StringType()),
        StructField("depth", IntegerType()),
        StructField("limit", IntegerType()),
    ]
)


@dataclass(frozen=True, slots=True)
class Day:
    """A UTC date, and how much of it there is to see."""

    date: dt.date
    until_ms: int
    """The first moment that is not looked at: the day's end, or now while the day is not over."""

    @classmethod
    def of(cls, day: dt.date, now_ms: int) -> Day:
        """Return a day as it is seen at a moment."""
        start = _start_ms(day)
        return cls(day, min(start + DAY_MS, max(now_ms, start)))

    @property
    def start_ms(self) -> int:
        """Return the day's first moment."""
        return _start_ms(self.date)

    @property
    def is_over(self) -> bool:
        """Tell whether all of it can be seen."""
        return self.until_ms - self.start_ms >= DAY_MS


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a DataFrame without rows; unlike `createDataFrame([])`, without a Python on the workers."""
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields]
    return spark.range(0).select(*columns)


def _start_ms(day: dt.date) -> int:
    return int(dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC).timestamp()) * 1000
