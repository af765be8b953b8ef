"""The plan of a replay: what is frozen, what would become of each message, how fast it goes, and what pauses it.

1. Planning changes nothing, and neither does judging again (the dry run): the dialog says so. Only a start does, after
   a question with the count, answered with a word, and not with --read-only.
2. What is started is the plan that is shown. Another budget makes another plan over the same dead letters; what failed
   after the first was frozen is in none of them.
3. The messages come page by page as they are scrolled to.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from relay_core.replay_plan import REPLAYABLE, PlanHead, PlanItem
from relay_tui.actions import key_of
from relay_tui.dialogs import Ask, Confirm, Dialog, step
from relay_tui.lines import BLANK, Line, Lines, Piece, line
from relay_tui.safe import clean
from relay_tui.table import Column, LiveTable, Row
from relay_tui.views.dead_letters.choice import Choice
from relay_tui.views.dead_letters.text import instant
from relay_tui.views.wrap import chopped
from relay_tui.words import clock_time, plural

VERDICTS: dict[str, tuple[Piece, str]] = {
    "will_deliver": (("✓ will deliver", "ok"), "is put back at once"),
    "breaker_open": (("◐ breaker open", "warn"), "waits for the breaker of its target"),
    "mailbox_full": (("◐ mailbox full", "warn"), "waits for room in its target's mailbox"),
    "denied": (("✗ denied", "bad"), "stays: its sender may not publish there"),
    "already_replayed": (("– already gone", "dim"), "nothing to do: replayed or purged"),
    "malformed": (("✗ malformed", "bad"), "stays: it is no message"),
    "no_target": (("✗ no target", "bad"), "stays: nobody is there to deliver to"),
    "over_budget": (("✗ over budget", "bad"), "stays, unless f gives it a fresh budget"),
}
_PAGE = 200
_CANARIES = 11


class PlanScreen(Dialog[bool]):
    """A plan; answers whether it was started."""

    DEFAULT_CSS = "PlanScreen > Vertical { width: 96%; height: 94%; } PlanScreen .title { height: 1; }"

    def __init__(self, choice: Choice, head: PlanHead) -> None:
        super().__init__()
        self._choice = choice.frozen(head)
        self._first = head
        self._head = head
        self._rate: float | None = None
        self._canary = head.total > _CANARIES
        self._items = PlanRows()
        self._is_loading = False
        self._is_busy = False
        self._note: Line = line(("nothing has been changed: this is what a replay would do", "ok"))

    @property
    def _count(self) -> int:
        """How many messages a run would act on."""
        return sum(self._head.counts.get(verdict, 0) for verdict in REPLAYABLE)

    def compose(self) -> ComposeResult:
        """Lay out the plan."""
        start = "read-only: it cannot be started" if self.dashboard.read_only else "enter: replay"
        with Vertical():
            yield Static("", classes="title", markup=False)
            yield Lines(id="plan-head")
            yield LiveTable(
                [
                    Column("VERDICT", 15),
                    Column("TARGET"),
                    Column("MESSAGE", 26, from_width=84),
                    Column("WHY"),
                ],
                empty="nothing is selected",
            )
            yield Static(
                f"{start} · d: dry run · r: rate · c: canary · f: fresh budget · j k: move · esc: leave",
                classes="hint",
                markup=False,
            )

    def on_mount(self) -> None:
        """Show the plan."""
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
        self.query_one(LiveTable).set_rows(self._items, empty="reading …" if self._head.total else "nothing is left")

    def _lines(self) -> Iterator[Line]:
        frozen = clock_time(instant(self._first.created_at))
        for at, part in enumerate(chopped(self._choice.words, max(self.size.width * 96 // 100 - 13, 20))[:3]):
            yield line(("         " if at else "frozen   ", "dim"), part.lstrip())
        if self.size.height >= 30:
            yield line(("         ", ""), (f"at {frozen}Z: what fails from then on is not in it", "dim"))
        for at, (verdict, count) in enumerate(self._head.counts.items()):
            (word, style), meaning = VERDICTS.get(verdict, ((clean(verdict), ""), ""))
            name = "verdicts" if at == 0 else ""
            yield line((f"{name:9}", "dim"), (f"{count:>7,} ", "strong"), (f"{word:15} ", style), meaning)
        if not self._head.counts:
            yield line(("verdicts ", "dim"), "nothing is there any more")
        rate = f"at most {self._rate:g} a second" if self._rate is not None else "as fast as the targets take them"
        yield line(("rate     ", "dim"), rate, ("  r", "mark"))
        canary = "on: 1, then 10, then the rest; stops if any of those fails" if self._canary else "off"
        yield line(("canary   ", "dim"), canary, ("  c", "mark"))
        budget = "fresh: hops, chain and calls begin anew" if self._head.fresh_budget else "as it was left"
        yield line(("budget   ", "dim"), budget, ("  f", "mark"))
        share = f"{self.dashboard.store.warning_at:.0%}"
        yield line(
            ("pauses   ", "dim"),
            f"while a breaker is open or a mailbox {share} full, by Z; C cancels",
        )
        if self.size.height >= 30:
            yield line(("         ", ""), ("it goes on when the dashboard is closed", "dim"))
        yield self._note
        if self.size.height >= 30:
            yield BLANK

    # The messages of the plan

    def on_live_table_reached(self) -> None:
        """Ask for more before they are needed."""
        self._load()

    def _load(self) -> None:
        if not self._is_loading and len(self._items) < self._head.total:
            self._is_loading = True
            self.dashboard.start(self._more(), doing="reading the plan")

    async def _more(self) -> None:
        head = self._head
        try:
            page = await self.dashboard.store.client.plan_items(head.id, cursor=str(len(self._items)), limit=_PAGE)
            if head is self._head:
                self._items.add(page.items)
                self._show()
        finally:
            if head is self._head:  # else another plan is being read
                self._is_loading = False

    # What can be done

    def on_key(self, event: events.Key) -> None:
        """Move, change how it is done, start or leave."""
        event.stop()
        table = self.query_one(LiveTable)
        start = self._begin
        key = key_of(event)
        if (count := step(key, table.page)) is not None:
            table.move(count)
        elif key in ("escape", "q"):
            self.dismiss(False)
        elif key == "c":
            self._canary = not self._canary
            self._show()
        elif key == "r":
            start(self._ask_rate(), doing="the rate")
        elif key == "d":
            start(self._judge_again(fresh_budget=self._head.fresh_budget), doing="judging again")
        elif key == "f":
            start(self._judge_again(fresh_budget=not self._head.fresh_budget), doing="judging again")
        elif key in ("enter", "R") and not self.dashboard.read_only:
            start(self._start(), doing="starting the replay")

    def _begin(self, work: Coroutine[Any, Any, None], *, doing: str) -> None:
        """Do one thing that waits at a time: a key that is pressed twice means what it means once."""
        if self._is_busy:
            work.close()
        else:
            self._is_busy = True
            self.dashboard.start(self._alone(work), doing=doing)

    async def _alone(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._is_busy = False

    async def _ask_rate(self) -> None:
        given = f"{self._rate:g}" if self._rate is not None else ""
        answer = await self.app.push_screen_wait(
            _AskRate("At most how many messages a second?", ["0 is as fast as the targets take them."], initial=given)
        )
        if answer is not None:
            self._rate = float(answer) or None
            self._show()

    async def _judge_again(self, *, fresh_budget: bool) -> None:
        before, note = self._head, self._note
        self._note = line(("judging again: nothing is changed …", "warn"))
        self._show()
        try:
            store = self.dashboard.store
            head = await store.act(self._choice.freeze(store.client, fresh_budget=fresh_budget))
        except BaseException:
            self._note = note
            self._show()
            raise
        gone = before.total - head.total
        same = head.counts == before.counts and head.total == before.total
        what = "every verdict is the same" if same else f"{plural(gone, 'message')} gone" if gone else "verdicts differ"
        at = clock_time(instant(head.created_at))
        self._head, self._items = head, PlanRows()
        self._note = line((f"dry run, judged again at {at}Z: {what}. Nothing has been changed.", "ok"))
        self._show()
        self._is_loading = False
        self._load()

    async def _start(self) -> None:
        head, count = self._head, self._count
        if not count:
            self._note = line(("none of these can be replayed: there is nothing to start", "warn"))
            self._show()
            return
        how = f"at most {self._rate:g} a second" if self._rate is not None else "as fast as the targets take them"
        about = [self._choice.words, f"{how}{', with a canary' if self._canary else ''}"]
        if head.total > count:
            about.append(f"{plural(head.total - count, 'other')} of the plan: left as they are")
        if await self.app.push_screen_wait(Confirm(f"Replay {plural(count, 'dead letter')}?", about, word="replay")):
            store = self.dashboard.store
            await store.act(store.client.start_replay(head.id, rate=self._rate, canary=self._canary))
            self.dashboard.tell(f"replaying {plural(count, 'dead letter')}")
            self.dismiss(True)


class _AskRate(Ask):
    """Ask for a number of messages a second."""

    def accepts(self, answer: str) -> str | None:
        """Take a number that is not below 0."""
        try:
            rate = float(answer)
        except ValueError:
            return "a number, such as 20 or 0.5"
        return None if 0 <= rate < 1e6 and (rate == 0 or rate >= 0.001) else "0, or from 0.001 to a million"


def item_lines(items: Sequence[PlanItem], total: int) -> Iterator[Line]:
    """Return messages of a plan to read, each with its verdict from when it was judged."""
    yield line((f"as it was planned, {len(items):,} of {total:,}", "dim"))
    for item in items:
        (word, style), _ = VERDICTS.get(item.verdict, ((clean(item.verdict), ""), ""))
        target = clean(item.endpoint_subject or item.endpoint_hash)
        yield line((f"{word:16}", style), (f"{clean(item.message_id)}  ", "dim"), target)


class PlanRows:
    """The messages of a plan that have been asked for; in few bytes, for all 100,000 may be scrolled through."""

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
        """Return where a key is."""
        return self._at.get(key)

    def add(self, items: Iterable[PlanItem]) -> None:
        """Hold more."""
        for item in items:
            key = f"{item.message_id}/{item.endpoint_hash}"
            target, detail = item.endpoint_subject or item.endpoint_hash, item.detail
            shared = self._texts.setdefault
            self._at[key] = len(self._rows)
            self._rows.append(
                (key, shared(target, target), shared(item.verdict, item.verdict), detail and shared(detail, detail))
            )
