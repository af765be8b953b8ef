"""Searching traces: messages and what became of them, newest first, over a bounded part of the index at a time.

1. A message is one row, whatever the number of its targets; its status is the worst of its spans (`WORST_FIRST`), but
   `partial` where that is a target's `partial_failure`.
2. The table lies in the order of message ids, which is that of time: an id's beginning, and when it was made, bound
   the search for nothing. Dead letters are found by their own index.
3. Everything else is looked for row by row, newest first, for at most a moment: the index's thread has rows to
   write. The page then has what was found, and its cursor says how far the search has come.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import orjson

from relay_core.clock import SystemClock
from relay_core.delivery import Status, TargetKind, TraceSummary
from relay_core.filter_language import Term
from relay_core.ids import first_ulid
from relay_core.selection import Sql, columns_where
from relay_core.subjects import is_pattern

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
"""Statuses that a message may have."""
_RANK = {status: rank for rank, status in enumerate(WORST_FIRST)}
_ENDED = frozenset(WORST_FIRST) - {Status.NEW, Status.CUR}

_STEP_ROWS = 4000
_LOOK_SECS = 0.04
_BEYOND = "~"
"""Sorts behind every id that begins like it."""
DEAD_LETTERS = "status IN ('failed', 'no_subscriber', 'partial_failure')"
"""As the index `dead_letters` has them."""
_AND_ITSELF = "!"
"""Sorts right behind the id before it."""
_SPAN = (
    "message_id, subject, sender, sent_ms, trace_id, parent_id, status, code, size, replays, stored_ms, handled_ms,"
    " kind"
)


class TracePage(NamedTuple):
    """Messages, newest first, and how far the search has come."""

    rows: list[TraceSummary]
    complete: bool
    """Whether the page is full, or nothing is left to look through."""
    cursor: str | None
    """Where to go on, if anything is left."""


@dataclass(frozen=True, slots=True)
class TraceSearch:
    """Which messages are looked for; every part given must hold."""

    id: str | None = None
    """How the message's id begins."""
    subject: str | None = None
    """Part of the subject in any case, or a pattern."""
    sender: str | None = None
    """Part of the sender in any case, or a pattern."""
    status: str | None = None
    """The worst of its spans."""
    since: int | None = None
    """Wall time in milliseconds: made then or later."""
    until: int | None = None
    """Wall time in milliseconds: made before."""
    limit: int = 100
    after: str | None = None
    """The message id that the page before has come to."""

    def page(self, db: sqlite3.Connection) -> TracePage:
        """Return a page; runs on the index's thread."""
        clock = SystemClock()
        stop = clock.monotonic() + _LOOK_SECS
        low, high = self._range()
        rows: list[TraceSummary] = []
        while True:
            wanted = self.limit - len(rows)
            found, reached = self._step(db, low, high, wanted)
            rows += [row for row in _summaries(db, found) if self.status in (None, row.status)]
            if reached is None:
                return TracePage(rows, True, None)
            high = reached
            if len(rows) >= self.limit:
                return TracePage(rows, True, high)
            if clock.monotonic() > stop:
                return TracePage(rows, False, high)

    def _range(self) -> tuple[str, str]:
        """Return the ids that the search lies between: from the first up to but without the second."""
        prefix = (self.id or "").upper()
        low = max(prefix, first_ulid(self.since) if self.since is not None else "")
        high = min(prefix + _BEYOND, first_ulid(self.until) if self.until is not None else _BEYOND)
        return low, high if self.after is None else min(high, self.after)

    def _step(self, db: sqlite3.Connection, low: str, high: str, limit: int) -> tuple[list[str], str | None]:
        """Return messages with a span that fits, and the id that the search has come to; None if it is through."""
        where, values = self._where(db)
        dead = self.status in (Status.FAILED, Status.NO_SUBSCRIBER)
        source = "deliveries INDEXED BY dead_letters" if dead else "deliveries"
        among = "message_id < ? AND message_id >= ?" + (f" AND {DEAD_LETTERS}" if dead else "")
        looked = f"""SELECT message_id, subject, sender, status FROM {source} WHERE {among}
                     ORDER BY message_id DESC LIMIT {_STEP_ROWS}"""
        ids: dict[str, None] = {}
        for (message_id,) in db.execute(f"SELECT message_id FROM ({looked}) WHERE {where}", [high, low, *values]):
            ids[message_id] = None
            if len(ids) == limit:
                return list(ids), message_id
        count, last, first = db.execute(
            f"SELECT count(*), min(message_id), max(message_id) FROM ({looked})", (high, low)
        ).fetchone()
        if count < _STEP_ROWS:
            return list(ids), None
        if last != first:
            # Not all of its spans may have been looked at: the next step begins with it.
            ids.pop(last, None)
            return list(ids), last + _AND_ITSELF
        # It has more spans than a step looks at.
        one = db.execute(f"SELECT 1 FROM deliveries WHERE message_id = ? AND {where} LIMIT 1", [last, *values])
        return ([last] if one.fetchone() else []), last

    def _where(self, db: sqlite3.Connection) -> Sql:
        terms = [
            Term(field, "=" if is_pattern(text) else "~", text)
            for field, text in (("subject", self.subject), ("from", self.sender))
            if text is not None
        ]
        where, values = columns_where(db, terms)
        if self.status is not None:
            # A message is partial by the failure of a handler, or of a target.
            also = Status.PARTIAL_FAILURE if self.status == Status.PARTIAL else self.status
            where, values = f"{where} AND status IN (?, ?)", [*values, self.status, also]
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
    # A replayed one is measured from its replay's store: while it was a dead letter it did not wait.
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
