"""The tables of the dead-letter screen: replays under way, groups, and the list, kept true to the supervisor's.

1. The list holds what was scrolled to, not what there is (list.py). It follows the newest, with its cursor on no row,
   until it is moved in; then it stays, and says how many are newer. So do the groups, largest first, and the replays.
2. It is asked for again when the groups say that dead letters have come or gone, when the supervisor is back, and
   where the cursor comes to rows that were not looked at since. One such question is under way at a time, and the next
   waits as long as a slow one (a search in bodies) took, several times over.
3. A new filter ends what belonged to the old one: following, going on to the end, "all in this filter".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.worker import Worker

from relay_core.deadletters import count_dead
from relay_core.errors import RelayError
from relay_core.replay_plan import ReplayOutcome
from relay_tui.lines import Line, Lines, Piece, line, width_of
from relay_tui.safe import clean, clean_lines
from relay_tui.table import LiveTable
from relay_tui.views.dead_letters import groups, rows, runs
from relay_tui.views.dead_letters.groups import GroupRows, growth
from relay_tui.views.dead_letters.list import Listing
from relay_tui.views.dead_letters.runs import interrupted, run_rows, under_way
from relay_tui.views.dead_letters.work import DeadLetterWork
from relay_tui.views.wrap import chopped
from relay_tui.words import plural, size

_AGAIN_SECS = 1.0
_SHARE = 4.0
"""How many times longer than an answer took is waited before the list is asked for again."""
_MOST_RUNS = 4


class DeadLetterBoard(DeadLetterWork):
    """The tables, and what keeps them true."""

    DEFAULT_CSS = """
    #letters-above { dock: top; height: auto; }
    #letters-runs, #letters-groups { height: auto; }
    #letters-filter, #letters-summary { height: 1; }
    #letters-preview { height: 4; dock: bottom; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.listing = Listing(lambda: self.client, self._list_changed)
        self.wanted = ""
        """The filter that was asked for last."""
        self._shown = ""
        """The filter that the table shows."""
        self.rides: str | None = None
        """The last row, while the cursor goes on to the end as rows come in."""
        self._signature: tuple[float, ...] | None = None
        """How the groups were when the list was last asked for."""
        self._renewed_at: int | None = None
        """Around which row, if the list has changed at all since it was asked for."""
        self._is_renewing = False
        self._renew_from = 0.0
        self._retry_at = 0.0
        self._runs_seen: dict[str, ReplayOutcome] = {}
        """Replays that were under way when they were last looked at."""
        self.interrupted: str | None = None
        """Which replay has ended without a word, as a supervisor's that was killed."""

    def compose(self) -> ComposeResult:
        """Lay out the tables; the list comes first, because the first gets the keys."""
        yield LiveTable(rows.COLUMNS, id="letters", empty="asking …", follows=True)
        yield Lines(id="letters-preview")
        with Vertical(id="letters-above"):
            yield LiveTable(runs.COLUMNS, id="letters-runs", follows=True)
            yield Lines(id="letters-summary")
            yield LiveTable(groups.COLUMNS, id="letters-groups", empty="no dead letters", follows=True)
            yield Lines(id="letters-filter")

    def on_mount(self) -> None:
        """Let the list know the marks."""
        self.letters.marks = self.marks

    @property
    def letters(self) -> LiveTable:
        """The list."""
        return self.query_one("#letters", LiveTable)

    @property
    def groups(self) -> LiveTable:
        """Dead letters by code and target."""
        return self.query_one("#letters-groups", LiveTable)

    @property
    def runs(self) -> LiveTable:
        """Replays under way, and those that have ended lately."""
        return self.query_one("#letters-runs", LiveTable)

    # Showing

    def on_descendant_focus(self) -> None:
        """Give the groups more room while they have the keys."""
        if not self.dashboard.paused:
            self._draw_above()

    def draw(self) -> None:
        """Show how things are, and ask for what has changed."""
        self._draw_above()
        self.draw_list()
        self._keep_true()

    def _draw_above(self) -> None:
        state, room = self.store.state, self.room.height
        runs = run_rows(state.replays, self.store.now_ms())[:_MOST_RUNS]
        self.runs.display = bool(runs)
        self.runs.styles.height = len(runs) + 1
        self.runs.set_rows(runs)
        groups = GroupRows(self.store)
        most = room // 2 if self.groups.has_focus else max(room // 5, 3)
        self.groups.styles.height = min(max(len(groups), 1), most) + 1
        self.groups.set_rows(groups)
        self._look_for_interrupted()
        self.query_one("#letters-summary", Lines).show([self._summary(len(groups))])

    def _look_for_interrupted(self) -> None:
        if not self.store.is_live:
            return
        replays = self.store.state.replays
        now = {key: replays[key] for key in under_way(replays)}
        if (lost := interrupted(self._runs_seen, replays)) is not None:
            self.interrupted = lost
        elif now:  # the rest is on its way, or something else: enough was said
            self.interrupted = None
        self._runs_seen = now

    def _summary(self, groups: int) -> Line:
        found = self.store.state.dead_letters.values()
        total = count_dead(found)
        partial = sum(group.count for group in found) - total
        grown, style = growth(self.store, "", total)
        told: Piece = (f"  ✗ {self.interrupted}" if self.interrupted is not None else "", "bad")
        return line(
            (f" {plural(total, 'dead letter')}", "title"),
            f" and {plural(partial, 'partial copy', 'partial copies')}" if partial else "",
            f" in {plural(groups, 'group')}  ",
            (grown, style),
            told,
        )

    def draw_list(self) -> None:
        """Show the list, its filter, and the letter under the cursor."""
        listing, table = self.listing, self.letters
        listing.rows.now_ms = self.store.now_ms()
        empty = "asking …" if not listing.is_asked or listing.is_asking else "no dead letter is like that"
        if listing.is_asked and not listing.text.strip() and not listing.is_asking:
            empty = "no dead letters: everything was delivered"
        table.set_rows(listing.rows, empty=empty)
        lines = list(self._filter_lines())
        bar = self.query_one("#letters-filter", Lines)
        bar.styles.height = len(lines)
        bar.show(lines)
        preview = self.query_one("#letters-preview", Lines)
        preview.styles.height = 4 if self.room.height >= 28 else 2
        preview.show(self._preview(max(self.room.width - 2, 20)))

    def _filter_lines(self) -> Iterator[Line]:
        listing = self.listing
        text = clean(listing.text.strip())
        pieces: list[Piece] = [(" / ", "mark"), (text, "strong") if text else ("no filter", "dim"), ("  ", "")]
        held = f"{len(listing.rows):,} found" if listing.total is None else f"{listing.total:,} match"
        parts: list[Piece] = [(held, "accent")]
        if listing.is_asking:
            parts.append(("searching …", "warn"))
        elif listing.is_loading and listing.wants_all:
            of = f" of {listing.total:,}" if listing.total is not None else ""
            parts.append((f"loading {len(listing.rows):,}{of}, esc stops", "warn"))
        elif listing.total is None and listing.rows.cursor is not None:
            parts.append(("so far: G looks for all", "dim"))
        if self.marks:
            parts.append((f"● {self.marks.words(listing.total, self._is_listed)}", "mark"))
        if listing.newer and not self.letters.is_following:
            parts.append((f"▲ {listing.newer:,} newer: g", "warn"))
        if self.busy_with is not None:
            parts.append((self.busy_with, "warn"))
        for at, part in enumerate(parts):
            pieces += [(" · " if at else "", "dim"), part]
        yield tuple(pieces)
        if listing.problem is not None:
            for at, told in enumerate(chopped(clean(listing.problem), max(self.room.width - 4, 20))[:2]):
                yield line((" ✗ " if at == 0 else "   ", "bad"), (told, "bad"))

    def _is_listed(self, key: str) -> bool:
        return self.listing.rows.find(key) is not None

    def _preview(self, width: int) -> Iterator[Line]:
        key = self.letters.key
        held = self.listing.rows.get(key)
        if key is None and len(self.listing.rows):
            yield line((" following the newest: j picks a row, a marks all", "dim"))
        if key is None or held is None:
            return
        facts: list[Piece] = [(f" {clean(key.partition('/')[0])}", "accent"), (f"  {size(held.size)}", "dim")]
        route = f"  {clean(held.sender) or 'nobody'} → {clean(held.subject)}"
        yield (*facts, (route[: max(width - width_of(facts), 0)], ""))
        for text in clean_lines(held.reason, 3):
            yield from (line(f" {part}") for part in chopped(text, width))

    # The list

    def _list_changed(self) -> None:
        """Show the list as it is now, with the cursor where it belongs."""
        listing, table = self.listing, self.letters
        if listing.is_asked and listing.text != self._shown:
            self._shown = listing.text
            self._renewed_at = None
            if self.marks.everything:
                self.marks.forget()
            if table.key is None or listing.rows.find(table.key) is None:
                table.follow()
        rides = self.rides is not None and self.rides == table.key
        self.draw_list()
        if rides:
            table.go_to(1 << 60)
            self.rides = table.key if listing.is_loading else None
        elif table.is_following:
            listing.seen()

    def _keep_true(self) -> None:
        """Ask again for what is in sight when dead letters have come or gone, or the supervisor is back."""
        if not self.store.is_live:
            self._signature = None
            return
        groups = self.store.state.dead_letters.values()
        now = (
            float(len(groups)),
            float(sum(one.count for one in groups)),
            max((one.newest_at for one in groups), default=0.0),
        )
        if not self.listing.is_asked:
            if not self.listing.is_asking and self.store.clock.monotonic() >= self._retry_at:
                self._signature = now
                self.ask(self.wanted)
        elif now != self._signature and not self._is_renewing and self.store.clock.monotonic() >= self._renew_from:
            self._signature = now
            self._renew()

    def _renew(self) -> None:
        self._is_renewing = True
        self.start(self._renew_now(), doing="asking for dead letters")

    async def _renew_now(self) -> None:
        key = self.letters.key
        at = self.listing.rows.place(key) if key is not None else 0
        asked = self.store.clock.monotonic()
        try:
            await self.listing.renew(at, max(self.room.height, 1), at_top=self.letters.is_following)
            self._renewed_at = at
        except RelayError:
            self._signature = None  # the banner says why; it is asked again as soon as somebody answers
        finally:
            self._is_renewing = False
            now = self.store.clock.monotonic()
            self._renew_from = now + (now - asked) * _SHARE

    def ask(self, text: str) -> None:
        """Ask for what a filter selects; an older question is forgotten."""
        self.wanted = text
        # By a function, for a coroutine that is cancelled before it began would complain that nobody awaited it.
        _: Worker[None] = self.run_worker(partial(self._asking, text), group="ask", exclusive=True, exit_on_error=False)

    async def _asking(self, text: str) -> None:
        try:
            await self.listing.ask(text)
        except RelayError as error:
            self.listing.problem = f"it could not be asked: {error}"
            self.listing.is_asked = False
            self._retry_at = self.store.clock.monotonic() + _AGAIN_SECS
            self.draw_list()

    def on_live_table_reached(self, event: LiveTable.Reached) -> None:
        """Ask for more before it is needed."""
        if event.table is self.letters and not self.listing.is_loading and self.listing.rows.cursor is not None:
            self.start(self.listing.more(), doing="asking for more dead letters")

    def on_live_table_moved(self, event: LiveTable.Moved) -> None:
        """Show the row under the cursor; what was not looked at since something changed is asked for again."""
        table = self.letters
        if event.table is not table:
            return
        at = self.listing.rows.find(table.key) if table.key is not None else None
        if table.key != self.rides and self.rides is not None:
            self.rides, self.listing.wants_all = None, False
        far = self.room.height // 2
        if at and self._renewed_at is not None and abs(at - self._renewed_at) > far and not self._is_renewing:
            self._renew()
        self.draw_list()
