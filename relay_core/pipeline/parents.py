"""Parents: what a message had left when it reached the one who now publishes because of it.

A publisher names its parent; what that parent had left is looked up here, never claimed by the
caller. First among the messages the sender holds right now, else in the index; while the index cannot be read or
written, in the journal, which takes longer. A parent that is in none of them (its trace has been forgotten)
passes on no budget and no trace.
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

# What was no message (malformed) has a row without a budget: it is nobody's parent.
_QUERY = """
    SELECT trace_id, hops_after, max_hops, ancestors, expires_ms, calls_after
    FROM deliveries WHERE message_id = ? AND status != 'refused' AND max_hops > 0
    ORDER BY target = ? DESC, calls_after, hops_after DESC LIMIT 1
"""


class Parent(NamedTuple):
    """The conversation a message belongs to, and what it had left."""

    trace_id: str
    budget: Budget


class Parents:
    """Look up parents."""

    def __init__(self, mailboxes: Mailboxes, index: Index, recall: Callable[[str], list[Delivery]]) -> None:
        self._mailboxes = mailboxes
        self._index = index
        self._recall = recall
        """Finds a message's deliveries in the journal; blocks."""

    async def find(self, message_id: str, sender: str) -> Parent | None:
        """Return what a parent had left for the sender, or, failing that, for whoever had least."""
        held = self._held(message_id, sender)
        if held is not None or not is_ulid(message_id):
            return held

        def look(db: sqlite3.Connection) -> tuple[Any, bool]:
            # Asked in the same step: rows that are written a moment later were missing all the same.
            return db.execute(_QUERY, (message_id, subject_hash(sender))).fetchone(), self._index.is_behind

        try:
            row, was_behind = await self._index.run(look)
        except (sqlite3.Error, OSError):  # the index never fails a publish
            return await self._find_in_journal(message_id, sender)
        if row is None:
            return await self._find_in_journal(message_id, sender) if was_behind else None
        trace_id, hops, max_hops, ancestors, expires, calls = row
        budget = Budget(
            hop_count=hops,
            max_hops=max_hops,
            ancestor_chain=tuple(orjson.loads(ancestors)),
            ttl=expires,
            call_budget_remaining=calls,
        )
        return Parent(trace_id, budget)

    async def _find_in_journal(self, message_id: str, sender: str) -> Parent | None:
        return _least(await asyncio.to_thread(self._recall, message_id), subject_hash(sender))

    def _held(self, message_id: str, sender: str) -> Parent | None:
        mailbox = self._mailboxes.get(subject_hash(sender))
        item = mailbox.claimed.get(message_id) if mailbox is not None else None
        if item is None:
            return None
        return Parent(item.delivery.trace_id, item.envelope.budget)


def _least(deliveries: list[Delivery], target: str) -> Parent | None:
    """Return what the query would: the sender's own delivery, or, failing that, the one that had least."""
    found = min(deliveries, key=lambda one: (one.target != target, one.calls_after, -one.hops_after), default=None)
    if found is None:
        return None
    budget = Budget(
        hop_count=found.hops_after,
        max_hops=found.max_hops,
        ancestor_chain=found.ancestors,
        ttl=found.expires_ms,
        call_budget_remaining=found.calls_after,
    )
    return Parent(found.trace_id, budget)
