"""Every sealed segment is in the table once, whatever happens on the way."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from relay_core.records.events import EVENT_SCHEMA_VERSION
from spark.events import ingest as ingesting
from spark.events.ingest import find_new, ingest, read_day
from spark.events.manifest import Manifest, read_manifest
from spark.events.parse_lines import ASIDE_SCHEMA, STEPS, parse
from spark.events.schema import EVENT_SCHEMA
from spark.storage.locations import Storage
from tests.spark.events import DATE, at, events

HOME = f"date={DATE}"


class Log:
    """An event log and the tables made of it, in directories with odd names."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "ev %41 [1]{a}#"
        self.events = Storage(self.path)
        self.tables = Storage(f"file://{directory}/re ports/tables")

    def put(self, name: str, *lines: dict[str, Any] | bytes) -> None:
        """Write a segment; bytes are a line as it is."""
        data = [
            line if isinstance(line, bytes) else json.dumps({"v": EVENT_SCHEMA_VERSION} | line).encode() + b"\n"
            for line in lines
        ]
        self.events.write(f"{HOME}/{name}", b"".join(data))

    def take(self, spark: SparkSession) -> Manifest | None:
        """Ingest what is new."""
        for day, segments in find_new(self.events, self.tables).items():
            ingest(spark, self.events, self.tables, day, segments, now_ms=1)
        return read_manifest(self.tables, DATE)

    def aside(self, spark: SparkSession) -> list[tuple[object, ...]]:
        """Return the lines that could not be taken, and why, sorted."""
        manifest = read_manifest(self.tables, DATE) or Manifest()
        paths = [self.tables.pattern(name) for name in manifest.aside]
        found = spark.read.parquet(*paths).select(*ASIDE_SCHEMA.fieldNames()).collect() if paths else []
        return sorted(tuple(row) for row in found)

    def rows(self, spark: SparkSession) -> list[tuple[object, ...]]:
        """Return the table, sorted."""
        return sorted((tuple(row) for row in read_day(spark, self.tables, DATE).collect()), key=repr)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def event(kind: str = "publish", secs: float = 0, **fields: Any) -> dict[str, Any]:
    return {"time": at(secs=secs), "kind": kind} | fields


FIRST = (event(messageId="a", bytes=5), event("stored", 1, storeUs=7), event(messageId="b"), b"no json\n")
LATE = (event(messageId="c"), event("handled", 3, totalUs=9), b'{"time":')


def test_a_day_is_read_as_the_log_has_it(spark: SparkSession, log: Log) -> None:
    log.put("00-1-7.jsonl", event(subject="s", sender="é\n", bytes=2**40, hopCount=1, depth=3, limit=4, more=1))
    log.put("01-2 %41+b.jsonl", event("no_such_kind", 86_399.9, messageId="m"), event("stored", 60, storeUs=7))
    log.put("_02-3-7.jsonl", event(messageId="still open"))
    log.put(".hidden.jsonl", event())
    log.put("notes.txt", event())
    log.events.write("date=never/03.jsonl", b"{}")
    found = find_new(log.events, log.tables)
    assert list(found[DATE]) == ["00-1-7.jsonl", "01-2 %41+b.jsonl"]
    assert not log.tables.exists()

    manifest = ingest(spark, log.events, log.tables, DATE, found[DATE], now_ms=17)
    table = read_day(spark, log.tables, DATE)
    assert table.schema == EVENT_SCHEMA
    expected = events(
        spark,
        event(subject="s", sender="é\n", bytes=2**40, hopCount=1, depth=3, limit=4),
        event("no_such_kind", 86_399.9, messageId="m"),
        event("stored", 60, storeUs=7),
    )
    assertDataFrameEqual(table, expected)
    assert manifest.counts.kinds == {"no_such_kind": 1, "publish": 1, "stored": 1}
    assert (manifest.counts.events, manifest.counts.bad, manifest.ingested_at) == (3, 0, 17)
    assert (manifest.counts.first_time, manifest.counts.last_time) == (at(), at(secs=86_399.9))
    taken = manifest.segments
    assert {name: (part.events, part.bad) for name, part in taken.items()} == {
        "00-1-7.jsonl": (1, 0),
        "01-2 %41+b.jsonl": (2, 0),
    }
    assert all(name.startswith(f"events/{HOME}/kind=") for name in manifest.files)
    assert manifest.aside == []
    assert find_new(log.events, log.tables) == {}

    directory = log.tables.path
    assert directory is not None
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*")}
    assert {path: mode for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}


def test_a_day_without_events_is_an_empty_table(spark: SparkSession, log: Log) -> None:
    assert find_new(log.events, log.tables) == {}
    assert read_day(spark, log.tables, DATE).schema == EVENT_SCHEMA
    assert ingest(spark, log.events, log.tables, DATE, {}, now_ms=1) == Manifest()
    log.put("00.jsonl")
    log.put("01.jsonl", b"\n", b"  \r\n", b"\t\n")
    manifest = log.take(spark)
    assert manifest is not None
    assert (len(manifest.segments), manifest.files, manifest.counts.bad) == (2, [], 0)
    assert find_new(log.events, log.tables) == {}
    assert read_day(spark, log.tables, DATE).isEmpty()
    assert log.aside(spark) == []


