"""Ingest: sealed segments of the event log become Parquet by date and kind, once each.

``events/date=D/kind=K/*.parquet`` holds the events, ``aside/date=D/*.parquet`` the bad lines; the manifest lists both.

1. A segment is ingested if its name has no leading ``_`` and the manifest does not list it. A copy of another segment
   is counted and not ingested. A listed segment whose size changed is logged and ignored: it must not happen.
2. Spark reads and parses each line once, and writes good and bad rows in one pass. Bad rows get their own kind, whose
   files are then moved to ``aside``. Rows are counted from the files just written. If segments with content yield no
   files, the ingest fails before anything is committed.
3. The manifest is the commit (manifest.py). An ingest first removes the leftovers of a killed one, so that a crash at
   any point and a later run give the same table. Files are only added and never rewritten, since a date has only a
   handful of ingests.
4. parse_lines.py decides which lines are events and upgrades old versions.

Memory does not grow with the day: lines are streamed, and each task holds one open row group per kind.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from urllib.parse import unquote

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark.events.manifest import Counts, Manifest, Taken, read_manifest, write_manifest
from spark.events.parse_lines import ASIDE, ASIDE_SCHEMA, parse
from spark.events.schema import EVENT_SCHEMA, no_rows
from spark.storage.daily_table import dates
from spark.storage.locations import Storage, StorageError

_WRITTEN = StructType([*EVENT_SCHEMA.fields, *ASIDE_SCHEMA.fields])
_SETTINGS = {
    # One open file per kind, instead of sorting all rows by kind.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    # Every task writes a file per kind, so larger tasks make fewer files.
    "spark.sql.files.maxPartitionBytes": "512m",
}
_ROW_GROUP = 16 << 20
_NO_DICTIONARY = ("time", "messageId", "traceId", "parentId", "storeUs", "queueUs", "handleUs", "totalUs")
"""Columns whose values hardly repeat: a dictionary gains nothing."""
_log = logging.getLogger(__name__)


def find_new(events: Storage, tables: Storage) -> dict[date, dict[str, int]]:
    """Return the names and sizes of the segments to ingest, by date; only directories and manifests are read."""
    found: dict[date, dict[str, int]] = {}
    for day in dates(events):
        manifest = read_manifest(tables, day) or Manifest()
        for name, size in events.sizes(f"date={day}").items():
            if name.startswith(("_", ".")) or not name.endswith(".jsonl"):
                continue
            known = manifest.segments.get(name)
            if known is None:
                found.setdefault(day, {})[name] = size
            elif known.bytes != size:
                _log.warning(
                    "%s was ingested with %d bytes and now has %d: it is not ingested again",
                    events.uri(f"date={day}/{name}"),
                    known.bytes,
                    size,
                )
    return found


def ingest(
    spark: SparkSession, events: Storage, tables: Storage, day: date, segments: Mapping[str, int], *, now_ms: int
) -> Manifest:
    """Ingest new segments of a date, and return the date's manifest."""
    manifest = read_manifest(tables, day) or Manifest()
    new = _new_segments(events, day, segments, manifest)
    if not new:
        return manifest
    _clear(tables, day, manifest)
    names = [name for name, taken in new.items() if taken.copy_of is None]
    files = _write(spark, events, tables, day, names) if names else []
    if not files and any(chunk.strip() for name in names for chunk in events.chunks(f"date={day}/{name}")):
        raise StorageError(
            f"Spark wrote no visible files to {tables.uri(_home(day))}: "
            "this process, the driver and the workers must share the same storage"
        )
    tables.keep(files)
    rows = _count(spark, tables, day, files) if files else []
    kept, aside = _move_aside(tables, day, files)
    manifest = Manifest(
        segments=manifest.segments | _with_counts(new, rows),
        files=manifest.files + kept,
        aside=manifest.aside + aside,
        counts=_sum(manifest.counts, new, rows),
        ingested_at=now_ms,
    )
    write_manifest(tables, day, manifest)
    return manifest


def read_day(spark: SparkSession, tables: Storage, day: date) -> DataFrame:
    """Return the ingested events of a date, with the columns of `EVENT_SCHEMA`."""
    manifest = read_manifest(tables, day)
    return _read(spark, tables, _home(day), manifest.files if manifest else [], EVENT_SCHEMA)


