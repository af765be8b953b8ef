"""One publish on its way through a pipeline.

The request is given to the constructor and the stamp to `stamp`; neither changes afterwards. The stages write the rest.
Most of these keep their defaults for most publishes, so the defaults belong to the class and an instance holds only
the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from relay_core.clock import iso
from relay_core.journal.transaction import Move
from relay_core.messages.base import trusted
from relay_core.messages.delivery import Delivery
from relay_core.messages.envelope import Budget, BudgetOverrides, Envelope
from relay_core.messages.results import AdapterResult, PublishResult, Reason, Rejection
from relay_core.pipeline.pending_publish import PendingPublish
from relay_core.pipeline.routing import Target
from relay_core.rules.bindings import Binding
from relay_core.rules.dedupe import dedupe_key
from relay_core.storage.maildir import HasData
from relay_core.storage.stored_message import StoredMessage


class Publication(PendingPublish):
    """The request, its stamp, and the results of the stages so far."""

    is_broadcast = False
    """Whether the subject is a pattern."""
    data: bytes
    """The payload as JSON."""

    id: str
    trace_id: str
    created_ms: int
    started: float
    """Monotonic time at which it was stamped."""
    budget: Budget

    is_chat_inbound = False
    """Whether its adapter brings in a person's message from a chat."""
    binding: Binding | None = None
    """The binding by which it reaches a person, or an agent from a chat."""
    is_counted = False
    """Whether it was counted against its sender's rate limit: replays and failure notices are not."""
    targets: list[Target]
    delivered = 0
    """Targets that took it."""
    rejected: list[Rejection] | None = None
    pressure: dict[str, float] | None = None
    adapter_results: list[AdapterResult] | None = None
    failures: list[str] | None = None
    """The reasons why targets did not take it."""

    def __init__(
        self,
        subject: str,
        payload: Any,
        sender: str,
        *,
        reply_to: str | None = None,
        overrides: BudgetOverrides | Mapping[str, Any] | None = None,
        parent_id: str | None = None,
        dedupe_id: str | None = None,
        origin: str | None = None,
        reader: str | None = None,
        waits: bool = True,
        replaces: Move | None = None,
        replay_of: str | None = None,
        replays: int = 0,
        replayed_at: str | None = None,
    ) -> None:
        self.subject = subject
        self.payload = payload
        self.sender = sender
        self.reply_to = reply_to
        self.overrides = overrides
        self.parent_id = parent_id
        self.dedupe = dedupe_key(sender, dedupe_id) if dedupe_id is not None else None
        """The key under which its outcome is remembered."""
        self.origin = origin
        """The adapter that published this, which must not get it back."""
        self.reader = reader
        """The client or adapter that publishes this, as rules/replies.py knows it; None for the embedding program."""
        self.waits = waits
        """Whether it waits for the answers of targets that give one; otherwise a stored copy is enough."""
        self.replaces = replaces
        """The dead letter that ends when this is stored, in the same transaction."""
        self.replay_of = replay_of
        self.replays = replays
        self.replayed_at = replayed_at

    def stamp(self, id: str, created_ms: int, started: float, *, trace_id: str, budget: Budget, data: bytes) -> None:
        """Set the fields that `Validate` and `Stamp` set, for messages that skip these stages."""
        self.id, self.trace_id = id, trace_id
        self.created_ms, self.started = created_ms, started
        self.budget = budget
        self.data = data

    @property
    def is_durable(self) -> bool:
        """Return True if anything was stored, so that a retry must not publish again."""
        if self.delivered or self.failures or self.rejected is None:
            return True
        return self.rejected[0].reason == Reason.BUDGET_EXCEEDED

    def reject(self, endpoint_hash: str, reason: str) -> None:
        """Add a refusal."""
        if self.rejected is None:
            self.rejected = []
        self.rejected.append(Rejection(endpoint_hash=endpoint_hash, reason=reason))

    def note_pressure(self, endpoint_hash: str, pressure: float) -> None:
        """Add the pressure of a mailbox."""
        if self.pressure is None:
            self.pressure = {endpoint_hash: pressure}
        else:
            self.pressure[endpoint_hash] = pressure

    def note_adapter(self, result: AdapterResult) -> None:
        """Add the result of an adapter."""
        if self.adapter_results is None:
            self.adapter_results = []
        self.adapter_results.append(result)

    def note_failure(self, reason: str) -> None:
        """Add the reason why a target did not take it."""
        if self.failures is None:
            self.failures = []
        self.failures.append(reason)

    def settle(self) -> PublishResult:
        """Set the result, which ends the run."""
        self.result = self.outcome()
        return self.result

    def outcome(self) -> PublishResult:
        """Return the outcome so far."""
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

    def shared(self) -> dict[str, Any]:
        """Return what the copies of all targets have in common, as it is stored."""
        stored: dict[str, Any] = {
            "id": self.id,
            "from": self.sender,
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
        return stored

    def encode(self, own_part: bytes) -> bytes:
        """Return a target's copy as it is stored."""
        return b"%b,%b" % (orjson.dumps(self.shared())[:-1], own_part[1:])

    def message(self, subject: str, budget: Budget, source: HasData, delivery: Delivery) -> StoredMessage:
        """Return a target's copy as a message in memory, with a separate payload object."""
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
        return StoredMessage(envelope, source, delivery)

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
            self.replays,  # positional like the others: keywords take a tenth longer, on every publish
            self.replay_of,
        )


def encode_own_part(subject: str, budget: Budget) -> bytes:
    """Return what is stored of one target's copy alone."""
    return orjson.dumps(
        {
            "subject": subject,
            "budget": {
                "hopCount": budget.hop_count,
                "maxHops": budget.max_hops,
                "ancestorChain": budget.ancestor_chain,
                "ttl": budget.ttl,
                "callBudgetRemaining": budget.call_budget_remaining,
            },
        }
    )
