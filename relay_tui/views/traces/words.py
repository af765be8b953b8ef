"""What the traces screen calls things: a status is a mark and a word, and only then a colour."""

from __future__ import annotations

from relay_core.delivery import Status
from relay_tui.lines import Piece
from relay_tui.safe import clean

_STATUSES: dict[str, Piece] = {
    Status.NEW: ("◌ waiting", "accent"),
    Status.CUR: ("◐ claimed", "accent"),
    Status.DONE: ("● done", "ok"),
    Status.PARTIAL: ("▲ partial", "warn"),
    Status.FAILED: ("✗ failed", "bad"),
    Status.PARTIAL_FAILURE: ("▲ partial", "warn"),
    Status.REFUSED: ("■ refused", "warn"),
    Status.NO_SUBSCRIBER: ("✗ nobody", "bad"),
    Status.REPLACED: ("○ replaced", "dim"),
    Status.PURGED: ("○ purged", "dim"),
    Status.GONE: ("○ gone", "dim"),
}
MEANINGS = {
    Status.NEW: "stored, and waits to be taken",
    Status.CUR: "taken, and being handled",
    Status.DONE: "handled",
    Status.PARTIAL: "handled by some handlers, failed by others",
    Status.FAILED: "a dead letter",
    Status.PARTIAL_FAILURE: "failed here and kept for replay: other targets took the message",
    Status.REFUSED: "turned away by a rule; nothing was stored",
    Status.NO_SUBSCRIBER: "a dead letter: there was nobody to deliver to",
    Status.REPLACED: "a dead letter that an edited copy took the place of",
    Status.PURGED: "a dead letter that was removed",
    Status.GONE: "no longer on disk; how it ended was not written down in time",
}
OPEN = frozenset({Status.NEW, Status.CUR})
"""Statuses that will change by themselves."""
DEAD = frozenset({Status.FAILED, Status.NO_SUBSCRIBER})


def status_piece(status: str) -> Piece:
    """Return a status as it is shown."""
    return _STATUSES.get(status) or (clean(status, 12), "dim")
