"""Models of `publish` and `publish.batch`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from relay_core.messages.envelope import BudgetOverrides
from relay_core.messages.results import PublishResult
from relay_core.protocol.base import MAX_BATCH, Params, Result


class PublishParams(Params):
    """A message to publish."""

    subject: str
    """The destination; a pattern publishes to every matching endpoint."""
    sender: Annotated[str, Field(alias="from")]
    """The sender's subject."""
    payload: Any
    """Any JSON, up to `limits.maxPayloadBytes`."""
    reply_to: str | None = None
    """Where to send answers."""
    budget: BudgetOverrides | None = None
    """At most the configured ceilings."""
    parent_id: str | None = None
    """The message this one follows from; its remaining budget is inherited."""
    dedupe_id: Annotated[str, Field(max_length=200)] | None = None
    """A retry with the same id and sender returns the first outcome instead of publishing again."""


class BatchParams(Params):
    """Messages to publish, each independent of the others."""

    messages: Annotated[list[PublishParams], Field(max_length=MAX_BATCH)]


class WireError(Result):
    """A JSON-RPC error."""

    code: int
    """JSON-RPC's number."""
    message: str
    """A sentence for people."""
    data: dict[str, Any] = Field(default_factory=dict)
    """The error's class (`error`), stable word (`code`) and fields."""


class BatchOutcome(Result):
    """The result of one message of a batch, or its error."""

    result: PublishResult | None = None
    error: WireError | None = None
    """The error that `publish` would have returned."""


class BatchResult(Result):
    """The outcomes of a batch, in its order."""

    results: list[BatchOutcome]
