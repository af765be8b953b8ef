"""Messages that a start found in the journal alone, because the disk was full: restored as soon as it has room.

1. Until then no consumer and no command sees such a message, and the journal keeps every segment.
2. None is made twice, also if the process is killed before all are: while there are segments of an earlier process, the
   end of every message is written after them (`Commits.inherits`), with ``os``, too.
3. When all are made, the journal is checkpointed as after any other start.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence

from relay_core.clock import Clock, sleep
from relay_core.commit import Commits
from relay_core.journal import sync_file_system
from relay_core.limited_log import LimitedLog
from relay_core.mailbox import Mailbox
from relay_core.mailboxes import Mailboxes
from relay_core.maildir import FAILED
from relay_core.recovery import Step, restore

logger = logging.getLogger(__name__)

RETRY_SECS = 1.0
_RETRY_SECS_MAX = 16.0


class Restoring:
    """Make the files of messages for which a start found no room."""

    def __init__(
        self, commits: Commits, mailboxes: Mailboxes, clock: Clock, on_restored: Callable[[Mailbox, bool], None]
    ) -> None:
        self._commits = commits
        self._mailboxes = mailboxes
        self._clock = clock
        self._on_restored = on_restored
        """Told of every mailbox that got a message back, and whether it was not known before."""
        self._log = LimitedLog(logger, clock)
        self._left: dict[tuple[str, str], Step] = {}
        self._synced = False
        """Whether any was acknowledged as safe from a power loss."""

    def begin(self, unfinished: Sequence[Step]) -> None:
        """Take what a start could not make; the journal keeps its segments from now on."""
        self._left = {step.key: step for step in unfinished}
        self._synced = any(step.transaction is None for step in unfinished)
        checked = self._commits.before_drop

        def before_drop() -> None:
            if self._left:
                raise OSError(errno.ENOSPC, f"{len(self._left)} messages are in the journal alone")
            checked()

        self._commits.before_drop = before_drop
        logger.error("the disk is full: %d messages are in the journal alone until it has room", len(self._left))
        for mailbox in self._mailboxes:
            self._mark(mailbox)

    def has(self, mailbox: str, message_id: str) -> bool:
        """Return True if a message is in the journal alone, or what is to become of it is."""
        return (mailbox, message_id) in self._left

    async def run(self) -> None:
        """Try until all are made, then checkpoint the journal."""
        delay = RETRY_SECS
        while self._left:
            await sleep(self._clock, delay)
            delay = RETRY_SECS if await self._try_all() else min(2 * delay, _RETRY_SECS_MAX)
        logger.warning("the disk has room again: every message of the journal is restored")
        try:
            await asyncio.to_thread(self._checkpoint)
        except OSError as error:
            logger.error("journal: the old segments are kept: %s", error)

    def _checkpoint(self) -> None:
        if self._synced:
            sync_file_system(self._commits.journal.directory)
        self._commits.checkpoint()

    async def _try_all(self) -> bool:
        """Try every message, oldest first; return whether any was restored."""
        restored = False
        for step in sorted(self._left.values(), key=lambda one: one.message):
            try:
                self._restore(step)
            except OSError as error:
                self._log.error(("restore", error.errno), "%s cannot be restored yet: %s", step.message, error)
                continue  # a smaller one may find room
            restored = True
            await asyncio.sleep(0)
        return restored

    def _restore(self, step: Step) -> None:
        maildir = self._mailboxes.maildir(step.mailbox)
        was_dead = FAILED in maildir.whereabouts(step.message)
        restore(maildir, step, self._commits.journal.make_room)
        mailbox = self._mailboxes.get(step.mailbox)
        is_new = mailbox is None
        if mailbox is None:
            mailbox = self._mailboxes.load_one(step.mailbox)  # it was removed meanwhile, or while the bus was down
        else:
            mailbox.restored(step.message)
            mailbox.dead += (FAILED in maildir.whereabouts(step.message)) - was_dead
        del self._left[step.key]
        if mailbox is not None:
            self._mark(mailbox)
            self._on_restored(mailbox, is_new)

    def _mark(self, mailbox: Mailbox) -> None:
        count = sum(hash == mailbox.hash for hash, _ in self._left)
        mailbox.degraded = f"the disk is full: {count} messages are in the journal alone" if count else None
