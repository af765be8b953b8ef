"""Dead letters: groups that grow, a list behind a filter, and everything that can be done about them.

1. Three tables (board.py): the keys go to the one that has the focus, and tab leads on.
2. What is done (work.py) is done with what is marked, else with the row under the cursor; among the groups
   with the group. A table that nobody has moved in has its cursor on no row: then nothing is selected, and it says so.
   Marks are keys and outlive filters and reconnects.
"""

from __future__ import annotations

from relay_tui.actions import action
from relay_tui.safe import clean
from relay_tui.table import LiveTable
from relay_tui.view import NOTHING_SELECTED
from relay_tui.views.dead_letters.board import DeadLetterBoard
from relay_tui.views.dead_letters.choice import Choice, chosen, group_filter, is_half_typed
from relay_tui.views.dead_letters.detail import LetterScreen


class DeadLetters(DeadLetterBoard):
    """Everything that could not be delivered."""

    NAME = "dead-letters"
    HELP = (
        "What could not be delivered, by reason and target (tab goes there, enter filters by one) and one by one. "
        "A filter is terms that must all hold: reason~timeout to=relay.agent.* from~ada !code=expired age<1h "
        '"some text of the body". What is done is done with what is marked, else with the row under the cursor; among '
        "the groups, with the group. The list follows the newest until j picks a row, and again after g. A replay "
        "goes on when the dashboard is closed."
    )

    def on_live_table_chosen(self, event: LiveTable.Chosen) -> None:
        """Open what was clicked twice."""
        self.start(self.open_row(), doing="opening it")

    def opened(self, argument: str) -> None:
        """Show what a filter selects."""
        self.dashboard.desk.set_focus(self.letters)
        self.ask(argument)

    # What an action is about

    def choice(self) -> Choice | None:
        """Return the group under the cursor, if the groups have it; else what is marked, else the row."""
        if self.groups.has_focus:
            group = self.store.state.dead_letters.get(self.groups.key or "")
            return Choice(where=group_filter(group)) if group is not None else None
        return chosen(self.marks, self.listing.text, self.letters.key)

    def letter_key(self) -> str | None:
        """Return the dead letter under the cursor, if the list has it."""
        return self.letters.key if self.letters.has_focus else None

    def run_key(self) -> str | None:
        """Return the replay under the cursor, if the replays have it."""
        return self.runs.key if self.runs.has_focus else None

    def unmark(self) -> None:
        """Unmark everything."""
        self.marks.forget()
        self.letters.repaint_changed()
        self.draw_list()

    def settle(self, done: Choice) -> None:
        """Unmark what was acted on."""
        self.marks.settle(done, self.listing.text)
        self.letters.repaint_changed()
        self.draw_list()

    # Keys

    @action(
        "filter", "Filter the list: reason=, to~, from~, age<, !, body text", "/", argument="[filter]", label="filter"
    )
    def filter_list(self, text: str | None) -> None:
        """Let a filter be typed, and show what it selects with every key."""
        if text is not None:
            self.opened(text)
            return
        before = self.listing.text

        def done(typed: str | None) -> None:
            self.opened(before if typed is None else typed)

        groups = self.store.state.dead_letters.values()
        known = sorted({f"code={one.code}" for one in groups} | {f"to={one.endpoint_subject}" for one in groups})
        self.dashboard.prompt.open("/", done, initial=before, suggestions=list(map(clean, known)), typed=self._typed)

    def _typed(self, text: str) -> None:
        if not is_half_typed(text):
            self.ask(text)

    @action("mark", "Mark the dead letter, or unmark it", "space", label="mark")
    def mark(self) -> None:
        """Mark the row under the cursor and go on to the next; if it is on none, go onto the first."""
        table = self.letters
        if not table.has_focus:
            self.dashboard.desk.set_focus(table)
        elif table.key is None:
            table.move(1)
        else:
            self.marks.toggle(table.key)
            table.repaint_changed()
            table.move(1)
            self.draw_list()

    @action("mark-all", "Mark all that the filter selects, also those not loaded", "a", label="all")
    def mark_all(self) -> None:
        """Mark everything behind the filter, or unmark it."""
        if self.marks.everything:
            self.unmark()
            return
        self.marks.mark_everything()
        self.letters.repaint_changed()
        self.draw_list()

    @action("open", "Open the dead letter or the replay, or filter by the group", "enter", label="open")
    async def open_row(self) -> None:
        """Open what the cursor is on."""
        if self.groups.has_focus:
            if (choice := self.choice()) is not None:
                self.opened(choice.where)
            else:
                self.dashboard.tell(NOTHING_SELECTED)
            return
        if (run := self.run_key()) is not None:
            await self.show_run(run)
            return
        key = self.letter_key()
        held = self.listing.rows.get(key)
        if key is None or held is None:
            self.dashboard.tell(NOTHING_SELECTED)
            return
        title = f"{clean(held.code)} at {clean(held.target)}"
        what = await self.app.push_screen_wait(LetterScreen(key, title, before_edit=self.before_edit))
        one = Choice(ids=(key,))
        match what:
            case "trace":
                await self.dashboard.goto("traces", key.partition("/")[0])
            case "mailbox":
                await self.dashboard.goto("mailboxes", key.partition("/")[2])
            case "plan":
                await self.plan_choice(one)
            case "edit":
                await self.edit_letter(key)
            case "purge":
                await self.purge_choice(one)
            case "copy":
                self.dashboard.copy(key.partition("/")[0], "the id")
            case "copy-command":
                self.copy_choice(one)

    @action("back", "Unmark everything, then clear the filter", "escape")
    def back(self) -> None:
        """Undo the last thing that narrows the list."""
        if self.listing.wants_all:
            self.rides, self.listing.wants_all = None, False
        elif not self.letters.has_focus:
            if self.table is not None:
                self.table.follow()
            self.dashboard.desk.set_focus(self.letters)
        elif self.marks:
            self.unmark()
        elif self.wanted.strip():
            self.ask("")
        elif self.interrupted is not None:
            self.interrupted = None
            self.draw()

    @action("trace", "Go to the trace of the dead letter", "t", label="trace")
    async def show_trace(self) -> None:
        """Go to the trace."""
        if (key := self.letters.key) is not None:
            await self.dashboard.goto("traces", key.partition("/")[0])
        else:
            self.dashboard.tell(NOTHING_SELECTED)

    @action("mailbox", "Go to the mailbox that it lies in", "m")
    async def show_mailbox(self) -> None:
        """Go to the mailbox."""
        key = self.groups.key if self.groups.has_focus else self.letters.key
        if key is not None:
            await self.dashboard.goto("mailboxes", key.partition("/")[2])
        else:
            self.dashboard.tell(NOTHING_SELECTED)

    @action("copy", "Copy the id of the dead letter or the plan, or the filter of the group", "y")
    def copy(self) -> None:
        """Copy the most useful text."""
        if self.groups.has_focus and (choice := self.choice()) is not None:
            self.dashboard.copy(choice.where, "the filter")
        elif (run := self.run_key()) is not None:
            self.dashboard.copy(run, "the id of the plan")
        elif (key := self.letter_key()) is not None:
            self.dashboard.copy(key.partition("/")[0], "the id")
        else:
            self.dashboard.tell(NOTHING_SELECTED)

    def move_to_top(self) -> None:
        """Show the first rows, and follow them."""
        if self.table is not None:
            self.table.follow()
        if self.letters.is_following:
            self.listing.seen()
        self.draw_list()

    def move_to_bottom(self) -> None:
        """Go to the last row; if not all are held, go on to the end while they come in."""
        super().move_to_bottom()
        if self.letters.has_focus and self.listing.rows.cursor is not None:
            self.rides, self.listing.wants_all = self.letters.key, True
            self.start(self.listing.more(), doing="asking for more dead letters")
