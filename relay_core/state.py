"""What operators see of mailboxes and breakers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay_core.backpressure import check_backpressure
from relay_core.breaker import BreakerState
from relay_core.delivery import TargetKind
from relay_core.ids import is_ulid, ulid_ms
from relay_core.model import WireModel

if TYPE_CHECKING:
    from relay_core.bus import Bus
    from relay_core.mailbox import Mailbox


class MailboxState(WireModel):
    """How a mailbox is doing."""

    subject: str
    hash: str
    """Its directory's name in ``mailboxes/``."""
    kind: str
    """``endpoint``, ``adapter``, ``subscription`` (read without an endpoint) or ``none`` (has dead letters alone)."""
    registered: bool
    """Whether messages are routed to it; False if it only keeps its mail, as after its adapter was removed."""
    depth: int
    """Messages that wait in ``new/``."""
    claimed: int
    """Messages that somebody holds in ``cur/``."""
    failed: int
    """Files in ``failed/``: dead letters and kept copies of partial deliveries."""
    pressure: float
    """Share of `maxMailboxSize`, 0 to 1; 0 while backpressure is off."""
    oldest_ms: int | None = None
    """Age of the message that waits longest."""
    consumers: int
    """Subscriptions that match it, or the adapter."""
    degraded: str | None = None
    """Why the last store could not be made durable."""


class TargetBreaker(BreakerState):
    """A breaker, and whose it is."""

    subject: str | None = None
    """The target's; None if its mailbox is gone."""


def is_registered(bus: Bus, mailbox: Mailbox) -> bool:
    """Return True if a mailbox is routed to: of a registered endpoint, or of an adapter that is running."""
    return bus.adapters.has(mailbox) if mailbox.about.kind == TargetKind.ADAPTER else mailbox.about.registered


def mailbox_states(bus: Bus) -> list[MailboxState]:
    """Return the state of every mailbox, by subject."""
    now = bus.clock.now_ms()
    config = bus.config.reliability.backpressure
    states = []
    for mailbox in sorted(bus.mailboxes, key=lambda mailbox: mailbox.subject):
        head = mailbox.head()
        states.append(
            MailboxState(
                subject=mailbox.subject,
                hash=mailbox.hash,
                kind=mailbox.about.kind,
                registered=is_registered(bus, mailbox),
                depth=mailbox.depth,
                claimed=len(mailbox.claimed),
                failed=mailbox.dead,
                pressure=check_backpressure(mailbox.load, config).pressure,
                oldest_ms=max(now - ulid_ms(head), 0) if head is not None and is_ulid(head) else None,
                consumers=len(bus.consumers(mailbox)[0]),
                degraded=mailbox.degraded,
            )
        )
    return states


def breaker_states(bus: Bus) -> list[TargetBreaker]:
    """Return every breaker with the subject of its target."""
    states = []
    for key, state in bus.breakers.states().items():
        mailbox = bus.mailboxes.get(key)
        if mailbox is not None and mailbox.about.kind == TargetKind.NONE:
            continue
        states.append(TargetBreaker(**state.model_dump(), subject=mailbox.subject if mailbox else None))
    return states
