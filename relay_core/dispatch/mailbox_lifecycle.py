"""Create mailboxes when they are needed, and remove empty ones.

One mailbox is created or removed at a time, so that a mailbox is not removed while it is being opened. A new mailbox is
watched for dropped files and gets its consumers before `open` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from relay_core.clock import Clock, iso
from relay_core.dispatch.dispatcher import Dispatch
from relay_core.messages.delivery import TargetKind
from relay_core.messages.subjects import subject_hash
from relay_core.rules.breaker import CircuitBreakers
from relay_core.storage.dropped_files import DropWatch
from relay_core.storage.endpoint_file import write_endpoint_file
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.mailboxes import Mailboxes

_YIELD_EVERY = 16


class MailboxLifecycle:
    """Open and remove mailboxes."""

    def __init__(
        self,
        mailboxes: Mailboxes,
        drops: DropWatch,
        dispatch: Dispatch,
        breakers: CircuitBreakers,
        clock: Clock,
        *,
        sync: bool,
    ) -> None:
        self._mailboxes = mailboxes
        self._drops = drops
        self._dispatch = dispatch
        self._breakers = breakers
        self._clock = clock
        self._sync = sync
        self.lock = asyncio.Lock()
        """Held while a mailbox is created or removed."""

    async def open(self, subject: str, kind: str, *, registered: bool = False) -> Mailbox:
        """Return a subject's mailbox, created if there is none."""
        if (known := self._find(subject, kind, registered)) is not None:
            return known
        async with self.lock:
            if (known := self._find(subject, kind, registered)) is not None:
                return known  # created while this call waited; the longest waiter continues first
            now = iso(self._clock.now_ms())
            if self._sync:
                prepared = await asyncio.to_thread(self._mailboxes.prepare, subject, kind, now, registered=registered)
                mailbox = self._mailboxes.adopt(*prepared)
            else:
                mailbox = self._mailboxes.open(subject, kind, now, registered=registered)
            self.serve(mailbox)
        return mailbox

    def serve(self, mailbox: Mailbox) -> None:
        """Watch a mailbox for dropped files, and dispatch its messages."""
        self.watch(mailbox)
        self._dispatch.refresh(mailbox)

    def watch(self, mailbox: Mailbox) -> None:
        """Watch a mailbox for dropped files."""
        self._drops.add(mailbox.hash, mailbox.maildir.path / "new")

    async def remove_empty(self, is_adapter_running: Callable[[Mailbox], bool]) -> int:
        """Remove mailboxes that hold nothing and belong to no endpoint or running adapter; return how many."""
        removed = 0
        async with self.lock:
            for position, mailbox in enumerate(self._mailboxes, 1):
                if position % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
                try:
                    if mailbox.about.kind == TargetKind.ADAPTER and mailbox.about.registered:
                        if is_adapter_running(mailbox) or mailbox.load or mailbox.dead:
                            continue
                        self._mailboxes.unregister(mailbox)  # its adapter was removed while the bus was down
                    if not mailbox.about.registered and self._mailboxes.drop(mailbox):
                        self._forget(mailbox)
                        removed += 1
                except OSError:
                    # Not empty after all (a leftover in tmp/, another program's file): restore its directory.
                    mailbox.maildir.create(sync=False)
                    write_endpoint_file(mailbox.maildir.path, mailbox.about, sync=False)
                    self.watch(mailbox)
        return removed

    def _forget(self, mailbox: Mailbox) -> None:
        self._dispatch.consumers.forget(mailbox)
        self._drops.remove(mailbox.hash)
        self._breakers.forget(mailbox.hash)

    def _find(self, subject: str, kind: str, registered: bool) -> Mailbox | None:
        """Return a subject's mailbox if nothing about it has to be written."""
        known = self._mailboxes.get(subject_hash(subject))
        if known is None or (registered and not known.about.registered):
            return None
        if known.about.kind == TargetKind.NONE and kind == TargetKind.SUBSCRIPTION:
            known.about = known.about.model_copy(update={"kind": kind})  # it held only dead letters
        return None if known.about.kind == TargetKind.NONE and kind == TargetKind.ADAPTER else known
