"""One publish on its way through the pipeline.

Most of what a stage may note here stays at its default for most publishes, so the defaults are the
class's and a publication only holds what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import orjson

from relay_core.bindings import Binding
from relay_core.clock import iso
from relay_core.commit import Op
from relay_core.config import RelayConfig
from relay_core.delivery import Delivery
from relay_core.envelope import Budget, BudgetOverrides, Envelope
from relay_core.mailbox import Item, Mailbox
from relay_core.model import trusted
from relay_core.results import AdapterResult, PublishResult, Reason, Rejection


class Settings(Protocol):
    """The configuration in force."""

    config: RelayConfig


class Target:
    """A mailbox that a message is meant for."""

    __slots__ = ("adapter", "address", "awaited", "mailbox", "weight")

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        weight: int = 1,
        adapter: str | None = None,
        awaited: float | None = None,
        address: str | None = None,
    ) -> None:
        self.mailbox = mailbox
        self.address = address
        """The subject of this target's copy, if it is not the publish's own."""
        self.weight = weight
        """How many takers it counts for: the subscriptions behind a mailbox without endpoint."""
        self.adapter = adapter
        self.awaited = awaited
        """Seconds the publish waits for the target's answer; None if storing is enough."""


class Unstored(NamedTuple):
    """A copy that its target's directory refused."""

    target: Target
    item: Item
    error: OSError


class Publication:
    """What the stages know of one publish so far."""

    reply_to: str | None = None
    overrides: BudgetOverrides | Mapping[str, Any] | None = None
    parent_id: str | None = None
    dedupe: str | None = None
    """The key under which its outcome is remembered."""
    origin: str | None = None
    """The adapter that published this, which must not get it back."""
    reader: str | None = None
    """The client or adapter that publishes this, as replies.py knows it; None for the program that the bus runs in."""
    is_notice = False
    """Whether the bus itself sends this, as the failure notice of a message."""
    is_voice = False
    """Whether a chat speaks: its adapter brings in what somebody wrote there."""
    binding: Binding | None = None
    """What lets it reach a person, or an agent from a chat."""
    waits = True
    """Whether it waits for the answers of targets that give one; otherwise a stored copy is enough."""
    replaces: Op | None = None
    """A dead letter that ends when this is stored: a replay takes its place."""
    replay_of: str | None = None
    replays = 0
    replayed_at: str | None = None
    is_broadcast = False
    is_counted = False
    """Whether it was counted against its sender's rate limit: replays and failure notices are not."""
    data: bytes
    """The payload as JSON."""
    id: str
    created_ms: int
    started: float
    """Monotonic time at which it was stamped."""
    trace_id: str
    budget: Budget
    targets: list[Target]
    delivered = 0
    """Targets that took it."""
    rejected: list[Rejection] | None = None
    pressure: dict[str, float] | None = None
    adapter_results: list[AdapterResult] | None = None
    failures: list[str] | None = None
    """Why targets that should have taken it did not."""
    unstored: list[Unstored] | None = None
    result: PublishResult | None = None
    """Set as soon as the outcome is settled."""

    def __init__(self, subject: str, payload: Any, sender: str) -> None:
        self.subject = subject
        self.payload = payload
        self.sender = sender

    @property
    def lasting(self) -> bool:
        """Whether anything was left on disk, so that a retry must not publish again."""
        if self.delivered or self.failures or self.rejected is None:
            return True
        return self.rejected[0].reason == Reason.BUDGET_EXCEEDED

    def reject(self, endpoint_hash: str, reason: str) -> None:
        """Note a refusal."""
        if self.rejected is None:
            self.rejected = []
        self.rejected.append(Rejection(endpoint_hash=endpoint_hash, reason=reason))

    def note_pressure(self, endpoint_hash: str, pressure: float) -> None:
        """Note how full a mailbox is."""
        if self.pressure is None:
            self.pressure = {endpoint_hash: pressure}
        else:
            self.pressure[endpoint_hash] = pressure

    def note_adapter(self, result: AdapterResult) -> None:
        """Note what an adapter did."""
        if self.adapter_results is None:
            self.adapter_results = []
        self.adapter_results.append(result)

    def note_failure(self, reason: str) -> None:
        """Note why a target that should have taken it did not."""
        if self.failures is None:
            self.failures = []
        self.failures.append(reason)

    def note_unstored(self, target: Target, budget: Budget, data: bytes, delivery: Delivery, error: OSError) -> None:
        """Note a copy that its target's directory refused."""
        if self.unstored is None:
            self.unstored = []
        self.unstored.append(Unstored(target, self.item(self.address(target), budget, data, delivery), error))

    def settle(self) -> PublishResult:
        """Fix the outcome, which ends the run."""
        self.result = self.outcome()
        return self.result

    def outcome(self) -> PublishResult:
        """Return the outcome from what the stages have found so far."""
        return trusted(
            PublishResult,
            {
                "message_id": self.id,
                "delivered_to": self.delivered,
                "rejected": tuple(self.rejected) if self.rejected else None,
                "mailbox_pressure": self.pressure,
                "adapter_results": tuple(self.adapter_results) if self.adapter_results else None,
            },
        )

    def address(self, target: Target) -> str:
        """Return the subject of a target's copy."""
        return self.subject if target.address is None else target.address

    def encode(self, subject: str, budget: Budget) -> bytes:
        """Return a target's copy as it is stored."""
        stored: dict[str, Any] = {
            "id": self.id,
            "subject": subject,
            "from": self.sender,
            "budget": {
                "hopCount": budget.hop_count,
                "maxHops": budget.max_hops,
                "ancestorChain": budget.ancestor_chain,
                "ttl": budget.ttl,
                "callBudgetRemaining": budget.call_budget_remaining,
            },
            "createdAt": iso(self.created_ms),
            "payload": orjson.Fragment(self.data),
        }
        if self.reply_to is not None:
            stored["replyTo"] = self.reply_to
        if self.replay_of is not None:
            stored["replayOf"] = self.replay_of
        if self.replays:
            stored["replays"] = self.replays
            stored["replayedAt"] = self.replayed_at
        if self.parent_id is not None:
            stored["parentId"] = self.parent_id
            stored["traceId"] = self.trace_id
        if self.origin is not None:
            stored["origin"] = self.origin
        return orjson.dumps(stored)

    def item(self, subject: str, budget: Budget, data: bytes, delivery: Delivery) -> Item:
        """Return a target's copy in hand, with a payload of its own."""
        envelope = trusted(
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
                "replayed_at": self.replayed_at,
                "trace_id": self.trace_id if self.parent_id is not None else None,
                "parent_id": self.parent_id,
                "origin": self.origin,
            },
        )
        return Item(envelope, data, delivery)

    def delivery(self, target: str, kind: str, target_subject: str, status: str, after: Budget) -> Delivery:
        """Return the delivery of this message to one target."""
        before = self.budget
        return Delivery(
            self.id,
            target,
            kind,
            target_subject,
            target_subject if self.is_broadcast else self.subject,
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
            None,
            None,
            None,
            None,
            None,
            self.replays,
            self.replay_of,
        )
