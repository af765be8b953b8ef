"""What is asked of the index: traces, and summaries of dead letters.

Plain functions over a connection; they run on the index's thread (`Index.run`).
"""

from __future__ import annotations

import sqlite3
from typing import Any

import orjson

from relay_core.deadletters import DeadLetterGroup
from relay_core.delivery import DELIVERY_COLUMNS, Span
from relay_core.model import WireModel

_COLUMNS = ", ".join(DELIVERY_COLUMNS)


class DeadLetterSummary(WireModel):
    """A dead letter in a list: everything but its payload."""

    message_id: str
    endpoint_hash: str
    endpoint_subject: str
    subject: str
    sender: str
    code: str
    reason: str
    failed_at: float
    replays: int
    size: int


def spans(db: sqlite3.Connection, message_id: str) -> list[Span]:
    """Return the spans of one message, in the order its targets were tried."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM deliveries WHERE message_id = ? ORDER BY sent_ms, target", (message_id,))
    return [_span(row) for row in rows]


def conversation(db: sqlite3.Connection, trace_id: str, limit: int = 1000) -> list[Span]:
    """Return the spans of every message of a conversation, oldest first."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM deliveries WHERE trace_id = ? ORDER BY message_id, target LIMIT ?", (trace_id, limit)
    )
    return [_span(row) for row in rows]


def dead_letter_groups(db: sqlite3.Connection) -> list[DeadLetterGroup]:
    """Return the dead letters by code and target, largest group first."""
    rows = db.execute(
        """SELECT coalesce(code, 'failed'), target, max(target_subject), count(*),
                  min(coalesce(handled_ms, sent_ms)), max(coalesce(handled_ms, sent_ms)), max(coalesce(reason, ''))
           FROM deliveries WHERE status IN ('failed', 'no_subscriber')
           GROUP BY 1, 2 ORDER BY 4 DESC, 1, 2"""
    )
    return [
        DeadLetterGroup(
            code=code,
            endpoint_hash=target,
            endpoint_subject=subject,
            count=count,
            oldest_at=oldest,
            newest_at=newest,
            sample_reason=reason,
        )
        for code, target, subject, count, oldest, newest, reason in rows
    ]


def dead_letter_page(
    db: sqlite3.Connection, *, code: str | None, target: str | None, after: str | None, limit: int
) -> tuple[list[DeadLetterSummary], int]:
    """Return a page of dead letters, newest first, and how many there are in all."""
    where = "status IN ('failed', 'no_subscriber')"
    values: list[Any] = []
    for column, value in (("code", code), ("target", target)):
        if value is not None:
            where += f" AND {column} = ?"
            values.append(value)
    (total,) = db.execute(f"SELECT count(*) FROM deliveries WHERE {where}", values).fetchone()
    if after is not None:
        where += " AND message_id < ?"
        values.append(after)
    rows = db.execute(
        f"""SELECT message_id, target, target_subject, subject, sender, coalesce(code, 'failed'),
                   coalesce(reason, ''), coalesce(handled_ms, sent_ms), replays, size
            FROM deliveries WHERE {where} ORDER BY message_id DESC, target LIMIT ?""",
        [*values, limit],
    )
    names = list(DeadLetterSummary.model_fields)
    return [DeadLetterSummary(**dict(zip(names, row, strict=True))) for row in rows], total


def expired(db: sqlite3.Connection, now_ms: int, limit: int) -> list[tuple[str, str]]:
    """Return (target, message) of waiting messages whose TTL has passed."""
    return db.execute(
        "SELECT target, message_id FROM deliveries WHERE status = 'new' AND expires_ms < ? LIMIT ?", (now_ms, limit)
    ).fetchall()


def unread(db: sqlite3.Connection, before_ms: int, limit: int) -> list[tuple[str, str]]:
    """Return (target, message) of waiting messages that were stored before an instant."""
    return db.execute(
        "SELECT target, message_id FROM deliveries WHERE status = 'new' AND coalesce(stored_ms, sent_ms) < ? LIMIT ?",
        (before_ms, limit),
    ).fetchall()


def forget_traces(db: sqlite3.Connection, before_ms: int) -> int:
    """Remove what is known of messages that ended before an instant; return how many."""
    db.execute("BEGIN IMMEDIATE")
    removed = db.execute(
        "DELETE FROM deliveries WHERE sent_ms < ? AND status NOT IN ('new', 'cur', 'failed', 'aside', 'no_subscriber')",
        (before_ms,),
    ).rowcount
    db.execute(
        "DELETE FROM publishes WHERE created_ms < ?"
        " AND NOT EXISTS (SELECT 1 FROM deliveries WHERE deliveries.message_id = publishes.id)",
        (before_ms,),
    )
    db.execute("COMMIT")
    return removed


def checkpoint(db: sqlite3.Connection) -> None:
    """Write the log back into index.db and keep the planner's statistics fresh."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.execute("PRAGMA optimize")


def is_sound(db: sqlite3.Connection) -> bool:
    """Tell whether index.db passes SQLite's own check."""
    try:
        return bool(db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
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
