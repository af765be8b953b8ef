"""Recovery: bring the Maildir in line with the journal that the last process left.

1. The last op of each message decides. With fsync: if the Maildir disagrees (power was lost before its files were
   written back), it is completed from the journal. A claimed message is moved to ``cur/`` if that move was lost.
2. With os: a transaction without its ``done`` was interrupted by a kill before any consumer could see it; its ops are
   carried out, each at most once. For a transaction with ``done`` the files are the truth.
3. A message both in ``cur/`` and ``failed/`` was being dead-lettered: the record in ``failed/`` wins.
4. Every other message in ``cur/`` may have been handled: the caller dead-letters it as `interrupted`.
5. A message for which the disk has no space exists only in the journal, hidden from consumers, until
   `DeferredRecovery` finds space. One that is to be a dead letter waits for that in ``cur/``.

Carrying out an op twice changes nothing, so a crash during recovery is repaired by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from relay_core.journal.journal import sync_file_system
from relay_core.journal.segment import read_segment, segments
from relay_core.storage.atomic_file import is_full
from relay_core.storage.maildir import ANY_SIZE, CUR, FAILED, NEW, STATES, Maildir
from relay_core.storage.trusted_file import UntrustedFile

logger = logging.getLogger(__name__)

_NOT_WHOLE = object()
_FOREIGN = object()
"""A file of another user: not ours to repair."""


@dataclass(frozen=True, slots=True)
class JournaledMove:
    """The last move of a message in the journal."""

    op: str
    mailbox: str
    message: str
    data: Any
    transaction: str | None
    """The transaction without "sync" that it belongs to, if any."""

    @property
    def key(self) -> tuple[str, str]:
        """Return the mailbox and the message id."""
        return self.mailbox, self.message


@dataclass(slots=True)
class Recovered:
    """The outcome of a recovery."""

    completed: list[str] = field(default_factory=list)
    """Transactions without "sync" that a kill had interrupted, and that are carried out now."""
    unfinished: list[JournaledMove] = field(default_factory=list)
    """Moves for which the disk had no space: the segments must stay until there is some."""


class _LastMoves:
    """The last move of each message."""

    def __init__(self) -> None:
        self.moves: dict[tuple[str, str], JournaledMove] = {}
        self.begun: set[tuple[str, str]] = set()
        self.pending: dict[str, list[tuple[str, str]]] = {}
        """The messages of transactions without "sync" that are not done."""

    def add(self, record: dict[str, Any]) -> None:
        """Add one record, in the journal's order."""
        if "done" in record:
            self._end(record["done"])
            return
        transaction = None if record.get("sync") else record["id"]
        if transaction is not None:
            self._end(transaction)  # this record amends it
            self.pending[transaction] = [(mailbox, message) for _, mailbox, message, *_ in record["ops"]]
        for op, mailbox, message, *data in record["ops"]:
            key = mailbox, message
            if op == "begun":
                self.begun.add(key)
                continue
            self.begun.discard(key)
            if op != "back":
                self.moves[key] = JournaledMove(op, mailbox, message, data[0] if data else None, transaction)

    def _end(self, transaction: str) -> None:
        """Drop the moves of a transaction, except those of messages with a later move."""
        for key in self.pending.pop(transaction, []):
            move = self.moves.get(key)
            if move is not None and move.transaction == transaction:
                del self.moves[key]


def recover(
    directory: Path,
    maildir: Callable[[str], Maildir],
    note: Callable[[dict[str, Any]], None] = lambda record: None,
    make_room: Callable[[], bool] = lambda: False,
) -> Recovered:
    """Bring the Maildir in line with the journal's segments in a directory, and make it durable.

    `note` is called with every record. The caller journals `completed` as done, so that those transactions are not
    carried out again, and checkpoints the segments.
    """
    recovered = Recovered()
    last = _LastMoves()
    synced = False
    for sequence, path in segments(directory):
        for record in read_segment(sequence, path):
            note(record)
            last.add(record)
            synced = synced or record.get("sync", False)
    for move in last.moves.values():
        try:
            restore(maildir(move.mailbox), move, make_room)
        except OSError as error:
            if not is_full(error):
                raise
            recovered.unfinished.append(move)
            if move.op == "failed":
                _claim(maildir(move.mailbox), move.message)  # it must not be delivered meanwhile
    for mailbox, message in last.begun:
        _claim(maildir(mailbox), message)
    unfinished = {move.transaction for move in recovered.unfinished}
    recovered.completed = [transaction for transaction in last.pending if transaction not in unfinished]
    if synced:
        sync_file_system(directory)
    return recovered


def _claim(box: Maildir, message: str) -> None:
    """Move a message to cur/ if it is only in new/; if the disk has no space even for that, it stays."""
    try:
        if box.whereabouts(message) == {NEW}:
            box.claim(message)
    except OSError as error:
        if not is_full(error):
            raise
        logger.error("%s: the disk is full, and %s is delivered although it was claimed before", box.path, message)


def restore(box: Maildir, move: JournaledMove, make_room: Callable[[], bool]) -> None:
    """Bring one message in line with the journal.

    Raises:
        OSError: if a file cannot be written even after all possible space was freed.
    """
    while True:
        try:
            return _restore(box, move.op, move.message, move.data)
        except OSError as error:
            if not is_full(error) or not make_room():
                raise


def _restore(box: Maildir, op: str, message: str, data: Any) -> None:
    found = {state: content for state in STATES if (content := _content(box, state, message)) is not _NOT_WHOLE}
    if op in ("new", "again"):
        if op == "again" and found.keys() & {NEW, CUR}:
            box.remove(FAILED, message)
        elif not found or (op == "again" and found.keys() == {FAILED}):
            _clear(box, message)
            box.create(sync=False)  # the whole file system is synced at the end
            box.write(message, orjson.dumps(data))
            return
        if found.get(NEW, _FOREIGN) not in (data, _FOREIGN):  # the version before it failed and was replayed
            box.remove(NEW, message)
            box.write(message, orjson.dumps(data))
    elif op == "failed":
        if found.get(FAILED, _NOT_WHOLE) not in (data, _FOREIGN):
            box.create(sync=False)  # the whole file system is synced at the end
            box.write_failed(message, orjson.dumps(data))
        box.remove(NEW, message)
        box.remove(CUR, message)
    elif op == "gone":
        _clear(box, message)


def _clear(box: Maildir, message: str) -> None:
    for state in STATES:
        box.remove(state, message)


def _content(box: Maildir, state: str, message: str) -> Any:
    """Return the decoded content of a complete file: power loss leaves empty or zeroed ones."""
    try:
        return orjson.loads(box.read(state, message, limit=ANY_SIZE))
    except UntrustedFile:
        return _FOREIGN
    except (FileNotFoundError, ValueError):
        return _NOT_WHOLE
