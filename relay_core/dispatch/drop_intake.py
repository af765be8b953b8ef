"""Take in the files that other processes drop into mailboxes (storage/dropped_files.py reports them)."""

from __future__ import annotations

import asyncio

from relay_core.dispatch.dead_lettering import DeadLetterWriter
from relay_core.dispatch.dispatcher import Dispatch
from relay_core.journal.commit import Commits
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.mailboxes import Mailboxes
from relay_core.tasks import Tasks


class DropIntake:
    """Add dropped files to their mailboxes, or quarantine them."""

    def __init__(
        self,
        mailboxes: Mailboxes,
        commits: Commits,
        dead_letter_writer: DeadLetterWriter,
        dispatch: Dispatch,
        tasks: Tasks,
        background: Tasks,
    ) -> None:
        self._mailboxes = mailboxes
        self._commits = commits
        self._dead_letter_writer = dead_letter_writer
        self._dispatch = dispatch
        self._tasks = tasks
        self._background = background

    def dropped(self, hash: str, name: str) -> None:
        """Take in one file, by the hash of its mailbox and its name."""
        mailbox = self._mailboxes.get(hash)
        if mailbox is not None and not mailbox.has(name.removesuffix(".json")):
            self._tasks.start(self._take(mailbox, [name]), name="drop")

    def rescan(self) -> None:
        """Search every mailbox for files that were not reported."""
        self._background.start(self._rescan(), name="rescan")

    async def _rescan(self) -> None:
        for mailbox in self._mailboxes:
            await self._take(mailbox, await asyncio.to_thread(mailbox.undiscovered))

    async def _take(self, mailbox: Mailbox, names: list[str]) -> None:
        if names and mailbox.reserved:
            await self._commits.settled()  # a file may be our own, stored but not counted yet
        for bad in mailbox.discover(names):
            await self._dead_letter_writer.quarantine(mailbox, bad)
        if mailbox.is_handled:
            self._dispatch.wake(mailbox)
