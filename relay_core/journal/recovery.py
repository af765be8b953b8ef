"""Recovery: bring the Maildir in line with the journal that the last process left.

1. The last op of each message decides. If the Maildir disagrees (the file was not made yet, or power was lost before it
   was written back), it is completed from the journal. A message that was begun is moved to ``cur/``.
2. A message both in ``cur/`` and ``failed/`` was being dead-lettered: the record in ``failed/`` wins.
3. Every other message in ``cur/`` may have been handled: the caller dead-letters it as `interrupted`.
4. A message for which the disk has no space is `unfinished`: the caller holds it in memory, where consumers get it in
   its order. One that is to be a dead letter waits in ``cur/`` until `DeferredRecovery` finds space.

Carrying out an op twice changes nothing, so a crash during recovery is repaired by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from relay_core.journal.journal import sync_file_system
from relay_core.journal.segment import read_ops, read_segment, segments
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
    is_begun: bool = False
    """Whether its handling had begun."""

    @property
    def key(self) -> tuple[str, str]:
        """Return the mailbox and the message id."""
        return self.mailbox, self.message


@dataclass(slots=True)
class Recovered:
    """The outcome of a recovery."""

    unfinished: list[JournaledMove] = field(default_factory=list)
    """Moves for which the disk had no space: the segments must stay until there is some."""
    held: int = 0
    """How many of these the caller holds in memory instead."""


class _LastMoves:
    """The last move of each message."""

    def __init__(self) -> None:
        self.moves: dict[tuple[str, str], JournaledMove] = {}
        self.begun: set[tuple[str, str]] = set()

    def add(self, record: dict[str, Any]) -> None:
        """Add one record, in the journal's order."""
        for op, mailbox, message, data in read_ops(record):
            key = mailbox, message
            if op == "begun":
                self.begun.add(key)
                continue
            self.begun.discard(key)
            if op != "back":
                self.moves[key] = JournaledMove(op, mailbox, message, data)


def recover(
    directory: Path,
    maildir: Callable[[str], Maildir],
    note: Callable[[dict[str, Any]], None] = lambda record: None,
    make_room: Callable[[], bool] = lambda: False,
    *,
    sync: bool = True,
) -> Recovered:
    """Bring the Maildir in line with the journal's segments in a directory, and make it durable if `sync`.

    The segments stay until the caller has passed on the outcomes. `note` is called with every record.

    Raises:
        UnknownVersion: if another version of Relay has written a segment.
    """
    recovered = Recovered()
    last = _LastMoves()
    for sequence, path in segments(directory):
        for record in read_segment(sequence, path):
            note(record)
            last.add(record)
    for move in last.moves.values():
        try:
            restore(maildir(move.mailbox), move, make_room)
        except OSError as error:
            if not is_full(error):
                raise
            recovered.unfinished.append(replace(move, is_begun=move.key in last.begun))
            if move.op == "failed":
                _claim(maildir(move.mailbox), move.message)  # it must not be delivered meanwhile
    for mailbox, message in last.begun:
        _claim(maildir(mailbox), message)
    if sync and last.moves:
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
