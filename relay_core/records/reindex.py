"""Bring the index in line with the Maildir, which is the truth.

`rebuild` fills an empty index: a row for every file, and rows of an old index and the journal for messages that are no
longer on disk. `reconcile` repairs one in place: rows for files that have none, and an end for rows whose file is gone.
Both run on the index's thread.

The bus keeps running meanwhile. It stores a message first and notes the row afterwards, and rows noted while this runs
are written after it: a row made here is at worst behind, never ahead, and the noted row then updates it. Messages that
have no file yet get one first (`flush`), and a message is looked for again before its row is ended.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import orjson

from relay_core.clock import parse_iso
from relay_core.messages.dead_letter import Code, DeadLetter, damaged_letter, dead_delivery, decode_dead_letter
from relay_core.messages.delivery import DELIVERY_COLUMNS, Delivery, Status, stored_delivery
from relay_core.messages.envelope import decode_envelope
from relay_core.messages.ids import is_ulid
from relay_core.records.journal_history import JournalHistory
from relay_core.records.queries import ON_DISK, STATUSES_ON_DISK
from relay_core.records.rows import PUBLISH_COLUMNS, write_deliveries, write_publishes, write_read_to
from relay_core.records.schema import transaction
from relay_core.storage.endpoint_file import EndpointFile, read_endpoint_file
from relay_core.storage.maildir import FAILED, NEW, STATES, Maildir

_CHUNK = 500
_TARGETS = f"SELECT DISTINCT target FROM deliveries WHERE status IN ({STATUSES_ON_DISK})"
_WAITING = f"SELECT message_id, status FROM deliveries WHERE target = ? AND status IN ({STATUSES_ON_DISK})"


class _Box(NamedTuple):
    hash: str
    maildir: Maildir
    about: EndpointFile


class Reindexer:
    """Read the mailboxes below one directory into an index."""

    def __init__(
        self,
        mailboxes: Path,
        *,
        maildir: Callable[[str], Maildir] | None = None,
        limit: int,
        history: Callable[[], JournalHistory] = JournalHistory,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self._mailboxes = mailboxes
        self._maildir = maildir or (lambda hash: Maildir(mailboxes / hash))
        self._limit = limit
        self._history = history
        self._flush = flush

    def rebuild(self, db: sqlite3.Connection, old: sqlite3.Connection | None) -> None:
        """Fill an empty index from the Maildir and from the history in `old` and the journal."""
        if old is not None:
            _copy_history(old, db)
        history = self._history()
        with transaction(db):
            write_publishes(db, list(history.publishes.values()))
            write_deliveries(db, list(history.deliveries.values()))
            write_read_to(db, history.read_to)
        self.reconcile(db, trust=False)

    def reconcile(self, db: sqlite3.Connection, *, trust: bool = True) -> dict[str, int]:
        """Repair the index in place; return how many rows were added and ended.

        Without `trust`, rows (of an index that may be damaged) are written again from their files.
        """
        with suppress(OSError):
            self._flush()
        added = ended = 0
        for box in self._boxes():
            with transaction(db):
                rows: dict[str, dict[str, str]] = {state: {} for state in STATES}
                for message_id, status in db.execute(_WAITING, (box.hash,)):
                    rows[ON_DISK[status]][message_id] = status
                for state, known in rows.items():
                    on_disk = set(box.maildir.ids(state))
                    added += self._insert(db, box, state, sorted(on_disk - known.keys() if trust else on_disk))
                    ended += _end(db, box.hash, box.maildir, state, known.keys() - on_disk)
        for (target,) in db.execute(_TARGETS).fetchall():
            if not (self._mailboxes / target).exists():
                ended += self._end_all(db, target)
        return {"added": added, "ended": ended}

    def _end_all(self, db: sqlite3.Connection, target: str) -> int:
        """End the rows of a mailbox that was removed."""
        maildir = self._maildir(target)
        with transaction(db):
            rows = db.execute(_WAITING, (target,)).fetchall()
            return sum(_end(db, target, maildir, ON_DISK[status], [message_id]) for message_id, status in rows)

    def _boxes(self) -> Iterator[_Box]:
        try:
            names = sorted(os.listdir(self._mailboxes))
        except FileNotFoundError:
            return
        for name in names:
            path = self._mailboxes / name
            about = read_endpoint_file(path)
            if about is not None:
                yield _Box(name, self._maildir(name), about)

    def _insert(self, db: sqlite3.Connection, box: _Box, state: str, message_ids: list[str]) -> int:
        inserted = 0
        for start in range(0, len(message_ids), _CHUNK):
            chunk = message_ids[start : start + _CHUNK]
            rows = [row for message_id in chunk if (row := self._read(box, state, message_id))]
            write_deliveries(db, rows)
            inserted += len(rows)
        return inserted

    def _read(self, box: _Box, state: str, message_id: str) -> Delivery | None:
        if not is_ulid(message_id):
            return None
        try:
            data = box.maildir.read(state, message_id, limit=self._limit)
        except (OSError, ValueError) as error:
            if state != FAILED or isinstance(error, FileNotFoundError):
                return None  # claimed meanwhile, or unreadable: claiming it will quarantine it
            return self._dead(box, damaged_letter(message_id, box.hash, error))
        if state == FAILED:
            try:
                return self._dead(box, decode_dead_letter(message_id, data))
            except ValueError as error:
                return self._dead(box, damaged_letter(message_id, box.hash, error))
        try:
            envelope = decode_envelope(data)
        except ValueError:
            return None
        if envelope.id != message_id:
            return None
        return stored_delivery(
            envelope,
            target=box.hash,
            kind=box.about.kind,
            target_subject=box.about.subject,
            status=Status.NEW if state == NEW else Status.CUR,
            size=len(orjson.dumps(envelope.payload)),
        )

    @staticmethod
    def _dead(box: _Box, letter: DeadLetter) -> Delivery:
        delivery = dead_delivery(
            letter, target=box.hash, kind=box.about.kind, target_subject=box.about.subject, status=_status_of(letter)
        )
        delivery.handled_ms = parse_iso(letter.failed_at)
        return delivery


def _status_of(letter: DeadLetter) -> str:
    if letter.partial:
        return Status.PARTIAL_FAILURE
    return Status.NO_SUBSCRIBER if letter.code == Code.NO_MATCH else Status.FAILED


def _end(db: sqlite3.Connection, target: str, maildir: Maildir, state: str, message_ids: Iterable[str]) -> int:
    """End rows whose message no longer exists on disk."""
    gone = [message_id for message_id in message_ids if not maildir.whereabouts(message_id)]
    db.executemany(
        "UPDATE deliveries SET status = ? WHERE message_id = ? AND target = ?",
        [(Status.PURGED if state == FAILED else Status.GONE, message_id, target) for message_id in gone],
    )
    return len(gone)


def _copy_history(old: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """Copy the rows that exist only in an index: publishes and ended deliveries; if damaged, its readable rows."""
    for table, columns in (("publishes", PUBLISH_COLUMNS), ("deliveries", DELIVERY_COLUMNS)):
        names = ", ".join(columns)
        marks = ", ".join("?" for _ in columns)
        with transaction(new):
            for order in ("ASC", "DESC"):  # from both ends, up to the damage
                with suppress(sqlite3.Error):
                    rows = old.execute(f"SELECT {names} FROM {table} ORDER BY {columns[0]} {order}")
                    new.executemany(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", rows)
                    break
