"""Replay plans: a frozen selection of dead letters, and the verdict on each (deadletters/replay_planner.py).

1. `will_deliver`: it would be put back at once. `breaker_open` and `mailbox_full`: it would be put
   back as soon as its target lets it.
2. All other verdicts mean that a run leaves it alone: no longer there (`already_replayed`), not a
   message (`malformed`), not allowed (`denied`), nobody to deliver to (`no_target`), or stopped by
   the budget gate again (`over_budget`).
3. A plan means each dead letter as it was when it was frozen: one that was replayed and has failed again since is
   another (`froze`), which nobody has looked at. Of what was gone by then (`already_replayed`) it means nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, overload

from pydantic import Field, PrivateAttr, field_serializer

from relay_core.messages.base import WireModel, trusted
from relay_core.messages.dead_letter import DeadLetter


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
    """The mailbox that the dead letter lies in."""
    endpoint_subject: str
    """The mailbox's subject."""
    verdict: str
    """``will_deliver``; ``breaker_open`` or ``mailbox_full``, for which a run would wait; or, if it would be left
    alone, ``denied``, ``already_replayed``, ``malformed``, ``no_target`` or ``over_budget``."""
    detail: str | None = None
    failed_at: str | None = None
    """When it had failed; None if it was not there any more."""
    replays: int | None = None
    """How often it had been replayed."""
    partial: bool = False
    """Whether other targets took the message: then it is this target's kept copy."""


Key = tuple[str, str]
"""A message, and the hash of the mailbox its dead letter lies in."""
Row = tuple[Any, ...]


class PackedPlanItems(Sequence[PlanItem]):
    """The items of a plan as plain tuples: of a hundred thousand models the garbage collector would feel each."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def add(self, item: PlanItem) -> None:
        """Add an item at the end."""
        self._rows.append(tuple(item.__dict__[name] for name in _NAMES))

    def verdicts(self) -> Iterator[str]:
        """Yield the verdict of each item."""
        return (row[_VERDICT] for row in self._rows)

    def partial(self) -> int:
        """Return how many items are kept copies of partial deliveries."""
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
    """Good until the supervisor stops; of the plans that were not run, the newest hundred are kept."""
    created_at: str
    """An ISO 8601 instant."""
    fresh_budget: bool
    """Whether hops, chain and calls begin anew."""
    total: int
    """How many items there are."""
    counts: dict[str, int]
    """Items by verdict, most first."""
    partial: int = 0
    """How many items are kept copies of partial deliveries."""


class ReplayPlan(WireModel):
    """A frozen selection of dead letters."""

    id: str
    created_at: str
    fresh_budget: bool
    items: Sequence[PlanItem]

    _there: dict[Key, tuple[str, int]] = PrivateAttr(default_factory=dict)
    """The dead letters that were there in the order of their keys, and how; only the bus that froze them has this."""

    @classmethod
    def frozen(
        cls, id: str, created_at: str, items: PackedPlanItems, there: dict[Key, tuple[str, int]], *, fresh_budget: bool
    ) -> ReplayPlan:
        """Return a plan over items; `there` has when each dead letter failed, and how often it was replayed."""
        plan = cls.model_construct(id=id, created_at=created_at, fresh_budget=fresh_budget, items=items)
        plan._there = there
        return plan

    def keys(self) -> list[Key]:
        """Return the message and the mailbox of every dead letter that was there, sorted."""
        return list(self._there)

    def froze(self, letter: DeadLetter) -> bool:
        """Tell whether a dead letter is in the plan, and has not failed again since."""
        return self._there.get((letter.message_id, letter.endpoint_hash)) == (letter.failed_at, letter.replays)

    def head(self) -> PlanHead:
        """Return what there is to say about the plan as a whole."""
        return PlanHead(
            id=self.id,
            created_at=self.created_at,
            fresh_budget=self.fresh_budget,
            total=len(self.items),
            counts=dict(Counter(self._verdicts()).most_common()),
            partial=self.items.partial()
            if isinstance(self.items, PackedPlanItems)
            else sum(one.partial for one in self.items),
        )

    @field_serializer("items")
    def _as_list(self, items: Sequence[PlanItem]) -> list[PlanItem]:
        return list(items)

    def replayable(self) -> list[int]:
        """Return where the items are that a run acts on."""
        return [at for at, verdict in enumerate(self._verdicts()) if verdict in REPLAYABLE]

    def skips(self) -> Counter[str]:
        """Return how many items a run leaves alone, by verdict."""
        return Counter(verdict for verdict in self._verdicts() if verdict not in REPLAYABLE)

    def _verdicts(self) -> Iterator[str]:
        if isinstance(self.items, PackedPlanItems):
            return self.items.verdicts()
        return (item.verdict for item in self.items)


RunState = Literal["running", "waiting", "paused", "finished", "cancelled", "stopped"]


class ReplayOutcome(WireModel):
    """What became of a plan."""

    delivered: int
    """Handled, or stored where no handler is; of a canary's steps, acknowledged there."""
    failed: int
    """Dead letters again."""
    skipped: int
    """Left as they were: not to be replayed, or not reached."""
    state: RunState = "finished"
    """``waiting`` is for a breaker, a full mailbox or an acknowledgement; ``paused`` is by the operator, or while no
    consumer has taken a canary's message; ``stopped`` is an end before all were tried."""
    detail: str | None = None
    """What a run waits for, or why it stopped."""
    total: int = 0
    """Items of the plan."""
    skips: dict[str, int] = Field(default_factory=dict)
    """Skipped items that the run looked at, by their verdict at that time, most first."""
