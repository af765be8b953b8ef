"""What can be done with dead letters: planned, replayed, edited, purged, exported, copied.

1. What an action is about is chosen at the moment of the key (`choice`), frozen by the supervisor as a plan, shown,
   and acted on by the plan's id: nothing that comes or goes meanwhile changes it.
2. What destroys is confirmed by typing how many it destroys. What was edited and not sent is kept, and said where.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from relay_core.errors import RelayError
from relay_core.places import socket_path
from relay_core.replay_plan import PlanHead, Verdict
from relay_core.results import PublishResult
from relay_tui.actions import action
from relay_tui.dialogs import Ask, Confirm, ConfirmByTyping, Reader
from relay_tui.lines import BLANK, line
from relay_tui.safe import clean
from relay_tui.view import View
from relay_tui.views.dead_letters.choice import Choice, Marks
from relay_tui.views.dead_letters.edit import DifferenceScreen, discard, read_edited, run_editor, write_private
from relay_tui.views.dead_letters.export import chosen_path, default_path, export_plan
from relay_tui.views.dead_letters.plan import PlanScreen, item_lines
from relay_tui.views.dead_letters.runs import UNDER_WAY, run_words, under_way
from relay_tui.views.dead_letters.text import body_text
from relay_tui.words import plural

_EDITS_KEPT = 100


class DeadLetterWork(View):
    """The work; what it is about is said by the screen."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = Marks()
        self.before_edit: dict[str, str] = {}
        """What messages said before they were edited here, by the id of the copy: the bus does not keep it."""
        self.busy_with: str | None = None
        """What takes a while, in words."""

    def choice(self) -> Choice | None:
        """Return what an action is about, as things stand."""
        raise NotImplementedError

    def letter_key(self) -> str | None:
        """Return the dead letter under the cursor."""
        raise NotImplementedError

    def run_key(self) -> str | None:
        """Return the replay under the cursor, if that is where it is."""
        raise NotImplementedError

    def unmark(self) -> None:
        """Unmark everything."""
        raise NotImplementedError

    # Replay

    @action("plan", "Plan a replay of what is marked: what would become of each, and start it", "P", label="plan")
    async def plan(self) -> None:
        """Plan a replay."""
        await self.plan_choice(self.choice())

    async def plan_choice(self, choice: Choice | None) -> None:
        """Plan a replay of what was chosen, and leave the rest to the dialog."""
        head = await self._freeze(choice)
        if choice is not None and head is not None and await self.app.push_screen_wait(PlanScreen(choice, head)):
            self.unmark()

    # Edit

    @action(
        "edit",
        "Edit the dead letter in $EDITOR, and replay the copy",
        "E",
        changes=True,
        label="edit",
    )
    async def edit(self) -> None:
        """Edit the dead letter under the cursor."""
        await self.edit_letter(self.letter_key())

    async def edit_letter(self, key: str | None) -> None:
        """Edit a dead letter, and send the copy in its place."""
        if key is None:
            self.dashboard.tell("no dead letter is under the cursor: tab leads to the list")
            return
        message_id, _, endpoint = key.partition("/")
        letter = await self.client.dead_letter(message_id, endpoint=endpoint)
        if letter.envelope is None:
            self.dashboard.tell("it is no message, so it cannot be edited", "warning")
            return
        before = await asyncio.to_thread(body_text, letter.envelope.payload)
        path = await asyncio.to_thread(write_private, before)
        is_kept = True
        try:
            is_kept = await self._edit_file(path, key, before)
        finally:
            if is_kept:
                self.dashboard.tell(f"nothing was sent; your text is kept in {path}", "warning")
            else:
                discard(path)

    async def _edit_file(self, path: Path, key: str, before: str) -> bool:
        """Edit and ask until it is sent or given up; tell whether the file is still worth something."""
        message_id, _, endpoint = key.partition("/")
        while True:
            await run_editor(self.app, path)
            edited = await asyncio.to_thread(read_edited, path)
            if edited.problem is not None:
                if not await self._again("That is no payload", [edited.problem]):
                    return True
                continue
            after = await asyncio.to_thread(body_text, edited.payload)
            if after == before:
                self.dashboard.tell("nothing was changed, so nothing was sent")
                return False
            title = f"Replay {message_id} with this change?"
            about = "The copy gets an id of its own and takes the dead letter's place once it is stored."
            answer = await self.app.push_screen_wait(DifferenceScreen(title, about, before, after))
            if answer is None:
                return True
            if answer == "again":
                continue
            try:
                result = await self.client.edit_replay(
                    message_id, edited.payload, endpoint=endpoint, fresh_budget=answer == "send fresh"
                )
            except RelayError as error:
                if not await self._again("The bus did not take it", [clean(str(error))]):
                    return True
                continue
            return not self._was_sent(result, before)

    async def _again(self, title: str, about: Sequence[str]) -> bool:
        return await self.app.push_screen_wait(Confirm(f"{title}. Edit again?", about))

    def _was_sent(self, result: PublishResult, before: str) -> bool:
        refusals = [one.reason for one in result.rejected or ()]
        refusals += [one.error or one.status for one in result.adapter_results or () if one.status != "delivered"]
        if not result.delivered_to and refusals:
            self.dashboard.tell(f"the edited copy was refused: {', '.join(dict.fromkeys(refusals))}", "error")
            return False
        self.before_edit[result.message_id] = before
        while len(self.before_edit) > _EDITS_KEPT:
            del self.before_edit[next(iter(self.before_edit))]
        self.dashboard.tell(f"sent as {result.message_id}, to {plural(result.delivered_to, 'target')}")
        return True

    # Purge and export

    @action("purge", "Remove what is marked for good, after typing how many", "X", changes=True, label="purge")
    async def purge(self) -> None:
        """Remove dead letters."""
        await self.purge_choice(self.choice())

    async def purge_choice(self, choice: Choice | None) -> None:
        """Remove what was chosen, after it was frozen and counted."""
        head = await self._freeze(choice)
        if choice is None or head is None or not (count := _there(head)):
            return
        about = [choice.words, "They will be gone for good; W exports them first."]
        title = f"Purge {plural(count, 'dead letter')}"
        if await self.app.push_screen_wait(ConfirmByTyping(title, about, word=str(count))) is None:
            return
        purged = await self.client.purge_dead_letters(plan_id=head.id)
        self.unmark()
        self.dashboard.tell(f"{plural(purged, 'dead letter')} purged")

    @action("export", "Export what is marked to a file, as JSON lines", "W", changes=True, label="export")
    async def export(self) -> None:
        """Write dead letters to a file."""
        choice = self.choice()
        head = await self._freeze(choice)
        if choice is None or head is None or not (count := _there(head)):
            return
        title = f"Export {plural(count, 'dead letter')} to which file?"
        answer = await self.app.push_screen_wait(
            Ask(title, [choice.words, f"In {Path.cwd()}"], initial=default_path(self.store.clock))
        )
        if answer is None:
            return
        path, is_there = await asyncio.to_thread(chosen_path, answer)
        if is_there and not await self.app.push_screen_wait(
            Confirm("Write over the file that is there?", [clean(str(path))])
        ):
            return

        def told(done: int) -> None:
            self._say_busy(f"exporting {done:,} of {count:,}")

        try:
            done = await export_plan(self.client, head.id, path, told)
        finally:
            self._say_busy(None)
        self.dashboard.tell(f"{plural(done, 'dead letter')} exported to {path}")

    async def _freeze(self, choice: Choice | None) -> PlanHead | None:
        """Freeze what was chosen; None if that is nothing, or if something is under way: keys may be pressed twice."""
        if self.busy_with is not None:
            self.dashboard.tell(f"wait a moment: {self.busy_with}")
            return None
        if choice is None:
            self.dashboard.tell("no dead letter is chosen")
            return None
        self._say_busy(f"judging {choice.words}")
        try:
            head = await choice.freeze(self.client, self.store.now_ms())
        finally:
            self._say_busy(None)
        if not _there(head):
            self.dashboard.tell("it is gone already: replayed or purged meanwhile")
        return head

    def _say_busy(self, what: str | None) -> None:
        self.busy_with = what
        self.draw()

    # Replays under way

    @action("pause-replay", "Pause a replay, or let it go on", "Z", changes=True, label="pause")
    async def pause_replay(self) -> None:
        """Pause a replay that runs, or resume one that was paused."""
        if (run := self._run()) is not None:
            is_paused = self.store.state.replays[run].state == "paused"
            await self.client.steer_replay(run, "resume" if is_paused else "pause")

    @action("cancel-replay", "Cancel a replay: the rest stay dead letters", "C", changes=True, label="cancel")
    async def cancel_replay(self) -> None:
        """Cancel a replay."""
        if (run := self._run()) is None:
            return
        about = [*run_words(self.store.state.replays[run]), "What was put back stays put back."]
        if await self.app.push_screen_wait(Confirm("Cancel this replay?", about)):
            await self.client.steer_replay(run, "cancel")

    async def show_run(self, run: str) -> None:
        """Show what a replay was planned to do, and how it stands."""
        outcome = self.store.state.replays.get(run)
        if outcome is not None:
            page = await self.client.plan_items(run)
            lines = [line(one) for one in run_words(outcome)]
            lines += [BLANK, *item_lines(page.items, outcome.total)]
            await self.app.push_screen_wait(Reader(f"Replay {clean(run)}", lines))

    def _run(self) -> str | None:
        """Return the replay that is meant: the one under the cursor, or the only one."""
        replays = self.store.state.replays
        chosen = self.run_key()
        running = under_way(replays)
        if chosen is not None and chosen in replays and replays[chosen].state in UNDER_WAY:
            return chosen
        if len(running) == 1:
            return running[0]
        self.dashboard.tell("choose one of the replays with tab" if running else "no replay is under way")
        return None

    # Copy

    @action("copy-command", "Copy the command line that replays what is marked", "Y")
    def copy_command(self) -> None:
        """Copy as a command."""
        if (choice := self.choice()) is not None:
            self.copy_choice(choice)

    def copy_choice(self, choice: Choice) -> None:
        """Copy the command line that replays what was chosen."""
        socket = self.store.socket
        self.dashboard.copy(choice.command(None if socket == socket_path() else str(socket)), "the command")


def _there(head: PlanHead) -> int:
    """Return how many of a plan are dead letters still."""
    return head.total - head.counts.get(Verdict.ALREADY_REPLAYED, 0)