LONG = "x" * 10_000_000
BAD: list[tuple[bytes, str]] = [
    (b"hello", "not_json"),
    (b"}{", "not_json"),
    (b'{"v": 2, "kind": "publish", "time": }', "not_json"),
    (b"\0\0\0\0", "not_json"),
    (b"\xff\xfe\xff", "not_json"),
    (b"[" * 5000, "not_json"),
    (b'{"v": 2, "time": 17734464', "torn"),
    (b'{"v": 2, "kind": "publish"}\0\0\0', "torn"),
    (b'  {"v"', "torn"),
    (b"12", "wrong_type"),
    (b"null", "wrong_type"),
    (b"[{}]", "wrong_type"),
    (b"{}", "wrong_type"),
    (b'{"kind": "publish"}', "wrong_type"),
    (b'{"time": %d}' % at(), "wrong_type"),
    (b'{"time": "%d", "kind": "publish"}' % at(), "wrong_type"),
    (b'{"time": %d.5, "kind": "publish"}' % at(), "wrong_type"),
    (b'{"time": %d, "kind": "publish", "hopCount": 99999999999}' % at(), "wrong_type"),
    (b'{"time": %d, "kind": "Publish"}' % at(), "wrong_type"),
    (b'{"time": %d, "kind": "../../x"}' % at(), "wrong_type"),
    (b'{"time": %d, "kind": "-aside-"}' % at(), "wrong_type"),
    (b'{"time": %d, "kind": ""}' % at(), "wrong_type"),
    (b'{"time": %d, "kind": "%s"}' % (at(), b"k" * 41), "wrong_type"),
    (b'{"time": "%s"}' % LONG.encode(), "wrong_type"),
    (b'{"v": 4, "time": "12:00", "new": "%s"}' % (b"n" * 3000), "unknown_version"),
    (b'{"v": 4, "time": %d, "kind": "publish"}' % at(), "unknown_version"),
    (b'{"v": 0, "time": %d, "kind": "publish"}' % at(), "unknown_version"),
    (b'{"time": %d, "kind": "publish"}' % (at() - 1), "misplaced"),
    (b'{"time": %d, "kind": "publish"}' % at(24), "misplaced"),
]


def test_a_line_that_is_no_event_goes_aside_with_the_reason(spark: SparkSession, log: Log) -> None:
    good = [event(messageId="1"), event(detail="\0"), event(detail=LONG), event("k" * 40)]
    log.put("00 1.jsonl", *[line + b"\n" for line, _ in BAD], b"\n", *good, b'{"time":%d,"kind":"publish"}\r\n' % at(1))
    log.put("01.jsonl", b'{"time":%d,"kind":"publish","detail":"\xff"}\n' % at(2), b'{"v":2,"time":177')
    manifest = log.take(spark)
    assert manifest is not None
    expected = sorted([("00%201.jsonl", line.decode(errors="replace")[:2000], why) for line, why in BAD])
    assert log.aside(spark) == [*expected, ("01.jsonl", '{"v":2,"time":177', "torn")]
    assert manifest.counts.reasons == {
        "misplaced": 2,
        "not_json": 6,
        "torn": 4,
        "unknown_version": 3,
        "wrong_type": 15,
    }
    assert (manifest.counts.events, manifest.counts.bad) == (6, 30)
    assert {name: (part.events, part.bad) for name, part in manifest.segments.items()} == {
        "00 1.jsonl": (5, 29),
        "01.jsonl": (1, 1),
    }
    assert all(name.startswith(f"aside/{HOME}/") for name in manifest.aside)
    details = [row.detail for row in read_day(spark, log.tables, DATE).collect()]
    assert sorted(map(repr, details)) == sorted(map(repr, [None, None, None, "\0", LONG, "\ufffd"]))


def test_older_versions_are_read_as_the_newest(spark: SparkSession, log: Log) -> None:
    assert len(STEPS) == EVENT_SCHEMA_VERSION - 1, "a new version needs a step from the one before it"
    log.put(
        "00.jsonl",
        event("pressure", v=1, target="t", status="warning", detail="850/1000"),
        event("pressure", v=1, target="u", detail="much"),
        event("pressure", v=1, target="w"),
        event("adapter", v=1, detail="1/2"),
        event("pressure", v=2, target="x", depth=1, limit=2, detail="3/4"),
        *(event(kind, v=2, bytes=300) for kind in ("publish", "refused", "handled")),
        event("handled", v=3, bytes=20),
    )
    log.take(spark)
    expected = events(
        spark,
        event("pressure", target="t", status="warning", depth=850, limit=1000),
        event("pressure", target="u", detail="much"),
        event("pressure", target="w"),
        event("adapter", detail="1/2"),
        event("pressure", target="x", depth=1, limit=2, detail="3/4"),
        *(event(kind, bytes=300) for kind in ("publish", "refused")),
        event("handled"),  # it might be the stored file's
        event("handled", bytes=20),
    )
    assertDataFrameEqual(read_day(spark, log.tables, DATE), expected)


