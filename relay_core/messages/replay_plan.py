"""Replay plans: a frozen selection of dead letters, and the verdict on each (deadletters/replay_planner.py).

1. `will_deliver`: a run resends it immediately. `breaker_open` and `mailbox_full`: a run resends it as soon as its
   target accepts messages.
2. A run skips all other verdicts: gone (`already_replayed`), not a message (`malformed`), not allowed (`denied`), no
   target (`no_target`), or stopped by the budget again (`over_budget`).
3. A plan selects each dead letter as it was when it was frozen. A letter that was replayed and has failed again
   since is not in it (`froze`), and neither is one that was gone by then (`already_replayed`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, overload

from pydantic import Field, PrivateAttr, field_serializer

from relay_core.messages.base import WireModel, trusted
from relay_core.messages.dead_letter import DeadLetter


class Verdict:
    """The predicted outcome of replaying a dead letter."""

    WILL_DELIVER = "will_deliver"
    BREAKER_OPEN = "breaker_open"
    MAILBOX_FULL = "mailbox_full"
    DENIED = "denied"
    ALREADY_REPLAYED = "already_replayed"
    MALFORMED = "malformed"
    NO_TARGET = "no_target"
    OVER_BUDGET = "over_budget"


REPLAYABLE = (Verdict.WILL_DELIVER, Verdict.BREAKER_OPEN, Verdict.MAILBOX_FULL)
"""Verdicts that a run acts on; it waits for the last two."""


class PlanItem(WireModel):
    """One message of a plan."""

    message_id: str
    endpoint_hash: str
    """The mailbox that holds the dead letter."""
    endpoint_subject: str
    """The mailbox's subject."""
    verdict: str
    """``will_deliver``; ``breaker_open`` or ``mailbox_full``, for which a run would wait; or, if it would be skipped,
    ``denied``, ``already_replayed``, ``malformed``, ``no_target`` or ``over_budget``."""
    detail: str | None = None
    failed_at: str | None = None
    """When it failed; None if it is gone."""
    replays: int | None = None
    """The number of replays so far."""
    partial: bool = False
    """True if other targets accepted the message: then it is this target's copy."""


Key = tuple[str, str]
"""A message, and the hash of the mailbox that holds its dead letter."""
Row = tuple[Any, ...]


class PackedPlanItems(Sequence[PlanItem]):
    """The items of a plan as plain tuples: a hundred thousand models would burden the garbage collector."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def add(self, item: PlanItem) -> None:
        """Add an item at the end."""
        self._rows.append(tuple(item.__dict__[name] for name in _NAMES))

    def verdicts(self) -> Iterator[str]:
        """Yield the verdict of each item."""
        return (row[_VERDICT] for row in self._rows)

    def partial(self) -> int:
        """Return the number of copies from partial deliveries."""
        return sum(row[_PARTIAL] for row in self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> PlanItem: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[PlanItem, ...]: ...
    def __getitem__(self, at: int | slice) -> PlanItem | tuple[PlanItem, ...]:
        if isinstance(at, slice):
            return tuple(_item(row) for row in self._rows[at])
        return _item(self._rows[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


_NAMES = tuple(PlanItem.model_fields)
_VERDICT = _NAMES.index("verdict")
_PARTIAL = _NAMES.index("partial")


def _item(row: Row) -> PlanItem:
    return trusted(PlanItem, dict(zip(_NAMES, row, strict=True)))


class PlanHead(WireModel):
    """A frozen selection of dead letters, without its items."""

    id: str
    """Valid until the supervisor stops; of the plans that were not run, the newest hundred are kept."""
    created_at: str
    """An ISO 8601 instant."""
    fresh_budget: bool
    """Whether hops, chain and calls are reset."""
    total: int
    """The number of items."""
    counts: dict[str, int]
    """Items by verdict, most first."""
    partial: int = 0
    """The number of copies from partial deliveries."""


class ReplayPlan(WireModel):
    """A frozen selection of dead letters."""

    id: str
    created_at: str
    fresh_budget: bool
    items: Sequence[PlanItem]

    _there: dict[Key, tuple[str, int]] = PrivateAttr(default_factory=dict)
    """Key → (time of failure, replays) of each dead letter, sorted by key; only on the bus that made the plan."""

    @classmethod
    def frozen(
        cls, id: str, created_at: str, items: PackedPlanItems, there: dict[Key, tuple[str, int]], *, fresh_budget: bool
    ) -> ReplayPlan:
        """Return a plan; `there` has the time of failure and the replays of each dead letter."""
        plan = cls.model_construct(id=id, created_at=created_at, fresh_budget=fresh_budget, items=items)
        plan._there = there
        return plan

    def keys(self) -> list[Key]:
        """Return the key of every dead letter in the plan, sorted."""
        return list(self._there)

    def froze(self, letter: DeadLetter) -> bool:
        """Return True if a dead letter is in the plan, and has not failed again since."""
        return self._there.get((letter.message_id, letter.endpoint_hash)) == (letter.failed_at, letter.replays)

    def head(self) -> PlanHead:
        """Return the plan without its items."""
        return PlanHead(
            id=self.id,
            created_at=self.created_at,
            fresh_budget=self.fresh_budget,
            total=len(self.items),
            counts=dict(Counter(self._verdicts()).most_common()),
            partial=self.items.partial()
            if isinstance(self.items, PackedPlanItems)
            else sum(item.partial for item in self.items),
        )

    @field_serializer("items")
    def _as_list(self, items: Sequence[PlanItem]) -> list[PlanItem]:
        return list(items)

    def replayable(self) -> list[int]:
        """Return the positions of the items that a run acts on."""
        return [at for at, verdict in enumerate(self._verdicts()) if verdict in REPLAYABLE]

    def skips(self) -> Counter[str]:
        """Return the number of items that a run skips, by verdict."""
        return Counter(verdict for verdict in self._verdicts() if verdict not in REPLAYABLE)

    def _verdicts(self) -> Iterator[str]:
        if isinstance(self.items, PackedPlanItems):
            return self.items.verdicts()
        return (item.verdict for item in self.items)


RunState = Literal["running", "waiting", "paused", "finished", "cancelled", "stopped"]


class ReplayOutcome(WireModel):
    """The outcome of a plan."""

    delivered: int
    """Handled, or stored without a handler; in a canary's steps, acknowledged."""
    failed: int
    """Dead-lettered again."""
    skipped: int
    """Not replayable, or not reached."""
    state: RunState = "finished"
    """``waiting`` for a breaker, a full mailbox or an acknowledgement; ``paused`` by the operator, or while no consumer
    has claimed a canary's message; ``stopped`` before all were tried."""
    detail: str | None = None
    """The reason for waiting or stopping."""
    total: int = 0
    """Items of the plan."""
    skips: dict[str, int] = Field(default_factory=dict)
    """Skipped items that the run reached, by their verdict at that time, most first."""
