"""The SQLite index: derived from the Maildir, written behind the bus's back.

1. One thread writes. The bus notes rows (well under a microsecond) and never waits; a batch is
   one transaction, at most 50 ms later. A row is passed to SQLite as JSON so that the whole batch
   is one statement: it runs without the GIL and costs the event loop nothing.
2. Nothing here ever fails a publish (P4). A batch that cannot be written is kept and tried again
   with the next, and before any look-up.
3. An index that is found damaged, deleted or replaced while it is in use is built anew from the
   Maildir and from what can still be read of it. One that cannot be opened at all is set aside.
4. Readers see what was noted before they asked: every look-up flushes first.
5. A row made from a file does not know when the message was stored, and one made from a file that
   cannot be read neither its trace nor its parent: whoever knew them wins, whichever comes first. One made
   from the journal (status `gone`) only says that a message was there: it never overwrites another.
6. It knows up to which of the journal's segments it has every row (`read_to`). The segments after that, all
   of them for a new index, are read by the next start.

The thread, in order: rows noted so far, then jobs (`run`), so a job sees every earlier row.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import orjson

from relay_core.batches import BatchThread
from relay_core.delivery import DELIVERY_COLUMNS, Delivery, delivery_row
from relay_core.schema import NewerSchema, connect, migrate, transaction

logger = logging.getLogger(__name__)

R = TypeVar("R")

_WAIT_SECS = 10.0
_KEEP_UNSAVED = 100_000
_DAMAGED = ("malformed", "not a database", "corrupt", "no such table", "no such column", "no such index")
_FILES = ("", "-wal", "-shm")


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
    hops: int
    calls: int
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
        kind = excluded.kind, status = excluded.status, code = excluded.code, reason = excluded.reason,
        trace_id = iif(excluded.trace_id = excluded.message_id, trace_id, excluded.trace_id),
        parent_id = coalesce(excluded.parent_id, parent_id),
        expires_ms = excluded.expires_ms, max_hops = excluded.max_hops, ancestors = excluded.ancestors,
        hops_after = excluded.hops_after, calls_after = excluded.calls_after,
        stored_ms = max(coalesce(excluded.stored_ms, stored_ms), coalesce(stored_ms, excluded.stored_ms)),
        claimed_ms = iif(excluded.status = 'new', NULL, coalesce(excluded.claimed_ms, claimed_ms)),
        handled_ms = iif(excluded.status = 'new', NULL, coalesce(excluded.handled_ms, handled_ms)),
        replays = max(excluded.replays, replays),
        outcomes = coalesce(excluded.outcomes, outcomes)
    WHERE excluded.status != 'gone'""",
)


