"""A transaction: moves of messages that are committed together.

1. Moves are independent: one that fails is recorded in `failures` and stops no other. Only a `gone` in the last place
   depends on the others: a message that is being replaced stays if no replacement was stored.
2. The line of a transaction whose moves failed is amended before the caller gets the outcome, so a restart and a retry
   both see the state on disk. Space for the amendment is reserved together with the transaction's own line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from relay_core.journal.segment import JournalOp, transaction_line
from relay_core.storage.atomic_file import is_full
from relay_core.storage.maildir import ANY_SIZE, CUR, FAILED, NEW, STATES, Maildir
from relay_core.storage.trusted_file import UntrustedFile

_ROOM_TO_AMEND = 512
_ROOM_PER_MOVE = 256


class Move:
    """The new place of one message."""

    __slots__ = ("data", "kind", "mailbox", "maildir", "message_id")

    def __init__(self, kind: str, mailbox: str, maildir: Maildir, message_id: str, data: bytes = b"") -> None:
        self.kind = kind
        """``new``, ``again``, ``failed`` or ``gone``."""
        self.mailbox = mailbox
        self.maildir = maildir
        self.message_id = message_id
        self.data = data


class Transaction:
    """Moves that are committed together."""

    dedupe: str | None = None
    """The dedupe key of the publish that this transaction stores."""
    result: dict[str, Any] | None = None
    """The result that a retry with the same key gets."""
    error: OSError | None = None
    """Why the whole transaction failed."""
    failures: dict[int, OSError] | None = None
    """Position of a failed move → its error."""
    waiter: asyncio.Future[None] | None = None
    _on_settled: Callable[[Transaction], None] | None = None

    def __init__(
        self, message_id: str, moves: Sequence[Move], on_settled: Callable[[Transaction], None] | None = None
    ) -> None:
        self.message_id = message_id
        self.moves = moves
        if on_settled is not None:
            self._on_settled = on_settled

    def settle(self) -> None:
        """Bring the state in memory in line with the disk."""
        if self._on_settled is not None:
            self._on_settled(self)

    def failure(self, position: int) -> OSError | None:
        """Return the error of a move, or None if it succeeded."""
        return self.error or (self.failures.get(position) if self.failures else None)

    def amended_result(self) -> dict[str, Any] | None:
        """Return the result that a retry gets after some moves failed; None if the retry must publish again."""
        return None

    def carry_out(self, make_room: Callable[[], bool] = lambda: False) -> None:
        """Carry out the moves and record failures; on a full disk retry each move while room can be made."""
        for position, move in enumerate(self.moves):
            while True:
                try:
                    if move.kind == "new":
                        move.maildir.write(move.message_id, move.data)
                    elif move.kind == "gone" and self.failures and len(self.failures) == position:
                        self.failures[position] = self.failures[0]
                    else:
                        _carry_out_rare(move)
                except OSError as error:
                    if is_full(error) and make_room():
                        continue
                    self.failures = self.failures or {}
                    self.failures[position] = error
                break

    def line(self, *, sync: bool) -> bytes:
        """Return the transaction's journal line."""
        ops = [(move.kind, move.mailbox, move.message_id, move.data or None) for move in self.moves]
        return transaction_line(self.message_id, ops, sync=sync, dedupe=self.dedupe, result=self.result)

    def amendment(self, ops: Iterable[JournalOp], *, sync: bool) -> bytes:
        """Return the line that amends the transaction's own after some or all moves failed."""
        return transaction_line(self.message_id, ops, sync=sync, dedupe=self.dedupe, result=self.amended_result())

    def ops_on_disk(self) -> list[JournalOp]:
        """Return ops that describe, for each failed move, the state on disk."""
        failed = [move for position, move in enumerate(self.moves) if self.failure(position)]
        return [op for move in failed for op in _on_disk(move)]

    def room_to_amend(self) -> int:
        """Return an upper bound for the lines that may have to follow: the amendment, and ``done``."""
        room = _ROOM_TO_AMEND + 6 * len(self.dedupe or "")
        for move in self.moves:
            room += _ROOM_PER_MOVE + (len(move.data) if move.kind != "new" else 0)  # it may repeat the file on disk
        return room


def _carry_out_rare(move: Move) -> None:
    if move.kind == "again":
        move.maildir.write(move.message_id, move.data)
        move.maildir.remove(FAILED, move.message_id)
    elif move.kind == "failed":
        move.maildir.move_to_failed(move.message_id, move.data)
    elif move.kind == "gone":
        for state in STATES:
            move.maildir.remove(state, move.message_id)
    else:
        raise ValueError(move.kind)


def _on_disk(move: Move) -> list[JournalOp]:
    """Return the ops that leave a message where it is."""
    for state, kind in ((FAILED, "failed"), (CUR, "new"), (NEW, "new")):
        try:
            data = move.maildir.read(state, move.message_id, limit=ANY_SIZE)
        except (OSError, UntrustedFile):
            continue
        ops: list[JournalOp] = [(kind, move.mailbox, move.message_id, data)]
        return [*ops, ("begun", move.mailbox, move.message_id, None)] if state == CUR else ops
    return [("gone", move.mailbox, move.message_id, None)]
