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
    """A table with a directory per day."""

    tables: Storage
    name: str
    schema: StructType
    """The schema of its rows, without `date`."""

    def put(self, frame: DataFrame, day: date) -> None:
        """Replace a day."""
        made = self.tables.making(self._place(day))
        write(frame.coalesce(1), self.tables.uri(made))
        self.tables.swap(made, self._place(day))

    def read(self, spark: SparkSession, days: list[date]) -> DataFrame:
        """Return the rows of these days, which must exist, with their `date`."""
        schema = StructType([*self.schema.fields, StructField("date", DateType())])
        if not days:
            return no_rows(spark, schema)
        paths = [self.tables.pattern(self._place(day)) for day in days]
        return spark.read.schema(schema).option("basePath", self.tables.uri(self.name)).parquet(*paths)

    def before(self, day: date, days: int | None = None) -> list[date]:
        """Return the stored dates before a day, oldest first; with `days`, only those of that many days."""
        first = date.min if days is None else day - timedelta(days=days)
        return [stored for stored in dates(self.tables, self.name) if first <= stored < day]

    def fingerprint(self, spark: SparkSession, day: date) -> tuple[int, int] | None:
        """Return a fingerprint of a day's rows that ignores their order; None without such a day."""
        if day not in dates(self.tables, self.name):
            return None
        row_hash = F.xxhash64(*self.schema.fieldNames()).cast("decimal(20)")
        count, total = self.read(spark, [day]).agg(F.count("*"), F.sum(row_hash)).collect()[0]
        return int(count), int(total or 0)

    def _place(self, day: date) -> str:
        return f"{self.name}/date={day}"


def write(frame: DataFrame, place: str) -> None:
    """Write a new table as Parquet, without a success marker."""
    frame.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(place)


def dates(place: Storage, name: str = "") -> list[date]:
    """Return the dates for which a location has an entry, oldest first."""
    found = []
    for entry in place.names(name):
        if entry.startswith("date="):
            with suppress(ValueError):
                found.append(date.fromisoformat(entry.removeprefix("date=").removesuffix(".json")))
    return sorted(found)
