"""One day's report: its tables, its numbers, what it hands on, and the pages that people read.

1. The shared passes over the events (sources.py) are cached while the tables are made, so that each event is read
   once by each pass that wants it. What a day before has left open counts among the incidents.
2. Each table is written in full; the report has its first rows, in the order of report/shown.py.
3. A few tables are made at a time. On a small day a table is a job of milliseconds between planning in the driver; on
   a large one they share the cores.
4. The day's numbers (`daily`) and what is still open (`carry_over`) are in place before the report, and the report is
   swapped in whole, last: a kill at any instant leaves the report that was there, and the day is behind.
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
"""Tables that are made at a time."""

DAILY_SCHEMA = StructType(
    [StructField("metric", StringType()), StructField("key", StringType()), StructField("value", DoubleType())]
)

_SHOWN = {shown.name: shown for shown in LAYOUT}
_TABLES_DONE = 0.8


@dataclass(frozen=True)
class OneDay:
    """What is needed to make a day."""

    spark: SparkSession
    output: Storage
    limits: Limits
    progress: Part

    def make(self, day: Day, manifest: Manifest) -> bool:
        """Make a day's report from what has been ingested of it, and put it in place.

        Return whether it hands on something else than it did when it was made before.
        """
        began = monotonic()
        tables = self.output.below("tables")
        open_things, numbers = DailyTable(tables, "carried", EVENT_SCHEMA), DailyTable(tables, "daily", DAILY_SCHEMA)
        making = self.output.making(f"date={day.date}")
        place = self.output.below(making)
        handed_on = open_things.fingerprint(self.spark, day.date)
        with self._sources(tables, day, open_things) as sources:
            made = self._tables(sources, place, open_things)
        self.progress.tell("comparing with the days before", _TABLES_DONE)
        numbers.put(daily({name: table.frame for name, table in made.items()}), day.date)
        today = numbers.read(self.spark, [day.date])
        before = numbers.read(self.spark, numbers.before(day.date, HISTORY_DAYS))
        made["anomalies"] = self._table("anomalies", anomalies(today.drop("date"), before, day), place)
        self.progress.tell("report", 0.95)
        shown = F.col("metric").isin(*HEADLINE)
        report = build(
            day,
            {name: table.first for name, table in made.items()},
            _rows(today.where(shown)),
            _rows(before.where(shown)),
            _about(manifest),
            made_at_ms=time_ns() // 1_000_000,
            took_secs=monotonic() - began,
        )
        place.write("report.html", page(report).encode("utf-8", "replace"))
        place.write("report.json", report.to_json())
        self.output.swap(making, f"date={day.date}")
        return handed_on is not None and handed_on != open_things.fingerprint(self.spark, day.date)

    @contextmanager
    def _sources(self, tables: Storage, day: Day, open_things: DailyTable) -> Iterator[Sources]:
        events = read_day(self.spark, tables, day.date)
        handed_on = open_things.read(self.spark, open_things.before(day.date)[-1:])
        told = incidents(events).unionByName(handed_on.drop("date"))
        passes = [one.persist(StorageLevel.MEMORY_AND_DISK) for one in (traffic(events, day), steps(events), told)]
        try:
            yield Sources(day, self.limits, events, *passes)
        finally:
            for one in passes:
                one.unpersist()

    def _tables(self, sources: Sources, place: Storage, open_things: DailyTable) -> dict[str, _Made]:
        """Make every table, and put down what the day hands on."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="table") as pool:
            making = {pool.submit(self._table, name, make(sources), place): name for name, make in TABLES.items()}
            handing_on = carry_over(sources.incidents, sources.day)
            handed_on = pool.submit(open_things.put, handing_on, sources.day.date)
            try:
                for number, done in enumerate(as_completed(making), 1):
                    done.result()
                    self.progress.tell("tables", _TABLES_DONE * number / len(making), making[done])
                handed_on.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return {name: done.result() for done, name in making.items()}

    def _table(self, name: str, frame: DataFrame, place: Storage) -> _Made:
        """Write a table, and return it as it lies there with the rows that the report shows."""
        write(frame, place.uri(f"tables/{name}"))
        written = self.spark.read.schema(frame.schema).parquet(place.pattern(f"tables/{name}"))
        return _Made(written, _first(name, written))


class _Made(NamedTuple):
    """A table that has been written."""

    frame: DataFrame
    first: Table


def _first(name: str, frame: DataFrame) -> Table:
    """Return the rows of a table that the report shows."""
    shown = _SHOWN.get(name)
    if shown is None:
        rows = _rows(frame)
        return Table(rows, len(rows))
    order: list[Column] = [F.desc_nulls_last(column) for column in shown.descending]
    rows = _rows(frame.orderBy(*order, *shown.ascending).limit(shown.limit))
    return Table(rows, len(rows) if len(rows) < shown.limit else frame.count())


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def _about(manifest: Manifest) -> Mapping[str, Any]:
    counts = manifest.counts
    known = set(EventKind)
    return {
        "events": counts.events,
        "segments": len(manifest.segments),
        "badLines": counts.reasons,
        "unknownKinds": {kind: count for kind, count in counts.kinds.items() if kind not in known},
        "ingestedAt": manifest.ingested_at,
    }
