"""Models of subscriptions, deliveries, inboxes and signals."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from relay_core.messages.envelope import Envelope
from relay_core.messages.signals import Signal
from relay_core.protocol.base import MAX_PAGE, Limit, Params, PatternParams, Result, SubjectParams


class SubscribeParams(PatternParams):
    """A pattern to receive, and how many messages at a time."""

    max_in_flight: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Messages in flight over all mailboxes. Default: one per mailbox, or one in total for a queue."""
    queue: str | None = None
    """A name of one subject part. Subscriptions with the same queue share the messages: each goes to one of them."""
    starts: bool = False
    """The client sends `start` before it handles a delivery, and skips the delivery if the answer is an error."""


class Subscribed(Result):
    """A subscription, which ends with its connection."""

    subscription_id: str
    """Used by notifications and to unsubscribe."""


class SubscriptionParams(Params):
    """A subscription of this connection."""

    subscription_id: str
    """From `subscribe` or `signal.subscribe`."""


class SubscriptionState(Result):
    """A live subscription."""

    id: str
    """As in `subscriptionId`."""
    kind: Literal["messages", "signals"]
    pattern: str
    queue: str | None = None
    """The queue that it shares its messages with."""
    client: str | None = None
    """The name that the client gave, or the handler's if it is part of the supervisor."""
    identity: str
    """`operator`, `token` and its id, or `supervisor`."""
    agent: str | None = None
    """The endpoint that the connection acts for."""
    pid: int | None = None
    """Of the process that opened the connection, from the kernel."""
    since: int
    """Epoch milliseconds."""
    in_flight: int | None = None
    """Messages sent and not answered yet; missing for signals and for handlers of the supervisor."""


class SubscriptionList(Result):
    """A page of the live subscriptions, oldest first."""

    subscriptions: list[SubscriptionState]
    cursor: str | None = None
    """For the next page; missing on the last."""


class DeliveryParams(Params):
    """A delivery in flight on this connection."""

    delivery_id: str
    """From the `message` notification."""


class FailDeliveryParams(DeliveryParams):
    """A delivery that failed."""

    reason: str
    """Recorded in the dead letter."""
    put_back: bool = False
    """Handling did not begin: requeue the message instead of dead-lettering it."""


class PeekParams(SubjectParams):
    """An inbox to peek into."""

    limit: Limit = 50
    """Fewer are returned if they would not fit into a frame."""
    after: str | None = None
    """Only messages with a later id."""


class WaitParams(SubjectParams):
    """An inbox to wait for."""

    limit: Limit = 50
    after: str | None = None
    """Only messages with a later id."""
    answer_to: str | None = None
    """Only answers to this message: its children, and messages with its id as their correlation id."""
    timeout_ms: Annotated[int, Field(ge=1, le=600_000)] = 30_000
    """Then the result is empty."""


class ClaimParams(SubjectParams):
    """An inbox to claim from."""

    limit: Limit = 1
    """Fewer are returned if they would not fit into a frame."""
    lease_ms: Annotated[int, Field(ge=1000, le=86_400_000)] | None = None
    """Keep the claim this long even if the connection is lost; by default it ends with the connection."""
    ids: Annotated[list[str], Field(max_length=MAX_PAGE)] | None = None
    """Claim those of these messages that are still waiting; `limit` is ignored."""


class ClaimedParams(SubjectParams):
    """A claimed message."""

    id: str
    """The message's id."""


class CompleteParams(ClaimedParams):
    """A claimed message that was handled."""

    late: bool = False
    """Also accept a message that was dead-lettered because its consumer was gone; this removes the dead letter."""


class FailParams(ClaimedParams):
    """A claimed message that could not be handled."""

    reason: str
    """Recorded in the dead letter."""


class Messages(Result):
    """Messages, oldest first."""

    messages: list[Envelope]


class MessageIds(Result):
    """Ids of waiting messages, oldest first; empty after the timeout."""

    ids: list[str]


class Completed(Result):
    """The message is finished."""

    late: bool | None = None
    """True if the message had been dead-lettered."""


class SignalParams(Params):
    """A signal to send."""

    subject: str
    """The destination; not a pattern."""
    signal: Signal
    """`endpointSubject` must be a subject that the connection may publish as."""


class MessageNote(Result):
    """A message for a subscription; answer it with `ack` or `fail`."""

    subscription_id: str
    """From `subscribe`."""
    delivery_id: str
    """For `start`, `ack` and `fail` on this connection."""
    envelope: Envelope


class SignalNote(Result):
    """A signal for a subscription."""

    subscription_id: str
    """From `signal.subscribe`."""
    subject: str
    """Where it was sent."""
    signal: Signal
