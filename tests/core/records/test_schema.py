"""The index's schema: any older file becomes the newest one, whole or not at all; a newer one is left alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay_core.records import schema
from relay_core.records.schema import MIGRATIONS, NewerSchema, connect, migrate, transaction

Definition = list[tuple[str, str, str]]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "index.db")


@pytest.fixture
def db(path: str) -> Iterator[sqlite3.Connection]:
    db = connect(path)
    yield db
    db.close()


def definition(db: sqlite3.Connection) -> Definition:
    found = db.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
    return [(kind, name, " ".join(sql.split())) for kind, name, sql in found]


def version(db: sqlite3.Connection) -> int:
    (found,) = db.execute("PRAGMA user_version").fetchone()
    return int(found)


def at_version(db: sqlite3.Connection, number: int) -> None:
    """Bring an empty file to an older schema, with a row in every table it had."""
    for script in MIGRATIONS[:number]:
        db.executescript(script)
    db.execute(f"PRAGMA user_version = {number}")
    for table in tables(db):
        columns = db.execute(f"PRAGMA table_info({table})").fetchall()
        values = [f"{name} 1" if kind == "TEXT" else 1 for _, name, kind, *_ in columns]
        db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' for _ in values)})", values)


def tables(db: sqlite3.Connection) -> list[str]:
    return [name for kind, name, _ in definition(db) if kind == "table"]


@pytest.mark.parametrize("older", range(len(MIGRATIONS) + 1))
def test_every_older_version_becomes_the_newest_and_keeps_its_rows(
    older: int, db: sqlite3.Connection, tmp_path: Path
) -> None:
    at_version(db, older)
    had = tables(db)
    migrate(db)
    assert version(db) == len(MIGRATIONS)
    for table in had:
        assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,)
    new = connect(str(tmp_path / "new.db"))
    migrate(new)
    assert definition(db) == definition(new)
    new.close()


def test_an_empty_file_gets_every_table(db: sqlite3.Connection) -> None:
    migrate(db)
    assert tables(db) == ["deliveries", "journal", "publishes"]
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_migrating_twice_changes_nothing(db: sqlite3.Connection) -> None:
    at_version(db, len(MIGRATIONS))
    before = list(db.iterdump())
    migrate(db)
    assert list(db.iterdump()) == before


def test_a_later_migration_runs_once_and_keeps_the_rows(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_version(db, len(MIGRATIONS))
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, "ALTER TABLE publishes ADD COLUMN colour TEXT;"))
    migrate(db)
    migrate(db)
    assert version(db) == len(MIGRATIONS) + 1
    assert db.execute("SELECT count(*), max(colour) FROM publishes").fetchone() == (1, None)


def test_a_migration_that_fails_leaves_nothing_of_itself(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_version(db, len(MIGRATIONS))
    before = list(db.iterdump())
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE extra (x); CREATE TABLE extra (y);"))
    with pytest.raises(sqlite3.Error, match="already exists"):
        migrate(db)
    assert version(db) == len(MIGRATIONS)
    assert not db.in_transaction
    assert list(db.iterdump()) == before


def test_a_newer_index_is_refused_and_left_as_it_is(db: sqlite3.Connection) -> None:
    newer = len(MIGRATIONS) + 7
    db.executescript(f"CREATE TABLE of_the_future (x); PRAGMA user_version = {newer};")
    before = list(db.iterdump())
    with pytest.raises(
        NewerSchema, match=rf"schema {newer}, this version of Relay supports {len(MIGRATIONS)}"
    ) as caught:
        migrate(db)
    assert caught.value.version == newer
    assert (version(db), list(db.iterdump())) == (newer, before)


@pytest.mark.parametrize(
    ("pragma", "value"), [("journal_mode", "wal"), ("synchronous", 1), ("wal_autocheckpoint", 4000)]
)
def test_a_connection_has_the_settings_of_the_design(db: sqlite3.Connection, pragma: str, value: object) -> None:
    assert db.execute(f"PRAGMA {pragma}").fetchone() == (value,)


@pytest.mark.parametrize("content", [b"garbage " * 1000, b"SQLite format 3\0" + b"\xff" * 5000], ids=["text", "header"])
def test_a_file_that_is_no_database_is_an_error(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)
    with pytest.raises(sqlite3.DatabaseError):
        migrate(connect(path))
    assert Path(path).read_bytes() == content


def test_a_transaction_is_kept_whole_or_not_at_all(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE numbers (n UNIQUE)")
    with transaction(db):
        db.execute("INSERT INTO numbers VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError), transaction(db):
        db.executemany("INSERT INTO numbers VALUES (?)", [(2,), (1,)])
    with pytest.raises(ZeroDivisionError), transaction(db):
        db.executemany("INSERT INTO numbers VALUES (?)", ((6 / divisor,) for divisor in (2, 1, 0)))
    assert not db.in_transaction
    assert db.execute("SELECT n FROM numbers").fetchall() == [(1,)]


def test_a_commit_that_is_refused_is_rolled_back(db: sqlite3.Connection) -> None:
    db.executescript(
        "PRAGMA foreign_keys = ON; CREATE TABLE parents (id PRIMARY KEY);"
        "CREATE TABLE children (parent REFERENCES parents DEFERRABLE INITIALLY DEFERRED);"
    )
    with pytest.raises(sqlite3.IntegrityError), transaction(db):
        db.execute("INSERT INTO children VALUES (1)")
    assert not db.in_transaction
    assert db.execute("SELECT count(*) FROM children").fetchone() == (0,)
