"""Commit transactions: each is durable, atomic, and settled exactly once.

`Commits.commit` returns once a transaction is as durable as the configuration promises:

- ``os``: appended to the journal immediately, in the caller's own step, or at the end of its `batch`. That costs tens
  of microseconds; waking a thread and being woken by it costs more than a hundred.
- ``fsync``: the transactions of one turn of the loop are a group: append all records to the journal, one fdatasync,
  settle in order. While the disk is quick (`QUICK_SECS`), the loop does this itself: handing a group to a thread and
  back takes as long as the sync, and the interpreter is shared. Otherwise a thread takes every queued group as one,
  and the next one gathers meanwhile.

Rules:

1. A transaction's `settle` runs on the loop, once, in commit order, even if its caller was cancelled: the state in
   memory always follows the journal.
2. Claims and ends (`note_claimed`, `note_requeued`, `finish`; those of one turn of the loop together, `note_turn`) are
   appended immediately and wait for no sync: the next one covers them, and if no transaction follows, one is made
   within `SYNC_WITHIN_SECS`. A claim is appended before the handler runs: after a kill it is known which messages were
   begun.
3. After a failed fdatasync no transaction of the group counts (P2): its messages are struck from the journal, its
   mailboxes are notified, and the next group writes to a new segment. Claims and ends that were not synced are repeated
   there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeAlias

from relay_core.clock import Clock
from relay_core.errors import Closed
from relay_core.journal.checkpoint import Checkpoints
from relay_core.journal.file_writer import FileWriter
from relay_core.journal.journal import Journal
from relay_core.journal.segment import encode_op
from relay_core.journal.transaction import Transaction
from relay_core.limited_log import LimitedLog
from relay_core.storage.atomic_file import is_full
from relay_core.storage.maildir import Maildir

logger = logging.getLogger(__name__)

MessageKey: TypeAlias = tuple[str, str]
"""A mailbox and the id of one of its messages."""

SYNC_WITHIN_SECS = 0.1
"""How long an acknowledged end or claim may wait for the sync that makes it survive a power loss."""
QUICK_SECS = 0.001
"""A sync that takes no longer may block the loop."""
QUICK_SYNCS = 16
"""The thread syncs until this many in a row were quick: a busy disk is quick now and then."""
QUICK_BYTES = 256 * 1024
"""A larger group is the thread's in any case."""
_SYNC_AGAIN_SECS = 10.0


