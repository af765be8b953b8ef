"""A transaction: moves of messages that are committed together.

1. A ``new`` or ``again`` is carried out by the journal alone: its file is made later, if at all (file_writer.py). The
   other moves change files as soon as they are durable in the journal.
2. Moves are independent: one that fails is recorded in `failures` and stops no other.
3. The record of a transaction whose moves failed is amended before the caller gets the outcome, so a restart and a
   retry both see the state on disk. Space for the amendment is reserved together with the transaction's own record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from relay_core.journal.segment import JournalOp, encode_record
from relay_core.storage.atomic_file import is_full
from relay_core.storage.maildir import ANY_SIZE, CUR, FAILED, NEW, STATES, Maildir
from relay_core.storage.trusted_file import UntrustedFile

logger = logging.getLogger(__name__)

_ROOM_TO_AMEND = 512
_ROOM_PER_MOVE = 256


class Files(Protocol):
    """What a transaction needs to carry out its moves."""

    def hold(self, move: Move) -> None:
        """Take a message whose file is made later."""
        ...

    def make_room(self) -> bool:
        """Free some space on a full disk; return False if there is none to free."""
        ...


class Move:
    """The new place of one message."""

    __slots__ = ("_data", "kind", "mailbox", "maildir", "message_id")

    def __init__(self, kind: str, mailbox: str, maildir: Maildir, message_id: str, data: bytes = b"") -> None:
        self.kind = kind
        """``new``, ``again``, ``failed`` or ``gone``."""
        self.mailbox = mailbox
        self.maildir = maildir
        self.message_id = message_id
        self._data = data

    @property
    def data(self) -> bytes:
        """Return the content of the file, if the move makes one."""
        return self._data

    @property
    def size(self) -> int:
        """Return about how many bytes it holds in memory."""
        return len(self._data)

    def op(self) -> JournalOp:
        """Return the move as it is journaled."""
        return self.kind, self.mailbox, self.message_id, self._data or None


class Transaction:
    """Moves that are committed together."""

    message: dict[str, Any] | None = None
    """What the messages of all moves have in common, if it is journaled once."""
    dedupe: str | None = None
    """The dedupe key of the publish that this transaction stores."""
    result: dict[str, Any] | None = None
    """The result that a retry with the same key gets."""
    error: OSError | None = None
    """Why the whole transaction failed."""
    failures: dict[int, OSError] | None = None
    """Position of a failed move → its error."""
    on_done: Callable[[], None] | None = None
    """Called on the loop after it has settled."""
    _on_settled: Callable[[Transaction], None] | None = None

    def __init__(
        self, message_id: str, moves: Sequence[Move], on_settled: Callable[[Transaction], None] | None = None
    ) -> None:
        self.message_id = message_id
        self.moves = moves
        if on_settled is not None:
            self._on_settled = on_settled

    @property
    def size(self) -> int:
        """Return about how many bytes it journals."""
        return sum(move.size for move in self.moves)

    def settle(self) -> None:
        """Bring the state in memory in line with the disk."""
        if self._on_settled is not None:
            self._on_settled(self)

    def finish(self) -> None:
        """Settle it and notify the caller."""
        self.settle()
        on_done, self.on_done = self.on_done, None  # it may refer to this transaction, which must not stay alive so
        if on_done is not None:
            on_done()

    def failure(self, position: int) -> OSError | None:
        """Return the error of a move, or None if it succeeded."""
        return self.error or (self.failures.get(position) if self.failures else None)

    def amended_result(self) -> dict[str, Any] | None:
        """Return the result that a retry gets after some moves failed; None if the retry must publish again."""
        return None

    def carry_out(self, files: Files) -> None:
        """Carry out the moves and record failures; on a full disk retry each move while room can be made."""
        for position, move in enumerate(self.moves):
            if move.kind in ("new", "again"):
                files.hold(move)
                if move.kind == "new":
                    continue
            while True:
                try:
                    _change_files(move)
                except OSError as error:
                    if is_full(error) and files.make_room():
                        continue
                    self.failures = self.failures or {}
                    self.failures[position] = error
                break

    def record(self) -> bytes:
        """Return the transaction's journal record."""
        ops = [move.op() for move in self.moves]
        return encode_record(self.message_id, ops, message=self.message, dedupe=self.dedupe, result=self.result)

    def amendment(self) -> bytes:
        """Return the record that amends the transaction's own after some or all moves failed."""
        return encode_record(self.message_id, self._ops_on_disk(), dedupe=self.dedupe, result=self.amended_result())

    def _ops_on_disk(self) -> Iterable[JournalOp]:
        """Yield ops that describe, for each failed move, the state on disk."""
        for position, move in enumerate(self.moves):
            if self.failure(position):
                yield from _on_disk(move)

    def room_to_amend(self) -> int:
        """Return an upper bound for the amendment."""
        room = _ROOM_TO_AMEND + _ROOM_PER_MOVE * len(self.moves)
        if self.dedupe is not None:
            room += 6 * len(self.dedupe)
        for move in self.moves:
            if move.kind == "failed":
                room += move.size  # it may repeat the file on disk
        return room


def _change_files(move: Move) -> None:
    if move.kind == "failed":
        move.maildir.move_to_failed(move.message_id, move.data)
    elif move.kind == "gone":
        for state in STATES:
            move.maildir.remove(state, move.message_id)
    else:
        try:
            move.maildir.remove(FAILED, move.message_id)
        except OSError as error:
            logger.error("%s is replayed, but its dead letter stays until the next start: %s", move.message_id, error)


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
