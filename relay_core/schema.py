"""The index's tables, as migrations: entry *n* brings ``user_version`` from *n* to *n* + 1.

One row per publish (rate accounting, dedupe) and one per delivery (key: message and target).

An index costs every row that is in it, so all but one hold only the rows that somebody asks for:
what waits, what is on disk, dead letters, replies. A message handled at once is in none of them.
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
    # Everything that a dead letter's summary has, so that a filter over any of it reads this index alone.
    """
    DROP INDEX dead_letters;
    CREATE INDEX dead_letters ON deliveries (
        message_id, target, status, code, handled_ms, sent_ms, replays, size, sender, subject, target_subject, reason
    ) WHERE status IN ('failed', 'no_subscriber');
    """,
    # One row: the last of the journal's segments that tell nothing new. An index without it has seen none.
    "CREATE TABLE journal (read_to INTEGER NOT NULL);",
    # The kept copies of partial deliveries are in every list of dead letters.
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
)


class NewerSchema(sqlite3.DatabaseError):
    """The index was made by a Relay that knows more migrations than this one."""

    def __init__(self, version: int) -> None:
        super().__init__(f"index.db has schema {version}, this Relay knows {len(MIGRATIONS)}")
        self.version = version


def connect(path: str) -> sqlite3.Connection:
    """Open a connection with the index's settings; no other can use the file until it is closed.

    Raises:
        sqlite3.Error: if the file is no database or cannot be opened.
    """
    db = sqlite3.connect(f"file:{path}", uri=True, isolation_level=None, check_same_thread=False, timeout=1)
    try:
        db.execute("PRAGMA temp_store = MEMORY")
        # Exclusive, before the log is first used: its index is in memory then. As a file it would be written
        # through a mapping, and a full disk would end the process with SIGBUS.
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
        NewerSchema: if it was made by a newer Relay; it is left as it is.
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
    """Write everything inside the block, or nothing.

    Raises:
        sqlite3.Error: if the database refuses.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        db.rollback()
        raise
