"""The state of mailboxes, breakers and the journal in listings; `live_state` has the rows of the state stream."""

from __future__ import annotations

from relay_core.messages.base import WireModel
from relay_core.rules.breaker import BreakerState
from relay_core.text.units import ago, format_duration, plural, size


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


class JournalState(WireModel):
    """The journal, where messages land before they are files."""

    bytes: int
    """Of the segments that a start would read, space reserved ahead included."""
    kept_bytes: int
    """Of the closed segments in `journal/kept/`."""
    pending: int
    """Messages that are not files yet: they exist only in the journal."""
    oldest_pending_ms: int | None = None
    """For how long the oldest of them has been waiting for its file."""
    checkpointed_at: int | None = None
    """Epoch milliseconds of the last checkpoint, which closes the segments whose messages have ended or are files."""

    def describe(self, now_ms: int) -> str:
        """Return the state in a line."""
        age = f", the oldest for {format_duration(self.oldest_pending_ms / 1000)}" if self.oldest_pending_ms else ""
        return (
            f"{size(self.bytes)}, {size(self.kept_bytes)} closed; {plural(self.pending, 'message')} not yet "
            f"{'a file' if self.pending == 1 else 'files'}{age}; last checkpoint {ago(self.checkpointed_at, now_ms)}"
        )


class TargetBreaker(BreakerState):
    """A breaker and its target."""

    subject: str | None = None
    """The target's; None if its mailbox was removed."""
