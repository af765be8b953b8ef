"""Models of dead letters and replay."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from relay_core.messages.dead_letter import DeadLetter, DeadLetterFilter, DeadLetterGroup, DeadLetterSummary
from relay_core.messages.replay_plan import PlanItem, ReplayOutcome
from relay_core.protocol.base import Limit, Params, Result


class DeadLettersParams(Params):
    """The dead letters to list."""

    filter: DeadLetterFilter | None = None
    """Default: all."""
    limit: Limit = 100
    """Fewer are returned if they would not fit into a frame."""
    cursor: str | None = None
    """From the previous page."""


class DeadLetterPage(Result):
    """A page of dead letters, newest first."""

    dead_letters: list[DeadLetter]
    total: int
    """Of all pages."""
    cursor: str | None = None
    """For the next page; missing on the last."""


class DeadLetterSummaries(Result):
    """A page of dead letters without their messages, newest first."""

    rows: list[DeadLetterSummary]
    total: int | None = None
    """Of all pages; None for a filter on bodies, which are searched piece by piece."""
    cursor: str | None = None
    """For the next page. A search of bodies may return few rows or none and still have more to search."""


class DeadLetterGroups(Result):
    """Dead letters by code and target, largest group first."""

    groups: list[DeadLetterGroup]


class DeadLetterParams(Params):
    """A dead letter."""

    id: str
    """The message's id."""
    endpoint: str | None = None
    """Subject or hash of the target, if the message failed at several."""


class PlanParams(Params):
    """The dead letters to replay: by id, by filter, or all."""

    ids: list[str] | None = None
    """Message ids, or `ID/HASH` for the copy of one target."""
    filter: DeadLetterFilter | None = None
    fresh_budget: bool = False
    """Reset hops, ancestor chain and call budget."""


class PlanItemsParams(Params):
    """A page of a plan."""

    plan_id: str
    limit: Limit = 100
    cursor: str | None = None
    """From the previous page."""


class PlanItems(Result):
    """A page of a plan, oldest message first."""

    items: list[PlanItem]
    cursor: str | None = None
    """For the next page; missing on the last."""


class RunParams(Params):
    """How to run a plan."""

    plan_id: str
    rate: Annotated[float, Field(gt=0)] | None = None
    """Messages per second at most."""
    canary: bool = False
    """Replay 1, then 10, then the rest; stop if any of the first eleven fails."""


class PlanIdParams(Params):
    """A plan that was started."""

    plan_id: str


class Replay(Result):
    """A run of a plan."""

    plan_id: str
    outcome: ReplayOutcome


class ReplayList(Result):
    """The newest runs, oldest first."""

    replays: list[Replay]


class EditParams(DeadLetterParams):
    """A dead letter and its new payload."""

    payload: Any
    """Replaces the payload that failed."""
    fresh_budget: bool = False
    """Reset hops, ancestor chain and call budget."""


class PurgeParams(Params):
    """The dead letters to remove: those that meet every given condition, or all."""

    ids: list[str] | None = None
    """Message ids, or `ID/HASH` for the copy of one target."""
    older_than: int | None = None
    """Failed before this time, in epoch milliseconds."""
    filter: DeadLetterFilter | None = None
    plan_id: str | None = None
    """Only those that this plan has frozen."""


class Purged(Result):
    """The number of dead letters removed."""

    purged: int


class ExportParams(Params):
    """The dead letters to export."""

    filter: DeadLetterFilter | None = None
    plan_id: str | None = None
    """Only those that this plan has frozen."""
    limit: Limit = 100
    """Fewer are returned if they would not fit into a frame."""
    cursor: str | None = None
    """From the previous page."""


class Exported(Result):
    """JSON lines, one dead letter each, oldest first."""

    lines: list[str]
    cursor: str | None = None
    """For the next page; missing on the last."""
