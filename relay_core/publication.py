"""One publish on its way through the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from relay_core.clock import iso
from relay_core.commit import Op
from relay_core.delivery import Delivery, Status
from relay_core.envelope import Budget, BudgetOverrides, Envelope
from relay_core.mailbox import Item, Mailbox
from relay_core.model import trusted
from relay_core.results import AdapterResult, PublishResult, Reason, Rejection


class Target:
    """A mailbox that a message is meant for."""

    __slots__ = ("adapter", "awaited", "mailbox", "weight")

    def __init__(
        self, mailbox: Mailbox, *, weight: int = 1, adapter: str | None = None, awaited: float | None = None
    ) -> None:
        self.mailbox = mailbox
        self.weight = weight
        """How many takers it counts for: the subscriptions behind a mailbox without endpoint."""
        self.adapter = adapter
        self.awaited = awaited
        """Seconds the publish waits for the target's answer; None if storing is enough."""


class Publication:
    """What the stages know of one publish so far."""

    __slots__ = (
        "adapter_results",
        "budget",
        "created_ms",
        "data",
        "dedupe",
        "delivered",
        "failures",
        "id",
        "is_broadcast",
        "origin",
        "overrides",
        "parent_id",
        "payload",
        "pressure",
        "rejected",
        "replaces",
        "replay_of",
        "replays",
        "reply_to",
        "result",
        "sender",
        "started",
        "subject",
        "targets",
        "trace_id",
        "unstored",
    )

    def __init__(
        self,
        subject: str,
        payload: Any,
        sender: str,
        reply_to: str | None,
        overrides: BudgetOverrides | Mapping[str, Any] | None,
        parent_id: str | None,
        dedupe: str | None,
        origin: str | None,
    ) -> None:
        self.subject = subject
        self.payload = payload
        self.sender = sender
        self.reply_to = reply_to
        self.overrides = overrides
        self.parent_id = parent_id
        self.dedupe = dedupe
        self.origin = origin
        """The adapter that published this, which must not get it back."""
        self.replaces: Op | None = None
        """A dead letter that ends when this is stored: a replay takes its place."""
        self.replay_of: str | None = None
        self.replays = 0
        self.is_broadcast = False
        self.data = b""
        self.id = ""
        self.created_ms = 0
        self.started = 0.0
        self.trace_id = ""
        self.budget: Budget
        self.targets: list[Target] = []
        self.delivered = 0
        self.rejected: list[Rejection] | None = None
        self.pressure: dict[str, float] | None = None
        self.adapter_results: list[AdapterResult] | None = None
        self.failures: list[str] | None = None
        """Why targets that should have taken it did not."""
        self.unstored: list[tuple[Stored, OSError]] | None = None
        """Copies whose target's directory refused them."""
        self.result: PublishResult | None = None
        """Set as soon as the outcome is settled."""

    @property
    def lasting(self) -> bool:
        """Whether anything was left on disk, so that a retry must not publish again."""
        refused_only = self.delivered == 0 and not self.failures
        return not (refused_only and self.rejected is not None and self.rejected[0].reason != Reason.BUDGET_EXCEEDED)

    def reject(self, endpoint_hash: str, reason: str) -> None:
        """Add a refusal to the result."""
        if self.rejected is None:
            self.rejected = []
        self.rejected.append(Rejection(endpoint_hash=endpoint_hash, reason=reason))

    def settle(self) -> PublishResult:
        """Fix the outcome from what the stages have found."""
        self.result = trusted(
            PublishResult,
            {
                "message_id": self.id,
                "delivered_to": self.delivered,
                "rejected": tuple(self.rejected) if self.rejected else None,
                "mailbox_pressure": self.pressure,
                "adapter_results": tuple(self.adapter_results) if self.adapter_results else None,
            },
        )
        return self.result

    def encode(self, subject: str, budget: Budget) -> bytes:
        """Return a target's copy as it is stored."""
        stored: dict[str, Any] = {"id": self.id, "subject": subject, "from": self.sender}
        if self.reply_to is not None:
            stored["replyTo"] = self.reply_to
        stored["budget"] = {
            "hopCount": budget.hop_count,
            "maxHops": budget.max_hops,
            "ancestorChain": budget.ancestor_chain,
            "ttl": budget.ttl,
            "callBudgetRemaining": budget.call_budget_remaining,
        }
        stored["createdAt"] = iso(self.created_ms)
        stored["payload"] = orjson.Fragment(self.data)
        if self.replay_of is not None:
            stored["replayOf"] = self.replay_of
        if self.replays:
            stored["replays"] = self.replays
        return orjson.dumps(stored)

    def envelope(self, subject: str, budget: Budget) -> Envelope:
        """Return a target's copy as its handler sees it, with a payload of its own."""
        return trusted(
            Envelope,
            {
                "id": self.id,
                "subject": subject,
                "sender": self.sender,
                "reply_to": self.reply_to,
                "budget": budget,
                "created_at": iso(self.created_ms),
                "payload": orjson.loads(self.data),
                "replay_of": self.replay_of,
                "replays": self.replays,
            },
        )

    def delivery(self, target: str, kind: str, target_subject: str, status: str, after: Budget) -> Delivery:
        """Return the delivery of this message to one target."""
        before = self.budget
        return Delivery(
            self.id,
            target,
            kind,
            target_subject,
            self.subject if not self.is_broadcast else target_subject,
            self.sender,
            self.trace_id,
            self.parent_id,
            status,
            self.created_ms,
            after.ttl,
            before.hop_count,
            before.call_budget_remaining,
            after.hop_count,
            after.call_budget_remaining,
            after.max_hops,
            after.ancestor_chain,
            len(self.data),
            replays=self.replays,
            replay_of=self.replay_of,
        )

    def item(self, mailbox: Mailbox, budget: Budget, data: bytes, delivery: Delivery) -> Item:
        """Return a target's copy in hand."""
        return Item(self.envelope(mailbox.subject if self.is_broadcast else self.subject, budget), data, delivery)


class Stored:
    """A target's copy between its encoding and its commit."""

    __slots__ = ("budget", "data", "delivery", "probe", "target")

    def __init__(self, target: Target, budget: Budget, data: bytes, delivery: Delivery, probe: bool) -> None:
        self.target = target
        self.budget = budget
        self.data = data
        self.delivery = delivery
        self.probe = probe

    def op(self, replaces: Op | None) -> Op:
        """Return how it is stored; in the place of a dead letter of the same message, if that is replaced."""
        mailbox = self.target.mailbox
        message_id = self.delivery.message_id
        same = replaces is not None and (replaces.mailbox, replaces.message_id) == (mailbox.hash, message_id)
        return Op("again" if same else "new", mailbox.hash, mailbox.maildir, message_id, self.data)


REFUSED_TARGET = "*"


def refused_delivery(publication: Publication, code: str, reason: str) -> Delivery:
    """Return the trace of a publish that was refused altogether."""
    delivery = publication.delivery(REFUSED_TARGET, "none", publication.subject, Status.REFUSED, publication.budget)
    delivery.code, delivery.reason = code, reason
    return delivery
