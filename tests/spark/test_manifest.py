"""The manifest says what is in the tables, or says plainly that it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark.events.manifest import Counts, Manifest, Taken, manifest_name, read_manifest, write_manifest
from spark.storage.locations import Storage, StorageError
from tests.spark.events import DATE

MANIFEST = Manifest(
    segments={"00-1-7.jsonl": Taken(bytes=9, digest="ab", events=3, bad=2), "01.jsonl": Taken(bytes=0, digest="cd")},
    files=["events/date=2026-03-14/kind=publish/a.parquet"],
    aside=["aside/date=2026-03-14/b.parquet"],
    counts=Counts(events=3, first_time=5, last_time=7, kinds={"publish": 3}, reasons={"torn": 1, "misplaced": 1}),
    ingested_at=11,
)


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    tables = Storage(tmp_path)
    assert read_manifest(tables, DATE) is None
    write_manifest(tables, DATE, MANIFEST)
    assert read_manifest(tables, DATE) == MANIFEST
    found = json.loads(tables.read("manifest/date=2026-03-14.json"))
    assert found["version"] == 1
    assert found["ingestedAt"] == 11
    assert found["counts"]["firstTime"] == 5


def test_bad_lines_are_counted_by_reason_and_together() -> None:
    assert MANIFEST.counts.bad == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"files": 3}', "\0\0\0"])
def test_a_manifest_that_cannot_be_read_says_what_to_do(tmp_path: Path, text: str) -> None:
    tables = Storage(tmp_path)
    tables.write(manifest_name(DATE), text.encode())
    with pytest.raises(StorageError) as told:
        read_manifest(tables, DATE)
    assert str(tmp_path / "manifest/date=2026-03-14.json") in str(told.value)
    assert f"remove it, {tmp_path / 'events/date=2026-03-14'}" in str(told.value)
