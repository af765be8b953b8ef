"""Commit transactions: each is durable, atomic, and settled exactly once.

`Commits.commit` returns once a transaction is as durable as the configuration promises:

- ``os``: carried out immediately, in the caller's own step. That costs tens of microseconds; waking a thread and being
  woken by it costs more than a hundred.
- ``fsync``: queued for one thread, which takes every queued transaction as one group: append all lines to the journal,
  one fdatasync, write the files, settle in order. The next group gathers meanwhile.

Rules:

1. A transaction's `settle` runs on the loop, once, in commit order, even if its caller was cancelled: the state in
   memory always follows the state on disk.
2. Minor notes (`note_gone`, `note_claimed`, `note_requeued`) wait for no sync: the next one covers them, and if no
   transaction follows, one is made within `SYNC_WITHIN_SECS`. A claim is journaled with that sync, or not at all if the
   message has ended by then.
3. After a failed fdatasync no transaction of the group counts (P2): its messages are struck from the journal, its
   mailboxes are notified, and the next group writes to a new segment.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from relay_core.clock import Clock
from relay_core.errors import Closed
from relay_core.journal.checkpoint import Checkpoints
from relay_core.journal.journal import Journal
from relay_core.journal.segment import done_line, transaction_line
from relay_core.journal.transaction import Transaction
from relay_core.limited_log import LimitedLog
from relay_core.storage.atomic_file import is_full
from relay_core.storage.maildir import Maildir

logger = logging.getLogger(__name__)

SYNC_WITHIN_SECS = 0.1
"""How long an acknowledged end or claim may wait for the sync that makes it survive a power loss."""
_SYNC_AGAIN_SECS = 10.0
_SETTLE_EVERY = 16


class Commits:
    """Carry out transactions with the configured durability."""

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.journal = journal
        self.checkpoints = Checkpoints(journal, loop)
        self._log = LimitedLog(logger, clock)
        self._loop = loop
        self._queue: SimpleQueue[Transaction | None] = SimpleQueue()
        self._settled: deque[Transaction] = deque()
        self._settling = False
        self._order = threading.Lock()
        """Held while lines are appended together with those of `_begun`."""
        self._begun: dict[tuple[str, str], None] = {}
        """Claimed messages whose claim is not journaled yet."""
        self._unsynced = False
        """Whether some appended lines are not synced yet."""
        self._syncs = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self.degraded: str | None = None
        """Why the last sync failed, until one succeeds."""

    def open(self) -> None:
        """Start the group-commit thread, if this durability needs one."""
        if self.journal.durability == "fsync":
            self._thread = threading.Thread(target=self._work, name="relay-commit")
            self._thread.start()

    async def close(self) -> None:
        """Commit the queued transactions, then checkpoint and close the journal."""
        self._closed = True
        self.checkpoints.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            if self._unsynced or self._begun:
                self._queue.put(Transaction("", ()))
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        self._settle_all()
        await asyncio.to_thread(self.checkpoints.close)

    async def commit(self, transaction: Transaction, *, atomic: bool = False) -> None:
        """Carry out a transaction. Check its `error` and `failures` afterwards.

        An `atomic` transaction that a kill interrupts is completed by the next start; with fsync all of them are.
        """
        if not self.commit_now(transaction, atomic=atomic):
            if self._closed:
                raise Closed("the bus is closed")
            transaction.waiter = self._loop.create_future()
            self._queue.put(transaction)
            try:
                await asyncio.shield(transaction.waiter)
            except asyncio.CancelledError:
                await transaction.waiter  # a few ms: a caller never leaves with its transaction half done
                raise

    def commit_now(self, transaction: Transaction, *, atomic: bool = False) -> bool:
        """Carry out and settle a transaction synchronously, if this durability allows; return True if it did."""
        if self._thread is not None or self._closed:
            return False
        try:
            if atomic or transaction.dedupe is not None:
                self.journal.append([transaction.line(sync=False)], hold=transaction.room_to_amend())
                transaction.carry_out(self.journal.make_room)
                ending = [done_line(transaction.message_id)]
                if transaction.failures and transaction.dedupe is not None:
                    ending.insert(0, transaction.amendment([], sync=False))
                self.journal.amend(ending)
                self.journal.release()
                if self.journal.full:
                    self.checkpoints.begin()
            else:
                transaction.carry_out(self.journal.make_room)
        except OSError as error:
            transaction.error = error
        transaction.settle()
        return True

    async def settled(self) -> None:
        """Return once every transaction committed before this call is settled."""
        if self._thread is not None:
            await self.commit(Transaction("", ()))

    def note_gone(self, mailbox: str, message_id: str) -> None:
        """Journal that a message has ended, before its file is removed.

        Raises:
            OSError: if the journal cannot be written; the file must stay then, or a restart restores it.
        """
        line = transaction_line(message_id, [("gone", mailbox, message_id, None)], sync=True)
        if self._thread is not None:
            with self._order:
                self.journal.append([line])
                self._begun.pop((mailbox, message_id), None)
                self._unsynced = True
            self._sync_soon()
        elif self.checkpoints.has_inherited or self.journal.owes:
            self.journal.append([line])  # else the next start would repeat the message's earlier ops

    def finish(self, mailbox: str, maildir: Maildir, message_id: str) -> None:
        """Journal that a claimed message has ended, and remove its file.

        Raises:
            OSError: if the journal cannot be written; the message stays claimed.
        """
        self.note_gone(mailbox, message_id)
        try:
            maildir.complete(message_id)
        except OSError as error:
            if self._thread is None:
                raise
            logger.error("%s is finished, but its file stays until the next start: %s", message_id, error)

    def note_claimed(self, mailbox: str, message_id: str) -> None:
        """Journal a claim with the next sync: the rename of the file alone does not survive a power loss."""
        if self._thread is not None:
            self._begun[mailbox, message_id] = None  # one step, so it need not wait for a group that is being appended
            self._sync_soon()

    def note_requeued(self, mailbox: str, message_id: str) -> None:
        """Journal that a claimed message is waiting again."""
        if self._thread is None:
            return
        with self._order:
            if (mailbox, message_id) in self._begun:
                del self._begun[mailbox, message_id]
                return
            line = transaction_line(message_id, [("back", mailbox, message_id, None)], sync=True)
            try:
                self.journal.append([line])
            except OSError:
                self.journal.amend([line])  # it may be late, but must precede the message's next line
            self._unsynced = True
        self._sync_soon()

    def _sync_soon(self, delay: float | None = None) -> None:
        """Schedule a sync of the appended lines, in case no transaction follows."""
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(delay or SYNC_WITHIN_SECS / 2, self._sync_if_none_has, self._syncs)

    def _sync_if_none_has(self, syncs: int) -> None:
        self._timer = None
        if not self._unsynced and not self._begun:
            return
        if syncs != self._syncs:
            self._sync_soon()  # a group was synced meanwhile: the remaining lines are younger than that
        elif not self._closed:
            self._queue.put(Transaction("", ()))

    @contextmanager
    def removing(self, mailbox: str, message_id: str) -> Iterator[None]:
        """Journal that a message has ended, and let the block remove its file.

        On a full disk the file is removed first: that is how an operator frees space. A kill in between may restore it.

        Raises:
            OSError: if the journal cannot be written for any other reason; the block does not run.
        """
        try:
            self.note_gone(mailbox, message_id)
        except OSError as error:
            if not is_full(error):
                raise
            yield
            try:
                self.note_gone(mailbox, message_id)  # removing the file has freed space
            except OSError:
                self.journal.amend([transaction_line(message_id, [("gone", mailbox, message_id, None)], sync=True)])
                if self._thread is not None:
                    self._unsynced = True
                    self._sync_soon()
        else:
            yield

    def _work(self) -> None:
        stopping = False
        while not stopping:
            group: list[Transaction] = []
            transaction = self._queue.get()
            while transaction is not None:
                group.append(transaction)
                if self._queue.empty():
                    break
                transaction = self._queue.get()
            stopping = transaction is None
            if group:
                self._commit_group(group)

    def _commit_group(self, group: list[Transaction]) -> None:
        try:
            self._append_group(group)
            try:
                self.journal.sync()
            except OSError as error:
                for transaction in group:
                    transaction.error = error
                self._strike(group)
                raise
        except OSError as error:
            self._log.error(("group", error.errno), "group commit of %d failed: %s", len(group), error)
            if not is_full(error):
                self.degraded = str(error)
            for transaction in group:
                transaction.error = error
            self.journal.release()
            self._settled.extend(group)
            self._settle_soon()
            if self._unsynced or self._begun:
                self._loop.call_soon_threadsafe(self._sync_soon, _SYNC_AGAIN_SECS)
            return
        self.degraded = None
        for position, transaction in enumerate(group, 1):
            transaction.carry_out(self.journal.make_room)
            if transaction.failures:
                self._strike([transaction])
            self._settled.append(transaction)
            if position % _SETTLE_EVERY == 0:
                self._settle_soon()
        self.journal.release()
        self._settle_soon()
        if self.journal.full:
            self.checkpoints.begin()

    def _append_group(self, group: list[Transaction]) -> None:
        lines = [transaction.line(sync=True) for transaction in group if transaction.moves]
        with self._order:
            begun = list(self._begun)
            if begun:
                ops = [("begun", mailbox, message_id, None) for mailbox, message_id in begun]
                lines.insert(0, transaction_line(begun[0][1], ops, sync=True))
            self.journal.append(lines, hold=sum(transaction.room_to_amend() for transaction in group))
            for key in begun:
                del self._begun[key]
            self._unsynced = False
            self._syncs += 1

    def _strike(self, group: list[Transaction]) -> None:
        """Amend the lines of failed transactions with the state on disk."""
        lines = [transaction.amendment(transaction.ops_on_disk(), sync=True) for transaction in group]
        self.journal.amend(lines)
        self._unsynced = True
        self._loop.call_soon_threadsafe(self._sync_soon)

    def _settle_soon(self) -> None:
        if not self._settling:
            self._settling = True
            self._loop.call_soon_threadsafe(self._settle_all)

    def _settle_all(self) -> None:
        self._settling = False
        while self._settled:
            transaction = self._settled.popleft()
            transaction.settle()
            if transaction.waiter is not None and not transaction.waiter.done():
                transaction.waiter.set_result(None)
