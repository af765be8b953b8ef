"""The labels of states: a sign and a word; the colour only repeats them."""

from __future__ import annotations

from relay_core.messages.operator_views import ConfiguredAdapter
from relay_core.protocol.live_state import LiveBreaker, LiveMailbox, LiveSender
from relay_core.rules.breaker import CircuitState
from relay_tui.widgets.styled_lines import Piece

NEAR_LIMIT = 0.8
"""The share of its limit from which a sender is shown as near it."""

CIRCUITS: dict[CircuitState, Piece] = {
    CircuitState.CLOSED: ("● closed", "ok"),
    CircuitState.OPEN: ("✗ open", "bad"),
    CircuitState.HALF_OPEN: ("◐ half-open", "warn"),
}
_ADAPTERS: dict[str, Piece] = {
    "connected": ("● connected", "ok"),
    "starting": ("◐ starting", "warn"),
    "disconnected": ("○ disconnected", "warn"),
    "stopping": ("◐ stopping", "warn"),
    "error": ("✗ error", "bad"),
}
_WORST_FIRST = ("✗", "◐", "○", "●", "–")
_MOST_SHARE = 99.99


def mailbox_state(box: LiveMailbox, warning_at: float) -> Piece:
    """Return the label of a mailbox."""
    if box.degraded:
        return "✗ degraded", "bad"
    if box.pressure >= 1:
        return "✗ critical", "bad"
    return ("▲ warning", "warn") if box.pressure >= warning_at else ("● ok", "ok")


def sender_state(sender: LiveSender) -> Piece:
    """Return the label of a sender."""
    if sender.count >= sender.limit:
        return "✗ at limit", "bad"
    return ("▲ near", "warn") if sender.count >= NEAR_LIMIT * sender.limit else ("● ok", "ok")


def breaker_state(breaker: LiveBreaker) -> Piece:
    """Return the label of a breaker."""
    return ("✗ forced open", "bad") if breaker.forced else CIRCUITS[breaker.state]


def adapter_state(adapter: ConfiguredAdapter) -> Piece:
    """Return the label of an adapter."""
    if not adapter.enabled:
        return ("– disabled", "dim")
    if adapter.state is None:
        return ("✗ not running", "bad") if adapter.problem else ("◐ starting", "warn")
    return _ADAPTERS[adapter.state.state]


def adapter_rank(adapter: ConfiguredAdapter) -> int:
    """Return the position of an adapter in lists: those with problems come first."""
    return _WORST_FIRST.index(adapter_state(adapter)[0][0])


def trend_of(change: int) -> Piece:
    """Return an arrow for the change of a count."""
    return ("↑", "warn") if change > 0 else ("↓", "ok") if change < 0 else ("·", "dim")


def share_of(value: float) -> float:
    """Return a share within the bounds of five columns."""
    return min(max(value, 0.0), _MOST_SHARE)
