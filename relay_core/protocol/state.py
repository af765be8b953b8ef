"""The state of mailboxes and breakers, as listings show it; `live_state` has the rows of the state stream."""

from __future__ import annotations

from relay_core.messages.base import WireModel
from relay_core.rules.breaker import BreakerState


class MailboxLoad(WireModel):
    """The counts of a mailbox."""

    subject: str
    kind: str
    """`endpoint`, `adapter`, `subscription` (read without an endpoint) or `none` (only dead letters)."""
    registered: bool
    """Whether messages are routed to it; False if it only keeps old ones, for example of a removed adapter."""
    depth: int
    """Messages waiting in `new/`."""
    claimed: int
    """Messages in flight, in `cur/`."""
    failed: int
    """Files in `failed/`: dead letters and kept copies of partial deliveries."""
    pressure: float
    """Share of `maxMailboxSize`, 0 to 1; 0 while backpressure is off."""
    consumers: int
    """Matching subscriptions, or the adapter."""
    degraded: str | None = None
    """Why the last store could not be made durable."""


class MailboxState(MailboxLoad):
    """A mailbox in a listing."""

    hash: str
    """Its directory's name in `mailboxes/`."""
    oldest_ms: int | None = None
    """Age of the oldest waiting message."""


class TargetBreaker(BreakerState):
    """A breaker and its target."""

    subject: str | None = None
    """The target's; None if its mailbox was removed."""
