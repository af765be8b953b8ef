"""Bring the index in line with the Maildir, which is the truth.

`rebuild` fills an empty index: a row for every file, and what an old index still knows of
messages that are no longer on disk. `reconcile` repairs one in place: rows for files that have
none, and an end for rows whose file is gone. Both run on the index's own thread.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from relay_core.clock import parse_iso
from relay_core.deadletters import Code, DeadLetter, decode_dead_letter
from relay_core.delivery import DELIVERY_COLUMNS, ON_DISK, Delivery, Status, stored_delivery
from relay_core.endpoints import EndpointFile, read_endpoint_file
from relay_core.envelope import Envelope, decode_envelope
from relay_core.index import PublishRow, write_deliveries
from relay_core.maildir import FAILED, NEW, STATES, Maildir

_CHUNK = 500
_STATUSES = ", ".join(f"'{status}'" for status in ON_DISK)
_WAITING = f"SELECT message_id, status FROM deliveries WHERE target = ? AND status IN ({_STATUSES})"


class _Box(NamedTuple):
    hash: str
    maildir: Maildir
    about: EndpointFile


class Reindexer:
    """Read the mailboxes below one directory into an index."""

    def __init__(self, mailboxes: Path, *, limit: int) -> None:
        self._mailboxes = mailboxes
        self._limit = limit

    def rebuild(self, db: sqlite3.Connection, old: sqlite3.Connection | None) -> None:
        """Fill an empty index from the Maildir, and with the history that `old` still has."""
        if old is not None:
            with suppress(sqlite3.Error):
                _copy_history(old, db)
        self.reconcile(db)

    def reconcile(self, db: sqlite3.Connection) -> dict[str, int]:
        """Repair the index in place; return how many rows were added and ended."""
        added = ended = 0
        for box in self._boxes():
            rows: dict[str, dict[str, str]] = {state: {} for state in STATES}
            for message_id, status in db.execute(_WAITING, (box.hash,)):
                rows[ON_DISK[status]][message_id] = status
            db.execute("BEGIN IMMEDIATE")
            for state, known in rows.items():
                on_disk = set(box.maildir.ids(state))
                added += self._insert(db, box, state, sorted(on_disk - known.keys()))
                ended += _end(db, box, state, known.keys() - on_disk)
            db.execute("COMMIT")
        return {"added": added, "ended": ended}

    def _boxes(self) -> Iterator[_Box]:
        try:
            names = sorted(os.listdir(self._mailboxes))
        except FileNotFoundError:
            return
        for name in names:
            path = self._mailboxes / name
            about = read_endpoint_file(path)
            if about is not None:
                yield _Box(name, Maildir(path), about)

    def _insert(self, db: sqlite3.Connection, box: _Box, state: str, message_ids: list[str]) -> int:
        inserted = 0
        for start in range(0, len(message_ids), _CHUNK):
            rows = [row for one in message_ids[start : start + _CHUNK] if (row := self._read(box, state, one))]
            write_deliveries(db, rows)
            inserted += len(rows)
        return inserted

    def _read(self, box: _Box, state: str, message_id: str) -> Delivery | None:
        try:
            data = box.maildir.read(state, message_id, limit=self._limit)
            if state != FAILED:
                status = Status.NEW if state == NEW else Status.CUR
                return self._delivery(box, decode_envelope(data), status, len(data))
            letter = decode_dead_letter(message_id, data)
            if letter.envelope is None:
                return None
            row = self._delivery(box, letter.envelope, _status_of(letter), len(data))
            row.code, row.reason, row.replays = letter.code, letter.reason, letter.replays
            row.handled_ms = parse_iso(letter.failed_at)
        except (OSError, ValueError):
            return None  # taken meanwhile, or bad: whoever claims it parks it
        return row

    @staticmethod
    def _delivery(box: _Box, envelope: Envelope, status: str, size: int) -> Delivery:
        return stored_delivery(
            envelope, target=box.hash, kind=box.about.kind, target_subject=box.about.subject, status=status, size=size
        )


def _status_of(letter: DeadLetter) -> str:
    if letter.partial:
        return Status.ASIDE
    return Status.NO_SUBSCRIBER if letter.code == Code.NO_MATCH else Status.FAILED


def _end(db: sqlite3.Connection, box: _Box, state: str, message_ids: Iterable[str]) -> int:
    """Give an end to rows whose message is nowhere on disk any more."""
    gone = [one for one in message_ids if not box.maildir.whereabouts(one)]
    db.executemany(
        "UPDATE deliveries SET status = ? WHERE message_id = ? AND target = ?",
        [(Status.PURGED if state == FAILED else Status.GONE, one, box.hash) for one in gone],
    )
    return len(gone)


def _copy_history(old: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """Copy what only an index knows: publishes, and how deliveries went."""
    for table, columns in (("publishes", PublishRow._fields), ("deliveries", DELIVERY_COLUMNS)):
        names = ", ".join(columns)
        marks = ", ".join("?" for _ in columns)
        new.execute("BEGIN IMMEDIATE")
        new.executemany(
            f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})",
            old.execute(f"SELECT {names} FROM {table}"),
        )
        new.execute("COMMIT")
