"""Backpressure: a full mailbox refuses mail, and says so before it is full.

Pure rules over a depth that the caller counts: pressure is depth / maximum, never above 1.0. From the warning share
on, each publish earns its sender a `backpressure` signal: `warning` while mail is taken, `critical` once it is not.
"""

from __future__ import annotations

from typing import NamedTuple

from relay_core.config import BackpressureConfig
from relay_core.messages.signals import Signal, SignalType

DEFAULT_BACKPRESSURE = BackpressureConfig()


class BackpressureVerdict(NamedTuple):
    """Whether a mailbox takes one more message, and how full it is."""

    allowed: bool
    reason: str | None
    current_size: int
    pressure: float


def check_backpressure(current_size: int, config: BackpressureConfig = DEFAULT_BACKPRESSURE) -> BackpressureVerdict:
    """Decide whether a mailbox of this depth takes one more message."""
    if not config.enabled:
        return BackpressureVerdict(True, None, current_size, 0.0)
    limit = config.max_mailbox_size
    if current_size >= limit:
        return BackpressureVerdict(False, f"backpressure: mailbox full ({current_size}/{limit})", current_size, 1.0)
    return BackpressureVerdict(True, None, current_size, current_size / limit)


def pressure_signal(
    verdict: BackpressureVerdict, endpoint_subject: str, config: BackpressureConfig, timestamp: str
) -> Signal | None:
    """Return the signal a verdict earns its sender, or None below the warning."""
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
