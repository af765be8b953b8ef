"""States as every screen shows them: a mark and a word, and only then a colour."""

from __future__ import annotations

from relay_core.messages.operator_views import ConfiguredAdapter
from relay_core.protocol.live_state import LiveBreaker, LiveMailbox, LiveSender
from relay_core.rules.breaker import CircuitState
from relay_tui.widgets.styled_lines import Piece

NEAR_LIMIT = 0.8
"""The share of its limit from which a sender is said to be near it."""

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
    """Return how full a mailbox is."""
    if box.degraded:
        return "✗ degraded", "bad"
    if box.pressure >= 1:
        return "✗ critical", "bad"
    return ("▲ warning", "warn") if box.pressure >= warning_at else ("● ok", "ok")


def sender_state(sender: LiveSender) -> Piece:
    """Return how a sender stands with its limit."""
    if sender.count >= sender.limit:
        return "✗ at limit", "bad"
    return ("▲ near", "warn") if sender.count >= NEAR_LIMIT * sender.limit else ("● ok", "ok")


def breaker_state(breaker: LiveBreaker) -> Piece:
    """Return whether a target is left alone."""
    return ("✗ forced open", "bad") if breaker.forced else CIRCUITS[breaker.state]


def adapter_state(adapter: ConfiguredAdapter) -> Piece:
    """Return whether an adapter is at work."""
    if not adapter.enabled:
        return ("– disabled", "dim")
    if adapter.state is None:
        return ("✗ not running", "bad") if adapter.problem else ("◐ starting", "warn")
    return _ADAPTERS[adapter.state.state]


def adapter_rank(adapter: ConfiguredAdapter) -> int:
    """Return how early an adapter should be looked at."""
    return _WORST_FIRST.index(adapter_state(adapter)[0][0])


def trend_of(change: int) -> Piece:
    """Return an arrow for a count that grows or falls."""
    return ("↑", "warn") if change > 0 else ("↓", "ok") if change < 0 else ("·", "dim")


def share_of(value: float) -> float:
    """Return a share that can be counted with and written in five columns, whatever the bus says."""
    return min(max(value, 0.0), _MOST_SHARE)
