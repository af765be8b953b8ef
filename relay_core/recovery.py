"""What a start does with what the last process left behind.

1. The last word on each message decides. Said with fsync: where the Maildir disagrees (power was lost before its files
   were written back) it is completed from the journal. One that was begun is moved to ``cur/``, if that was lost.
2. Said with os: a transaction without its ``done`` was cut short by a kill before
   anybody could see it; its ops are carried out, each at most once. Of one that is done the files are the truth.
3. A message both in ``cur/`` and ``failed/`` was being parked: the record in ``failed/`` stands.
4. Every other message in ``cur/`` may have been handled: the caller parks it as `interrupted`.
5. A message for which the disk has no room is in the journal alone, and no consumer sees it, until restoring.py finds
   room. One that is to be a dead letter waits for that in ``cur/``.

Carrying out an op twice changes nothing, so a crash during recovery is repaired by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from relay_core.files import is_full
from relay_core.journal import read_segment, segments, sync_file_system
from relay_core.maildir import CUR, FAILED, NEW, STATES, Maildir
from relay_core.own_files import Unreadable
from relay_core.past import Past

logger = logging.getLogger(__name__)

_NO_LIMIT = 1 << 40
_NOT_WHOLE = object()
_FOREIGN = object()
"""Somebody else's file: not ours to repair."""


@dataclass(frozen=True, slots=True)
class Step:
    """The last word of the journal on a message."""

    op: str
    mailbox: str
    message: str
    data: Any
    transaction: str | None
    """The transaction without "sync" that it belongs to, if it does."""

    @property
    def key(self) -> tuple[str, str]:
        """Return the mailbox and the message."""
        return self.mailbox, self.message


@dataclass(slots=True)
class Recovered:
    """What the journal told."""

    repaired: int = 0
    """Messages whose place in the Maildir was not what the journal says."""
    cut_short: list[str] = field(default_factory=list)
    """Transactions without "sync" that a kill had cut short, and that are carried out now."""
    unfinished: list[Step] = field(default_factory=list)
    """Messages for which the disk had no room: the segments must stay until there is some."""
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Dedupe id → the outcome of its publish."""


class _Words:
    """What the journal says last of each message."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, str], Step] = {}
        self.begun: set[tuple[str, str]] = set()
        self.pending: dict[str, list[tuple[str, str]]] = {}
        """The messages of transactions without "sync" that are not done."""

    def take(self, record: dict[str, Any]) -> None:
        """Take one record, in the journal's order."""
        if "done" in record:
            self._end(record["done"])
            return
        transaction = None if record.get("sync") else record["id"]
        if transaction is not None:
            self._end(transaction)  # it is said again, corrected
            self.pending[transaction] = [(mailbox, message) for _, mailbox, message, *_ in record["ops"]]
        for op, mailbox, message, *data in record["ops"]:
            key = mailbox, message
            if op == "begun":
                self.begun.add(key)
                continue
            self.begun.discard(key)
            if op != "back":
                self.steps[key] = Step(op, mailbox, message, data[0] if data else None, transaction)

    def _end(self, transaction: str) -> None:
        """Forget what a transaction said, unless something was said after it."""
        for key in self.pending.pop(transaction, []):
            step = self.steps.get(key)
            if step is not None and step.transaction == transaction:
                del self.steps[key]


def recover(
    directory: Path,
    maildir: Callable[[str], Maildir],
    past: Past | None = None,
    make_room: Callable[[], bool] = lambda: False,
) -> Recovered:
    """Bring the Maildir up to date with the segments of the journal in a directory, and make it last.

    The segments stay, for a caller that must first hand on the outcomes; it says `cut_short` to the journal as done, so
    that they are not carried out again. What they tell of publishes is noted in `past`.
    """
    recovered = Recovered()
    words = _Words()
    synced = False
    for sequence, path in segments(directory):
        for record in read_segment(sequence, path):
            if past is not None:
                past.note(record)
            words.take(record)
            synced = synced or record.get("sync", False)
            if record.get("result") is not None:
                recovered.outcomes[record["dedupe"]] = record["result"]
            elif "dedupe" in record:
                recovered.outcomes.pop(record["dedupe"], None)  # it was struck
    for step in words.steps.values():
        try:
            recovered.repaired += restore(maildir(step.mailbox), step, make_room)
        except OSError as error:
            if not is_full(error):
                raise
            recovered.unfinished.append(step)
            if step.op == "failed":
                _claim(maildir(step.mailbox), step.message)  # it must not be offered meanwhile
    for mailbox, message in words.begun:
        recovered.repaired += _claim(maildir(mailbox), message)
    unfinished = {step.transaction for step in recovered.unfinished}
    recovered.cut_short = [transaction for transaction in words.pending if transaction not in unfinished]
    if synced:
        sync_file_system(directory)
    return recovered


def _claim(box: Maildir, message: str) -> bool:
    """Move a message to cur/ if it is in new/ alone; on a disk that has no room even for that it stays."""
    try:
        return box.whereabouts(message) == {NEW} and box.claim(message)
    except OSError as error:
        if not is_full(error):
            raise
        logger.error("%s: the disk is full, and %s is offered although it was begun before", box.path, message)
        return False


def restore(box: Maildir, step: Step, make_room: Callable[[], bool]) -> int:
    """Make one message's place agree with the journal; return 1 if something had to be done.

    Raises:
        OSError: if the disk refuses, also after all the room was made that can be.
    """
    while True:
        try:
            return _restore(box, step.op, step.message, step.data)
        except OSError as error:
            if not is_full(error) or not make_room():
                raise


def _restore(box: Maildir, op: str, message: str, data: Any) -> int:
    """Make one message's place agree with its op; return 1 if something had to be done."""
    found = {state: content for state in STATES if (content := _content(box, state, message)) is not _NOT_WHOLE}
    changed = False
    if op in ("new", "again"):
        if op == "again" and found.keys() & {NEW, CUR}:
            changed = box.remove(FAILED, message)
        elif not found or (op == "again" and found.keys() == {FAILED}):
            _clear(box, message)
            box.create(sync=False)  # the whole file system is synced at the end
            box.write(message, orjson.dumps(data))
            return 1
        if found.get(NEW, _FOREIGN) not in (data, _FOREIGN):  # as it was before it failed and was replayed
            box.remove(NEW, message)
            box.write(message, orjson.dumps(data))
            changed = True
    elif op == "failed":
        if found.get(FAILED, _NOT_WHOLE) not in (data, _FOREIGN):
            box.create(sync=False)  # the whole file system is synced at the end
            box.write_failed(message, orjson.dumps(data))
            changed = True
        changed = box.remove(NEW, message) or changed
        changed = box.remove(CUR, message) or changed
    elif op == "gone":
        changed = _clear(box, message)
    return int(changed)


def _clear(box: Maildir, message: str) -> bool:
    return any([box.remove(state, message) for state in STATES])


def _content(box: Maildir, state: str, message: str) -> Any:
    """Return what a file holds, if it is there in full: power loss leaves empty or zeroed ones."""
    try:
        return orjson.loads(box.read(state, message, limit=_NO_LIMIT))
    except Unreadable:
        return _FOREIGN
    except (FileNotFoundError, ValueError):
        return _NOT_WHOLE
