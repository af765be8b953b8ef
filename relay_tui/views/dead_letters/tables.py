"""The tables of the dead-letter screen: running replays, groups, and the list, kept in step with the supervisor.

1. The list holds the pages that were scrolled to (letter_list.py). It follows the newest, with its cursor on no row,
   until the operator moves in it; then it stands still and counts the newer ones. Groups and replays do the same.
2. It is refreshed when the groups show that dead letters have come or gone, when the supervisor is back, and where the
   cursor reaches rows that were not refreshed since. One refresh runs at a time, and the next waits a multiple of the
   time a slow one (a search in bodies) took.
3. A new filter ends the state of the old one: following, loading to the end, "all in this filter".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.worker import Worker

from relay_core.errors import RelayError
from relay_core.messages.dead_letter import count_dead
from relay_core.messages.replay_plan import ReplayOutcome
from relay_core.text.sanitize import clean, clean_lines
from relay_core.text.units import plural, size
from relay_tui.shell.view import View
from relay_tui.views.dead_letters import groups, rows, runs
from relay_tui.views.dead_letters.groups import group_rows, growth
from relay_tui.views.dead_letters.letter_list import LetterList
from relay_tui.views.dead_letters.runs import active_replays, interrupted, run_rows
from relay_tui.views.dead_letters.selection import MarkedKeys
from relay_tui.views.wrap import chopped
from relay_tui.widgets.styled_lines import LAST, Line, Lines, Piece, line, width_of
from relay_tui.widgets.table import LiveTable

_AGAIN_SECS = 1.0
_SHARE = 4.0
"""The pause before the next refresh, as a multiple of the time the last one took."""
_MOST_RUNS = 4


class DeadLetterTables(View):
    """The tables, and their refresh."""

    DEFAULT_CSS = """
    #letters-above { dock: top; height: auto; }
    #letters-runs, #letters-groups { height: auto; }
    #letters-filter, #letters-summary { height: 1; }
    #letters-preview { height: 4; dock: bottom; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.marks = MarkedKeys()
        self.busy_with: str | None = None
        """The long operation that is running, for the operator."""
        self.letter_list = LetterList(lambda: self.client, self._list_changed)
        self.wanted = ""
        """The filter that was requested last."""
        self._shown = ""
        """The filter that the table shows."""
        self.follow_end_from: str | None = None
        """The last row, while the cursor follows the end as more rows are loaded."""
        self._signature: tuple[float, ...] | None = None
        """The groups when the list was last refreshed."""
        self._renewed_at: int | None = None
        """The row around which the list was last refreshed."""
        self._is_renewing = False
        self._renew_from = 0.0
        self._retry_at = 0.0
        self._runs_seen: dict[str, ReplayOutcome] = {}
        """Replays that were running at the last draw."""
        self.interrupted: str | None = None
        """A replay that has vanished with its supervisor, for the operator."""

    def compose(self) -> ComposeResult:
        yield LiveTable(rows.COLUMNS, id="letters", empty="loading …", follows=True)
        yield Lines(id="letters-preview")
        with Vertical(id="letters-above"):
            yield LiveTable(runs.COLUMNS, id="letters-runs", follows=True)
            yield Lines(id="letters-summary")
            yield LiveTable(groups.COLUMNS, id="letters-groups", empty="no dead letters", follows=True)
            yield Lines(id="letters-filter")

    def on_mount(self) -> None:
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
        """Replays that are running, or have ended recently."""
        return self.query_one("#letters-runs", LiveTable)

    # Showing

    def on_descendant_focus(self) -> None:
        """Enlarge the groups while they have the focus."""
        if not self.dashboard.paused:
            self._draw_above()

    def draw(self) -> None:
        self._draw_above()
        self.draw_list()
        self._keep_fresh()

    def _draw_above(self) -> None:
        state, room = self.store.state, self.area.height
        runs = run_rows(state.replays, self.store.now_ms())[:_MOST_RUNS]
        self.runs.display = bool(runs)
        self.runs.styles.height = len(runs) + 1
        self.runs.set_rows(runs)
        groups = group_rows(self.store)
        most = room // 2 if self.groups.has_focus else max(room // 5, 3)
        self.groups.styles.height = min(max(len(groups), 1), most) + 1
        self.groups.set_rows(groups)
        self._look_for_interrupted()
        self.query_one("#letters-summary", Lines).show([self._summary(len(groups))])

    def _look_for_interrupted(self) -> None:
        if not self.store.is_live:
            return
        replays = self.store.state.replays
        now = {key: replays[key] for key in active_replays(replays)}
        if (lost := interrupted(self._runs_seen, replays)) is not None:
            self.interrupted = lost
        elif now:  # the operator has started another
            self.interrupted = None
        self._runs_seen = now

    def _summary(self, groups: int) -> Line:
        found = self.store.state.dead_letters.values()
        total = count_dead(found)
        partial = sum(group.count for group in found) - total
        grown, style = growth(self.store, "", total)
        interrupted: Piece = (f"  ✗ {self.interrupted}" if self.interrupted is not None else "", "bad")
        return line(
            (f" {plural(total, 'dead letter')}", "title"),
            f" and {plural(partial, 'partial copy', 'partial copies')}" if partial else "",
            f" in {plural(groups, 'group')}  ",
            (grown, style),
            interrupted,
        )

    def draw_list(self) -> None:
        """Show the list, its filter, and the letter under the cursor."""
        letter_list, table = self.letter_list, self.letters
        letter_list.rows.now_ms = self.store.now_ms()
        empty = "loading …" if not letter_list.is_asked or letter_list.is_asking else "no dead letter matches"
        if letter_list.is_asked and not letter_list.text.strip() and not letter_list.is_asking:
            empty = "no dead letters"
        table.set_rows(letter_list.rows, empty=empty)
        lines = list(self._filter_lines())
        bar = self.query_one("#letters-filter", Lines)
        bar.styles.height = len(lines)
        bar.show(lines)
        preview = self.query_one("#letters-preview", Lines)
        preview.styles.height = 4 if self.area.height >= 28 else 2
        preview.show(self._preview(max(self.area.width - 2, 20)))

    def _filter_lines(self) -> Iterator[Line]:
        letter_list = self.letter_list
        text = clean(letter_list.text.strip())
        pieces: list[Piece] = [(" / ", "mark"), (text, "strong") if text else ("no filter", "dim"), ("  ", "")]
        count = f"{len(letter_list.rows):,} found" if letter_list.total is None else f"{letter_list.total:,} match"
        parts: list[Piece] = [(count, "accent")]
        if letter_list.is_asking:
            parts.append(("searching …", "warn"))
        elif letter_list.is_loading and letter_list.wants_all:
            of = f" of {letter_list.total:,}" if letter_list.total is not None else ""
            parts.append((f"loading {len(letter_list.rows):,}{of}, esc stops", "warn"))
        elif letter_list.total is None and letter_list.rows.cursor is not None:
            parts.append(("so far: G searches all", "dim"))
        if self.marks:
            parts.append((f"● {self.marks.words(letter_list.total, self._is_listed)}", "mark"))
        if letter_list.newer and not self.letters.is_following:
            parts.append((f"▲ {letter_list.newer:,} newer: g", "warn"))
        if self.busy_with is not None:
            parts.append((self.busy_with, "warn"))
        for at, part in enumerate(parts):
            pieces += [(" · " if at else "", "dim"), part]
        yield tuple(pieces)
        if letter_list.problem is not None:
            for at, text in enumerate(chopped(clean(letter_list.problem), max(self.area.width - 4, 20))[:2]):
                yield line((" ✗ " if at == 0 else "   ", "bad"), (text, "bad"))

    def _is_listed(self, key: str) -> bool:
        return self.letter_list.rows.find(key) is not None

    def _preview(self, width: int) -> Iterator[Line]:
        key = self.letters.key
        letter = self.letter_list.rows.get(key)
        if key is None and len(self.letter_list.rows):
            yield line((" following the newest: j picks a row, a marks all", "dim"))
        if key is None or letter is None:
            return
        facts: list[Piece] = [(f" {clean(key.partition('/')[0])}", "accent"), (f"  {size(letter.size)}", "dim")]
        route = f"  {clean(letter.sender) or 'unknown'} → {clean(letter.subject)}"
        yield (*facts, (route[: max(width - width_of(facts), 0)], ""))
        for text in clean_lines(letter.reason, 3):
            yield from (line(f" {part}") for part in chopped(text, width))

    def draw_marks(self) -> None:
        """Show the marks of the list."""
        self.letters.repaint_changed()
        self.draw_list()

    # The list

    def _list_changed(self) -> None:
        """Draw the list after a change, with the cursor on its row."""
        letter_list, table = self.letter_list, self.letters
        if letter_list.is_asked and letter_list.text != self._shown:
            self._shown = letter_list.text
            self._renewed_at = None
            if self.marks.everything:
                self.marks.forget()
            if table.key is None or letter_list.rows.find(table.key) is None:
                table.follow()
        follows_end = self.follow_end_from is not None and self.follow_end_from == table.key
        self.draw_list()
        if follows_end:
            table.go_to(LAST)
            self.follow_end_from = table.key if letter_list.is_loading else None
        elif table.is_following:
            letter_list.seen()

    def _keep_fresh(self) -> None:
        """Refresh the visible rows when dead letters have come or gone, or the supervisor is back."""
        if not self.store.is_live:
            self._signature = None
            return
        groups = self.store.state.dead_letters.values()
        now = (
            float(len(groups)),
            float(sum(group.count for group in groups)),
            max((group.newest_at for group in groups), default=0.0),
        )
        if not self.letter_list.is_asked:
            if not self.letter_list.is_asking and self.store.clock.monotonic() >= self._retry_at:
                self._signature = now
                self.ask(self.wanted)
        elif now != self._signature and not self._is_renewing and self.store.clock.monotonic() >= self._renew_from:
            self._signature = now
            self._renew()

    def _renew(self) -> None:
        self._is_renewing = True
        self.start(self._renew_now(), doing="refreshing the dead letters")

    async def _renew_now(self) -> None:
        key = self.letters.key
        at = self.letter_list.rows.place(key) if key is not None else 0
        asked = self.store.clock.monotonic()
        try:
            await self.letter_list.renew(at, max(self.area.height, 1), at_top=self.letters.is_following)
            self._renewed_at = at
        except RelayError:
            self._signature = None  # the banner says why; the next answer refreshes
        finally:
            self._is_renewing = False
            now = self.store.clock.monotonic()
            self._renew_from = now + (now - asked) * _SHARE

    def ask(self, text: str) -> None:
        """Load the letters that a filter selects, and drop an older request."""
        self.wanted = text
        # A function: a coroutine that is cancelled before it starts would warn that it was never awaited.
        _: Worker[None] = self.run_worker(partial(self._asking, text), group="ask", exclusive=True, exit_on_error=False)

    async def _asking(self, text: str) -> None:
        try:
            await self.letter_list.ask(text)
        except RelayError as error:
            self.letter_list.problem = f"the list could not be loaded: {error}"
            self.letter_list.is_asked = False
            self._retry_at = self.store.clock.monotonic() + _AGAIN_SECS
            self.draw_list()

    def on_live_table_near_end(self, event: LiveTable.NearEnd) -> None:
        if event.table is self.letters and not self.letter_list.is_loading and self.letter_list.rows.cursor is not None:
            self.start(self.letter_list.more(), doing="loading more dead letters")

    def on_live_table_moved(self, event: LiveTable.Moved) -> None:
        """Show the row under the cursor, and refresh rows that were not refreshed since a change."""
        table = self.letters
        if event.table is not table:
            return
        at = self.letter_list.rows.find(table.key) if table.key is not None else None
        if table.key != self.follow_end_from and self.follow_end_from is not None:
            self.follow_end_from, self.letter_list.wants_all = None, False
        far = self.area.height // 2
        if at and self._renewed_at is not None and abs(at - self._renewed_at) > far and not self._is_renewing:
            self._renew()
        self.draw_list()