class Commits:
    """Carry out transactions with the configured durability."""

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.journal = journal
        self.files = FileWriter(journal.make_room, clock)
        self.checkpoints = Checkpoints(journal, loop, clock)
        self._log = LimitedLog(logger, clock)
        self._loop = loop
        self._clock = clock
        self._submitted: list[Transaction] = []
        self._batch = PublishBatch()
        self._in_thread = 0
        """Groups that the thread has and that are not settled."""
        self._quick_syncs = 0
        """How many syncs in a row were quick."""
        self._queue: SimpleQueue[list[Transaction] | None] = SimpleQueue()
        self._settled: deque[Transaction] = deque()
        self._order = threading.Lock()
        """Held while lines are appended together with `_unsynced`."""
        self._unsynced: list[bytes] = []
        """Claims and ends that are appended and not synced yet."""
        self._syncs = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self.degraded: str | None = None
        """Why the last sync failed, until one succeeds."""
        self.on_settled: Callable[[], None] = lambda: None
        """Called after transactions were settled together."""

    def open(self) -> None:
        """Start the threads that this durability needs."""
        self.files.open()
        if self.journal.durability == "fsync":
            self._thread = threading.Thread(target=self._work, name="relay-commit")
            self._thread.start()

    async def close(self) -> None:
        """Commit the queued transactions and write all files, then checkpoint and close the journal."""
        self._closed = True
        self.checkpoints.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is None:
            self._send()
        else:
            self._queue_group(self._submitted)
            self._submitted = []
            if self._unsynced:
                self._queue_group([])
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        self._settle_all()
        await asyncio.to_thread(self._close_files)

    def _close_files(self) -> None:
        try:
            self.files.close()
        except OSError as error:
            logger.error("journal kept for the next start: %s", error)
            self.journal.close()
        else:
            self.checkpoints.close()

    async def commit(self, transaction: Transaction) -> None:
        """Carry out a transaction. Check its `error` and `failures` afterwards."""
        if self.commit_now(transaction):
            return
        done: asyncio.Future[None] = self._loop.create_future()
        transaction.on_done = lambda: done.set_result(None)
        self.submit(transaction)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            await done  # a few ms: a caller never leaves with its transaction half done
            raise

    def submit(self, transaction: Transaction) -> None:
        """Commit a transaction together with the others of this turn of the loop.

        Raises:
            Closed: if the bus is closed.
        """
        if self._closed:
            raise Closed("the bus is closed")
        if not self._submitted:
            self._loop.call_soon(self._send)
        self._submitted.append(transaction)

    def commit_now(self, transaction: Transaction) -> bool:
        """Carry out and settle a transaction synchronously, if this durability allows; return True if it did."""
        if self._thread is not None or self._closed or self._batch.is_open:
            return False
        self._send()  # in order
        self._commit_batch([transaction])
        return True

    def batch(self) -> PublishBatch:
        """Return a context manager in which publishes are gathered: they share one append."""
        return self._batch

    def _send(self) -> None:
        submitted, self._submitted = self._submitted, []
        if not submitted:
            return
        if self._thread is None:
            self._commit_batch(submitted)
            self.on_settled()
        elif self._may_sync_here(submitted):
            self._commit_group(submitted)
            self._settle_all()
            if self.journal.full:
                self._queue_group([])  # a checkpoint begins in the thread
        else:
            self._queue_group(submitted)

    def _may_sync_here(self, group: list[Transaction]) -> bool:
        """Return True if the loop may commit a group: the thread has nothing to do, and nothing will take long."""
        if self._quick_syncs < QUICK_SYNCS or self._in_thread or self.journal.full or self.files.is_full:
            return False
        size = 0
        for transaction in group:
            size += transaction.size
        return size <= QUICK_BYTES

    def _queue_group(self, group: list[Transaction]) -> None:
        self._in_thread += 1
        self._queue.put(group)

    def _commit_batch(self, batch: list[Transaction]) -> None:
        """Carry out and settle transactions on the loop."""
        try:
            if self.files.is_full:
                self.files.make_some()
            room = 0
            for transaction in batch:
                room += transaction.room_to_amend()
            self.journal.append([transaction.record() for transaction in batch], hold=room)
            for transaction in batch:
                transaction.carry_out(self.files)
                if transaction.failures:
                    self.journal.amend([transaction.amendment()])
            self.journal.release()
            if self.journal.full:
                self.checkpoints.begin()
        except OSError as error:
            for transaction in batch:
                transaction.error = error
        for transaction in batch:
            transaction.finish()

    async def settled(self) -> None:
        """Return once every transaction committed before this call is settled."""
        if self._thread is None:
            self._send()
        else:
            await self.commit(Transaction("", ()))

    def note_claimed(self, mailbox: str, message_id: str) -> None:
        """Journal that the handling of a message begins.

        Raises:
            OSError: if the journal cannot be written; the message must not be handled then.
        """
        self._note([encode_op("begun", mailbox, message_id)])

    def note_turn(self, ended: Iterable[MessageKey], begun: Iterable[MessageKey]) -> None:
        """Journal that messages have ended, and that the handling of others begins.

        Raises:
            OSError: if the journal cannot be written; none of it counts.
        """
        lines = [encode_op("gone", mailbox, message_id) for mailbox, message_id in ended]
        lines += [encode_op("begun", mailbox, message_id) for mailbox, message_id in begun]
        if lines:
            self._note(lines)

    def note_requeued(self, mailbox: str, message_id: str) -> None:
        """Journal that a claimed message is waiting again."""
        line = encode_op("back", mailbox, message_id)
        try:
            self._note([line])
        except OSError:
            self._amend(line)  # it may be late, but must precede the message's next line

    def note_gone(self, mailbox: str, message_id: str) -> None:
        """Journal that a message has ended, before its file is removed.

        Raises:
            OSError: if the journal cannot be written; the file must stay then, or a restart restores it.
        """
        self._note([encode_op("gone", mailbox, message_id)])

    def finish(self, mailbox: str, maildir: Maildir, message_id: str) -> None:
        """Journal that a claimed message has ended, and remove its file.

        Raises:
            OSError: if the journal cannot be written; the message stays claimed.
        """
        self.note_gone(mailbox, message_id)
        self.remove_file(maildir, message_id)

    @staticmethod
    def remove_file(maildir: Maildir, message_id: str) -> None:
        """Remove the file of a claimed message whose end is journaled."""
        try:
            maildir.complete(message_id)
        except OSError as error:
            logger.error("%s is finished, but its file stays until the next start: %s", message_id, error)

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
                self._amend(encode_op("gone", mailbox, message_id))
        else:
            yield

    def _note(self, lines: list[bytes]) -> None:
        if self._thread is None:
            self.journal.append(lines)
            return
        with self._order:
            self.journal.append(lines)
            self._unsynced += lines
        self._sync_soon()

    def _amend(self, line: bytes) -> None:
        with self._order:
            self.journal.amend([line])
            if self._thread is not None:
                self._unsynced.append(line)
                self._sync_soon()

    def _sync_soon(self, delay: float | None = None) -> None:
        """Schedule a sync of the appended lines, in case no transaction follows."""
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(delay or SYNC_WITHIN_SECS / 2, self._sync_if_none_has, self._syncs)

    def _sync_if_none_has(self, syncs: int) -> None:
        self._timer = None
        if not self._unsynced:
            return
        if syncs != self._syncs:
            self._sync_soon()  # a group was synced meanwhile: the remaining lines are younger than that
        elif not self._closed:
            self._queue_group([])

    def _work(self) -> None:
        stopping = False
        while not stopping:
            group: list[Transaction] = []
            taken = 0
            submitted = self._queue.get()
            while submitted is not None:
                group += submitted
                taken += 1
                if self._queue.empty():
                    break
                submitted = self._queue.get()
            stopping = submitted is None
            if taken:
                self._commit_group(group)
                # Asked before the loop may commit again: it must not find another segment between append and sync.
                is_full = self.journal.full
                self._loop.call_soon_threadsafe(self._settle_groups, taken)
                # After the settling, for which a checkpoint counts turns of the loop.
                if is_full and not self.checkpoints.begin():
                    with self._order:
                        self.journal.amend(self._unsynced)  # again, in the new segment

    def _commit_group(self, group: list[Transaction]) -> None:
        """Append transactions and earlier lines, sync them, and leave them to be settled."""
        unsynced: list[bytes] = []
        try:
            if self.files.is_full:
                self.files.wait_for_room()
            unsynced = self._append_group(group)
            started = self._clock.monotonic()
            try:
                self.journal.sync()
            except OSError as error:
                for transaction in group:
                    transaction.error = error
                unsynced += [transaction.amendment() for transaction in group if transaction.moves]
                self.journal.amend(unsynced)
                raise
            finally:
                is_quick = self._clock.monotonic() - started <= QUICK_SECS
                self._quick_syncs = self._quick_syncs + 1 if is_quick else 0
        except OSError as error:
            self._fail_group(group, error, unsynced)
            return
        self.degraded = None
        for transaction in group:
            transaction.carry_out(self.files)
            if transaction.failures:
                self.journal.amend([line := transaction.amendment()])
                with self._order:
                    self._unsynced.append(line)
                self._loop.call_soon_threadsafe(self._sync_soon)
        self._settled.extend(group)
        self.journal.release()

    def _append_group(self, group: list[Transaction]) -> list[bytes]:
        """Append the records of a group; return the earlier lines that the same sync covers."""
        records = [transaction.record() for transaction in group if transaction.moves]
        with self._order:
            self.journal.append(records, hold=sum(transaction.room_to_amend() for transaction in group))
            unsynced, self._unsynced = self._unsynced, []
            self._syncs += 1
        return unsynced

    def _fail_group(self, group: list[Transaction], error: OSError, unsynced: list[bytes]) -> None:
        self._log.error(("group", error.errno), "group commit of %d failed: %s", len(group), error)
        if not is_full(error):
            self.degraded = str(error)
        for transaction in group:
            transaction.error = error
        with self._order:
            self._unsynced = unsynced + self._unsynced
        self.journal.release()
        self._settled.extend(group)
        if self._unsynced:
            self._loop.call_soon_threadsafe(self._sync_soon, _SYNC_AGAIN_SECS)

    def _settle_groups(self, count: int) -> None:
        self._in_thread -= count
        self._settle_all()

    def _settle_all(self) -> None:
        while self._settled:
            self._settled.popleft().finish()
        self.on_settled()


class PublishBatch:
    """A context manager in which transactions are submitted and not committed at once."""

    def __init__(self) -> None:
        self.is_open = False

    def __enter__(self) -> None:
        self.is_open = True

    def __exit__(self, *_: object) -> None:
        self.is_open = False