def test_a_late_segment_gives_the_table_it_would_have_given_in_time(spark: SparkSession, tmp_path: Path) -> None:
    in_time, late = Log(tmp_path / "a"), Log(tmp_path / "b")
    for log in (in_time, late):
        log.put("00.jsonl", *FIRST)
    before = late.take(spark)
    assert before is not None
    for log in (in_time, late):
        log.put("01.jsonl", *LATE)
    first, second = in_time.take(spark), late.take(spark)
    assert first is not None
    assert second is not None
    assert late.rows(spark) == in_time.rows(spark)
    assert len(late.rows(spark)) == 5
    assert (second.counts, second.segments) == (first.counts, first.segments)
    assert second.counts.reasons == {"not_json": 1, "torn": 1}
    assert second.files[: len(before.files)] == before.files, "files are only added"
    assert late.take(spark) == second
    assert ingest(spark, late.events, late.tables, DATE, {"01.jsonl": 1}, now_ms=99) == second


def test_a_copy_of_a_segment_is_not_taken_twice(
    spark: SparkSession, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.put("00.jsonl", *FIRST)
    log.put("01.jsonl", *FIRST)
    log.take(spark)
    log.put("02.jsonl", *FIRST)
    manifest = log.take(spark)
    assert manifest is not None
    assert (manifest.counts.events, manifest.counts.bad, manifest.counts.duplicates) == (3, 1, 2)
    assert [part.copy_of for part in manifest.segments.values()] == [None, "00.jsonl", "00.jsonl"]
    assert len(log.rows(spark)) == 3
    # A name that is known is never taken again, not even when its file has changed.
    log.put("00.jsonl", *FIRST, *FIRST)
    with caplog.at_level(logging.WARNING, "spark.events.ingest"):
        assert find_new(log.events, log.tables) == {}
    assert "00.jsonl was ingested with" in caplog.text


class Stop(Exception):
    """Stands for a kill."""


def _stop(*_: object, **__: object) -> None:
    raise Stop


def _write_half(write: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def half(spark: SparkSession, events: Storage, tables: Storage, *rest: Any) -> list[str]:
        made = write(spark, events, tables, *rest)
        tables.remove(made[0])
        tables.write(f"events/{HOME}/_temporary/0/task_1/kind=publish/part-1.parquet", b"PAR1")
        raise Stop

    return half


def test_crashes_and_another_run_give_the_same_table(
    spark: SparkSession, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.put("00.jsonl", *FIRST)
    first = log.take(spark)
    log.put("01.jsonl", *LATE)
    for where, point, crash in (
        (ingesting, "_write", _write_half(ingesting._write)),
        (os, "fsync", _stop),
        (ingesting, "_count", _stop),
        (ingesting, "_move_aside", _stop),
        (ingesting, "write_manifest", _stop),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, point, crash)
            with pytest.raises(Stop):
                log.take(spark)
        assert read_manifest(log.tables, DATE) == first, "what is not committed does not count"
    last = log.take(spark)
    assert last is not None
    assert (last.counts.events, last.counts.bad) == (5, 2)
    assert [row[3] for row in log.rows(spark)].count("c") == 1
    assert len(log.aside(spark)) == 2
    # Nothing of the dead runs is left, and the checksums of what counts are.
    checksums = {"/.".join(name.rsplit("/", 1)) + ".crc" for name in last.files}
    assert set(log.tables.files()) == {*last.files, *last.aside, f"manifest/{HOME}.json", *checksums}


KILLED = """
import sys
from datetime import date
from spark.events import ingest as ingesting
from spark.engine.session import open_session
from spark.storage.locations import Storage
events, tables, day = Storage(sys.argv[1]), Storage(sys.argv[2]), date.fromisoformat(sys.argv[3])
def wait(*_):
    print("written", flush=True)
    sys.stdin.read()
ingesting.write_manifest = wait
conf = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"}
conf |= {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "512m"}
with open_session("killed", master="local[1]", conf=conf) as spark:
    ingesting.ingest(spark, events, tables, day, ingesting.find_new(events, tables)[day], now_ms=1)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)  # starts its own session
def test_a_killed_ingest_leaves_nothing_that_counts(spark: SparkSession, log: Log) -> None:
    log.put("00.jsonl", *FIRST)
    command = [sys.executable, "-c", KILLED, log.events.root, log.tables.root, str(DATE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    assert log.tables.files(f"events/{HOME}")
    assert read_day(spark, log.tables, DATE).isEmpty()
    log.take(spark)
    assert len(log.rows(spark)) == 3


def test_each_line_is_parsed_once(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    lines: DataFrame = spark.createDataFrame([("{}", "s")], "value string, segment string")
    parse(lines, DATE).explain()
    assert capsys.readouterr().out.count("from_json") == 1
