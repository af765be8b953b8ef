"""Complete what a start could not write because the disk was full, as soon as there is space.

1. Until then a dead letter without its record is hidden in ``cur/``, and the journal keeps every segment. Messages that
   wait are held in memory and offered (`Bus._hold`); the file writer makes their files.
2. No message is restored twice, even if the process is killed in between: its end is journaled behind the segments of
   the earlier process.
3. When nothing is left, the journal is checkpointed as after any other start.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence

from relay_core.clock import Clock, sleep
from relay_core.journal.commit import Commits
from relay_core.journal.journal import sync_file_system
from relay_core.journal.recovery import JournaledMove, restore
from relay_core.limited_log import LimitedLog
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.mailboxes import Mailboxes
from relay_core.storage.maildir import FAILED

logger = logging.getLogger(__name__)

RETRY_SECS = 1.0
_RETRY_SECS_MAX = 16.0


class DeferredRecovery:
    """Write the files of messages for which a start found no space."""

    def __init__(
        self, commits: Commits, mailboxes: Mailboxes, clock: Clock, on_restored: Callable[[Mailbox, bool], None]
    ) -> None:
        self._commits = commits
        self._mailboxes = mailboxes
        self._clock = clock
        self._on_restored = on_restored
        """Called with the mailbox of every restored message, and whether that mailbox is new."""
        self._log = LimitedLog(logger, clock)
        self._left: dict[tuple[str, str], JournaledMove] = {}

    def begin(self, unfinished: Sequence[JournaledMove], held: int) -> None:
        """Take the moves that a start could not make; the journal keeps its segments from now on.

        `held` further messages wait in memory for their files.
        """
        self._left = {move.key: move for move in unfinished}
        checkpoints = self._commits.checkpoints
        checked = checkpoints.before

        def before() -> None:
            if self._left:
                raise OSError(errno.ENOSPC, f"{len(self._left)} messages exist only in the journal")
            checked()

        checkpoints.before = before
        logger.error(
            "the disk is full: %d messages exist only in the journal until it has space", len(self._left) + held
        )
        for mailbox in self._mailboxes:
            self._mark(mailbox)

    @property
    def waiting(self) -> list[str]:
        """Return the ids of the messages that still wait for space."""
        return [message_id for _, message_id in self._left]

    def has(self, mailbox: str, message_id: str) -> bool:
        """Return True if a message, or its next move, exists only in the journal."""
        return (mailbox, message_id) in self._left

    async def run(self) -> None:
        """Retry until all messages are restored, then checkpoint the journal."""
        delay = RETRY_SECS
        while self._left or not self._commits.files.is_idle:
            await sleep(self._clock, delay)
            delay = RETRY_SECS if await self._try_all() else min(2 * delay, _RETRY_SECS_MAX)
        logger.warning("the disk has space again: every message of the journal is restored")
        try:
            await asyncio.to_thread(self._checkpoint)
        except OSError as error:
            logger.error("journal: the old segments are kept: %s", error)

    def _checkpoint(self) -> None:
        if self._commits.journal.durability == "fsync":
            sync_file_system(self._commits.journal.directory)
        self._commits.checkpoints.run()

    async def _try_all(self) -> bool:
        """Try every message, oldest first; return True if any was restored."""
        restored = False
        for move in sorted(self._left.values(), key=lambda move: move.message):
            try:
                self._restore(move)
            except OSError as error:
                self._log.error(("restore", error.errno), "%s cannot be restored yet: %s", move.message, error)
                continue  # a smaller message may fit
            restored = True
            await asyncio.sleep(0)
        return restored

    def _restore(self, move: JournaledMove) -> None:
        maildir = self._mailboxes.maildir(move.mailbox)
        was_dead = FAILED in maildir.whereabouts(move.message)
        restore(maildir, move, self._commits.journal.make_room)
        mailbox = self._mailboxes.get(move.mailbox)
        is_new = mailbox is None
        if mailbox is None:
            mailbox = self._mailboxes.load_mailbox(move.mailbox)  # it was removed meanwhile, or while the bus was down
        else:
            mailbox.restored(move.message)
            mailbox.dead += (FAILED in maildir.whereabouts(move.message)) - was_dead
        del self._left[move.key]
        if mailbox is not None:
            self._mark(mailbox)
            self._on_restored(mailbox, is_new)

    def _mark(self, mailbox: Mailbox) -> None:
        count = sum(hash == mailbox.hash for hash, _ in self._left)
        mailbox.degraded = f"the disk is full: {count} messages exist only in the journal" if count else None
