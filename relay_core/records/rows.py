"""The rows of the index, and the statements that write them.

A batch is passed to SQLite as one JSON document, so that it is one statement: it runs without the GIL and costs the
event loop nothing.

A row made from a file lacks the time at which the message was stored, and one made from an unreadable file also its
trace and parent: whichever row has them wins, in any order. A row made from the journal (status `gone`) only records
that a message existed: it never overwrites another.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson

from relay_core.messages.delivery import DELIVERY_COLUMNS, Delivery, delivery_row


class PublishRow(NamedTuple):
    """A publish, for rate accounting and dedupe."""

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


def write_publishes(db: sqlite3.Connection, publishes: Sequence[PublishRow]) -> None:
    """Insert publishes that have no row yet."""
    if publishes:
        db.execute(_PUBLISHES, (_as_json([tuple(row) for row in publishes]),))


def write_deliveries(db: sqlite3.Connection, deliveries: Sequence[Delivery]) -> None:
    """Insert deliveries, or update the existing rows to their present state."""
    if deliveries:
        db.execute(_DELIVERIES, (_as_json([delivery_row(row) for row in deliveries]),))


def write_read_to(db: sqlite3.Connection, sequence: int) -> None:
    """Store the last journal segment of which the index has every row."""
    db.execute("INSERT OR REPLACE INTO journal (rowid, read_to) VALUES (1, ?)", (sequence,))


def _as_json(rows: list[tuple[Any, ...]]) -> str:
    try:
        return orjson.dumps(rows).decode()
    except TypeError:
        # A handler's error may contain invalid Unicode, which must not fail the batch.
        return json.dumps(rows, ensure_ascii=False).encode(errors="replace").decode()