class Index:
    """Write rows behind the bus, and answer look-ups."""

    def __init__(self, path: Path, rebuild: Callable[[sqlite3.Connection, sqlite3.Connection | None], None]) -> None:
        self.path = path
        self._rebuild = rebuild
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._damaged = False
        self._unsaved: list[Row] = []
        self.dirty = False
        """Whether rows may be missing until the next reconcile."""
        self.repairs = 0
        """How often it was brought in line with the Maildir: whoever asked before may ask again."""
        self._thread: BatchThread[Row] = BatchThread("relay-index", self._flush)

    def open(self) -> None:
        """Open index.db; begin a new, empty one if it is damaged, go without if it is only locked."""
        try:
            self._connect()
        except (sqlite3.Error, OSError) as error:
            self._begin_anew(error)
        self._thread.start()

    def close(self) -> None:
        """Write what is noted and close the database."""
        self._thread.close()
        self._save_the_unsaved()
        if self._db is not None:
            try:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                logger.warning("index: %s", error)
            self._db.close()
            self._db = None

    @property
    def is_behind(self) -> bool:
        """Whether rows wait that the database has refused; only a job may ask, since a batch may be under way."""
        return bool(self._unsaved)

    def note(self, row: Row) -> None:
        """Note a row's present state; it is written within 50 ms."""
        self._thread.put(row)

    def caught_up(self, sequence: int) -> None:
        """Note that the journal's segments up to this one tell nothing more, unless rows of theirs wait. Blocks.

        Raises:
            TimeoutError: if that takes too long: another process holds the database.
        """
        self._thread.submit(lambda: self._note_caught_up(sequence)).result(_WAIT_SECS)

    def _note_caught_up(self, sequence: int) -> None:
        self._save_the_unsaved()
        if self._unsaved:
            return
        try:
            write_read_to(self._healthy(), sequence)
        except (sqlite3.Error, OSError) as error:
            logger.warning("index: %s", error)

    async def flush(self) -> None:
        """Return once every row noted so far is written, or known not to be."""
        await asyncio.wrap_future(self._thread.submit(self._save_the_unsaved))

    async def run(self, job: Callable[[sqlite3.Connection], R]) -> R:
        """Run a job on the writing thread after every row noted so far.

        If it meets damage, the index is built anew and the job runs again.

        Raises:
            sqlite3.Error, OSError: if the database refused.
        """
        return await asyncio.wrap_future(self._thread.submit(lambda: self._run(job)))

    def _run(self, job: Callable[[sqlite3.Connection], R]) -> R:
        self._save_the_unsaved()
        try:
            return job(self._healthy())
        except sqlite3.Error as error:
            if not self._finds_damage(error):
                raise
        return job(self._healthy())

    def note_repaired(self) -> None:
        """Note that every row is there now."""
        self.dirty = False
        self.repairs += 1

    async def rebuild(self) -> None:
        """Build a new index from the Maildir, keep what history the old one has, and swap it in."""
        await self.run(lambda _: self._replace())

    def read_to(self) -> int:
        """Return the last of the journal's segments whose rows are all here; 0 if there is none. Blocks."""
        rows = self._startup_query("SELECT read_to FROM journal", ())
        return int(rows[0][0]) if rows else 0

    def warm(self, since_ms: int) -> list[tuple[str, str, int]]:
        """Return (id, sender, created_ms) of the publishes accepted since an instant. Blocks."""
        return self._startup_query(
            "SELECT id, sender, created_ms FROM publishes WHERE created_ms > ?"
            " AND status NOT IN ('refused', 'replayed') ORDER BY created_ms",
            (since_ms,),
        )

    def recent_outcomes(self, limit: int) -> list[tuple[str, str]]:
        """Return (dedupe id, outcome as JSON) of the newest publishes that have one. Blocks."""
        rows = self._startup_query(
            "SELECT dedupe, result FROM publishes WHERE result IS NOT NULL ORDER BY id DESC LIMIT ?", (limit,)
        )
        return rows[::-1]

    def _startup_query(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        try:
            return self._db.execute(sql, values).fetchall() if self._db is not None else []
        except sqlite3.Error as error:
            self._begin_anew(error)
            return []

    def _connect(self) -> None:
        with suppress(FileNotFoundError):
            if not os.path.isfile(self.path) or os.path.islink(self.path):
                os.lstat(self.path)
                raise sqlite3.DatabaseError("not a database but a directory, a link or a device")
            os.chmod(self.path, 0o600)  # a read-only file would open, and then refuse every row
        db = connect(str(self.path))
        try:
            migrate(db)
            self._inode = os.stat(self.path).st_ino
            for name in _FILES:
                if os.path.exists(f"{self.path}{name}"):
                    os.chmod(f"{self.path}{name}", 0o600)
        except (sqlite3.Error, OSError):
            db.close()
            raise
        self._db = db
        self._damaged = False

    def _begin_anew(self, error: Exception) -> None:
        """Set an index aside that cannot be used, and begin an empty one; a locked one is only waited for."""
        self.dirty = True
        if not _is_damage(error):
            logger.warning("index.db cannot be used now (%s); the bus goes on", error)
            return
        try:
            self._set_aside(error)
            self._connect()
        except (sqlite3.Error, OSError) as again:
            logger.error("index.db cannot be used (%s); the bus goes on", again)

    def _set_aside(self, error: Exception) -> None:
        """Move an index out of the way; the Maildir has everything that matters."""
        suffix = f".schema{error.version}" if isinstance(error, NewerSchema) else ".damaged"
        logger.error("index.db cannot be used (%s): set aside as index.db%s and built anew", error, suffix)
        if self._db is not None:
            self._db.close()
            self._db = None
        for name in _FILES:
            kept = f"{self.path}{suffix}{name}"
            if os.path.isdir(kept) and not os.path.islink(kept):
                shutil.rmtree(kept)
            with suppress(FileNotFoundError):
                if os.path.isdir(f"{self.path}{name}"):
                    Path(kept).unlink(missing_ok=True)
                os.replace(f"{self.path}{name}", kept)

    def _flush(self, batch: list[Row]) -> None:
        rows = self._unsaved + batch
        self._unsaved = []
        try:
            try:
                self._save(rows)
            except sqlite3.Error as error:
                if not self._finds_damage(error):
                    raise
                self._save(rows)
        except (sqlite3.Error, OSError) as error:
            self._keep(rows, error)

    def _save_the_unsaved(self) -> None:
        if self._unsaved:
            self._flush([])

    def _save(self, rows: list[Row]) -> None:
        db = self._healthy()
        publishes = [row for row in rows if type(row) is PublishRow]
        # By identity: the state of one and the same delivery is read once, when it is written.
        deliveries: dict[int, Delivery] = {}
        for row in rows:
            if type(row) is Delivery:
                deliveries.pop(id(row), None)
                deliveries[id(row)] = row
        with transaction(db):
            write_publishes(db, publishes)
            write_deliveries(db, list(deliveries.values()))

    def _keep(self, rows: list[Row], error: Exception) -> None:
        """Keep rows for the next batch; beyond the bound the next reconcile finds them."""
        if not self.dirty:
            logger.warning("index is behind (%s); the bus goes on", error)
        self.dirty = True
        self._unsaved = rows[-_KEEP_UNSAVED:]

    def _finds_damage(self, error: sqlite3.Error) -> bool:
        """Tell whether an error means that the index must be built anew, which the next use will do."""
        self._damaged = self._damaged or _is_damage(error)
        return self._damaged

    def _healthy(self) -> sqlite3.Connection:
        """Return the database, built anew if it is damaged or was deleted or replaced under us.

        Raises:
            sqlite3.Error, OSError: if there is none for now.
        """
        if self._db is None:
            self._reopen()
        elif self._damaged:
            logger.error("index.db is damaged: built anew")
            self._replace()
        elif not self._is_in_place():
            logger.error("index.db was removed while in use: built anew")
            self._replace()
        assert self._db is not None
        return self._db

    def _is_in_place(self) -> bool:
        try:
            return os.stat(self.path).st_ino == self._inode
        except OSError:
            return False

    def _reopen(self) -> None:
        """Try again to open an index that could not be opened before."""
        if os.path.lexists(self.path):
            try:
                return self._connect()
            except (sqlite3.Error, OSError) as error:
                if not _is_damage(error):
                    raise
                self._set_aside(error)
        self._replace()

    def _replace(self) -> None:
        """Build the index beside the old one and put it in its place in one step."""
        fresh = Path(f"{self.path}.new")
        for name in _FILES:
            Path(f"{fresh}{name}").unlink(missing_ok=True)
        self.dirty = True
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
        if os.path.isdir(self.path):
            self._set_aside(sqlite3.DatabaseError("not a database but a directory"))
        for name in ("-wal", "-shm"):
            Path(f"{self.path}{name}").unlink(missing_ok=True)
        os.replace(fresh, self.path)
        self._connect()
        self.note_repaired()


def write_publishes(db: sqlite3.Connection, publishes: Sequence[PublishRow]) -> None:
    """Insert publishes that are not there yet."""
    if publishes:
        db.execute(_PUBLISHES, (_as_json([tuple(row) for row in publishes]),))


def write_deliveries(db: sqlite3.Connection, deliveries: Sequence[Delivery]) -> None:
    """Insert deliveries, or bring the rows that are there up to their present state."""
    if deliveries:
        db.execute(_DELIVERIES, (_as_json([delivery_row(row) for row in deliveries]),))


def write_read_to(db: sqlite3.Connection, sequence: int) -> None:
    """Note up to which segment the journal tells nothing more."""
    db.execute("INSERT OR REPLACE INTO journal (rowid, read_to) VALUES (1, ?)", (sequence,))


def _as_json(rows: list[tuple[Any, ...]]) -> str:
    try:
        return orjson.dumps(rows).decode()
    except TypeError:
        # A handler's error may hold texts that are no Unicode: one of them must not cost the batch.
        return json.dumps(rows, ensure_ascii=False).encode(errors="replace").decode()


def _is_damage(error: Exception) -> bool:
    if isinstance(error, OSError | NewerSchema):
        return True  # a file that is not ours to open, or not ours to write
    return any(word in str(error) for word in _DAMAGED)
