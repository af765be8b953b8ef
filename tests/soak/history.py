"""What the clients of a round asked for, were told and saw; written down as it happens, judged by checker.py."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple


class Number(NamedTuple):
    """A message as its publisher knows it: its sender and its place in that sender's sequence."""

    sender: str
    n: int


class Delivery(NamedTuple):
    """One hand-over of one copy of a message: a replay is another one."""

    mailbox: str
    message_id: str
    replays: int


class Seen(NamedTuple):
    """A delivery that reached a consumer."""

    at: float
    delivery: Delivery
    number: Number
    depth: int


class Accepted(NamedTuple):
    """A publish that the bus acknowledged."""

    asked_at: float
    answered_at: float
    message_id: str
    delivered_to: int
    rejected: tuple[str, ...]
    """Hashes of mailboxes that refused their copy."""


@dataclass
class History:
    """Everything that happened in one round."""

    targets: dict[Number, tuple[str, ...]] = field(default_factory=dict)
    """The mailboxes that a publish was meant for."""
    accepted: dict[Number, list[Accepted]] = field(default_factory=dict)
    """The acknowledgements of a publish; several if a client asked again after the first."""
    refused: dict[Number, str] = field(default_factory=dict)
    """Publishes whose only answer was a refusal that leaves nothing behind, with its reason."""
    seen: list[Seen] = field(default_factory=list)
    acks_sent: set[Delivery] = field(default_factory=set)
    acks_confirmed: dict[Delivery, float] = field(default_factory=dict)
    """When the answer to an acknowledgement came."""
    power_cuts: list[float] = field(default_factory=list)
    clock_jumps: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    """What the rig itself noticed: a supervisor that died, a mailbox that did not drain."""

    def saw(self, delivery: Delivery, number: Number, depth: int = 0) -> None:
        """Note a delivery."""
        self.seen.append(Seen(time.monotonic(), delivery, number, depth))

    def confirmed(self, delivery: Delivery) -> None:
        """Note the answer to an acknowledgement."""
        self.acks_confirmed[delivery] = time.monotonic()

    def cut_before(self, at: float, window: float) -> bool:
        """Return True if the power was cut less than `window` seconds after an instant."""
        return any(at <= cut <= at + window for cut in self.power_cuts) or any(
            cut <= at <= cut + window for cut in self.power_cuts
        )

    def counts(self) -> dict[str, int]:
        """Return the round in figures."""
        return {
            "acknowledged": len(self.accepted),
            "refused": len(self.refused),
            "seen": len(self.seen),
            "replayed": sum(seen.delivery.replays > 0 for seen in self.seen),
            "acks": len(self.acks_confirmed),
        }
