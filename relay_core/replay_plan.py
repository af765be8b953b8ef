"""Replay plans: a frozen selection of dead letters, and the verdict on each (replay_judge.py).

1. `will_deliver`: it would be put back at once. `breaker_open` and `mailbox_full`: it would be put
   back as soon as its target lets it.
2. All other verdicts mean that a run leaves it alone: no longer there (`already_replayed`), not a
   message (`malformed`), not allowed (`denied`), nobody to deliver to (`no_target`), or stopped by
   the budget gate again (`over_budget`).
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from relay_core.model import WireModel


class Verdict:
    """What a replay would do with a dead letter."""

    WILL_DELIVER = "will_deliver"
    BREAKER_OPEN = "breaker_open"
    MAILBOX_FULL = "mailbox_full"
    DENIED = "denied"
    ALREADY_REPLAYED = "already_replayed"
    MALFORMED = "malformed"
    NO_TARGET = "no_target"
    OVER_BUDGET = "over_budget"


REPLAYABLE = (Verdict.WILL_DELIVER, Verdict.BREAKER_OPEN, Verdict.MAILBOX_FULL)
"""Verdicts that a run acts on; the last two it waits for."""


class PlanItem(WireModel):
    """One message of a plan."""

    message_id: str
    endpoint_hash: str
    endpoint_subject: str
    verdict: str
    detail: str | None = None


class PlanHead(WireModel):
    """A frozen selection of dead letters, without its items."""

    id: str
    created_at: str
    fresh_budget: bool
    total: int
    """How many items there are."""
    counts: dict[str, int]
    """Items by verdict, most first."""


class ReplayPlan(WireModel):
    """A frozen selection of dead letters."""

    id: str
    created_at: str
    fresh_budget: bool
    items: tuple[PlanItem, ...]

    def keys(self) -> list[tuple[str, str]]:
        """Return the message and the mailbox of every item, sorted."""
        return sorted((item.message_id, item.endpoint_hash) for item in self.items)

    def head(self) -> PlanHead:
        """Return what there is to say about the plan as a whole."""
        return PlanHead(
            id=self.id,
            created_at=self.created_at,
            fresh_budget=self.fresh_budget,
            total=len(self.items),
            counts=dict(Counter(item.verdict for item in self.items).most_common()),
        )


RunState = Literal["running", "waiting", "paused", "finished", "cancelled", "stopped"]


class ReplayOutcome(WireModel):
    """What became of a plan."""

    delivered: int
    failed: int
    skipped: int
    state: RunState = "finished"
    detail: str | None = None
    """What a run waits for, or why it stopped."""
    total: int = 0
