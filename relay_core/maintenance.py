"""Upkeep that the supervisor schedules: each job is safe to run at any time, twice or never.

The index finds the candidates; the claim on disk decides, so a message that is being handled at
this moment is left alone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from relay_core.bus import Bus
from relay_core.clock import SystemClock
from relay_core.deadletters import Code
from relay_core.lookups import checkpoint, expired, forget_traces, unread
from relay_core.mailbox import BadFile

_BATCH = 500


class Maintenance:
    """Keep the bus tidy."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def expire(self) -> int:
        """Make dead letters of waiting messages whose TTL has passed; return how many."""
        now = self._bus.clock.now_ms()
        moved = 0
        while batch := await self._bus.index.run(lambda db: expired(db, now, _BATCH)):
            moved += (done := await self._bury(batch, Code.EXPIRED, "message expired (TTL)"))
            if not done:
                break
        return moved

    async def retire_unread(self) -> int:
        """Make dead letters of messages that nobody has read for too long; return how many."""
        age = self._bus.config.retention.unread_ms
        before = self._bus.clock.now_ms() - age
        moved = 0
        while batch := await self._bus.index.run(lambda db: unread(db, before, _BATCH)):
            moved += (done := await self._bury(batch, Code.UNREAD, f"unread for {age // 86_400_000} days"))
            if not done:
                break
        return moved

    async def purge_dead_letters(self) -> int:
        """Remove dead letters that are older than they are kept; return how many."""
        before = self._bus.clock.now_ms() - self._bus.config.retention.dead_letter_ms
        return await self._bus.dead_letters.purge(older_than_ms=before)

    async def forget_traces(self) -> int:
        """Forget how old messages went; return how many deliveries."""
        before = self._bus.clock.now_ms() - self._bus.config.retention.trace_ms
        return await self._bus.index.run(lambda db: forget_traces(db, before))

    async def expire_events(self) -> int:
        """Remove days of events that are older than they are kept; return how many days."""
        keep = self._bus.config.retention.event_days
        return await asyncio.to_thread(self._bus.events.expire, keep, self._bus.clock.now_ms())

    async def sweep_tmp(self, *, older_than_secs: float = 36 * 3600) -> int:
        """Remove what crashed writers left in ``tmp/``; return how many files."""
        before = SystemClock().now_ms() / 1000 - older_than_secs  # file times are the machine's
        boxes = list(self._bus.mailboxes)
        return await asyncio.to_thread(lambda: sum(box.maildir.sweep(older_than=before) for box in boxes))

    async def drop_empty_mailboxes(self) -> int:
        """Remove mailboxes that are no endpoints and hold nothing; return how many."""
        dropped = 0
        for mailbox in self._bus.mailboxes:
            with suppress(OSError):
                if not mailbox.about.registered and self._bus.mailboxes.drop(mailbox):
                    self._bus.drops.remove(mailbox.hash)
                    self._bus.breakers.forget(mailbox.hash)
                    dropped += 1
        return dropped

    async def checkpoint_index(self) -> dict[str, int]:
        """Bring the index in line with the Maildir and write its log back; return what was repaired."""
        repaired = await self._bus.index.run(self._bus.reindexer.reconcile)
        await self._bus.index.run(checkpoint)
        self._bus.index.dirty = False
        self._bus.limiter.forget_idle()
        self._bus.rescan()
        return repaired

    async def _bury(self, batch: list[tuple[str, str]], code: str, reason: str) -> int:
        buried = 0
        for target, message_id in batch:
            mailbox = self._bus.mailboxes.get(target)
            if mailbox is None:
                continue
            taken = mailbox.take(message_id)
            if isinstance(taken, BadFile):
                await self._bus.parking.set_aside(mailbox, taken)
            elif taken is not None:
                await self._bus.parking.park(mailbox, taken, code=code, reason=reason)
                buried += 1
        return buried
