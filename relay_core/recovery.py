"""What a start does with what the last process left behind.

1. Segments written with fsync: the last op on each message decides; where the Maildir disagrees
   (power was lost before its files were written back) it is completed from the journal. One that was begun is
   moved to ``cur/``, if that was lost.
2. Segments written with os: a transaction without its ``done`` was cut short by a kill before
   anybody could see it; its ops are carried out, each at most once.
3. A message both in ``cur/`` and ``failed/`` was being parked: the record in ``failed/`` stands.
4. Every other message in ``cur/`` may have been handled: the caller parks it as `interrupted`.

Carrying out an op twice changes nothing, so a crash during recovery is repaired by the next one.
"""

from __future__ import annotations

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

_NO_LIMIT = 1 << 40
_NOT_WHOLE = object()
_FOREIGN = object()
"""Somebody else's file: not ours to repair."""


@dataclass(slots=True)
class Recovered:
    """What the journal told."""

    repaired: int = 0
    """Messages whose place in the Maildir was not what the journal says."""
    cut_short: list[str] = field(default_factory=list)
    """Transactions without "sync" that a kill had cut short, and that are carried out now."""
    unfinished: int = 0
    """Messages for which the disk had no room: the segments must stay, for a start that finds some."""
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Dedupe id → the outcome of its publish."""


def recover(directory: Path, maildir: Callable[[str], Maildir], past: Past | None = None) -> Recovered:
    """Bring the Maildir up to date with the segments of the journal in a directory, and make it last.

    The segments stay, for a caller that must first hand on the outcomes; it says `cut_short` to the journal as done, so
    that they are not carried out again. What they tell of publishes is noted in `past`.
    """
    recovered = Recovered()
    states: dict[tuple[str, str], tuple[str, Any]] = {}
    pending: dict[str, list[list[Any]]] = {}
    begun: set[tuple[str, str]] = set()
    synced = False
    for sequence, path in segments(directory):
        for record in read_segment(sequence, path):
            if past is not None:
                past.note(record)
            if "done" in record:
                pending.pop(record["done"], None)
                continue
            synced = synced or record.get("sync", False)
            if record.get("result") is not None:
                recovered.outcomes[record["dedupe"]] = record["result"]
            elif "dedupe" in record:
                recovered.outcomes.pop(record["dedupe"], None)  # it was struck
            if record.get("sync"):
                for op, mailbox, message, *data in record["ops"]:
                    if op == "begun":
                        begun.add((mailbox, message))
                        continue
                    begun.discard((mailbox, message))
                    if op != "back":
                        states[mailbox, message] = (op, data[0] if data else None)
            else:
                pending[record["id"]] = record["ops"]
    for (mailbox, message), (op, data) in states.items():
        _try_restore(recovered, maildir(mailbox), op, message, data)
    for mailbox, message in begun:
        box = maildir(mailbox)
        recovered.repaired += box.whereabouts(message) == {NEW} and box.claim(message)
    for transaction, ops in pending.items():
        before = recovered.unfinished
        for op, mailbox, message, *data in ops:
            _try_restore(recovered, maildir(mailbox), op, message, data[0] if data else None)
        if recovered.unfinished == before:
            recovered.cut_short.append(transaction)
    if synced:
        sync_file_system(directory)
    return recovered


def _try_restore(recovered: Recovered, box: Maildir, op: str, message: str, data: Any) -> None:
    """Restore one message, unless the disk is full: a start must not fail for that."""
    try:
        recovered.repaired += _restore(box, op, message, data)
    except OSError as error:
        if not is_full(error):
            raise
        recovered.unfinished += 1


def _restore(box: Maildir, op: str, message: str, data: Any) -> int:
    """Make one message's place agree with its op; return 1 if something had to be done."""
    found = {state: content for state in STATES if (content := _content(box, state, message)) is not _NOT_WHOLE}
    changed = False
    if op in ("new", "again"):
        if op == "again" and found.keys() & {NEW, CUR}:
            changed = box.remove(FAILED, message)
        elif not found or (op == "again" and found.keys() == {FAILED}):
            _clear(box, message)
            box.create(sync=True)
            box.write(message, orjson.dumps(data))
            return 1
        if found.get(NEW, _FOREIGN) not in (data, _FOREIGN):  # as it was before it failed and was replayed
            box.remove(NEW, message)
            box.write(message, orjson.dumps(data))
            changed = True
    elif op == "failed":
        if found.get(FAILED, _NOT_WHOLE) not in (data, _FOREIGN):
            box.create(sync=True)
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
