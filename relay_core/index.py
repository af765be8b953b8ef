"""The SQLite index: derived from the Maildir, written behind the bus's back.

1. One thread writes. The bus notes rows (well under a microsecond) and never waits; a batch is
   one transaction, at most 50 ms later. A row is passed to SQLite as JSON so that the whole batch
   is one statement: it runs without the GIL and costs the event loop nothing.
2. Nothing here ever fails a publish (P4). A batch that cannot be written is kept and tried again;
   an index that is damaged, deleted or not a database is set aside and built anew from the Maildir.
3. Readers see what was noted before they asked: every look-up flushes first.

The thread, in order: rows noted so far, then jobs (`run`), so a job sees every earlier row.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import orjson

from relay_core.batches import BatchThread
from relay_core.delivery import DELIVERY_COLUMNS, Delivery, delivery_row
from relay_core.schema import connect, migrate

logger = logging.getLogger(__name__)

R = TypeVar("R")

_KEEP_UNSAVED = 100_000
_DAMAGED = ("malformed", "not a database", "corrupt", "no such table", "no such column", "has schema")


class PublishRow(NamedTuple):
    """One publish, as rate accounting and dedupe need it."""

    id: str
    subject: str
    sender: str
    reply_to: str | None
    created_ms: int
    trace_id: str
    parent_id: str | None
    status: str
    size: int
    dedupe: str | None = None
    result: dict[str, Any] | None = None


Row: TypeAlias = Delivery | PublishRow


def _insert(table: str, columns: tuple[str, ...], on_conflict: str) -> str:
    values = ", ".join(f"json_extract(value, '$[{n}]')" for n in range(len(columns)))
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM json_each(?) WHERE true {on_conflict}"


_PUBLISHES = _insert("publishes", PublishRow._fields, "ON CONFLICT DO NOTHING")
_DELIVERIES = _insert(
    "deliveries",
    DELIVERY_COLUMNS,
    """ON CONFLICT (message_id, target) DO UPDATE SET
        status = excluded.status, code = excluded.code, reason = excluded.reason,
        expires_ms = excluded.expires_ms,
        stored_ms = coalesce(excluded.stored_ms, stored_ms),
        claimed_ms = coalesce(excluded.claimed_ms, claimed_ms),
        handled_ms = coalesce(excluded.handled_ms, handled_ms),
        replays = max(excluded.replays, replays),
        outcomes = coalesce(excluded.outcomes, outcomes)""",
)


class Index:
    """Write rows behind the bus, and answer look-ups."""

    def __init__(self, path: Path, rebuild: Callable[[sqlite3.Connection, sqlite3.Connection | None], None]) -> None:
        self.path = path
        self._rebuild = rebuild
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._unsaved: list[Row] = []
        self.dirty = False
        """Whether rows may be missing until the next reconcile."""
        self._thread: BatchThread[Row] = BatchThread("relay-index", self._flush)

    def open(self) -> None:
        """Open index.db, or set a damaged one aside and begin a new, empty one."""
        try:
            self._connect()
        except sqlite3.Error as error:
            self._set_aside(error)
            self._connect()
        self._thread.start()

    def close(self) -> None:
        """Write what is noted and close the database."""
        self._thread.close()
        if self._db is not None:
            try:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                logger.warning("index: %s", error)
            self._db.close()
            self._db = None

    def note(self, row: Row) -> None:
        """Note a row's present state; it is written within 50 ms."""
        self._thread.put(row)

    async def flush(self) -> None:
        """Return once every row noted so far is written, or known not to be."""
        await asyncio.wrap_future(self._thread.barrier())

    async def run(self, job: Callable[[sqlite3.Connection], R]) -> R:
        """Run a job on the writing thread after every row noted so far.

        Raises:
            sqlite3.Error: if the database refused.
        """

        def call() -> R:
            self._heal()
            assert self._db is not None
            return job(self._db)

        return await asyncio.wrap_future(self._thread.submit(call))

    async def rebuild(self) -> None:
        """Build a new index from the Maildir, keep what history the old one has, and swap it in."""
        await self.run(lambda _: self._replace())

    def warm(self, since_ms: int) -> list[tuple[str, int]]:
        """Return (sender, created_ms) of the publishes accepted since an instant. Blocks."""
        return self._startup_query(
            "SELECT sender, created_ms FROM publishes WHERE created_ms > ? AND status != 'refused' ORDER BY created_ms",
            (since_ms,),
        )

    def recent_outcomes(self, limit: int) -> list[tuple[str, str]]:
        """Return (dedupe id, outcome as JSON) of the newest publishes that have one. Blocks."""
        rows = self._startup_query(
            "SELECT dedupe, result FROM publishes WHERE dedupe IS NOT NULL AND result IS NOT NULL"
            " ORDER BY id DESC LIMIT ?",
            (limit,),
        )
        return rows[::-1]

    def _startup_query(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        assert self._db is not None
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            self._set_aside(error)
            self._connect()
            return []

    def _connect(self) -> None:
        db = connect(str(self.path))
        try:
            migrate(db)
            self._inode = os.stat(self.path).st_ino
            for name in ("", "-wal", "-shm"):
                if os.path.exists(f"{self.path}{name}"):
                    os.chmod(f"{self.path}{name}", 0o600)
        except (sqlite3.Error, OSError):
            db.close()
            raise
        self._db = db

    def _set_aside(self, error: Exception) -> None:
        """Move a damaged index out of the way; the Maildir has everything that matters."""
        logger.error("index.db is damaged (%s): set aside as index.db.damaged and built anew", error)
        if self._db is not None:
            self._db.close()
            self._db = None
        self.dirty = True
        for name in ("", "-wal", "-shm"):
            try:
                os.replace(f"{self.path}{name}", f"{self.path}.damaged{name}")
            except FileNotFoundError:
                continue

    def _flush(self, batch: list[Row]) -> None:
        rows = self._unsaved + batch
        self._unsaved = []
        try:
            self._heal()
        except (sqlite3.Error, OSError) as error:
            self._keep(rows, error)
        else:
            self._save(rows)

    def _save(self, rows: list[Row]) -> None:
        assert self._db is not None
        publishes = [row for row in rows if type(row) is PublishRow]
        deliveries = {(row.message_id, row.target): row for row in rows if type(row) is Delivery}
        try:
            self._db.execute("BEGIN IMMEDIATE")
            write_publishes(self._db, publishes)
            write_deliveries(self._db, list(deliveries.values()))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.rollback()
            if _is_damage(error):
                self._set_aside(error)
            self._keep(rows, error)

    def _keep(self, rows: list[Row], error: Exception) -> None:
        """Keep rows for the next batch; beyond the bound the next reconcile finds them."""
        if not self.dirty:
            logger.warning("index is behind (%s); the bus goes on", error)
        self.dirty = True
        self._unsaved = rows[-_KEEP_UNSAVED:]

    def _heal(self) -> None:
        """Reopen, and build anew, an index that was set aside, deleted or replaced under us."""
        if self._db is not None:
            try:
                if os.stat(self.path).st_ino == self._inode:
                    return
            except FileNotFoundError:
                pass
            logger.error("index.db was removed while in use: built anew")
            self._db.close()
            self._db = None
            self.dirty = True
        self._replace()

    def _replace(self) -> None:
        """Build the index beside the old one and put it in its place in one step."""
        fresh = Path(f"{self.path}.new")
        for name in ("", "-wal", "-shm"):
            Path(f"{fresh}{name}").unlink(missing_ok=True)
        db = connect(str(fresh))
        try:
            migrate(db)
            self._rebuild(db, self._db)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("PRAGMA journal_mode = DELETE")
        finally:
            db.close()
        if self._db is not None:
            self._db.close()
            self._db = None
        for name in ("-wal", "-shm"):
            Path(f"{self.path}{name}").unlink(missing_ok=True)
        os.replace(fresh, self.path)
        self._connect()
        self.dirty = False


def write_publishes(db: sqlite3.Connection, publishes: Sequence[PublishRow]) -> None:
    """Insert publishes that are not there yet."""
    if publishes:
        db.execute(_PUBLISHES, (orjson.dumps([tuple(row) for row in publishes]).decode(),))


def write_deliveries(db: sqlite3.Connection, deliveries: Sequence[Delivery]) -> None:
    """Insert deliveries, or bring the rows that are there up to their present state."""
    if deliveries:
        db.execute(_DELIVERIES, (orjson.dumps([delivery_row(row) for row in deliveries]).decode(),))


def _is_damage(error: sqlite3.Error) -> bool:
    return any(word in str(error) for word in _DAMAGED)
