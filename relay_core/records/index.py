"""The SQLite index: derived from the Maildir, written asynchronously.

1. One thread writes. The bus notes rows (well under a microsecond) and never waits; a batch is one transaction, at most
   50 ms later.
2. No error here ever fails a publish (P4). A batch that cannot be written is kept and retried with the next, and before
   any query.
3. Queries see every row noted before them: each one flushes first. The thread runs, in order: rows noted so far, then
   jobs (`run`), so a job sees every earlier row.
4. `read_to` is the last journal segment of which the index has every row. The next start reads the segments after it,
   all of them for a new index.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from relay_core.messages.delivery import Delivery
from relay_core.messages.ids import first_ulid
from relay_core.records.batch_thread import BatchThread
from relay_core.records.index_file import IndexFile, Rebuild
from relay_core.records.rows import PublishRow, Row, write_deliveries, write_publishes, write_read_to
from relay_core.records.schema import transaction

logger = logging.getLogger(__name__)

R = TypeVar("R")

_WAIT_SECS = 10.0
_KEEP_UNSAVED = 100_000


class Index:
    """Write rows in the background, and answer queries."""

    def __init__(self, path: Path, rebuild: Rebuild) -> None:
        self.path = path
        self.dirty = False
        """Whether rows may be missing until the next reconcile."""
        self.repairs = 0
        """How often the index was brought in line with the Maildir: earlier answers may have been incomplete."""
        self._file = IndexFile(path, rebuild, on_incomplete=self._note_incomplete, on_complete=self.note_repaired)
        self._unsaved: list[Row] = []
        self._thread: BatchThread[Row] = BatchThread("relay-index", self._flush)
        self.note = self._thread.put
        """Note a row's present state; it is written within 50 ms. Costs an append."""

    def open(self) -> None:
        """Open index.db; start an empty one if it is damaged, and continue without if it is locked."""
        self._file.open()
        self._thread.start()

    def close(self) -> None:
        """Write the noted rows and close the database."""
        self._thread.close()
        self._retry_unsaved()
        self._file.close()

    @property
    def is_behind(self) -> bool:
        """Return True if the database has refused rows; ask only from a job, since a batch may be in progress."""
        return bool(self._unsaved)

    def caught_up(self, sequence: int) -> None:
        """Note that the index has every row of the journal's segments up to this one, unless it is behind. Blocks.

        Raises:
            TimeoutError: if that takes too long: another process holds the database.
        """
        self._thread.submit(lambda: self._note_caught_up(sequence)).result(_WAIT_SECS)

    def _note_caught_up(self, sequence: int) -> None:
        self._retry_unsaved()
        if self._unsaved:
            return
        try:
            write_read_to(self._file.healthy(), sequence)
        except (sqlite3.Error, OSError) as error:
            logger.warning("index: %s", error)

    async def flush(self) -> None:
        """Return once every row noted so far is written, or has been refused."""
        await asyncio.wrap_future(self._thread.submit(self._retry_unsaved))

    async def run(self, job: Callable[[sqlite3.Connection], R]) -> R:
        """Run a job on the writing thread after every row noted so far.

        If it finds damage, the index is rebuilt and the job runs again.

        Raises:
            sqlite3.Error, OSError: if the database cannot be used.
        """
        return await asyncio.wrap_future(self._thread.submit(lambda: self._run(job)))

    def _run(self, job: Callable[[sqlite3.Connection], R]) -> R:
        self._retry_unsaved()
        try:
            return job(self._file.healthy())
        except sqlite3.Error as error:
            if not self._file.note_damage(error):
                raise
        return job(self._file.healthy())

    def _note_incomplete(self) -> None:
        self.dirty = True

    def note_repaired(self) -> None:
        """Note that no row is missing now."""
        self.dirty = False
        self.repairs += 1

    async def rebuild(self) -> None:
        """Build a new index from the Maildir, keep the history of the old one, and swap it in."""
        await self.run(lambda _: self._file.replace())

    def read_to(self) -> int:
        """Return the last journal segment of which every row is here; 0 if there is none. Blocks."""
        rows = self._startup_query("SELECT read_to FROM journal", ())
        return int(rows[0][0]) if rows else 0

    def warm(self, since_ms: int) -> list[tuple[str, str, int]]:
        """Return (id, sender, created_ms) of the publishes accepted since a time. Blocks."""
        return self._startup_query(
            # An id is never of an earlier time than its publish.
            "SELECT id, sender, created_ms FROM publishes WHERE id > ? AND created_ms > ?"
            " AND status NOT IN ('refused', 'replayed') ORDER BY id",
            (first_ulid(since_ms), since_ms),
        )

    def recent_outcomes(self, limit: int) -> list[tuple[str, str]]:
        """Return (dedupe id, outcome as JSON) of the newest publishes that have one. Blocks."""
        rows = self._startup_query(
            "SELECT dedupe, result FROM publishes WHERE result IS NOT NULL ORDER BY id DESC LIMIT ?", (limit,)
        )
        return rows[::-1]

    def _startup_query(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        db = self._file.db
        try:
            return db.execute(sql, values).fetchall() if db is not None else []
        except sqlite3.Error as error:
            self._file.reset(error)
            return []

    def _flush(self, batch: list[Row]) -> None:
        rows = self._unsaved + batch
        self._unsaved = []
        try:
            try:
                self._save(rows)
            except sqlite3.Error as error:
                if not self._file.note_damage(error):
                    raise
                self._save(rows)
        except (sqlite3.Error, OSError) as error:
            self._keep(rows, error)

    def _retry_unsaved(self) -> None:
        if self._unsaved:
            self._flush([])

    def _save(self, rows: list[Row]) -> None:
        db = self._file.healthy()
        publishes = [row for row in rows if type(row) is PublishRow]
        deliveries = [row for row in rows if type(row) is Delivery]
        # Compared by identity: a delivery that was noted several times is written once, in its last place.
        deliveries = list(dict.fromkeys(reversed(deliveries)))[::-1]
        with transaction(db):
            write_publishes(db, publishes)
            write_deliveries(db, deliveries)

    def _keep(self, rows: list[Row], error: Exception) -> None:
        """Keep rows for the next batch; rows beyond the limit are found by the next reconcile."""
        if not self.dirty:
            logger.warning("the index is behind (%s); the bus continues", error)
        self.dirty = True
        self._unsaved = rows[-_KEEP_UNSAVED:]
