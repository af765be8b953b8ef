"""The rows of the index, and the statements that write them.

Rows are written in chunks, one statement each: `executemany` would release the GIL and wait for it again at every row,
and taking the columns out of a JSON document costs SQLite three times as much as the rest of the insert. A statement
exists for every power of two up to `_CHUNK`; the last one of a batch is filled up with rows of NULL, which it skips.

A row made from a file lacks the time at which the message was stored, and one made from an unreadable file also its
trace and parent: whichever row has them wins, in any order. A row made from the journal (status `gone`) only records
that a message existed: it never overwrites another.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import orjson

from relay_core.messages.delivery import DELIVERY_COLUMNS, Delivery

T = TypeVar("T")

_CHUNK = 256
_NULL = float("nan")
"""What SQLite stores as NULL: binding None takes Python ten times as long."""
_INT64 = 2**63 - 1


class PublishRow(NamedTuple):
    """A publish: its event, and in the index what rate accounting and dedupe need."""

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

PUBLISH_COLUMNS = ("id", "sender", "created_ms", "status", "dedupe", "result")
_JSON_COLUMNS = ("ancestors", "outcomes")
_PLAIN_COLUMNS = tuple(name for name in DELIVERY_COLUMNS if name not in _JSON_COLUMNS)

_plain_values = attrgetter(*_PLAIN_COLUMNS)


class _Insert(Generic[T]):
    """Insert rows into a table; `values` returns those of its columns."""

    def __init__(
        self, table: str, columns: tuple[str, ...], on_conflict: str, values: Callable[[T], Sequence[Any]]
    ) -> None:
        self._into = f"{table} ({', '.join(columns)})"
        self._width = len(columns)
        self._on_conflict = on_conflict
        self._values = values
        self._sql = cache(self._make_sql)

    def __call__(self, db: sqlite3.Connection, rows: Sequence[T]) -> None:
        """Write rows in their order.

        Raises:
            sqlite3.Error: if they cannot be written.
        """
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            size = 1 << (len(chunk) - 1).bit_length()
            values = [_NULL if value is None else value for row in chunk for value in self._values(row)]
            values += [_NULL] * ((size - len(chunk)) * self._width)
            try:
                db.execute(self._sql(size), values)
            except (UnicodeEncodeError, OverflowError):
                db.execute(self._sql(size), [_storable(value) for value in values])

    def _make_sql(self, size: int) -> str:
        row = f"({', '.join('?' * self._width)})"
        rows = ", ".join([row] * size)
        return f"INSERT INTO {self._into} SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL {self._on_conflict}"


def _publish_values(row: PublishRow) -> Sequence[Any]:
    result = row.result
    return row.id, row.sender, row.created_ms, row.status, row.dedupe, None if result is None else _as_json(result)


def _delivery_values(row: Delivery) -> Sequence[Any]:
    outcomes = row.outcomes
    return (*_plain_values(row), _chain_as_json(row.ancestors), None if outcomes is None else _as_json(outcomes))


def _as_json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        # A handler's error may contain invalid Unicode, which must not fail the batch.
        return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


_chain_as_json = lru_cache(maxsize=1024)(_as_json)  # one for each target, over and over


def _storable(value: Any) -> Any:
    """Return a value without invalid Unicode, and within SQLite's range: errors and files may contain such values."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return min(max(value, -_INT64), _INT64) if isinstance(value, int) else value


write_publishes = _Insert("publishes", PUBLISH_COLUMNS, "ON CONFLICT DO NOTHING", _publish_values)
"""Insert publishes that have no row yet."""

write_deliveries = _Insert(
    "deliveries",
    (*_PLAIN_COLUMNS, *_JSON_COLUMNS),
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
    _delivery_values,
)
"""Insert deliveries, or update the existing rows to their present state."""


def write_read_to(db: sqlite3.Connection, sequence: int) -> None:
    """Store the last journal segment of which the index has every row."""
    db.execute("INSERT OR REPLACE INTO journal (rowid, read_to) VALUES (1, ?)", (sequence,))
