"""The index's tables, as migrations: entry *n* brings ``user_version`` from *n* to *n* + 1.

One row per publish (rate accounting, dedupe) and one per delivery (key: message and target). Both tables are ordered by
message id, and so by time.

An SQL index has a cost for every row in it, so all are partial: outcomes, waiting messages, messages on disk, dead
letters, replies. A message that is handled immediately is in none of those of deliveries.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE publishes (
        id TEXT PRIMARY KEY,
        subject TEXT NOT NULL,
        sender TEXT NOT NULL,
        reply_to TEXT,
        created_ms INTEGER NOT NULL,
        trace_id TEXT NOT NULL,
        parent_id TEXT,
        status TEXT NOT NULL,
        size INTEGER NOT NULL,
        hops INTEGER NOT NULL,
        calls INTEGER NOT NULL,
        dedupe TEXT,
        result TEXT
    ) WITHOUT ROWID;
    CREATE INDEX publishes_by_time ON publishes (created_ms, sender, status);
    CREATE INDEX outcomes ON publishes (id) WHERE result IS NOT NULL;

    CREATE TABLE deliveries (
        message_id TEXT NOT NULL,
        target TEXT NOT NULL,
        kind TEXT NOT NULL,
        target_subject TEXT NOT NULL,
        subject TEXT NOT NULL,
        sender TEXT NOT NULL,
        trace_id TEXT NOT NULL,
        parent_id TEXT,
        status TEXT NOT NULL,
        sent_ms REAL NOT NULL,
        expires_ms INTEGER NOT NULL,
        hops_before INTEGER NOT NULL,
        calls_before INTEGER NOT NULL,
        hops_after INTEGER NOT NULL,
        calls_after INTEGER NOT NULL,
        max_hops INTEGER NOT NULL,
        ancestors TEXT NOT NULL,
        size INTEGER NOT NULL,
        code TEXT,
        reason TEXT,
        stored_ms REAL,
        claimed_ms REAL,
        handled_ms REAL,
        replays INTEGER NOT NULL DEFAULT 0,
        replay_of TEXT,
        outcomes TEXT,
        PRIMARY KEY (message_id, target)
    ) WITHOUT ROWID;
    CREATE INDEX on_disk ON deliveries (target, status)
        WHERE status IN ('new', 'cur', 'failed', 'aside', 'no_subscriber');
    CREATE INDEX waiting_by_expiry ON deliveries (expires_ms) WHERE status = 'new';
    CREATE INDEX waiting_by_age ON deliveries (stored_ms) WHERE status = 'new';
    CREATE INDEX dead_letters ON deliveries (message_id, target, status, code)
        WHERE status IN ('failed', 'no_subscriber');
    CREATE INDEX dead_letter_groups ON deliveries (code, target, handled_ms, status)
        WHERE status IN ('failed', 'no_subscriber');
    CREATE INDEX replies ON deliveries (trace_id) WHERE trace_id != message_id;
    """,
    # All columns of a dead letter's summary, so that a filter over any of them reads only this index.
    """
    DROP INDEX dead_letters;
    CREATE INDEX dead_letters ON deliveries (
        message_id, target, status, code, handled_ms, sent_ms, replays, size, sender, subject, target_subject, reason
    ) WHERE status IN ('failed', 'no_subscriber');
    """,
    # One row: the last journal segment of which every row is here. Without it, no segment has been read.
    "CREATE TABLE journal (read_to INTEGER NOT NULL);",
    # The copies of partial deliveries are in every list of dead letters.
    """
    UPDATE deliveries SET status = 'partial_failure' WHERE status = 'aside';
    DROP INDEX on_disk;
    CREATE INDEX on_disk ON deliveries (target, status)
        WHERE status IN ('new', 'cur', 'failed', 'partial_failure', 'no_subscriber');
    DROP INDEX dead_letters;
    CREATE INDEX dead_letters ON deliveries (
        message_id, target, status, code, handled_ms, sent_ms, replays, size, sender, subject, target_subject, reason
    ) WHERE status IN ('failed', 'no_subscriber', 'partial_failure');
    DROP INDEX dead_letter_groups;
    CREATE INDEX dead_letter_groups ON deliveries (code, target, status = 'partial_failure', handled_ms, status)
        WHERE status IN ('failed', 'no_subscriber', 'partial_failure');
    """,
    # Only the columns that are read. A ULID begins with its time, so the table itself is ordered by time.
    """
    DROP INDEX publishes_by_time;
    DROP INDEX outcomes;
    ALTER TABLE publishes RENAME TO wide_publishes;
    CREATE TABLE publishes (
        id TEXT PRIMARY KEY,
        sender TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        status TEXT NOT NULL,
        dedupe TEXT,
        result TEXT
    ) WITHOUT ROWID;
    INSERT INTO publishes SELECT id, sender, created_ms, status, dedupe, result FROM wide_publishes;
    DROP TABLE wide_publishes;
    CREATE INDEX outcomes ON publishes (id) WHERE result IS NOT NULL;
    """,
    # One index for both: `expired` is asked every minute; `unread`, once an hour, reads all of this index, and with the
    # status in it nothing else (5 ms for 100,000 waiting messages).
    """
    DROP INDEX waiting_by_expiry;
    DROP INDEX waiting_by_age;
    CREATE INDEX waiting ON deliveries (expires_ms, stored_ms, status) WHERE status = 'new';
    """,
)


DEAD_LETTERS = "status IN ('failed', 'no_subscriber', 'partial_failure')"
"""The condition of the index `dead_letters`."""


class NewerSchema(sqlite3.DatabaseError):
    """The index was written by a newer version of Relay."""

    def __init__(self, version: int) -> None:
        super().__init__(f"index.db has schema {version}, this version of Relay supports {len(MIGRATIONS)}")
        self.version = version


def connect(path: str) -> sqlite3.Connection:
    """Open a connection with the index's settings; it locks the file until it is closed.

    Raises:
        sqlite3.Error: if the file is not a database or cannot be opened.
    """
    db = sqlite3.connect(f"file:{path}", uri=True, isolation_level=None, check_same_thread=False, timeout=1)
    try:
        db.execute("PRAGMA temp_store = MEMORY")
        # Exclusive, before the log is first used: its index is in memory then. As a file it would be written through a
        # mapping, and a full disk would kill the process with SIGBUS.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA mmap_size = 0")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        # The maintenance job checkpoints; this bounds the log between its runs.
        db.execute("PRAGMA wal_autocheckpoint = 4000")
    except sqlite3.Error:
        db.close()
        raise
    return db


def migrate(db: sqlite3.Connection) -> None:
    """Bring the tables up to date.

    Raises:
        NewerSchema: if a newer version of Relay wrote it; it is not changed.
        sqlite3.Error: if the file is damaged.
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise NewerSchema(version)
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        try:
            db.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")
        except sqlite3.Error:
            db.rollback()
            raise


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction.

    Raises:
        sqlite3.Error: if a statement fails; nothing is written.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        db.rollback()
        raise
