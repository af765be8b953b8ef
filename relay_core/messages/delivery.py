"""One message and one of its targets: the row in the index, the span in a trace.

A `Delivery` is mutable and lives in memory until the message is settled; each change of status is noted in the index,
which keeps the newest state. A `Span` is its read-only form in a trace. Times are wall time in milliseconds. Later
times are the first plus elapsed monotonic time, so a clock that jumps does not distort a latency.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pydantic import ConfigDict

from relay_core.clock import parse_iso
from relay_core.messages.base import WireModel
from relay_core.messages.envelope import Envelope


class Status:
    """The status of a delivery."""

    NEW = "new"
    """Stored, waiting in ``new/``."""
    CUR = "cur"
    """Claimed by a handler or a pull consumer."""
    DONE = "done"
    """Handled."""
    PARTIAL = "partial"
    """Handled by some handlers, failed by others."""
    FAILED = "failed"
    """A dead letter in ``failed/``."""
    PARTIAL_FAILURE = "partial_failure"
    """In ``failed/`` too, but not counted as a dead letter: other targets accepted the message."""
    REFUSED = "refused"
    """Refused by a rule before anything was stored."""
    NO_SUBSCRIBER = "no_subscriber"
    """A dead letter because there was no target."""
    REPLACED = "replaced"
    """A dead letter that an edited copy took the place of."""
    PURGED = "purged"
    """A dead letter that was removed."""
    GONE = "gone"
    """No longer on disk; its end was not recorded."""


class TargetKind:
    """The kind of a message's target."""

    ENDPOINT = "endpoint"
    ADAPTER = "adapter"
    SUBSCRIPTION = "subscription"
    NONE = "none"


@dataclass(slots=True, eq=False)
class Delivery:
    """One message and one of its targets."""

    message_id: str
    target: str
    kind: str
    target_subject: str
    subject: str
    sender: str
    trace_id: str
    parent_id: str | None
    status: str
    sent_ms: float
    expires_ms: int = 0
    hops_before: int = 0
    calls_before: int = 0
    hops_after: int = 0
    calls_after: int = 0
    max_hops: int = 0
    ancestors: tuple[str, ...] = ()
    size: int = 0
    code: str | None = None
    reason: str | None = None
    stored_ms: float | None = None
    claimed_ms: float | None = None
    handled_ms: float | None = None
    replays: int = 0
    replay_of: str | None = None
    outcomes: list[dict[str, Any]] | None = None
    """As in `Span`."""

    def mark_as_refused_at_gate(self) -> None:
        """Record that the message never reached a target: nothing was stored, and no budget spent."""
        self.kind, self.stored_ms = TargetKind.NONE, None
        self.hops_before, self.calls_before = self.hops_after, self.calls_after


DELIVERY_COLUMNS = tuple(field.name for field in fields(Delivery))


def stored_delivery(
    envelope: Envelope, *, target: str, kind: str, target_subject: str, status: str, size: int
) -> Delivery:
    """Return the delivery of a stored envelope."""
    budget = envelope.budget
    sent = parse_iso(envelope.created_at)
    return Delivery(
        message_id=envelope.id,
        target=target,
        kind=kind,
        target_subject=target_subject,
        subject=envelope.subject,
        sender=envelope.sender,
        trace_id=envelope.trace_id or envelope.id,
        parent_id=envelope.parent_id,
        status=status,
        sent_ms=sent,
        expires_ms=budget.ttl,
        hops_before=max(budget.hop_count - 1, 0),
        calls_before=budget.call_budget_remaining + 1,
        hops_after=budget.hop_count,
        calls_after=budget.call_budget_remaining,
        max_hops=budget.max_hops,
        ancestors=budget.ancestor_chain,
        size=size,
        stored_ms=parse_iso(envelope.replayed_at) if envelope.replayed_at is not None else sent,
        replays=envelope.replays,
        replay_of=envelope.replay_of,
    )


class Span(WireModel):
    """One message at one target."""

    message_id: str
    target: str
    """The mailbox's hash, or ``*`` where the publish itself was refused."""
    target_kind: str
    """``endpoint``, ``adapter``, ``subscription`` (which has no endpoint), or ``none`` if there was no target."""
    target_subject: str
    """The mailbox's subject; for an adapter, ``relay.adapter.{id}`` and its lane."""
    subject: str
    sender: str
    trace_id: str
    """The first message of the conversation."""
    parent_id: str | None = None
    """The message whose handling published this one."""
    status: str
    """``new`` (waiting), ``cur`` (claimed), ``done``, ``partial`` (some handlers failed), ``failed`` (a dead letter),
    ``partial_failure`` (kept for replay; other targets accepted the message), ``no_subscriber`` (a dead letter without
    a target), ``refused``, ``replaced`` (by an edited copy), ``purged``, or ``gone`` (its outcome is unknown)."""
    code: str | None = None
    """The reason as a stable word, if it failed or was refused."""
    reason: str | None = None
    """The reason as text."""
    sent_at: float
    """Wall time in milliseconds, like the times below."""
    stored_at: float | None = None
    """When its file was durable."""
    claimed_at: float | None = None
    """When a handler or a consumer claimed it."""
    handled_at: float | None = None
    """When handling ended, successfully or not."""
    hops_before: int
    """`hopCount` of the budget before this delivery; after it, below."""
    hops_after: int
    calls_before: int
    """`callBudgetRemaining` of the budget before this delivery; after it, below."""
    calls_after: int
    max_hops: int
    ancestors: tuple[str, ...] = ()
    """The budget's `ancestorChain`."""
    expires_at: int
    """The budget's `ttl`: wall time in milliseconds."""
    size: int
    """Bytes of the payload as JSON."""
    replays: int = 0
    replay_of: str | None = None
    """The message this one is an edited copy of."""
    outcomes: tuple[dict[str, Any], ...] = ()
    """For each handler its name (`handler`), `ok` and `error`; for a pool also `queue` and `subscription`, for an
    adapter `detail`. Empty if a single handler succeeded immediately."""


class TraceSummary(WireModel):
    """A message in a list, with its status over all targets."""

    message_id: str
    subject: str
    sender: str
    sent_at: float
    """Wall time in milliseconds."""
    trace_id: str
    """The first message of the conversation."""
    parent_id: str | None = None
    """The message whose handling published this one."""
    status: str
    """The worst of its spans; ``partial`` if that is a ``partial_failure``."""
    code: str | None = None
    """Of the first span that has one."""
    targets: int
    """The number of its targets."""
    total_us: int | None = None
    """From publish, or from the replay, to the end at the last target; None while a target has not ended."""
    size: int
    """Bytes of the payload as JSON."""
    replays: int = 0


class TraceSearch(WireModel):
    """The criteria of a search for messages, all of which must hold, and the page to return."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    id: str | None = None
    """A prefix of the message's id."""
    subject: str | None = None
    """A pattern, or a part of the subject, ignoring case."""
    sender: str | None = None
    """A pattern, or a part of the sender, ignoring case."""
    status: str | None = None
    """The worst status of its spans, such as `failed`, `refused` or `done`."""
    since: int | None = None
    """Created at or after this time, in epoch milliseconds."""
    until: int | None = None
    """Created before this time, in epoch milliseconds."""
    limit: int = 100
    cursor: str | None = None
    """From the previous page."""


class TracePage(WireModel):
    """A page of messages, newest first."""

    rows: list[TraceSummary]
    complete: bool
    """False if the search paused before the page was full: continue from the cursor."""
    cursor: str | None = None
    """For the next page; missing on the last."""