def _new_segments(events: Storage, day: date, segments: Mapping[str, int], manifest: Manifest) -> dict[str, Taken]:
    """Return the segments that are not in the manifest with their digests, copies marked."""
    known = {taken.digest: name for name, taken in manifest.segments.items() if taken.copy_of is None}
    new: dict[str, Taken] = {}
    for name in sorted(segments.keys() - manifest.segments.keys()):
        digest = hashlib.blake2b(digest_size=16)
        for chunk in events.chunks(f"date={day}/{name}"):
            digest.update(chunk)
        hexdigest = digest.hexdigest()
        new[name] = Taken(bytes=segments[name], digest=hexdigest, copy_of=known.get(hexdigest))
        known.setdefault(hexdigest, name)
    return new


def _home(day: date) -> str:
    return f"events/date={day}"


def _clear(tables: Storage, day: date, manifest: Manifest) -> None:
    """Remove the files of an ingest that did not commit its manifest."""
    tables.mend("manifest")
    listed = {*manifest.files, *manifest.aside}
    for name in [*tables.files(_home(day)), *tables.files(f"aside/date={day}")]:
        directory, _, file = name.rpartition("/")
        checked = file.removeprefix(".").removesuffix(".crc") if file.endswith(".crc") else file
        if f"{directory}/{checked}" not in listed:
            tables.remove(name)


def _write(spark: SparkSession, events: Storage, tables: Storage, day: date, names: list[str]) -> list[str]:
    """Write the segments' rows by kind, and return the new files."""
    before = set(tables.files(_home(day)))
    tables.make(_home(day))
    paths = [events.pattern(f"date={day}/{name}") for name in names]
    lines = (
        spark.read.option("lineSep", "\n").text(paths).select("value", F.col("_metadata.file_name").alias("segment"))
    )
    with _settings(spark):
        (
            parse(lines, day)
            .write.mode("append")
            .option("parquet.block.size", _ROW_GROUP)
            .options(**{f"parquet.enable.dictionary#{column}": "false" for column in _NO_DICTIONARY})
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .partitionBy("kind")
            .parquet(tables.uri(_home(day)))
        )
    return [name for name in tables.files(_home(day)) if name.endswith(".parquet") and name not in before]


def _count(spark: SparkSession, tables: Storage, day: date, files: list[str]) -> list[Row]:
    rows = _read(spark, tables, _home(day), files, _WRITTEN).groupBy("segment", "kind", "reason")
    return rows.agg(F.count("*").alias("rows"), F.min("time").alias("first"), F.max("time").alias("last")).collect()


def _move_aside(tables: Storage, day: date, files: list[str]) -> tuple[list[str], list[str]]:
    """Move the files of bad rows to their own table, and return the files of both."""
    bad = f"{_home(day)}/kind={ASIDE}"
    aside = {name: f"aside/date={day}/{name.rpartition('/')[2]}" for name in files if name.startswith(f"{bad}/")}
    for name, to in aside.items():
        tables.move(name, to)
    tables.keep(list(aside.values()))
    if aside:
        tables.remove(bad)
    return [name for name in files if name not in aside], list(aside.values())


def _with_counts(new: dict[str, Taken], rows: list[Row]) -> dict[str, Taken]:
    events, bad = Counter[str](), Counter[str]()
    for row in rows:
        (events if row.reason is None else bad)[unquote(row.segment)] += row.rows
    return {name: taken.model_copy(update={"events": events[name], "bad": bad[name]}) for name, taken in new.items()}


def _sum(before: Counts, new: dict[str, Taken], rows: list[Row]) -> Counts:
    kinds, reasons = Counter(before.kinds), Counter(before.reasons)
    for row in rows:
        if row.reason is None:
            kinds[row.kind] += row.rows
        else:
            reasons[row.reason] += row.rows
    times = [time for time in (before.first_time, before.last_time) if time is not None]
    times += [time for row in rows if row.reason is None for time in (row["first"], row["last"])]
    return Counts(
        events=kinds.total(),
        duplicates=before.duplicates + sum(taken.copy_of is not None for taken in new.values()),
        first_time=min(times, default=None),
        last_time=max(times, default=None),
        kinds=dict(sorted(kinds.items())),
        reasons=dict(sorted(reasons.items())),
    )


def _read(spark: SparkSession, tables: Storage, home: str, files: list[str], schema: StructType) -> DataFrame:
    """Read only these files, with exactly these columns."""
    if not files:
        return no_rows(spark, schema)
    paths = [tables.pattern(name) for name in files]
    return spark.read.schema(schema).option("basePath", tables.uri(home)).parquet(*paths).select(*schema.fieldNames())


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    before: dict[str, str | None] = {key: spark.conf.get(key, None) for key in _SETTINGS}
    for key, value in _SETTINGS.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
