"""A place holds whole things: small files, finished directories, one run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pytest

from spark.storage import locations as storage
from spark.storage.locations import Storage, StorageError

ODD = "a b %41 [x]{y} #é*"


@pytest.fixture(params=["local", "odd", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """Return a place of each sort."""
    if request.param == "memory":
        yield Storage(f"memory://{tmp_path.name}/reports")
        fsspec.filesystem("memory").store.clear()
    else:
        path = tmp_path / (ODD if request.param == "odd" else "reports")
        yield Storage(f"file://{path}" if request.param == "file" else path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_written_is_found_again(place: Storage) -> None:
    assert not place.exists()
    assert place.names() == []
    assert place.files("a") == []
    place.write("a/b/c.json", b"one")
    place.write("a/b/c.json", b"other")
    place.write("a/d", b"")
    assert place.read("a/b/c.json") == b"other"
    assert place.names("a") == ["b", "d"]
    assert place.sizes("a") == {"d": 0}
    assert place.files() == place.files("a") == ["a/b/c.json", "a/d"]
    assert place.below("a/b").read("c.json") == b"other"
    place.move("a/b/c.json", "x/y.json")
    assert place.files() == ["a/d", "x/y.json"]
    place.remove("x")
    place.remove("a/d")
    place.remove("none")
    assert place.files() == []
    with pytest.raises(FileNotFoundError):
        place.read("none")


def report(place: Storage, name: str, text: str, *tables: str) -> None:
    for file in ("report.json", *tables):
        place.write(f"{name}/{file}", text.encode())


def test_a_finished_directory_takes_the_place_of_the_old_one(place: Storage) -> None:
    for text, table in (("old", "tables/a/1.parquet"), ("new", "tables/a/2.parquet")):
        made = place.making("date=2026-03-14")
        assert made.startswith(".making-")
        report(place, made, text, table)
        place.swap(made, "date=2026-03-14")
        assert place.names() == ["date=2026-03-14"]
        assert place.files() == ["date=2026-03-14/report.json", f"date=2026-03-14/{table}"]
        assert place.read("date=2026-03-14/report.json") == text.encode()


def test_what_is_made_here_is_private(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    place = Storage(reports)
    with place.lock():
        place.write("a/b.json", b"")
    reports.chmod(0o750)  # its owner's choice
    made = place.making("final")
    place.make(f"{made}/tables")
    for name in ("one.parquet", ".one.parquet.crc"):  # as Spark writes them
        (reports / made / "tables" / name).touch(0o644)
    (reports / made / "tables").chmod(0o755)
    place.swap(made, "final")
    found = {str(path.relative_to(reports)): (path.is_dir(), mode(path)) for path in reports.rglob("*")}
    assert set(found.values()) == {(True, 0o700), (False, 0o600)}
    assert len(found) == 7
    assert mode(reports) == 0o750


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_swap_is_whole_to_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool) -> None:
    if not can_exchange:
        monkeypatch.setattr(storage, "_renameat2", lambda: None)
    place = Storage(tmp_path)
    seen, missing = set[tuple[bytes, bytes]](), 0
    ended = threading.Event()

    def look() -> None:
        nonlocal missing
        while not ended.is_set():
            try:
                directory = os.open(tmp_path / "final", os.O_RDONLY)
            except FileNotFoundError:
                missing += 1
                continue
            try:
                report, other = (os.open(name, os.O_RDONLY, dir_fd=directory) for name in ("report.json", "table"))
                seen.add((os.read(report, 9), os.read(other, 9)))
                os.close(report)
                os.close(other)
            except FileNotFoundError:
                pass  # the old one, which is being removed while we hold it
            finally:
                os.close(directory)

    report(place, "final", "0", "table")
    reader = threading.Thread(target=look)
    reader.start()
    try:
        for text in map(str, range(1, 40)):
            made = place.making("final")
            report(place, made, text, "table")
            place.swap(made, "final")
    finally:
        ended.set()
        reader.join()
    assert seen
    assert all(report == other for report, other in seen)
    assert place.names() == ["final"]
    if can_exchange:
        assert missing == 0


def test_a_killed_swap_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_renameat2", lambda: None)
    place = Storage(tmp_path)
    report(place, "final", "old")
    report(place, ".making-final-1", "new")
    rename = Path.rename

    def stop(path: Path, to: Path) -> Path:
        if path.name.startswith(".making-") and path.is_dir():
            raise KeyboardInterrupt
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        place.swap(".making-final-1", "final")
    assert not place.exists("final")
    place.mend()
    assert place.names() == ["final"]
    assert place.read("final/report.json") == b"old"


def test_what_dead_runs_left_is_removed(place: Storage) -> None:
    report(place, "daily/final", "new")
    report(place, "daily/.making-final-1", "newer")
    place.write("daily/.making-small-2", b"")
    report(place, "daily/.old-final", "old")
    place.mend("daily")
    assert place.files() == ["daily/final/report.json"]
    assert place.read("daily/final/report.json") == b"new"
    place.mend("none")


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Storage(tmp_path)
    place.write("a", b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        place.write("a", b"new")
    assert place.names() == ["a"]
    assert place.read("a") == b"old"


def test_a_second_run_is_told_of_the_first(tmp_path: Path) -> None:
    place = Storage(tmp_path / "tables")
    other = f"from spark.storage.locations import Storage\nwith Storage({str(tmp_path / 'tables')!r}).lock(): pass"
    with place.lock():
        told = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False, timeout=60)
        assert told.returncode != 0
        assert f"process {os.getpid()}" in told.stderr
        with pytest.raises(StorageError, match="another run uses"), Storage(tmp_path / "tables").lock():
            pass
    with place.lock():
        pass


def test_elsewhere_report_json_comes_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = Storage(f"memory://{tmp_path.name}")
    report(place, ".making-final-1", "new", "a.html", "z/1.parquet")
    copied = list[str]()
    files = fsspec.filesystem("memory")
    copy = files.cp_file

    def note(source: str, to: str) -> None:
        copied.append(to.rpartition("/")[2])
        copy(source, to)

    monkeypatch.setattr(files, "cp_file", note)
    place.swap(".making-final-1", "final")
    assert copied == ["a.html", "1.parquet", "report.json"]
    files.store.clear()


@pytest.mark.parametrize(
    ("uri", "told"),
    [("oci://bucket/relay", "ocifs"), ("nothing://a/b", "unknown scheme nothing://")],
)
def test_a_place_that_needs_more_says_what(uri: str, told: str) -> None:
    with pytest.raises(StorageError, match=told):
        Storage(uri)


def test_spark_reads_odd_names_as_they_are(tmp_path: Path) -> None:
    place = Storage(tmp_path / ODD)
    assert place.uri("x") == f"file://{tmp_path / ODD}/x"
    assert place.pattern() == f"file://{tmp_path}/" + r"a b %41 \[x\]\{y\} #é\*"


@pytest.mark.parametrize("place", ["/srv/r", "file:/srv/r", "file:///srv/r", "file://localhost/srv/r", "FILE:///srv/r"])
def test_a_local_place_is_the_same_however_it_is_written(place: str) -> None:
    assert (Storage(place).path, Storage(place).uri("a")) == (Path("/srv/r"), "file:///srv/r/a")
