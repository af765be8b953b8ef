"""Changes to mailboxes: each one durable, whole, and settled exactly once.

A `Change` is a list of ops on messages (see journal.py) that belong together. `Commits.commit`
returns once it is as durable as the bus promises:

- ``os``: carried out at once, in the caller's own step. That costs tens of microseconds, where
  waking a thread and being woken by it costs more than a hundred.
- ``fsync``: handed to one thread, which takes everything that waits as one group: append all lines
  to the journal, one fdatasync, make the files, settle in order. While it works the next group gathers.

Rules:

1. A change's `settle` runs on the loop, once, in commit order, also if its caller was cancelled:
   what is in memory always follows what is on disk.
2. Ops are independent: one that fails is noted on the change and stops no other. Only a `gone` that
   comes last waits for them: what is to be replaced stays if nothing could take its place.
3. The line of a change whose ops failed is corrected before the caller is told: what a restart carries out and what a
   retry is told is what is on disk. Room for the correction is taken together with the change's own line.
4. What is said in passing (`note_gone`, `note_begun`, `note_back`) waits for no sync: the next one covers it, and
   where no change follows, one is made within `SYNC_WITHIN_SECS`. That a message is claimed is written with that
   sync, or not at all if the message has ended by then.
5. After a failed fdatasync nothing of the group counts (P2): its messages are struck from the
   journal, its mailboxes are told, and the next group writes to a new segment.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from relay_core.clock import Clock
from relay_core.errors import Closed
from relay_core.files import is_full
from relay_core.journal import Journal, done, transaction
from relay_core.limited_log import LimitedLog
from relay_core.maildir import CUR, FAILED, NEW, STATES, Maildir
from relay_core.own_files import Unreadable

logger = logging.getLogger(__name__)

SYNC_WITHIN_SECS = 0.1
"""How long an end or a claim that was answered may wait for the sync that makes it outlast a power loss."""
_SYNC_AGAIN_SECS = 10.0
_SETTLE_EVERY = 16
_TURNS_TO_WAKE = 8
_ANY_SIZE = 1 << 40
_ROOM_TO_AMEND = 512
_ROOM_PER_OP = 256


class Op:
    """One message's new place."""

    __slots__ = ("data", "kind", "mailbox", "maildir", "message_id")

    def __init__(self, kind: str, mailbox: str, maildir: Maildir, message_id: str, data: bytes = b"") -> None:
        self.kind = kind
        """``new``, ``again``, ``failed`` or ``gone``."""
        self.mailbox = mailbox
        self.maildir = maildir
        self.message_id = message_id
        self.data = data


class Change:
    """Ops that are committed together."""

    dedupe: str | None = None
    """The publish that this is the storing of, for a retry to find."""
    result: dict[str, Any] | None = None
    """What a retry is then told."""
    error: OSError | None = None
    """Why none of the ops counts."""
    failures: dict[int, OSError] | None = None
    """Position of an op → why it failed."""
    waiter: asyncio.Future[None] | None = None
    _on_settled: Callable[[Change], None] | None = None

    def __init__(self, message_id: str, ops: Sequence[Op], on_settled: Callable[[Change], None] | None = None) -> None:
        self.message_id = message_id
        self.ops = ops
        if on_settled is not None:
            self._on_settled = on_settled

    def settle(self) -> None:
        """Bring what is in memory in line with the disk."""
        if self._on_settled is not None:
            self._on_settled(self)

    def failure(self, position: int) -> OSError | None:
        """Return why an op does not count, if so."""
        return self.error or (self.failures.get(position) if self.failures else None)

    def amended_result(self) -> dict[str, Any] | None:
        """Return what a retry is told although some ops failed; None if a retry must be a new try."""
        return None


