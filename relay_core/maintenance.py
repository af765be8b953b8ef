"""Maintenance that the supervisor schedules: each job is safe to run at any time, twice or never.

The index finds the candidates; the claim on disk decides, so a message that is being handled is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from relay_core.bus import Bus
from relay_core.clock import SystemClock
from relay_core.config import DAY_MS
from relay_core.messages.dead_letter import Code
from relay_core.records.queries import checkpoint, expired, forget_traces, unread

_BATCH = 500
_YIELD_EVERY = 16


class Maintenance:
    """The jobs."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def expire(self) -> int:
        """Dead-letter waiting messages whose TTL has passed; return how many."""
        now = self._bus.clock.now_ms()
        return await self._dead_letter_all(partial(expired, now_ms=now), Code.EXPIRED, "message expired (TTL)")

    async def expire_unread(self) -> int:
        """Dead-letter messages that have been unread for too long; return how many."""
        age = self._bus.config.retention.unread_ms
        before = self._bus.clock.now_ms() - age
        return await self._dead_letter_all(
            partial(unread, before_ms=before), Code.UNREAD, f"unread for {age / DAY_MS:g} days"
        )

    async def purge_dead_letters(self) -> int:
        """Remove dead letters past their retention; return how many."""
        before = self._bus.clock.now_ms() - self._bus.config.retention.dead_letter_ms
        store = self._bus.dead_letters
        selection = store.select(None, older_than_ms=before)
        return await store.purge(await store.keys(selection), selection)

    async def forget_traces(self) -> int:
        """Delete old traces; return how many deliveries."""
        before = self._bus.clock.now_ms() - self._bus.config.retention.trace_ms
        await asyncio.to_thread(self._bus.journal.closed.expire)
        return await self._bus.index.run(lambda db: forget_traces(db, before))

    async def expire_events(self) -> int:
        """Remove days of events past their retention; return how many days."""
        keep = self._bus.config.retention.event_days
        return await asyncio.to_thread(self._bus.events.expire, keep, self._bus.clock.now_ms())

    async def sweep_tmp(self, *, older_than_secs: float = 36 * 3600) -> int:
        """Remove leftovers of crashed writers in ``tmp/``; return how many files."""
        before = SystemClock().now_ms() / 1000 - older_than_secs  # file times are from the machine's clock
        boxes = list(self._bus.mailboxes)
        return await asyncio.to_thread(lambda: sum(box.maildir.sweep(older_than=before) for box in boxes))

    async def drop_empty_mailboxes(self) -> int:
        """Remove empty mailboxes that are not endpoints; return how many."""
        return await self._bus.lifecycle.remove_empty(self._bus.routes.has)

    async def checkpoint_index(self) -> dict[str, int]:
        """Reconcile the index with the Maildir and checkpoint it; return the repairs."""
        repaired = await self._bus.index.run(self._bus.reindexer.reconcile)
        await self._bus.index.run(checkpoint)
        self._bus.index.note_repaired()
        self._bus.limiter.forget_idle()
        self._bus.intake.rescan()
        return repaired

    async def _dead_letter_all(self, find: Callable[..., list[tuple[str, str]]], code: str, reason: str) -> int:
        """Dead-letter the messages that the index finds, batch by batch, skipping those that a consumer has."""
        done = skipped = 0
        while batch := await self._bus.index.run(partial(find, limit=_BATCH, skip=skipped)):
            for target, message_id in batch:
                if await self._bus.inbox.discard(target, message_id, reason, code):
                    done += 1
                    if done % _YIELD_EVERY == 0:
                        await asyncio.sleep(0)
                else:
                    skipped += 1
        return done
