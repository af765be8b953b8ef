"""The plan of a replay: the frozen letters, the verdict for each, the rate, and the conditions that pause it.

1. Planning changes nothing, and neither does planning again (the dry run): the dialog says so. Only a start does, after
   a confirmation with the count, and not with --read-only.
2. The plan that is started is the one that is shown. Another budget makes another plan over the same dead letters;
   later failures are in none of them.
3. The items are loaded page by page as they are scrolled to.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any

from textual.app import ComposeResult
from textual.widgets import Static

from relay_core.messages.replay_plan import REPLAYABLE, PlanHead, PlanItem
from relay_core.text.sanitize import clean
from relay_core.text.units import clock_time, plural
from relay_tui.shell.host import Host
from relay_tui.views.dead_letters.selection import LetterSelection
from relay_tui.views.facts import instant
from relay_tui.views.wrap import chopped
from relay_tui.widgets.dialogs import Ask, Confirm, Dialog
from relay_tui.widgets.styled_lines import BLANK, Line, Lines, Piece, line
from relay_tui.widgets.table import Column, LiveTable, Row

VERDICTS: dict[str, tuple[Piece, str]] = {
    "will_deliver": (("✓ will deliver", "ok"), "requeued at once"),
    "breaker_open": (("◐ breaker open", "warn"), "waits for the breaker of its target"),
    "mailbox_full": (("◐ mailbox full", "warn"), "waits for space in its target's mailbox"),
    "denied": (("✗ denied", "bad"), "stays: the access rules deny it"),
    "already_replayed": (("– already gone", "dim"), "skipped: replayed or purged"),
    "malformed": (("✗ malformed", "bad"), "stays: not a valid message"),
    "no_target": (("✗ no target", "bad"), "stays: no target matches"),
    "over_budget": (("✗ over budget", "bad"), "stays, unless f gives it a fresh budget"),
}
_PAGE = 200
_CANARIES = 11


class PlanScreen(Dialog[bool]):
    """A plan; answers True if it was started."""

    DEFAULT_CSS = "PlanScreen > Vertical { width: 96%; height: 94%; } PlanScreen .title { height: 1; }"

    def __init__(self, host: Host, selection: LetterSelection, head: PlanHead) -> None:
        start = "read-only: cannot be started" if host.read_only else "enter: replay"
        keys = "d: dry run · r: rate · c: canary · f: fresh budget · j k: move · esc: close"
        super().__init__("", hint=f"{start} · {keys}")
        self._host = host
        self._selection = selection.frozen(head)
        self._first = head
        self._head = head
        self._rate: float | None = None
        self._canary = head.total > _CANARIES
        self._items = PlanRows()
        self._is_loading = False
        self._note: Line = line(("nothing has changed yet: this is what a replay would do", "ok"))

    @property
    def _count(self) -> int:
        """How many letters the replay would act on."""
        return sum(self._head.counts.get(verdict, 0) for verdict in REPLAYABLE)

    def content(self) -> ComposeResult:
        columns = [Column("VERDICT", 15), Column("TARGET"), Column("MESSAGE", 26, from_width=84), Column("WHY")]
        yield Lines(id="plan-head")
        yield LiveTable(columns, empty="the plan is empty")

    def on_mount(self) -> None:
        self.query_one(LiveTable).focus()
        self._show()
        self._load()

    def _show(self) -> None:
        title = f"Replay {self._count:,} of {plural(self._head.total, 'dead letter')}"
        self.query_one(".title", Static).update(title)
        lines = list(self._lines())
        head = self.query_one("#plan-head", Lines)
        head.styles.height = len(lines)
        head.show(lines)
        self.query_one(LiveTable).set_rows(self._items, empty="loading …" if self._head.total else "the plan is empty")

    def _lines(self) -> Iterator[Line]:
        frozen = clock_time(instant(self._first.created_at))
        for at, part in enumerate(chopped(self._selection.words, max(self.size.width * 96 // 100 - 13, 20))[:3]):
            yield line(("         " if at else "frozen   ", "dim"), part.lstrip())
        if self.size.height >= 30:
            yield line(("         ", ""), (f"at {frozen}Z: later failures are not in it", "dim"))
        for at, (verdict, count) in enumerate(self._head.counts.items()):
            (word, style), meaning = VERDICTS.get(verdict, ((clean(verdict), ""), ""))
            name = "verdicts" if at == 0 else ""
            yield line((f"{name:9}", "dim"), (f"{count:>7,} ", "strong"), (f"{word:15} ", style), meaning)
        if not self._head.counts:
            yield line(("verdicts ", "dim"), "no dead letters are left")
        rate = f"at most {self._rate:g} a second" if self._rate is not None else "as fast as the targets accept them"
        yield line(("rate     ", "dim"), rate, ("  r", "mark"))
        canary = "on: 1, then 10, then the rest; stops if one of the first 11 fails" if self._canary else "off"
        yield line(("canary   ", "dim"), canary, ("  c", "mark"))
        budget = "fresh: hops, chain and calls are reset" if self._head.fresh_budget else "unchanged"
        yield line(("budget   ", "dim"), budget, ("  f", "mark"))
        share = f"{self._host.store.warning_at:.0%}"
        yield line(
            ("pauses   ", "dim"),
            f"while a breaker is open or a mailbox {share} full, or by Z; C cancels",
        )
        if self.size.height >= 30:
            yield line(("         ", ""), ("it continues when the dashboard is closed", "dim"))
        yield self._note
        if self.size.height >= 30:
            yield BLANK

    # The items of the plan

    def on_live_table_near_end(self) -> None:
        self._load()

    def _load(self) -> None:
        if not self._is_loading and len(self._items) < self._head.total:
            self._is_loading = True
            self._host.tasks.start(self._more(), doing="loading the plan")

    async def _more(self) -> None:
        head = self._head
        try:
            page = await self._host.store.client.plan_items(head.id, cursor=str(len(self._items)), limit=_PAGE)
            if head is self._head:
                self._items.add(page.items)
                self._show()
        finally:
            if head is self._head:  # otherwise another plan is being loaded
                self._is_loading = False

    # Keys

    def press(self, key: str) -> None:
        """Change an option, or start the replay."""
        if key == "c":
            self._canary = not self._canary
            self._show()
        elif key == "r":
            self._start_task(self._ask_rate(), doing="the rate")
        elif key == "d":
            self._start_task(self._plan_again(fresh_budget=self._head.fresh_budget), doing="planning again")
        elif key == "f":
            self._start_task(self._plan_again(fresh_budget=not self._head.fresh_budget), doing="planning again")
        elif key in ("enter", "R") and not self._host.read_only:
            self._start_task(self._start_replay(), doing="starting the replay")

    def _start_task(self, work: Coroutine[Any, Any, None], *, doing: str) -> None:
        self._host.tasks.start_once(f"plan {self._first.id}", work, doing=doing)

    async def _ask_rate(self) -> None:
        given = f"{self._rate:g}" if self._rate is not None else ""
        answer = await self.app.push_screen_wait(
            _AskRate("At most how many messages a second?", ["0: as fast as the targets accept them."], initial=given)
        )
        if answer is not None:
            self._rate = float(answer) or None
            self._show()

    async def _plan_again(self, *, fresh_budget: bool) -> None:
        before, note = self._head, self._note
        self._note = line(("planning again: nothing is changed …", "warn"))
        self._show()
        try:
            store = self._host.store
            head = await store.act(self._selection.freeze(store.client, fresh_budget=fresh_budget))
        except BaseException:
            self._note = note
            self._show()
            raise
        gone = before.total - head.total
        same = head.counts == before.counts and head.total == before.total
        what = "all verdicts are the same" if same else f"{plural(gone, 'letter')} gone" if gone else "verdicts differ"
        at = clock_time(instant(head.created_at))
        self._head, self._items = head, PlanRows()
        self._note = line((f"dry run at {at}Z: {what}. Nothing has been changed.", "ok"))
        self._show()
        self._is_loading = False
        self._load()

    async def _start_replay(self) -> None:
        head, count = self._head, self._count
        if not count:
            self._note = line(("none of these can be replayed", "warn"))
            self._show()
            return
        how = f"at most {self._rate:g} a second" if self._rate is not None else "as fast as the targets accept them"
        about = [self._selection.words, f"{how}{', with a canary' if self._canary else ''}"]
        if head.total > count:
            about.append(f"{plural(head.total - count, 'other')} of the plan: left unchanged")
        if await self.app.push_screen_wait(Confirm(f"Replay {plural(count, 'dead letter')}?", about, word="replay")):
            store = self._host.store
            await store.act(store.client.start_replay(head.id, rate=self._rate, canary=self._canary))
            self._host.toast(f"replaying {plural(count, 'dead letter')}")
            self.dismiss(True)


class _AskRate(Ask):
    """Ask for a number of messages a second."""

    def problem_of(self, answer: str) -> str | None:
        """Accept 0 or a positive rate."""
        try:
            rate = float(answer)
        except ValueError:
            return "enter a number, e.g. 20 or 0.5"
        return None if 0 <= rate < 1e6 and (rate == 0 or rate >= 0.001) else "0, or from 0.001 to a million"


def item_lines(items: Sequence[PlanItem], total: int) -> Iterator[Line]:
    """Yield the items of a plan with their verdicts at the time of planning."""
    yield line((f"as planned, {len(items):,} of {total:,}", "dim"))
    for item in items:
        (word, style), _ = VERDICTS.get(item.verdict, ((clean(item.verdict), ""), ""))
        target = clean(item.endpoint_subject or item.endpoint_hash)
        yield line((f"{word:16}", style), (f"{clean(item.message_id)}  ", "dim"), target)


class PlanRows:
    """The items of a plan that are loaded; compact, since all 100,000 may be scrolled through."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, str, str | None]] = []
        self._at: dict[str, int] = {}
        self._texts: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: int) -> Row:
        key, target, verdict, detail = self._rows[at]
        word, meaning = VERDICTS.get(verdict, ((clean(verdict), ""), ""))
        why = clean(detail) if detail else meaning
        return Row(key, (word, clean(target), (clean(key.partition("/")[0]), "dim"), why))

    def find(self, key: str) -> int | None:
        """Return the position of a key."""
        return self._at.get(key)

    def add(self, items: Iterable[PlanItem]) -> None:
        """Add a page of items."""
        for item in items:
            key = f"{item.message_id}/{item.endpoint_hash}"
            target, detail = item.endpoint_subject or item.endpoint_hash, item.detail
            shared = self._texts.setdefault
            self._at[key] = len(self._rows)
            self._rows.append(
                (key, shared(target, target), shared(item.verdict, item.verdict), detail and shared(detail, detail))
            )