class Commits:
    """Carry out changes with the promised durability."""

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.journal = journal
        self._log = LimitedLog(logger, clock)
        self._loop = loop
        self._queue: SimpleQueue[Change | None] = SimpleQueue()
        self._settled: deque[Change] = deque()
        self._settling = False
        self._order = threading.Lock()
        """Held while lines are appended together with those of `_begun`."""
        self._begun: dict[tuple[str, str], None] = {}
        """Messages that were claimed, and of which the journal does not know it yet."""
        self._unsynced = False
        """Whether lines were appended that no sync has covered."""
        self._syncs = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._checkpoint: threading.Thread | None = None
        self._checkpointing = False
        self.before_drop: Callable[[], None] = lambda: None
        """Called, in a thread, before segments are dropped: waits for whoever else must know what they say."""
        self.inherits = False
        """Whether segments of an earlier process are in the journal: what ends must be said after them in any case."""
        self.degraded: str | None = None
        """Why the last sync failed, until one succeeds."""

    def open(self) -> None:
        """Start the group-commit thread, if this durability needs one."""
        if self.journal.durability == "fsync":
            self._thread = threading.Thread(target=self._work, name="relay-commit")
            self._thread.start()

    async def close(self) -> None:
        """Finish what is queued, then make the Maildir last and drop the journal."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            if self._unsynced or self._begun:
                self._queue.put(Change("", ()))
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        self._settle_all()
        await asyncio.to_thread(self._close_journal)

    def _close_journal(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.join()
        try:
            is_empty = self._rotate_if_there_is_room()
            self.before_drop()
            self.journal.checkpoint(closing=not is_empty)
        except OSError as error:
            logger.warning("journal kept for the next start: %s", error)
        self.journal.close()

    def _rotate_if_there_is_room(self) -> bool:
        try:
            self.journal.rotate()
        except OSError as error:
            if not is_full(error):
                raise
            return False
        return True

    async def commit(self, change: Change, *, atomic: bool = False) -> None:
        """Carry out a change. Look at its `error` and `failures` afterwards.

        `atomic` changes are completed by a restart if a kill cuts them short; with fsync all are.
        """
        if not self.commit_at_once(change, atomic=atomic):
            if self._closed:
                raise Closed("the bus is closed")
            change.waiter = self._loop.create_future()
            self._queue.put(change)
            try:
                await asyncio.shield(change.waiter)
            except asyncio.CancelledError:
                await change.waiter  # a few ms: a caller never leaves with its change half done
                raise

    def commit_at_once(self, change: Change, *, atomic: bool = False) -> bool:
        """Carry out and settle a change in this very step, if this durability allows; return whether it did."""
        if self._thread is not None or self._closed:
            return False
        try:
            if atomic or change.dedupe is not None:
                self.journal.append([_line(change, sync=False)], hold=_room(change))
                carry_out(change, self.journal.make_room)
                ending = [done(change.message_id)]
                if change.failures and change.dedupe is not None:
                    ending.insert(0, _amended(change, [], sync=False))
                self.journal.amend(ending)
                self.journal.release()
                if self.journal.full:
                    self._begin_checkpoint()
            else:
                carry_out(change, self.journal.make_room)
        except OSError as error:
            change.error = error
        change.settle()
        return True

    async def settled(self) -> None:
        """Return once every change that was handed in before is settled: none has files that memory does not know."""
        if self._thread is not None:
            await self.commit(Change("", ()))

    def note_gone(self, mailbox: str, message_id: str) -> None:
        """Say in the journal that a message is finished, before its file is removed.

        Raises:
            OSError: if the journal cannot be written; the file must stay then, or a restart brings it back.
        """
        line = transaction(message_id, [("gone", mailbox, message_id, None)], sync=True)
        if self._thread is not None:
            with self._order:
                self.journal.append([line])
                self._begun.pop((mailbox, message_id), None)
                self._unsynced = True
            self._sync_soon()
        elif self.inherits or self.journal.owes:
            self.journal.append([line])  # else the next start would carry out what the journal says of it

    def finish(self, mailbox: str, maildir: Maildir, message_id: str) -> None:
        """Write down that a claimed message is finished, and remove its file.

        Raises:
            OSError: if that cannot be written; the message stays claimed.
        """
        self.note_gone(mailbox, message_id)
        try:
            maildir.complete(message_id)
        except OSError as error:
            if self._thread is None:
                raise
            logger.error("%s is finished, but its file stays until the next start: %s", message_id, error)

    def note_begun(self, mailbox: str, message_id: str) -> None:
        """Have the journal say that a message was claimed: the move of its file does not outlast a power loss."""
        if self._thread is not None:
            self._begun[mailbox, message_id] = None  # one step, so it need not wait for a group that is being appended
            self._sync_soon()

    def note_back(self, mailbox: str, message_id: str) -> None:
        """Have the journal say that a claimed message waits again."""
        if self._thread is None:
            return
        with self._order:
            if (mailbox, message_id) in self._begun:
                del self._begun[mailbox, message_id]
                return
            line = transaction(message_id, [("back", mailbox, message_id, None)], sync=True)
            try:
                self.journal.append([line])
            except OSError:
                self.journal.amend([line])  # it need not be there yet, but before what is said of the message next
            self._unsynced = True
        self._sync_soon()

    def _sync_soon(self, delay: float | None = None) -> None:
        """See to it that what was appended lasts, though no change may follow."""
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(delay or SYNC_WITHIN_SECS / 2, self._sync_if_none_has, self._syncs)

    def _sync_if_none_has(self, syncs: int) -> None:
        self._timer = None
        if not self._unsynced and not self._begun:
            return
        if syncs != self._syncs:
            self._sync_soon()  # a group was synced meanwhile, and what is left is younger than that
        elif not self._closed:
            self._queue.put(Change("", ()))

    @contextmanager
    def noting_gone(self, mailbox: str, message_id: str) -> Iterator[None]:
        """Say in the journal that a message is finished, and let the block remove its file.

        On a full disk the file goes first: that is how an operator makes room. A kill in between may bring it back.

        Raises:
            OSError: if the journal cannot be written for any other reason; the block does not run then.
        """
        try:
            self.note_gone(mailbox, message_id)
        except OSError as error:
            if not is_full(error):
                raise
            yield
            try:
                self.note_gone(mailbox, message_id)  # its file has made room
            except OSError:
                self.journal.amend([transaction(message_id, [("gone", mailbox, message_id, None)], sync=True)])
                if self._thread is not None:
                    self._unsynced = True
                    self._sync_soon()
        else:
            yield

    def _work(self) -> None:
        stopping = False
        while not stopping:
            group: list[Change] = []
            change = self._queue.get()
            while change is not None:
                group.append(change)
                if self._queue.empty():
                    break
                change = self._queue.get()
            stopping = change is None
            if group:
                self._commit_group(group)

    def _commit_group(self, group: list[Change]) -> None:
        try:
            self._append_group(group)
            try:
                self.journal.sync()
            except OSError as error:
                for change in group:
                    change.error = error
                self._strike(group)
                raise
        except OSError as error:
            self._log.error(("group", error.errno), "group commit of %d failed: %s", len(group), error)
            if not is_full(error):
                self.degraded = str(error)
            for change in group:
                change.error = error
            self.journal.release()
            self._settled.extend(group)
            self._settle_soon()
            if self._unsynced or self._begun:
                self._loop.call_soon_threadsafe(self._sync_soon, _SYNC_AGAIN_SECS)
            return
        self.degraded = None
        for position, change in enumerate(group, 1):
            carry_out(change, self.journal.make_room)
            if change.failures:
                self._strike([change])
            self._settled.append(change)
            if position % _SETTLE_EVERY == 0:
                self._settle_soon()
        self.journal.release()
        self._settle_soon()
        if self.journal.full:
            self._begin_checkpoint()

    def _append_group(self, group: list[Change]) -> None:
        lines = [_line(change, sync=True) for change in group if change.ops]
        with self._order:
            begun = list(self._begun)
            if begun:
                ops = [("begun", mailbox, message_id, None) for mailbox, message_id in begun]
                lines.insert(0, transaction(begun[0][1], ops, sync=True))
            self.journal.append(lines, hold=sum(map(_room, group)))
            for key in begun:
                del self._begun[key]
            self._unsynced = False
            self._syncs += 1

    def _strike(self, group: list[Change]) -> None:
        """Say in the journal what holds instead of ops that failed: what is on disk."""
        lines = []
        for change in group:
            failed = [op for at, op in enumerate(change.ops) if change.failure(at)]
            lines.append(_amended(change, [line for op in failed for line in _as_it_is(op)], sync=True))
        self.journal.amend(lines)
        self._unsynced = True
        self._loop.call_soon_threadsafe(self._sync_soon)

    def _begin_checkpoint(self) -> None:
        if self._checkpointing:
            return  # one at a time: the segment just grows meanwhile
        try:
            self.journal.rotate()
        except OSError as error:
            logger.warning("journal: cannot begin a new segment: %s", error)
            return
        self._checkpointing = True
        self._loop.call_soon_threadsafe(self._start_checkpoint, _TURNS_TO_WAKE)

    def _start_checkpoint(self, turns: int) -> None:
        """Start once everybody who waited for the segment's last changes has written down what came of them.

        A waiter needs a few turns of the loop to wake up; what it writes down then it does in one step.
        """
        if turns:
            self._loop.call_soon(self._start_checkpoint, turns - 1)
        elif not self._closed:
            self._checkpoint = threading.Thread(target=self._run_checkpoint, name="relay-checkpoint")
            self._checkpoint.start()

    def checkpoint(self) -> None:
        """Set the journal's closed segments aside. Blocks.

        Raises:
            OSError: if the Maildir or the index does not have everything they say; they stay.
        """
        self.before_drop()
        self.journal.checkpoint()
        self.inherits = False

    def _run_checkpoint(self) -> None:
        try:
            self.checkpoint()
        except OSError as error:
            logger.error("journal checkpoint failed, segments kept: %s", error)
        finally:
            self._checkpointing = False

    def _settle_soon(self) -> None:
        if not self._settling:
            self._settling = True
            self._loop.call_soon_threadsafe(self._settle_all)

    def _settle_all(self) -> None:
        self._settling = False
        while self._settled:
            change = self._settled.popleft()
            change.settle()
            if change.waiter is not None and not change.waiter.done():
                change.waiter.set_result(None)


def carry_out(change: Change, make_room: Callable[[], bool] = lambda: False) -> None:
    """Carry out a change's ops, noting those that fail; on a full disk each is tried again while room can be made."""
    for position, op in enumerate(change.ops):
        while True:
            try:
                if op.kind == "new":
                    op.maildir.write(op.message_id, op.data)
                elif op.kind == "gone" and change.failures and len(change.failures) == position:
                    change.failures[position] = change.failures[0]
                else:
                    _carry_out_rare(op)
            except OSError as error:
                if is_full(error) and make_room():
                    continue
                change.failures = change.failures or {}
                change.failures[position] = error
            break


