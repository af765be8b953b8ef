"""Queries of the index: traces, and summaries of dead letters.

Plain functions over a connection; they run on the index's thread (`Index.run`).
"""

from __future__ import annotations

import sqlite3
from typing import Any

import orjson

from relay_core.messages.dead_letter import DeadLetterGroup, DeadLetterSummary
from relay_core.messages.delivery import DELIVERY_COLUMNS, Span, Status
from relay_core.messages.ids import first_ulid
from relay_core.records.schema import DEAD_LETTERS, transaction
from relay_core.records.selection import Selection
from relay_core.storage.maildir import CUR, FAILED, NEW

_COLUMNS = ", ".join(DELIVERY_COLUMNS)
_PARTIAL = "status = 'partial_failure'"
ON_DISK = {
    Status.NEW: NEW,
    Status.CUR: CUR,
    Status.FAILED: FAILED,
    Status.PARTIAL_FAILURE: FAILED,
    Status.NO_SUBSCRIBER: FAILED,
}
"""Statuses whose message is a file, and its directory."""

STATUSES_ON_DISK: str = ", ".join(f"'{status}'" for status in ON_DISK)
"""As in the SQL index `on_disk`."""


def spans(db: sqlite3.Connection, message_id: str) -> list[Span]:
    """Return the spans of a message, in the order its targets were tried."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM deliveries WHERE message_id = ? ORDER BY sent_ms, target", (message_id,))
    return [_span(row) for row in rows]


def conversation(db: sqlite3.Connection, trace_id: str, limit: int = 1000) -> list[Span]:
    """Return the spans of every message of a conversation, oldest first."""
    rows = db.execute(
        f"""SELECT {_COLUMNS} FROM deliveries WHERE message_id = ?1 AND trace_id = ?1
            UNION ALL
            SELECT {_COLUMNS} FROM deliveries WHERE trace_id = ?1 AND trace_id != message_id
            ORDER BY message_id, target LIMIT ?2""",
        (trace_id, limit),
    )
    return [_span(row) for row in rows]


def dead_letter_groups(db: sqlite3.Connection) -> list[DeadLetterGroup]:
    """Return the dead letters grouped by code and target, partial failures separately, largest group first."""
    rows = db.execute(
        f"""SELECT code, target, {_PARTIAL} AS partial, count(*) AS size, min(handled_ms), max(handled_ms),
                   (SELECT target_subject || ' ' || ifnull(reason, '') FROM deliveries AS newest
                    WHERE {DEAD_LETTERS} AND newest.code = dead.code AND newest.target = dead.target
                    AND (newest.{_PARTIAL}) = (dead.{_PARTIAL})
                    ORDER BY handled_ms DESC LIMIT 1)
            FROM deliveries AS dead WHERE {DEAD_LETTERS} GROUP BY code, target, {_PARTIAL}
            ORDER BY size DESC, code, target, partial"""
    )
    return [
        DeadLetterGroup(
            code=code,
            endpoint_hash=target,
            endpoint_subject=newest.partition(" ")[0],
            count=count,
            partial=bool(is_partial),
            oldest_at=oldest_at,
            newest_at=newest_at,
            sample_reason=newest.partition(" ")[2],
        )
        for code, target, is_partial, count, oldest_at, newest_at, newest in rows
    ]


def dead_letter_page(
    db: sqlite3.Connection, selection: Selection, *, after: str | None, limit: int
) -> list[DeadLetterSummary]:
    """Return the selected dead letters after a cursor (or a message id), newest first."""
    where, values = selection.where(db)
    if after is not None:
        message_id, _, target = after.partition("/")
        where += " AND (message_id, target) < (?, ?)"
        values += (message_id, target)
    rows = db.execute(
        f"""SELECT message_id, target, target_subject, subject, sender, ifnull(code, ''), ifnull(reason, ''),
                   ifnull(handled_ms, sent_ms), replays, size, {_PARTIAL}
            FROM deliveries INDEXED BY dead_letters WHERE {DEAD_LETTERS} AND {where}
            ORDER BY message_id DESC, target DESC LIMIT ?""",
        [*values, limit],
    )
    names = list(DeadLetterSummary.model_fields)
    return [DeadLetterSummary(**dict(zip(names, row, strict=True))) for row in rows]


def count_dead_letters(db: sqlite3.Connection, selection: Selection) -> int:
    """Return the number of selected dead letters."""
    where, values = selection.where(db)
    (total,) = db.execute(
        f"SELECT count(*) FROM deliveries INDEXED BY dead_letters WHERE {DEAD_LETTERS} AND {where}", values
    ).fetchone()
    return int(total)


def dead_letter_keys(db: sqlite3.Connection, selection: Selection) -> list[tuple[str, str]]:
    """Return (message, target) of the selected dead letters, oldest first."""
    where, values = selection.where(db)
    keys: list[tuple[str, str]] = db.execute(
        f"SELECT message_id, target FROM deliveries INDEXED BY dead_letters WHERE {DEAD_LETTERS} AND {where}", values
    ).fetchall()
    return sorted(keys)


def expired(db: sqlite3.Connection, now_ms: int, limit: int, skip: int = 0) -> list[tuple[str, str]]:
    """Return (target, message) of waiting messages whose TTL has passed, longest ago first."""
    return db.execute(
        "SELECT target, message_id FROM deliveries WHERE status = 'new' AND expires_ms < ?"
        " ORDER BY expires_ms LIMIT ? OFFSET ?",
        (now_ms, limit, skip),
    ).fetchall()


def unread(db: sqlite3.Connection, before_ms: int, limit: int, skip: int = 0) -> list[tuple[str, str]]:
    """Return (target, message) of waiting messages that were stored before a time, oldest first."""
    return db.execute(
        "SELECT target, message_id FROM deliveries WHERE status = 'new' AND stored_ms < ?"
        " ORDER BY stored_ms LIMIT ? OFFSET ?",
        (before_ms, limit, skip),
    ).fetchall()


def forget_traces(db: sqlite3.Connection, before_ms: int) -> int:
    """Remove the rows of messages that ended before a time; return how many."""
    with transaction(db):
        removed = db.execute(
            f"DELETE FROM deliveries WHERE sent_ms < ? AND status NOT IN ({STATUSES_ON_DISK})",
            (before_ms,),
        ).rowcount
        db.execute(
            "DELETE FROM publishes WHERE id < ? AND created_ms < ?"
            " AND NOT EXISTS (SELECT 1 FROM deliveries WHERE deliveries.message_id = publishes.id)",
            (first_ulid(before_ms), before_ms),
        )
    return removed


def checkpoint(db: sqlite3.Connection) -> None:
    """Write the log back into index.db.

    No ANALYZE: without statistics the planner uses every index as intended.
    """
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def is_sound(db: sqlite3.Connection) -> bool:
    """Return True if index.db passes SQLite's own check.

    Raises:
        sqlite3.OperationalError: if it is locked and cannot be checked now.
    """
    try:
        return bool(db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return False


def _span(row: tuple[Any, ...]) -> Span:
    values = dict(zip(DELIVERY_COLUMNS, row, strict=True))
    return Span(
        target_kind=values.pop("kind"),
        sent_at=values.pop("sent_ms"),
        stored_at=values.pop("stored_ms"),
        claimed_at=values.pop("claimed_ms"),
        handled_at=values.pop("handled_ms"),
        expires_at=values.pop("expires_ms"),
        ancestors=tuple(orjson.loads(values.pop("ancestors"))),
        outcomes=tuple(orjson.loads(values.pop("outcomes") or "[]")),
        **values,
    )
