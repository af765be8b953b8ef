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
3. After a failed fdatasync nothing of the group counts (P2): its messages are struck from the
   journal, its mailboxes are told, and the next group writes to a new segment.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from relay_core.errors import Closed
from relay_core.files import is_full
from relay_core.journal import Journal, done, transaction
from relay_core.maildir import CUR, FAILED, NEW, STATES, Maildir
from relay_core.own_files import Unreadable

logger = logging.getLogger(__name__)

_SETTLE_EVERY = 16
_TURNS_TO_WAKE = 8
_ANY_SIZE = 1 << 40


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


class Commits:
    """Carry out changes with the promised durability."""

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop) -> None:
        self.journal = journal
        self._loop = loop
        self._queue: SimpleQueue[Change | None] = SimpleQueue()
        self._settled: deque[Change] = deque()
        self._settling = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._checkpoint: threading.Thread | None = None
        self._checkpointing = False
        self.before_drop: Callable[[], None] = lambda: None
        """Called, in a thread, before segments are dropped: waits for whoever else must know what they say."""
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
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        self._settle_all()
        await asyncio.to_thread(self._close_journal)

    def _close_journal(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.join()
        try:
            self.before_drop()
            if self.journal.durability == "fsync":
                self.journal.rotate()
                self.journal.checkpoint()
        except OSError as error:
            logger.warning("journal kept for the next start: %s", error)
        self.journal.close()

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
                self.journal.append([_line(change, sync=False)])
                carry_out(change)
                self.journal.append([done(change.message_id)], room=0)
                if self.journal.full:
                    self._begin_checkpoint()
            else:
                carry_out(change)
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
        if self._thread is not None:
            self.journal.append([transaction(message_id, [("gone", mailbox, message_id, None)], sync=True)])

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
            self.journal.append([_line(change, sync=True) for change in group])
            try:
                self.journal.sync()
            except OSError:
                self._strike(group, lambda _: True)
                raise
        except OSError as error:
            logger.error("group commit of %d failed: %s", len(group), error)
            if not is_full(error):
                self.degraded = str(error)
            for change in group:
                change.error = error
            self._settled.extend(group)
            self._settle_soon()
            return
        self.degraded = None
        for position, change in enumerate(group, 1):
            carry_out(change)
            if change.failures:
                self._strike([change], change.failures.__contains__)
            self._settled.append(change)
            if position % _SETTLE_EVERY == 0:
                self._settle_soon()
        self._settle_soon()
        if self.journal.full:
            self._begin_checkpoint()

    def _strike(self, group: list[Change], concerns: Callable[[int], bool]) -> None:
        """Say in the journal what holds instead of ops that nobody was told about: what is on disk."""
        lines = []
        for change in group:
            ops = [_as_it_is(op) for position, op in enumerate(change.ops) if concerns(position)]
            dedupe = change.dedupe if len(ops) == len(change.ops) else None
            lines.append(transaction(change.message_id, ops, sync=True, dedupe=dedupe))
        try:
            self.journal.append(lines)
        except OSError as error:
            logger.error("journal: cannot strike a failed group: %s", error)

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

    def _run_checkpoint(self) -> None:
        try:
            self.before_drop()
            self.journal.checkpoint()
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


def carry_out(change: Change) -> None:
    """Carry out a change's ops, noting those that fail."""
    for position, op in enumerate(change.ops):
        try:
            if op.kind == "new":
                op.maildir.write(op.message_id, op.data)
            elif op.kind == "gone" and change.failures and len(change.failures) == position:
                raise change.failures[0]
            else:
                _carry_out_rare(op)
        except OSError as error:
            change.failures = change.failures or {}
            change.failures[position] = error


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


def _as_it_is(op: Op) -> tuple[str, str, str, bytes | None]:
    """Return the op that leaves a message where it is."""
    for state, kind in ((FAILED, "failed"), (CUR, "new"), (NEW, "new")):
        try:
            return kind, op.mailbox, op.message_id, op.maildir.read(state, op.message_id, limit=_ANY_SIZE)
        except (OSError, Unreadable):
            continue
    return "gone", op.mailbox, op.message_id, None


def _line(change: Change, *, sync: bool) -> bytes:
    ops = [(op.kind, op.mailbox, op.message_id, op.data or None) for op in change.ops]
    return transaction(change.message_id, ops, sync=sync, dedupe=change.dedupe, result=change.result)
