"""One day's report: its tables, its numbers, its carry-over, and the pages.

1. The shared passes over the events (events/sources.py) are cached while the tables are made, so each pass reads each
   event once. The incidents include those carried over from the day before.
2. Each table is written in full; the report has its first rows, in the order of report/layout.py.
3. A few tables are made at a time. On a small day a table is a job of milliseconds between planning in the driver; on
   a large one they share the cores.
4. The day's numbers (`daily`) and its carry-over are in place before the report, and the report is swapped in whole,
   last: a kill at any moment leaves the previous report, and the day is behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, time_ns
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

from relay_core.records.events import EventKind
from spark.days import HISTORY_DAYS, Day
from spark.events.ingest import read_day
from spark.events.manifest import Manifest
from spark.events.schema import EVENT_SCHEMA
from spark.events.sources import incidents, steps, traffic
from spark.progress import Part
from spark.report.build import build
from spark.report.headline import HEADLINE
from spark.report.inputs import Table
from spark.report.layout import LAYOUT
from spark.report.page import page
from spark.storage.daily_table import DailyTable, write
from spark.storage.locations import Storage
from spark.tables import TABLES, Sources
from spark.tables.anomalies import anomalies
from spark.tables.carry_over import carry_over
from spark.tables.daily import daily
from spark.tables.senders import Limits

AT_ONCE = 3
"""Tables made at the same time."""

DAILY_SCHEMA = StructType(
    [StructField("metric", StringType()), StructField("key", StringType()), StructField("value", DoubleType())]
)

_LAYOUTS = {layout.name: layout for layout in LAYOUT}
_TABLES_DONE = 0.8


@dataclass(frozen=True)
class OneDay:
    """Makes the report of a day."""

    spark: SparkSession
    output: Storage
    limits: Limits
    progress: Part

    def make(self, day: Day, manifest: Manifest) -> bool:
        """Make a day's report from its ingested events, and put it in place.

        Return True if its carry-over differs from that of the previous report.
        """
        began = monotonic()
        tables = self.output.below("tables")
        carried, numbers = DailyTable(tables, "carried", EVENT_SCHEMA), DailyTable(tables, "daily", DAILY_SCHEMA)
        making = self.output.making(f"date={day.date}")
        place = self.output.below(making)
        previous = carried.fingerprint(self.spark, day.date)
        with self._sources(tables, day, carried) as sources:
            made = self._tables(sources, place, carried)
        self.progress.report("comparing with the days before", _TABLES_DONE)
        numbers.put(daily({name: table.frame for name, table in made.items()}), day.date)
        today = numbers.read(self.spark, [day.date])
        before = numbers.read(self.spark, numbers.before(day.date, HISTORY_DAYS))
        made["anomalies"] = self._table("anomalies", anomalies(today.drop("date"), before, day), place)
        self.progress.report("report", 0.95)
        in_headline = F.col("metric").isin(*HEADLINE)
        report = build(
            day,
            {name: table.first for name, table in made.items()},
            _rows(today.where(in_headline)),
            _rows(before.where(in_headline)),
            _about(manifest),
            made_at_ms=time_ns() // 1_000_000,
            took_secs=monotonic() - began,
        )
        place.write("report.html", page(report).encode("utf-8", "replace"))
        place.write("report.json", report.to_json())
        self.output.swap(making, f"date={day.date}")
        return previous is not None and previous != carried.fingerprint(self.spark, day.date)

    @contextmanager
    def _sources(self, tables: Storage, day: Day, carried: DailyTable) -> Iterator[Sources]:
        events = read_day(self.spark, tables, day.date)
        still_open = carried.read(self.spark, carried.before(day.date)[-1:]).drop("date")
        frames = traffic(events, day), steps(events), incidents(events).unionByName(still_open)
        passes = [frame.persist(StorageLevel.MEMORY_AND_DISK) for frame in frames]
        try:
            yield Sources(day, self.limits, events, *passes)
        finally:
            for frame in passes:
                frame.unpersist()

    def _tables(self, sources: Sources, place: Storage, carried: DailyTable) -> dict[str, _Made]:
        """Make every table, and store the day's carry-over."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="table") as pool:
            making = {pool.submit(self._table, name, make(sources), place): name for name, make in TABLES.items()}
            still_open = carry_over(sources.incidents, sources.day)
            stored = pool.submit(carried.put, still_open, sources.day.date)
            try:
                for number, done in enumerate(as_completed(making), 1):
                    done.result()
                    self.progress.report("tables", _TABLES_DONE * number / len(making), making[done])
                stored.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return {name: done.result() for done, name in making.items()}

    def _table(self, name: str, frame: DataFrame, place: Storage) -> _Made:
        """Write a table, and return it with the rows that the report shows."""
        write(frame, place.uri(f"tables/{name}"))
        written = self.spark.read.schema(frame.schema).parquet(place.pattern(f"tables/{name}"))
        return _Made(written, _first(name, written))


class _Made(NamedTuple):
    """A table that has been written."""

    frame: DataFrame
    first: Table


def _first(name: str, frame: DataFrame) -> Table:
    """Return the rows of a table that the report shows."""
    layout = _LAYOUTS.get(name)
    if layout is None:
        rows = _rows(frame)
        return Table(rows, len(rows))
    order: list[Column] = [F.desc_nulls_last(column) for column in layout.descending]
    rows = _rows(frame.orderBy(*order, *layout.ascending).limit(layout.limit))
    return Table(rows, len(rows) if len(rows) < layout.limit else frame.count())


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def _about(manifest: Manifest) -> Mapping[str, Any]:
    counts, known = manifest.counts, set(EventKind)
    return {
        "events": counts.events,
        "segments": len(manifest.segments),
        "badLines": counts.reasons,
        "unknownKinds": {kind: count for kind, count in counts.kinds.items() if kind not in known},
        "ingestedAt": manifest.ingested_at,
    }
