"""The actions on dead letters: plan a replay, edit, purge, export, copy, and steer the replays that are running.

1. The dead letters of an action are selected when the key is pressed (`selection`), frozen by the supervisor as a plan,
   shown, and acted on by the plan's id: letters that come or go meanwhile do not change it.
2. A purge is confirmed by typing the word and the count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relay_core.messages.replay_plan import PlanHead, Verdict
from relay_core.paths import socket_path
from relay_core.text.sanitize import clean
from relay_core.text.units import plural
from relay_tui.shell.actions import action
from relay_tui.shell.view import NOTHING_SELECTED
from relay_tui.views.dead_letters.edit import LetterEditor
from relay_tui.views.dead_letters.export import AskFile, chosen_path, default_path, export_plan
from relay_tui.views.dead_letters.plan import PlanScreen, item_lines
from relay_tui.views.dead_letters.runs import ACTIVE, active_replays, run_words
from relay_tui.views.dead_letters.selection import LetterSelection, group_filter, selection_of
from relay_tui.views.dead_letters.tables import DeadLetterTables
from relay_tui.widgets.dialogs import Reader
from relay_tui.widgets.styled_lines import BLANK, line


class DeadLetterActions(DeadLetterTables):
    """The actions. Those that take a selection or a key apply to it instead of to the marks and the cursor."""

    def __init__(self) -> None:
        super().__init__()
        self.editor = LetterEditor(self)

    # Selection

    def selection(self) -> LetterSelection | None:
        """Return the group under the cursor if the groups have the focus, else the marked letters, else the row."""
        if self.groups.has_focus:
            group = self.store.state.dead_letters.get(self.groups.key or "")
            return LetterSelection(where=group_filter(group)) if group is not None else None
        return selection_of(self.marks, self.letter_list.text, self.letters.key)

    def letter_key(self) -> str | None:
        """Return the dead letter under the cursor, if the list has the focus."""
        return self.letters.key if self.letters.has_focus else None

    def run_key(self) -> str | None:
        """Return the replay under the cursor, if the replays have the focus."""
        return self.runs.key if self.runs.has_focus else None

    def unmark_done(self, done: LetterSelection) -> None:
        """Unmark the dead letters of a finished action."""
        self.marks.unmark_done(done, self.letter_list.text)
        self.draw_marks()

    # Replay

    @action("plan", "Plan a replay of the marked letters: see the verdicts, and start it", "P", asks=True, label="plan")
    async def plan(self, only: LetterSelection | None = None) -> None:
        frozen = await self._freeze(only or self.selection())
        if frozen is not None and await self.app.push_screen_wait(PlanScreen(self.dashboard, *frozen)):
            self.unmark_done(frozen[0])

    # Edit

    @action("edit", "Edit the dead letter in $EDITOR, and replay the copy", "E", changes=True, label="edit")
    async def edit(self, only: str | None = None) -> None:
        if (key := only or self.letter_key()) is not None:
            await self.editor.edit(key)
        else:
            self.dashboard.toast(NOTHING_SELECTED)

    # Purge and export

    @action("purge", "Delete the marked letters", "X", changes=True, label="purge")
    async def purge(self, only: LetterSelection | None = None) -> None:
        frozen = await self._freeze(only or self.selection())
        if frozen is None or not (count := _remaining(frozen[1])):
            return
        selection, head = frozen
        about = [selection.words, "This cannot be undone; W exports first."]
        if head.partial:
            about.insert(1, _partial_words(count, head.partial))
        if not await self.confirm(f"Purge {plural(count, 'dead letter')}", about, word=f"purge {count}"):
            return
        with self._busy(f"purging {plural(count, 'dead letter')} …"):
            purged = await self.store.act(self.client.purge_dead_letters(plan_id=head.id))
        self.unmark_done(selection)
        self.dashboard.toast(f"{plural(purged, 'dead letter')} purged")

    @action("export", "Export the marked letters to a file, as JSON lines", "W", changes=True, label="export")
    async def export(self) -> None:
        frozen = await self._freeze(self.selection())
        if frozen is None or not (count := _remaining(frozen[1])):
            return
        selection, head = frozen
        title = f"Export {plural(count, 'dead letter')} to which file?"
        answer = await self.app.push_screen_wait(
            AskFile(title, [selection.words, f"In {Path.cwd()}"], initial=default_path(self.store.clock))
        )
        if answer is None:
            return
        path, exists = await asyncio.to_thread(chosen_path, answer)
        if exists and not await self.confirm("Overwrite the file?", [clean(str(path))], word="overwrite"):
            return

        def show_progress(done: int) -> None:
            self._show_busy(f"exporting {done:,} of {count:,}")

        try:
            with self._busy(f"exporting {plural(count, 'dead letter')} …"):
                done = await export_plan(self.client, head.id, path, show_progress)
        except OSError as error:
            self.dashboard.toast(f"nothing was exported: {error}", "error")
        else:
            self.dashboard.toast(f"{plural(done, 'dead letter')} exported to {path}")

    async def _freeze(self, selection: LetterSelection | None) -> tuple[LetterSelection, PlanHead] | None:
        """Freeze a selection; return None if it is empty, or if another operation is running."""
        if self.busy_with is not None:
            self.dashboard.toast(f"please wait: {self.busy_with}")
            return None
        if selection is None:
            self.dashboard.toast(NOTHING_SELECTED)
            return None
        with self._busy(f"planning {selection.words}"):
            selection = await self.store.act(selection.described(self.client, self.store.now_ms()))
            head = await self.store.act(selection.freeze(self.client))
        if self.dashboard.where != self.NAME:
            self.dashboard.toast(f"{selection.words}: the screen was left, so nothing was done")
            return None
        if not _remaining(head):
            self.dashboard.toast("nothing is left: replayed or purged meanwhile")
        return selection, head

    @contextmanager
    def _busy(self, what: str) -> Iterator[None]:
        self._show_busy(what)
        try:
            yield
        finally:
            self._show_busy(None)

    def _show_busy(self, what: str | None) -> None:
        self.busy_with = what
        self.draw()

    # Running replays

    @action("pause-replay", "Pause or resume a replay", "Z", changes=True, label="pause")
    async def pause_replay(self) -> None:
        if (run := self._run()) is not None:
            is_paused = self.store.state.replays[run].state == "paused"
            await self.store.act(self.client.steer_replay(run, "resume" if is_paused else "pause"))

    @action(
        "cancel-replay", "Cancel a replay; the remaining letters stay dead letters", "C", changes=True, label="cancel"
    )
    async def cancel_replay(self) -> None:
        if (run := self._run()) is None:
            return
        about = [*run_words(self.store.state.replays[run]), "Messages that were requeued stay requeued."]
        if await self.confirm("Cancel this replay?", about, word="cancel"):
            await self.store.act(self.client.steer_replay(run, "cancel"))

    async def show_run(self, run: str) -> None:
        """Show the plan and the progress of a replay."""
        outcome = self.store.state.replays.get(run)
        if outcome is not None:
            page = await self.client.plan_items(run)
            lines = [line(text) for text in run_words(outcome)]
            lines += [BLANK, *item_lines(page.items, outcome.total)]
            await self.app.push_screen_wait(Reader(f"Replay {clean(run)}", lines))

    def _run(self) -> str | None:
        """Return the replay under the cursor, or the only one that is running."""
        replays = self.store.state.replays
        chosen = self.run_key()
        running = active_replays(replays)
        if chosen is not None and chosen in replays and replays[chosen].state in ACTIVE:
            return chosen
        if len(running) == 1:
            return running[0]
        self.dashboard.toast("choose a replay with tab" if running else "no replay is running")
        return None

    # Copy

    @action("copy-command", "Copy the command that replays the marked letters", "Y")
    def copy_command(self, only: LetterSelection | None = None) -> None:
        selection, socket = only or self.selection(), self.store.socket
        option = None if socket == socket_path() else str(socket)
        self.copy_text(selection.command(option) if selection is not None else None, "the command")


def _partial_words(count: int, partial: int) -> str:
    """Return how many of the letters are copies kept from partial deliveries."""
    if count == 1:
        return "It is a partial copy: other targets received the message."
    which = (
        "All of them are partial copies"
        if partial >= count
        else f"{plural(partial, 'partial copy', 'partial copies')} among them"
    )
    return f"{which}: other targets received those messages."


def _remaining(head: PlanHead) -> int:
    """Return how many letters of a plan are still dead letters."""
    return head.total - head.counts.get(Verdict.ALREADY_REPLAYED, 0)
