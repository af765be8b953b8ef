"""Dead letters: groups, a filtered list, and the keys that act on them.

1. Three tables (tables.py): keys go to the one that has the focus, and tab moves on.
2. An action (actions.py) applies to the marked letters, else to the row under the cursor; in the groups, to the group.
   Until the operator moves in a table its cursor is on no row: then nothing is selected, and a notification says so.
   Marks are keys and survive filters and reconnects.
"""

from __future__ import annotations

from relay_core.text.sanitize import clean
from relay_tui.shell.actions import action
from relay_tui.shell.view import NOTHING_SELECTED
from relay_tui.views.dead_letters.actions import DeadLetterActions
from relay_tui.views.dead_letters.detail import LetterScreen
from relay_tui.views.dead_letters.selection import LetterSelection, is_half_typed
from relay_tui.widgets.table import LiveTable


class DeadLetters(DeadLetterActions):
    """The dead letters."""

    NAME = "dead-letters"
    HELP = (
        "Messages that could not be delivered, as groups by code and target (tab goes there, enter filters by one) and "
        "as a list. All terms of a filter must match: reason~timeout to=relay.agent.* from~ada !code=expired age<1h "
        '"some text of the body". An action applies to the marked letters, else to the row under the cursor; in the '
        "groups, to the group. The list follows the newest until j picks a row, and again after g. A replay "
        "continues when the dashboard is closed."
    )

    def on_live_table_chosen(self, event: LiveTable.Chosen) -> None:
        self.start(self.open_row(), doing="opening the row")

    def open_argument(self, argument: str) -> None:
        self.dashboard.focus_widget(self.letters)
        self.ask(argument)

    @action(
        "filter", "Filter the list: reason=, to~, from~, age<, !, body text", "/", argument="[filter]", label="filter"
    )
    def filter_list(self, text: str | None) -> None:
        if text is not None:
            self.open_argument(text)
            return
        before = self.letter_list.text

        def done(typed: str | None) -> None:
            self.open_argument(before if typed is None else typed)

        groups = self.store.state.dead_letters.values()
        terms = sorted(
            {f"code={group.code}" for group in groups} | {f"to={group.endpoint_subject}" for group in groups}
        )
        self.dashboard.prompt.open("/", done, initial=before, suggestions=list(map(clean, terms)), typed=self._typed)

    def _typed(self, text: str) -> None:
        if not is_half_typed(text):
            self.ask(text)

    @action("mark", "Mark the dead letter, or unmark it", "space", label="mark")
    def mark(self) -> None:
        table = self.letters
        if not table.has_focus:
            self.dashboard.focus_widget(table)
        elif table.key is None:
            table.move(1)
        else:
            self.marks.toggle(table.key)
            table.move(1)
            self.draw_marks()

    @action("mark-all", "Mark all letters of the filter, loaded or not", "a", label="all")
    def mark_all(self) -> None:
        if self.marks.everything:
            self.marks.forget()
        else:
            self.marks.mark_everything()
        self.draw_marks()

    @action("open", "Open the dead letter or the replay, or filter by the group", "enter", label="open")
    async def open_row(self) -> None:
        if self.groups.has_focus:
            if (selection := self.selection()) is not None:
                self.open_argument(selection.where)
            else:
                self.dashboard.toast(NOTHING_SELECTED)
            return
        if (run := self.run_key()) is not None:
            await self.show_run(run)
            return
        key = self.letter_key()
        letter = self.letter_list.rows.get(key)
        if key is None or letter is None:
            self.dashboard.toast(NOTHING_SELECTED)
            return
        title = f"{clean(letter.code)} at {clean(letter.target)}"
        next_action = await self.app.push_screen_wait(
            LetterScreen(self.dashboard, key, title, originals=self.editor.originals)
        )
        only = LetterSelection(ids=(key,))
        match next_action:
            case "trace":
                await self.dashboard.goto("traces", key.partition("/")[0])
            case "mailbox":
                await self.dashboard.goto("mailboxes", key.partition("/")[2])
            case "plan":
                await self.plan(only)
            case "edit":
                await self.edit(key)
            case "purge":
                await self.purge(only)
            case "copy":
                self.dashboard.copy(key.partition("/")[0], "the id")
            case "copy-command":
                self.copy_command(only)

    @action("back", "Unmark everything, then clear the filter", "escape")
    def back(self) -> None:
        if self.letter_list.wants_all:
            self.follow_end_from, self.letter_list.wants_all = None, False
        elif not self.letters.has_focus:
            if self.table is not None:
                self.table.follow()
            self.dashboard.focus_widget(self.letters)
        elif self.marks:
            self.marks.forget()
            self.draw_marks()
        elif self.wanted.strip():
            self.ask("")
        elif self.interrupted is not None:
            self.interrupted = None
            self.draw()

    @action("trace", "Go to the trace of the dead letter", "t", label="trace")
    async def show_trace(self) -> None:
        await self.goto_selected("traces", self.letters.key and self.letters.key.partition("/")[0])

    @action("mailbox", "Go to its mailbox", "m")
    async def show_mailbox(self) -> None:
        key = self.groups.key if self.groups.has_focus else self.letters.key
        await self.goto_selected("mailboxes", key and key.partition("/")[2])

    @action("copy", "Copy the id of the dead letter or the plan, or the filter of the group", "y")
    def copy(self) -> None:
        if self.groups.has_focus and (selection := self.selection()) is not None:
            self.dashboard.copy(selection.where, "the filter")
        elif (run := self.run_key()) is not None:
            self.dashboard.copy(run, "the id of the plan")
        else:
            key = self.letter_key()
            self.copy_text(key and key.partition("/")[0], "the id")

    def move_to_top(self) -> None:
        """Go to the first rows, and follow them."""
        if self.table is not None:
            self.table.follow()
        if self.letters.is_following:
            self.letter_list.seen()
        self.draw_list()

    def move_to_bottom(self) -> None:
        """Go to the last row, loading rows up to the end."""
        super().move_to_bottom()
        if self.letters.has_focus and self.letter_list.rows.cursor is not None:
            self.follow_end_from, self.letter_list.wants_all = self.letters.key, True
            self.start(self.letter_list.more(), doing="asking for more dead letters")
