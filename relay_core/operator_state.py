"""The state of a running bus as operators see it: mailboxes, breakers, the journal and traffic.

A mailbox is described in one place, `read_mailbox`. Its row is a tuple, because the state stream reads ten thousand of
them several times a second; a model is made of a row only when it is sent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from relay_core.bus import Bus
from relay_core.journal.usage import read_usage
from relay_core.messages.delivery import TargetKind
from relay_core.messages.ids import is_ulid, ulid_ms
from relay_core.protocol.live_state import LiveMailbox, LiveThroughput
from relay_core.protocol.state import JournalState, MailboxState, TargetBreaker
from relay_core.records.metrics import Metrics
from relay_core.rules.backpressure import check_backpressure
from relay_core.storage.mailbox import Mailbox

_SHOWN_SECS = 60
"""Seconds of throughput in the state stream."""


class MailboxRow(NamedTuple):
    """A mailbox; the fields are those of `MailboxLoad`, and the oldest waiting message."""

    subject: str
    kind: str
    registered: bool
    depth: int
    claimed: int
    failed: int
    pressure: float
    consumers: int
    degraded: str | None
    head: str | None
    """The id of the oldest waiting message."""

    @property
    def oldest_at(self) -> int | None:
        """Return when the oldest waiting message was created, in epoch milliseconds."""
        return ulid_ms(self.head) if self.head is not None and is_ulid(self.head) else None

    def state(self, hash: str, now_ms: int) -> MailboxState:
        """Return the row of a listing."""
        oldest_ms = max(now_ms - self.oldest_at, 0) if self.oldest_at is not None else None
        return MailboxState(**self._asdict(), hash=hash, oldest_ms=oldest_ms)

    def to_wire(self) -> dict[str, Any]:
        """Return the row of the state stream in its wire form."""
        values = self._asdict() | {"pressure": round(self.pressure, 4), "oldest_at": self.oldest_at}
        return LiveMailbox(**values).to_wire()


def read_mailbox(bus: Bus, mailbox: Mailbox) -> MailboxRow:
    """Return the row of a mailbox."""
    about = mailbox.about
    return MailboxRow(
        mailbox.subject,
        about.kind,
        bus.routes.has(mailbox) if about.kind == TargetKind.ADAPTER else about.registered,
        mailbox.depth,
        len(mailbox.claimed),
        mailbox.dead,
        check_backpressure(mailbox.load, bus.config.reliability.backpressure).pressure,
        len(bus.consumers(mailbox)[0]),
        mailbox.degraded or mailbox.maildir.problem,
        mailbox.head(),
    )


def read_breakers(bus: Bus) -> list[TargetBreaker]:
    """Return every breaker with the subject of its target."""
    states = []
    for key, state in bus.breakers.states().items():
        mailbox = bus.mailboxes.get(key)
        if mailbox is None or mailbox.about.kind != TargetKind.NONE:
            states.append(TargetBreaker(**state.model_dump(), subject=mailbox.subject if mailbox else None))
    return states


def read_journal(bus: Bus) -> JournalState:
    """Return the state of the journal."""
    files, deferred = bus.commits.files, bus.deferred_recovery.waiting
    pending = sum(len(mailbox.maildir.pending) for mailbox in bus.mailboxes)
    ages_ms = [round(files.oldest_secs * 1000)] if pending else []
    ages_ms += [bus.clock.now_ms() - ulid_ms(message_id) for message_id in deferred if is_ulid(message_id)]
    usage = read_usage(bus.journal.directory)
    return JournalState(
        bytes=usage.bytes,
        kept_bytes=usage.kept_bytes,
        pending=pending + len(deferred),
        oldest_pending_ms=max(ages_ms, default=None),
        checkpointed_at=bus.commits.checkpoints.last_ms or usage.closed_ms,
    )


def read_throughput(metrics: Metrics) -> LiveThroughput:
    """Return the traffic counters of the state stream."""
    return LiveThroughput(
        **vars(metrics.snapshot()),
        per_second=tuple(metrics.per_second(_SHOWN_SECS)),
        recent_us=metrics.recent_us(),
    )
