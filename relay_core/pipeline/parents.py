"""Parents: the budget that a message had left when it reached the sender that now publishes because of it.

A publisher names its parent; the remaining budget is looked up here, never claimed by the caller: first among the
messages the sender has claimed, then in the index, and while the index cannot be read or written, in the journal, which
takes longer. A parent that is in none of them (its trace has expired) passes on no budget and no trace.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from relay_core.messages.delivery import Delivery
from relay_core.messages.envelope import Budget
from relay_core.messages.ids import is_ulid
from relay_core.messages.subjects import subject_hash
from relay_core.records.index import Index
from relay_core.storage.mailboxes import Mailboxes

# A malformed file has a row without a budget, and cannot be a parent.
_QUERY = """
    SELECT trace_id, hops_after, max_hops, ancestors, expires_ms, calls_after
    FROM deliveries WHERE message_id = ? AND status != 'refused' AND max_hops > 0
    ORDER BY target = ? DESC, calls_after, hops_after DESC LIMIT 1
"""


class Parent(NamedTuple):
    """The trace that a message belongs to, and the budget that it had left."""

    trace_id: str
    budget: Budget


class Parents:
    """Look up parents."""

    def __init__(self, mailboxes: Mailboxes, index: Index, find_journaled: Callable[[str], list[Delivery]]) -> None:
        self._mailboxes = mailboxes
        self._index = index
        self._find_journaled = find_journaled
        """Returns the deliveries of a message in the journal; blocks."""

    async def find(self, message_id: str, sender: str) -> Parent | None:
        """Return the parent as the sender received it, or else the delivery with the smallest budget."""
        held = self._held(message_id, sender)
        if held is not None or not is_ulid(message_id):
            return held

        def query(db: sqlite3.Connection) -> tuple[Any, bool]:
            # Checked in the same step: rows that are written a moment later were missing from the query.
            return db.execute(_QUERY, (message_id, subject_hash(sender))).fetchone(), self._index.is_behind

        try:
            row, was_behind = await self._index.run(query)
        except (sqlite3.Error, OSError):  # the index never fails a publish
            return await self._find_in_journal(message_id, sender)
        if row is None:
            return await self._find_in_journal(message_id, sender) if was_behind else None
        trace_id, hops, max_hops, ancestors, expires, calls = row
        return _parent(trace_id, hops, max_hops, tuple(orjson.loads(ancestors)), expires, calls)

    async def _find_in_journal(self, message_id: str, sender: str) -> Parent | None:
        deliveries = await asyncio.to_thread(self._find_journaled, message_id)
        target = subject_hash(sender)  # the same order as in the query
        found = min(
            deliveries, key=lambda copy: (copy.target != target, copy.calls_after, -copy.hops_after), default=None
        )
        if found is None:
            return None
        return _parent(
            found.trace_id, found.hops_after, found.max_hops, found.ancestors, found.expires_ms, found.calls_after
        )

    def _held(self, message_id: str, sender: str) -> Parent | None:
        mailbox = self._mailboxes.get(subject_hash(sender))
        message = mailbox.claimed.get(message_id) if mailbox is not None else None
        if message is None:
            return None
        return Parent(message.delivery.trace_id, message.envelope.budget)


def _parent(trace_id: str, hops: int, max_hops: int, ancestors: tuple[str, ...], expires: int, calls: int) -> Parent:
    budget = Budget(
        hop_count=hops, max_hops=max_hops, ancestor_chain=ancestors, ttl=expires, call_budget_remaining=calls
    )
    return Parent(trace_id, budget)
