"""What an action is about: rows that were marked, everything behind a filter, or the row under the cursor.

1. Marks are keys (``ID/HASH``). All that a filter selects is marked as just that, minus what was unmarked again: the
   filter is planned by the supervisor, and 100,000 keys are held nowhere here.
2. A `Choice` is made when an action is asked for. The supervisor freezes it as a plan, and what the plan holds is what
   is shown and acted on.
3. Judging a choice again means the same dead letters: what failed after it was frozen is not in it, and ages in the
   filter count from then.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace

from relay_core.client import RelayClient
from relay_core.clock import parse_iso
from relay_core.deadletters import DeadLetterFilter, DeadLetterGroup
from relay_core.filter_language import FIELDS, Term, parse_filter, render_filter
from relay_core.replay_plan import PlanHead
from relay_core.subjects import is_pattern
from relay_tui.safe import clean
from relay_tui.words import plural

_LOOKED_FOR = 1000


class Marks(set[str]):
    """Keys that are marked; with `everything`, those that are not."""

    everything = False

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) != self.everything

    def __bool__(self) -> bool:
        return self.everything or len(self) > 0

    def toggle(self, key: str) -> None:
        """Mark what is not marked, and the other way round."""
        self.symmetric_difference_update({key})

    def mark_everything(self) -> None:
        """Mark all that the filter selects."""
        self.clear()
        self.everything = True

    def forget(self) -> None:
        """Unmark everything."""
        self.clear()
        self.everything = False

    def words(self, total: int | None, in_list: Callable[[str], bool]) -> str:
        """Return how many are marked, and whether some are where they cannot be seen."""
        if not self.everything:
            hidden = 0 if len(self) > _LOOKED_FOR else sum(not in_list(key) for key in self)
            return f"{len(self):,} marked" + (f", {hidden:,} not in this list" if hidden else "")
        count = "all" if total is None else f"all {total:,}"
        return f"{count} in this filter marked" + (f" but {len(self):,}" if len(self) else "")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are meant."""

    ids: tuple[str, ...] | None = None
    where: str = ""
    """The filter, if not by id; empty for everything."""
    until_ms: int | None = None
    """When it was frozen the first time."""

    @property
    def words(self) -> str:
        """Return in words which are meant."""
        if self.ids is None:
            return f"all that match {clean(self.where, 200)}" if self.where else "every dead letter"
        return f"{plural(len(self.ids), 'message')} by id" if len(self.ids) != 1 else clean(self.ids[0])

    async def freeze(self, client: RelayClient, now_ms: int, *, fresh_budget: bool = False) -> PlanHead:
        """Have the supervisor freeze and judge what is meant."""
        if self.ids is not None:
            return await client.freeze_replay(self.ids, fresh_budget=fresh_budget)
        return await client.freeze_replay(filter=self._filter(now_ms), fresh_budget=fresh_budget)

    def frozen(self, head: PlanHead) -> Choice:
        """Return the choice as it was frozen."""
        return self if self.until_ms is not None else replace(self, until_ms=parse_iso(head.created_at))

    def command(self, socket: str | None) -> str:
        """Return the command line that replays what is meant."""
        words = ["relay", "dlq", "replay"]
        if socket is not None:
            words += ["--socket", socket]
        if self.ids is not None:
            words += self.ids
        else:
            words += ["--where", self.where] if self.where else ["--all"]
        return shlex.join(words)

    def _filter(self, now_ms: int) -> DeadLetterFilter:
        if self.until_ms is None:
            return DeadLetterFilter(where=self.where or None)
        late = max(now_ms - self.until_ms, 0)
        terms = [_older(term, late) for term in parse_filter(self.where)]
        return DeadLetterFilter(where=render_filter(terms) or None, failed_before=self.until_ms + 1)


def chosen(marks: Marks, text: str, key: str | None) -> Choice | None:
    """Return what is marked, else the row under the cursor, else None."""
    if marks.everything:
        unmarked = [Term("id", "=", one, negated=True) for one in sorted(marks)]
        return Choice(where=" ".join(filter(None, (text.strip(), render_filter(unmarked)))))
    if marks:
        return Choice(ids=tuple(sorted(marks)))
    return Choice(ids=(key,)) if key is not None else None


def group_filter(group: DeadLetterGroup) -> str:
    """Return the filter that selects a group."""
    subject = group.endpoint_subject
    # A subject that is a pattern would select other mailboxes too.
    target = group.endpoint_hash if not subject or is_pattern(subject) else subject
    return render_filter([Term("code", "=", group.code), Term("to", "=", target)])


def is_half_typed(text: str) -> bool:
    """Tell whether a filter ends in what may become the name of a field: nobody wants bodies searched for it yet."""
    last = text.rpartition(" ")[2].removeprefix("!")
    return bool(last) and any(field.startswith(last) for field in FIELDS)


def _older(term: Term, by_ms: int) -> Term:
    return replace(term, value=int(term.value) + by_ms) if term.field == "age" else term
