"""What an action is about: rows that were marked, everything behind a filter, or the row under the cursor.

1. Marks are keys (``ID/HASH``). All that a filter selects is marked as just that, minus what was unmarked again: the
   filter is planned by the supervisor, and 100,000 keys are held nowhere here.
2. A `Choice` is made when an action is asked for. The supervisor freezes it as a plan, and what the plan holds is what
   is shown and acted on.
3. Judging a choice again means the same dead letters: what failed after it was frozen is not in it, and ages in the
   filter are instants from the moment that it was made.
4. What was acted on is unmarked, and nothing else: marks may be made while it goes on.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from relay_core.client import RelayClient
from relay_core.deadletters import DeadLetterFilter, DeadLetterGroup
from relay_core.filter_language import FIELDS, Term, parse_filter, render_filter
from relay_core.replay_plan import PlanHead
from relay_core.subjects import is_pattern
from relay_tui.safe import clean
from relay_tui.views.dead_letters.text import instant
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

    def settle(self, done: Choice, text: str) -> None:
        """Unmark what was acted on; `text` is the filter that everything is marked in, if everything is."""
        if done.ids is None:
            meant = chosen(self, text, None) if self.everything else None
            if meant is not None and meant.where == done.where:
                self.forget()
        elif not self.everything:
            self.difference_update(done.ids)

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
    asked_ms: int | None = None
    """What ages in the filter count from; None for when it is asked."""
    until_ms: int | None = None
    """When it was frozen the first time."""
    about: str | None = field(default=None, compare=False)
    """What a single one is: its code, target, sender and reason."""

    @property
    def words(self) -> str:
        """Return in words which are meant."""
        if self.ids is None:
            return f"all that match {clean(self.where, 200)}" if self.where else "every dead letter"
        if len(self.ids) != 1:
            return f"{plural(len(self.ids), 'message')} by id"
        name = clean(self.ids[0].partition("/")[0])
        return f"{name}: {self.about}" if self.about is not None else clean(self.ids[0])

    async def told(self, client: RelayClient, now_ms: int) -> Choice:
        """Return the choice as it is to be shown and asked: ages count from now, and a single one says what it is."""
        if self.ids is None:
            return replace(self, asked_ms=now_ms)
        if len(self.ids) != 1:
            return self
        where = render_filter([Term("id", "=", self.ids[0])])
        page = await client.dead_letter_summaries(filter=DeadLetterFilter(where=where), limit=1)
        if not page.rows:
            return self
        (one,) = page.rows
        target = one.endpoint_subject or one.endpoint_hash
        return replace(self, about=letter_words(one.code, target, one.sender, one.reason))

    async def freeze(self, client: RelayClient, *, fresh_budget: bool = False) -> PlanHead:
        """Have the supervisor freeze and judge what is meant."""
        if self.ids is not None:
            return await client.freeze_replay(self.ids, fresh_budget=fresh_budget)
        return await client.freeze_replay(filter=self._filter(), fresh_budget=fresh_budget)

    def frozen(self, head: PlanHead) -> Choice:
        """Return the choice as it was frozen."""
        return self if self.until_ms is not None else replace(self, until_ms=instant(head.created_at))

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

    def _filter(self) -> DeadLetterFilter:
        before = [self.until_ms + 1] if self.until_ms is not None else []
        after: list[int] = []
        kept: list[Term] = []
        terms = parse_filter(self.where)
        for term in terms:
            if term.field != "age" or self.asked_ms is None:
                kept.append(term)
                continue
            at = self.asked_ms - int(term.value)
            # Both ends are left out, and what is turned round has its end in it.
            if (term.op == ">") != term.negated:
                before.append(at + term.negated)
            else:
                after.append(at - term.negated)
        where = self.where if len(kept) == len(terms) else render_filter(kept)
        return DeadLetterFilter(
            where=where or None, failed_before=min(before, default=None), failed_after=max(after, default=None)
        )


def chosen(marks: Marks, text: str, key: str | None) -> Choice | None:
    """Return what is marked, else the row under the cursor, else None."""
    if marks.everything:
        unmarked = [Term("id", "=", one, negated=True) for one in sorted(marks)]
        return Choice(where=" ".join(filter(None, (text.strip(), render_filter(unmarked)))))
    if marks:
        return Choice(ids=tuple(sorted(marks)))
    return Choice(ids=(key,)) if key is not None else None


def code_of(group: DeadLetterGroup) -> str:
    """Return a group's code, marked if it is of partial deliveries."""
    return f"▲ {clean(group.code, 40)}" if group.partial else clean(group.code, 40)


def group_filter(group: DeadLetterGroup) -> str:
    """Return the filter that selects a group."""
    subject = group.endpoint_subject
    # A subject that is a pattern would select other mailboxes too.
    target = group.endpoint_hash if not subject or is_pattern(subject) else subject
    terms = [Term("code", "=", group.code), Term("to", "=", target)]
    return render_filter([*terms, Term("partial", "=", "yes")] if group.partial else terms)


def is_half_typed(text: str) -> bool:
    """Tell whether a filter ends in what may become the name of a field: nobody wants bodies searched for it yet."""
    last = text.rpartition(" ")[2].removeprefix("!")
    return bool(last) and any(field.startswith(last) for field in FIELDS)


def letter_words(code: str, target: str, sender: str, reason: str) -> str:
    """Return what a dead letter is, for a question about it."""
    why = clean(reason.partition("\n")[0], 120)
    return f"{clean(code, 40)} at {clean(target, 80)}, from {clean(sender, 80) or 'nobody'}: {why}"
