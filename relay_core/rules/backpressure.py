"""Backpressure: a full mailbox refuses messages, and warns senders before it is full.

Pure rules over a depth that the caller counts: pressure is depth / maximum, at most 1.0. At or above the warning share,
each publish sends its sender a `backpressure` signal: `warning` while messages are accepted, `critical` when refused.
"""

from __future__ import annotations

from typing import NamedTuple

from relay_core.config import BackpressureConfig
from relay_core.messages.signals import Signal, SignalType

DEFAULT_BACKPRESSURE = BackpressureConfig()


class BackpressureVerdict(NamedTuple):
    """Whether a mailbox accepts one more message, and how full it is."""

    allowed: bool
    reason: str | None
    current_size: int
    pressure: float


def check_backpressure(current_size: int, config: BackpressureConfig = DEFAULT_BACKPRESSURE) -> BackpressureVerdict:
    """Decide whether a mailbox of this depth accepts one more message."""
    if not config.enabled:
        return BackpressureVerdict(True, None, current_size, 0.0)
    limit = config.max_mailbox_size
    if current_size >= limit:
        return BackpressureVerdict(False, f"backpressure: mailbox full ({current_size}/{limit})", current_size, 1.0)
    return BackpressureVerdict(True, None, current_size, current_size / limit)


def pressure_signal(
    verdict: BackpressureVerdict, endpoint_subject: str, config: BackpressureConfig, timestamp: str
) -> Signal | None:
    """Return the signal for the sender, or None below the warning."""
    if not config.enabled or verdict.pressure < config.pressure_warning_at:
        return None
    return Signal(
        type=SignalType.BACKPRESSURE,
        state="warning" if verdict.allowed else "critical",
        endpoint_subject=endpoint_subject,
        timestamp=timestamp,
        data={
            "pressure": verdict.pressure,
            "currentSize": verdict.current_size,
            "maxMailboxSize": config.max_mailbox_size,
        },
    )