def _carry_out_rare(op: Op) -> None:
    if op.kind == "again":
        op.maildir.write(op.message_id, op.data)
        op.maildir.remove(FAILED, op.message_id)
    elif op.kind == "failed":
        op.maildir.park(op.message_id, op.data)
    elif op.kind == "gone":
        for state in STATES:
            op.maildir.remove(state, op.message_id)
    else:
        raise ValueError(op.kind)


def _as_it_is(op: Op) -> list[tuple[str, str, str, bytes | None]]:
    """Return the ops that leave a message where it is."""
    for state, kind in ((FAILED, "failed"), (CUR, "new"), (NEW, "new")):
        try:
            data = op.maildir.read(state, op.message_id, limit=_ANY_SIZE)
        except (OSError, Unreadable):
            continue
        kept: list[tuple[str, str, str, bytes | None]] = [(kind, op.mailbox, op.message_id, data)]
        return [*kept, ("begun", op.mailbox, op.message_id, None)] if state == CUR else kept
    return [("gone", op.mailbox, op.message_id, None)]


def _line(change: Change, *, sync: bool) -> bytes:
    ops = [(op.kind, op.mailbox, op.message_id, op.data or None) for op in change.ops]
    return transaction(change.message_id, ops, sync=sync, dedupe=change.dedupe, result=change.result)


def _amended(change: Change, ops: list[tuple[str, str, str, bytes | None]], *, sync: bool) -> bytes:
    """Return the line that corrects the one of a change whose ops failed, all or some."""
    return transaction(change.message_id, ops, sync=sync, dedupe=change.dedupe, result=change.amended_result())


def _room(change: Change) -> int:
    """Return what the lines that may have to follow a change's own need at most: `_amended`, and ``done``."""
    room = _ROOM_TO_AMEND + 6 * len(change.dedupe or "")
    for op in change.ops:
        room += _ROOM_PER_OP + (len(op.data) if op.kind != "new" else 0)  # it may have to say what lies there
    return room
