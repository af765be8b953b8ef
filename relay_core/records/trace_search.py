"""Search traces: messages and their outcomes, newest first, over a bounded part of the index at a time.

1. A message is one row, whatever the number of its targets; its status is the worst of its spans (`WORST_FIRST`), but
   `partial` if that is a target's `partial_failure`.
2. The table is ordered by message id, which means by time: an id prefix and a time range bound the search at no cost.
   Dead letters have an SQL index.
3. Everything else is scanned row by row, newest first, for at most a moment: the index's thread has rows to write. The
   page then has the matches so far, and its cursor is the position of the search.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import orjson

from relay_core.clock import SystemClock
from relay_core.messages.delivery import Status, TargetKind, TracePage, TraceSearch, TraceSummary
from relay_core.messages.filter_language import Term
from relay_core.messages.ids import first_ulid
from relay_core.messages.subjects import is_pattern
from relay_core.records.filter_sql import Sql, columns_where
from relay_core.records.schema import DEAD_LETTERS

WORST_FIRST = (
    Status.FAILED,
    Status.NO_SUBSCRIBER,
    Status.REFUSED,
    Status.PARTIAL,
    Status.PARTIAL_FAILURE,
    Status.PURGED,
    Status.REPLACED,
    Status.GONE,
    Status.CUR,
    Status.NEW,
    Status.DONE,
)
MESSAGE_STATUSES = tuple(status for status in WORST_FIRST if status != Status.PARTIAL_FAILURE)
"""Possible statuses of a message."""
_RANK = {status: rank for rank, status in enumerate(WORST_FIRST)}
_ENDED = frozenset(WORST_FIRST) - {Status.NEW, Status.CUR}

_STEP_ROWS = 4000
_LOOK_SECS = 0.04
_BEYOND = "~"
"""Sorts after every id with the same prefix."""
_AND_ITSELF = "!"
"""Sorts directly after the id that it is appended to."""
_SPAN = (
    "message_id, subject, sender, sent_ms, trace_id, parent_id, status, code, size, replays, stored_ms, handled_ms,"
    " kind"
)


def search_traces(db: sqlite3.Connection, search: TraceSearch) -> TracePage:
    """Return a page of messages; runs on the index's thread."""
    clock = SystemClock()
    stop = clock.monotonic() + _LOOK_SECS
    low, high = _id_range(search)
    rows: list[TraceSummary] = []
    while True:
        ids, reached = _step(db, search, low, high, search.limit - len(rows))
        rows += [row for row in _summaries(db, ids) if search.status in (None, row.status)]
        if reached is None:
            return TracePage(rows=rows, complete=True)
        high = reached
        is_full = len(rows) >= search.limit
        if is_full or clock.monotonic() > stop:
            return TracePage(rows=rows, complete=is_full, cursor=high)


def _id_range(search: TraceSearch) -> tuple[str, str]:
    """Return the range of ids to search: from the first up to but excluding the second."""
    prefix = (search.id or "").upper()
    low = max(prefix, first_ulid(search.since) if search.since is not None else "")
    high = min(prefix + _BEYOND, first_ulid(search.until) if search.until is not None else _BEYOND)
    return low, high if search.cursor is None else min(high, search.cursor)


def _step(db: sqlite3.Connection, search: TraceSearch, low: str, high: str, limit: int) -> tuple[list[str], str | None]:
    """Return messages with a matching span, and the id the search has reached; None at the end."""
    where, values = _where(db, search)
    dead = search.status in (Status.FAILED, Status.NO_SUBSCRIBER)
    source = "deliveries INDEXED BY dead_letters" if dead else "deliveries"
    among = "message_id < ? AND message_id >= ?" + (f" AND {DEAD_LETTERS}" if dead else "")
    scanned = f"""SELECT message_id, subject, sender, status FROM {source} WHERE {among}
                 ORDER BY message_id DESC LIMIT {_STEP_ROWS}"""
    ids: dict[str, None] = {}
    for (message_id,) in db.execute(f"SELECT message_id FROM ({scanned}) WHERE {where}", [high, low, *values]):
        ids[message_id] = None
        if len(ids) == limit:
            return list(ids), message_id
    count, last, first = db.execute(
        f"SELECT count(*), min(message_id), max(message_id) FROM ({scanned})", (high, low)
    ).fetchone()
    if count < _STEP_ROWS:
        return list(ids), None
    if last != first:
        # Not all of its spans may have been scanned: the next step begins with it.
        ids.pop(last, None)
        return list(ids), last + _AND_ITSELF
    # It has more spans than a step scans.
    match = db.execute(f"SELECT 1 FROM deliveries WHERE message_id = ? AND {where} LIMIT 1", [last, *values])
    return ([last] if match.fetchone() else []), last


def _where(db: sqlite3.Connection, search: TraceSearch) -> Sql:
    terms = [
        Term(field, "=" if is_pattern(text) else "~", text)
        for field, text in (("subject", search.subject), ("from", search.sender))
        if text is not None
    ]
    where, values = columns_where(db, terms)
    if search.status is not None:
        # A message is partial if a handler or a target failed.
        also = Status.PARTIAL_FAILURE if search.status == Status.PARTIAL else search.status
        where, values = f"{where} AND status IN (?, ?)", [*values, search.status, also]
    return where, values


def _summaries(db: sqlite3.Connection, ids: list[str]) -> Iterator[TraceSummary]:
    spans = db.execute(
        f"""SELECT {_SPAN} FROM deliveries WHERE message_id IN (SELECT value FROM json_each(?))
            ORDER BY message_id DESC, sent_ms, target""",
        (orjson.dumps(ids).decode(),),
    )
    for _, group in groupby(spans, key=lambda span: span[0]):
        yield _summary(list(group))


def _summary(spans: list[tuple[Any, ...]]) -> TraceSummary:
    message_id, subject, sender, sent_ms, trace_id, parent_id = spans[0][:6]
    statuses = [Status.PARTIAL if span[6] == Status.PARTIAL_FAILURE else span[6] for span in spans]
    # A replayed message is measured from the store of its replay: time as a dead letter is not waiting time.
    began = [span[10] if span[9] and span[10] is not None else sent_ms for span in spans]
    ends = [span[11] if span[11] is not None else span[10] for span in spans]
    lasted = [end - start for end, start in zip(ends, began, strict=True) if end is not None]
    total = max(lasted) if lasted and _ENDED.issuperset(statuses) else None
    return TraceSummary(
        message_id=message_id,
        subject=subject,
        sender=sender,
        sent_at=sent_ms,
        trace_id=trace_id,
        parent_id=parent_id,
        status=min(statuses, key=lambda status: _RANK.get(status, len(_RANK))),
        code=next((span[7] for span in spans if span[7] is not None), None),
        targets=sum(span[12] != TargetKind.NONE for span in spans),
        total_us=max(int(total * 1000), 0) if total is not None else None,
        size=max(span[8] for span in spans),
        replays=max(span[9] for span in spans),
    )
