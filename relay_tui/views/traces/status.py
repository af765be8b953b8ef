"""The labels of statuses: a sign and a word; the colour only repeats them."""

from __future__ import annotations

from relay_core.messages.delivery import Status
from relay_core.text.sanitize import clean
from relay_tui.widgets.styled_lines import Piece

_STATUSES: dict[str, Piece] = {
    Status.NEW: ("◌ waiting", "accent"),
    Status.CUR: ("◐ claimed", "accent"),
    Status.DONE: ("● done", "ok"),
    Status.PARTIAL: ("▲ partial", "warn"),
    Status.FAILED: ("✗ failed", "bad"),
    Status.PARTIAL_FAILURE: ("▲ partial", "warn"),
    Status.REFUSED: ("■ refused", "warn"),
    Status.NO_SUBSCRIBER: ("✗ no match", "bad"),
    Status.REPLACED: ("○ replaced", "dim"),
    Status.PURGED: ("○ purged", "dim"),
    Status.GONE: ("○ gone", "dim"),
}
MEANINGS = {
    Status.NEW: "stored, waiting for a consumer",
    Status.CUR: "claimed, being handled",
    Status.DONE: "handled",
    Status.PARTIAL: "some handlers succeeded, others failed",
    Status.FAILED: "a dead letter",
    Status.PARTIAL_FAILURE: "failed here and kept for replay: other targets received the message",
    Status.REFUSED: "refused by a rule; nothing was stored",
    Status.NO_SUBSCRIBER: "a dead letter: no target matched",
    Status.REPLACED: "a dead letter that was replaced by an edited copy",
    Status.PURGED: "a dead letter that was purged",
    Status.GONE: "no longer on disk; its outcome was not recorded in time",
}
OPEN = frozenset({Status.NEW, Status.CUR})
"""Statuses that are not final."""
DEAD = frozenset({Status.FAILED, Status.NO_SUBSCRIBER})


def status_label(status: str) -> Piece:
    """Return the label of a status."""
    return _STATUSES.get(status) or (clean(status, 12), "dim")
