"""The dead letters of an action: marked rows, everything that a filter selects, or the row under the cursor.

1. Marks are keys (``ID/HASH``). "All in this filter" is stored as that, minus the keys that were unmarked again: the
   supervisor evaluates the filter, and the dashboard never holds 100,000 keys.
2. A `LetterSelection` is created when an action starts. The supervisor freezes it as a plan; the plan is what is shown
   and acted on.
3. Planning a selection again covers the same dead letters: later failures are not in it, and ages in the filter count
   from the moment it was created.
4. After an action its letters are unmarked, and no others: the operator may mark more while it runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from relay_core.client.client import RelayClient
from relay_core.messages.dead_letter import DeadLetterFilter, DeadLetterGroup
from relay_core.messages.filter_language import FIELDS, Term, parse_filter, render_filter
from relay_core.messages.replay_plan import PlanHead
from relay_core.messages.subjects import is_pattern
from relay_core.text.sanitize import clean
from relay_core.text.units import plural
from relay_tui.views.facts import instant

_LOOKED_FOR = 1000


class MarkedKeys(set[str]):
    """The marked keys; with `everything`, the keys that are not marked."""

    everything = False

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) != self.everything

    def __bool__(self) -> bool:
        return self.everything or len(self) > 0

    def toggle(self, key: str) -> None:
        """Mark or unmark a key."""
        self.symmetric_difference_update({key})

    def mark_everything(self) -> None:
        """Mark all letters of the filter."""
        self.clear()
        self.everything = True

    def forget(self) -> None:
        """Unmark everything."""
        self.clear()
        self.everything = False

    def unmark_done(self, done: LetterSelection, text: str) -> None:
        """Unmark the letters of a finished action; `text` is the current filter."""
        if done.ids is None:
            marked = selection_of(self, text, None) if self.everything else None
            if marked is not None and marked.where == done.where:
                self.forget()
        elif not self.everything:
            self.difference_update(done.ids)

    def words(self, total: int | None, in_list: Callable[[str], bool]) -> str:
        """Return how many keys are marked, and how many of them are not in the list."""
        if not self.everything:
            hidden = 0 if len(self) > _LOOKED_FOR else sum(not in_list(key) for key in self)
            return f"{len(self):,} marked" + (f", {hidden:,} not in this list" if hidden else "")
        count = "all" if total is None else f"all {total:,}"
        return f"{count} in this filter marked" + (f" but {len(self):,}" if len(self) else "")


@dataclass(frozen=True, slots=True)
class LetterSelection:
    """The dead letters of an action."""

    ids: tuple[str, ...] | None = None
    where: str = ""
    """The filter, if there are no ids; empty for all dead letters."""
    asked_ms: int | None = None
    """The instant that ages in the filter count from; None for the time of the request."""
    until_ms: int | None = None
    """When it was first frozen."""
    about: str | None = field(default=None, compare=False)
    """The code, target, sender and reason, if there is only one letter."""

    @property
    def words(self) -> str:
        """A description for the operator."""
        if self.ids is None:
            return f"all that match {clean(self.where, 200)}" if self.where else "every dead letter"
        if len(self.ids) != 1:
            return f"{plural(len(self.ids), 'message')} by id"
        name = clean(self.ids[0].partition("/")[0])
        return f"{name}: {self.about}" if self.about is not None else clean(self.ids[0])

    async def described(self, client: RelayClient, now_ms: int) -> LetterSelection:
        """Return the selection with ages counted from now, and with the description of a single letter."""
        if self.ids is None:
            return replace(self, asked_ms=now_ms)
        if len(self.ids) != 1:
            return self
        where = render_filter([Term("id", "=", self.ids[0])])
        page = await client.dead_letter_summaries(filter=DeadLetterFilter(where=where), limit=1)
        if not page.rows:
            return self
        (letter,) = page.rows
        target = letter.endpoint_subject or letter.endpoint_hash
        return replace(self, about=letter_words(letter.code, target, letter.sender, letter.reason))

    async def freeze(self, client: RelayClient, *, fresh_budget: bool = False) -> PlanHead:
        """Let the supervisor freeze the selection as a plan with verdicts."""
        if self.ids is not None:
            return await client.freeze_replay(self.ids, fresh_budget=fresh_budget)
        return await client.freeze_replay(filter=self._filter(), fresh_budget=fresh_budget)

    def frozen(self, head: PlanHead) -> LetterSelection:
        """Return the selection bounded by the time it was first frozen."""
        return self if self.until_ms is not None else replace(self, until_ms=instant(head.created_at))

    def command(self, socket: str | None) -> str:
        """Return the command line that replays the selection."""
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
            # Both bounds are exclusive; a negated term includes its bound.
            if (term.op == ">") != term.negated:
                before.append(at + term.negated)
            else:
                after.append(at - term.negated)
        where = self.where if len(kept) == len(terms) else render_filter(kept)
        return DeadLetterFilter(
            where=where or None, failed_before=min(before, default=None), failed_after=max(after, default=None)
        )


def selection_of(marks: MarkedKeys, text: str, key: str | None) -> LetterSelection | None:
    """Return the marked letters, else the row under the cursor, else None."""
    if marks.everything:
        unmarked = [Term("id", "=", marked, negated=True) for marked in sorted(marks)]
        return LetterSelection(where=" ".join(filter(None, (text.strip(), render_filter(unmarked)))))
    if marks:
        return LetterSelection(ids=tuple(sorted(marks)))
    return LetterSelection(ids=(key,)) if key is not None else None


def code_of(group: DeadLetterGroup) -> str:
    """Return the code of a group, with a sign if it holds partial deliveries."""
    return f"▲ {clean(group.code, 40)}" if group.partial else clean(group.code, 40)


def group_filter(group: DeadLetterGroup) -> str:
    """Return the filter that selects a group."""
    subject = group.endpoint_subject
    # A subject with wildcards would select other mailboxes too.
    target = group.endpoint_hash if not subject or is_pattern(subject) else subject
    terms = [Term("code", "=", group.code), Term("to", "=", target)]
    return render_filter([*terms, Term("partial", "=", "yes")] if group.partial else terms)


def is_half_typed(text: str) -> bool:
    """Return True if a filter ends in the beginning of a field name, which should not start a search in bodies."""
    last = text.rpartition(" ")[2].removeprefix("!")
    return bool(last) and any(field.startswith(last) for field in FIELDS)


def letter_words(code: str, target: str, sender: str, reason: str) -> str:
    """Return the description of a dead letter for a confirmation."""
    why = clean(reason.partition("\n")[0], 120)
    return f"{clean(code, 40)} at {clean(target, 80)}, from {clean(sender, 80) or 'unknown'}: {why}"
