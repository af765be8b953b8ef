"""The index's tables, as migrations: entry *n* brings ``user_version`` from *n* to *n* + 1.

One row per publish (rate accounting, dedupe) and one per delivery (key: message and target).
"""

from __future__ import annotations

import sqlite3

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
        dedupe TEXT,
        result TEXT
    ) WITHOUT ROWID;
    CREATE INDEX publishes_by_time ON publishes (created_ms, sender);
    CREATE INDEX publishes_by_parent ON publishes (parent_id) WHERE parent_id IS NOT NULL;

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
    CREATE INDEX deliveries_by_status ON deliveries (status, target);
    CREATE INDEX deliveries_by_trace ON deliveries (trace_id);
    """,
)


def connect(path: str, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a connection with the index's settings.

    Raises:
        sqlite3.Error: if the file is no database or cannot be opened.
    """
    uri = f"file:{path}?mode=ro" if read_only else f"file:{path}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5)
    try:
        db.execute("PRAGMA busy_timeout = 5000")
        db.execute("PRAGMA temp_store = MEMORY")
        if not read_only:
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
        sqlite3.DatabaseError: if the file is damaged, or was made by a newer Relay.
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise sqlite3.DatabaseError(f"index.db has schema {version}, this Relay knows {len(MIGRATIONS)}")
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        db.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")
