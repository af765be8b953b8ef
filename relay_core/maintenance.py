"""Upkeep that the supervisor schedules: each job is safe to run at any time, twice or never.

The index finds the candidates; the claim on disk decides, so a message that is being handled at
this moment is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from relay_core.bus import Bus
from relay_core.clock import SystemClock
from relay_core.config import DAY_MS
from relay_core.deadletters import Code
from relay_core.delivery import TargetKind
from relay_core.endpoints import write_endpoint_file
from relay_core.lookups import checkpoint, expired, forget_traces, unread
from relay_core.mailbox import BadFile

_BATCH = 500
_YIELD_EVERY = 16


class Maintenance:
    """Keep the bus tidy."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def expire(self) -> int:
        """Make dead letters of waiting messages whose TTL has passed; return how many."""
        now = self._bus.clock.now_ms()
        return await self._bury_all(partial(expired, now_ms=now), Code.EXPIRED, "message expired (TTL)")

    async def retire_unread(self) -> int:
        """Make dead letters of messages that nobody has read for too long; return how many."""
        age = self._bus.config.retention.unread_ms
        before = self._bus.clock.now_ms() - age
        return await self._bury_all(partial(unread, before_ms=before), Code.UNREAD, f"unread for {age / DAY_MS:g} days")

    async def purge_dead_letters(self) -> int:
        """Remove dead letters that are older than they are kept; return how many."""
        before = self._bus.clock.now_ms() - self._bus.config.retention.dead_letter_ms
        store = self._bus.dead_letters
        meant = store.select(None, older_than_ms=before)
        return await store.purge(await store.keys(meant), meant)

    async def forget_traces(self) -> int:
        """Forget how old messages went; return how many deliveries."""
        before = self._bus.clock.now_ms() - self._bus.config.retention.trace_ms
        await asyncio.to_thread(self._bus.journal.kept.forget)
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
        bus, dropped = self._bus, 0
        async with bus.opening:
            for position, mailbox in enumerate(bus.mailboxes, 1):
                if position % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
                path = mailbox.maildir.path
                try:
                    if mailbox.about.kind == TargetKind.ADAPTER and mailbox.about.registered:
                        if bus.adapters.has(mailbox) or mailbox.load or mailbox.dead:
                            continue
                        bus.mailboxes.unregister(mailbox)  # its adapter was removed while the bus was down
                    if not mailbox.about.registered and bus.mailboxes.drop(mailbox):
                        bus.forget(mailbox)
                        dropped += 1
                except OSError:
                    # Not empty after all (a leftover in tmp/, a stranger's file): whole again, as the bus knows it.
                    mailbox.maildir.create(sync=False)
                    write_endpoint_file(path, mailbox.about, sync=False)
                    bus.drops.add(mailbox.hash, path / "new")
        return dropped

    async def checkpoint_index(self) -> dict[str, int]:
        """Bring the index in line with the Maildir and write its log back; return what was repaired."""
        repaired = await self._bus.index.run(self._bus.reindexer.reconcile)
        await self._bus.index.run(checkpoint)
        self._bus.index.note_repaired()
        self._bus.limiter.forget_idle()
        self._bus.rescan()
        return repaired

    async def _bury_all(self, find: Callable[..., list[tuple[str, str]]], code: str, reason: str) -> int:
        """Bury what the index finds, batch by batch, passing over what somebody else has."""
        buried = passed = 0
        while batch := await self._bus.index.run(partial(find, limit=_BATCH, skip=passed)):
            for target, message_id in batch:
                if await self._bury(target, message_id, code, reason):
                    buried += 1
                    if buried % _YIELD_EVERY == 0:
                        await asyncio.sleep(0)
                else:
                    passed += 1
        return buried

    async def _bury(self, target: str, message_id: str, code: str, reason: str) -> bool:
        bus = self._bus
        mailbox = bus.mailboxes.get(target)
        taken = mailbox.take(message_id) if mailbox is not None else None
        if mailbox is None or taken is None:
            return False
        bus.recorder.eased(mailbox)
        if isinstance(taken, BadFile):
            await bus.parking.set_aside(mailbox, taken)
            return False
        if taken.probe:
            bus.breakers.release(mailbox.hash)
        if taken.fanout is not None:
            taken.fanout.failed(taken, code, reason)
        else:
            await bus.parking.park_surely(mailbox, taken, code=code, reason=reason)
        if bus.handling.on_settled is not None:
            bus.handling.on_settled(taken, False)
        return True
