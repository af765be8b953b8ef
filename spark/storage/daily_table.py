"""A small table that is kept by day, ``tables/NAME/date=D/``, and replaced a day at a time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructField, StructType

from spark.events.schema import no_rows
from spark.storage.locations import Storage


@dataclass(frozen=True, slots=True)
class DailyTable:
    """What a table has of each day."""

    tables: Storage
    name: str
    schema: StructType
    """Of its rows, beside their `date`."""

    def put(self, frame: DataFrame, day: date) -> None:
        """Replace a day."""
        made = self.tables.making(self._place(day))
        write(frame.coalesce(1), self.tables.uri(made))
        self.tables.swap(made, self._place(day))

    def read(self, spark: SparkSession, days: list[date]) -> DataFrame:
        """Return these days, which must be there, with their `date`."""
        schema = StructType([*self.schema.fields, StructField("date", DateType())])
        if not days:
            return no_rows(spark, schema)
        paths = [self.tables.pattern(self._place(day)) for day in days]
        return spark.read.schema(schema).option("basePath", self.tables.uri(self.name)).parquet(*paths)

    def before(self, day: date, days: int | None = None) -> list[date]:
        """Return the days that are there of so many before a day, or of all before it, oldest first."""
        found = [found for found in dates(self.tables, self.name) if found < day]
        return found if days is None else [one for one in found if one >= day - timedelta(days=days)]

    def fingerprint(self, spark: SparkSession, day: date) -> tuple[int, int] | None:
        """Return what tells a day's rows from others, whatever their order; None if there is no such day."""
        if day not in dates(self.tables, self.name):
            return None
        row_hash = F.xxhash64(*self.schema.fieldNames()).cast("decimal(20)")
        count, total = self.read(spark, [day]).agg(F.count("*"), F.sum(row_hash)).collect()[0]
        return int(count), int(total or 0)

    def _place(self, day: date) -> str:
        return f"{self.name}/date={day}"


def write(frame: DataFrame, place: str) -> None:
    """Write a table that is not there yet as Parquet, with no other file."""
    frame.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(place)


def dates(place: Storage, name: str = "") -> list[date]:
    """Return the days that a place has something of, oldest first."""
    found = []
    for entry in place.names(name):
        if entry.startswith("date="):
            with suppress(ValueError):
                found.append(date.fromisoformat(entry.removeprefix("date=").removesuffix(".json")))
    return sorted(found)
