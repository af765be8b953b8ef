"""What can be done with dead letters: planned, replayed, edited, purged, exported, copied.

1. What an action is about is chosen at the moment of the key (`choice`), frozen by the supervisor as a plan, shown,
   and acted on by the plan's id: nothing that comes or goes meanwhile changes it.
2. What destroys is confirmed by typing the word for it and how many it destroys. What was edited and not sent is
   kept, and said where.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from relay_core.deadletters import group_key
from relay_core.errors import RelayError
from relay_core.places import socket_path
from relay_core.replay_plan import PlanHead, Verdict
from relay_core.results import PublishResult
from relay_tui.actions import action
from relay_tui.dialogs import Confirm, Reader
from relay_tui.lines import BLANK, line
from relay_tui.safe import clean, pretty_json
from relay_tui.view import NOTHING_SELECTED, View
from relay_tui.views.dead_letters.choice import Choice, Marks, letter_words
from relay_tui.views.dead_letters.edit import (
    DifferenceScreen,
    discard,
    is_untouched,
    read_edited,
    run_editor,
    write_private,
)
from relay_tui.views.dead_letters.export import AskFile, chosen_path, default_path, export_plan
from relay_tui.views.dead_letters.plan import PlanScreen, item_lines
from relay_tui.views.dead_letters.runs import UNDER_WAY, run_words, under_way
from relay_tui.views.dead_letters.text import difference
from relay_tui.words import plural

_EDITS_KEPT = 100
_NOT_SENT = "nothing was sent"
_NOBODY_KNOWS = (
    "nobody knows whether it was sent: the answer was lost. If the dead letter is gone from this list it was, and the "
    "copy is among the traces (5); else edit it again"
)


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

    def settle(self, done: Choice) -> None:
        """Unmark what was acted on."""
        raise NotImplementedError

    # Replay

    @action(
        "plan", "Plan a replay of what is marked: what would become of each, and start it", "P", asks=True, label="plan"
    )
    async def plan(self) -> None:
        """Plan a replay."""
        await self.plan_choice(self.choice())

    async def plan_choice(self, choice: Choice | None) -> None:
        """Plan a replay of what was chosen, and leave the rest to the dialog."""
        frozen = await self._freeze(choice)
        if frozen is not None and await self.app.push_screen_wait(PlanScreen(*frozen)):
            self.settle(frozen[0])

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
            self.dashboard.tell(NOTHING_SELECTED)
            return
        message_id, _, endpoint = key.partition("/")
        letter = await self.client.dead_letter(message_id, endpoint=endpoint)
        if letter.envelope is None:
            self.dashboard.tell("it is no message, so it cannot be edited", "warning")
            return
        before = await asyncio.to_thread(pretty_json, letter.envelope.payload)
        path = await asyncio.to_thread(write_private, before)
        group = self.store.state.dead_letters.get(group_key(letter.code, endpoint, partial=letter.partial))
        target = group.endpoint_subject if group is not None else endpoint
        about = letter_words(letter.code, target, letter.envelope.sender, letter.reason)
        kept: str | None = _NOT_SENT
        try:
            kept = await self._edit_file(path, key, before, about)
        except OSError as error:
            self.dashboard.tell(str(error), "error")
        finally:
            if kept is None or is_untouched(path, before):
                discard(path)
            else:
                self.dashboard.tell(f"{kept}; your text is kept in {path}", "warning")

    async def _edit_file(self, path: Path, key: str, before: str, about: str) -> str | None:
        """Edit and ask until it is sent or given up; tell why the file is still worth something, None if it is not.

        Raises:
            OSError: if the editor cannot be started, or ends with an error.
        """
        message_id, _, endpoint = key.partition("/")
        while True:
            await run_editor(self.app, path)
            edited = await asyncio.to_thread(read_edited, path)
            if edited.problem is not None:
                if not await self._again("That is no payload", [edited.problem]):
                    return _NOT_SENT
                continue
            after = await asyncio.to_thread(pretty_json, edited.payload)
            if after == before:
                self.dashboard.tell("nothing was changed, so nothing was sent")
                return None
            title = f"Replay {message_id} with this change?"
            how = "The copy gets an id of its own and takes the dead letter's place once it is stored."
            found = await asyncio.to_thread(difference, before, after)
            answer = await self.app.push_screen_wait(DifferenceScreen(title, [about, how], found))
            if answer is None:
                return _NOT_SENT
            if answer == "again":
                continue
            try:
                result = await self.store.act(
                    self.client.edit_replay(
                        message_id, edited.payload, endpoint=endpoint, fresh_budget=answer == "send fresh"
                    )
                )
            except RelayError as error:
                if error.code == "outcome_unknown":
                    return _NOBODY_KNOWS
                if not await self._again("The bus did not take it", [clean(str(error))]):
                    return _NOT_SENT
                continue
            return None if self._was_sent(result, before) else _NOT_SENT

    async def _again(self, title: str, about: Sequence[str]) -> bool:
        return await self.app.push_screen_wait(Confirm(f"{title}. Edit again?", about, word="edit"))

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

    @action("purge", "Remove what is marked for good", "X", changes=True, label="purge")
    async def purge(self) -> None:
        """Remove dead letters."""
        await self.purge_choice(self.choice())

    async def purge_choice(self, choice: Choice | None) -> None:
        """Remove what was chosen, after it was frozen and counted."""
        frozen = await self._freeze(choice)
        if frozen is None or not (count := _there(frozen[1])):
            return
        meant, head = frozen
        gone = "It" if count == 1 else "They"
        about = [meant.words, f"{gone} will be gone for good; W exports first."]
        if head.partial:
            about.insert(1, _partial_words(count, head.partial))
        title = f"Purge {plural(count, 'dead letter')}"
        if not await self.app.push_screen_wait(Confirm(title, about, word=f"purge {count}")):
            return
        with self._busy(f"purging {plural(count, 'dead letter')} …"):
            purged = await self.store.act(self.client.purge_dead_letters(plan_id=head.id))
        self.settle(meant)
        self.dashboard.tell(f"{plural(purged, 'dead letter')} purged")

    @action("export", "Export what is marked to a file, as JSON lines", "W", changes=True, label="export")
    async def export(self) -> None:
        """Write dead letters to a file."""
        frozen = await self._freeze(self.choice())
        if frozen is None or not (count := _there(frozen[1])):
            return
        meant, head = frozen
        title = f"Export {plural(count, 'dead letter')} to which file?"
        answer = await self.app.push_screen_wait(
            AskFile(title, [meant.words, f"In {Path.cwd()}"], initial=default_path(self.store.clock))
        )
        if answer is None:
            return
        path, is_there = await asyncio.to_thread(chosen_path, answer)
        if is_there and not await self.app.push_screen_wait(
            Confirm("Write over the file that is there?", [clean(str(path))], word="overwrite")
        ):
            return

        def told(done: int) -> None:
            self._say_busy(f"exporting {done:,} of {count:,}")

        try:
            with self._busy(f"exporting {plural(count, 'dead letter')} …"):
                done = await export_plan(self.client, head.id, path, told)
        except OSError as error:
            self.dashboard.tell(f"nothing was exported: {error}", "error")
        else:
            self.dashboard.tell(f"{plural(done, 'dead letter')} exported to {path}")

    async def _freeze(self, choice: Choice | None) -> tuple[Choice, PlanHead] | None:
        """Freeze what was chosen; None if that is nothing, or if something is under way: keys may be pressed twice."""
        if self.busy_with is not None:
            self.dashboard.tell(f"wait a moment: {self.busy_with}")
            return None
        if choice is None:
            self.dashboard.tell(NOTHING_SELECTED)
            return None
        with self._busy(f"judging {choice.words}"):
            choice = await self.store.act(choice.told(self.client, self.store.now_ms()))
            head = await self.store.act(choice.freeze(self.client))
        if self.dashboard.where != self.NAME:
            self.dashboard.tell(f"{choice.words}: the screen was left, so nothing was done")
            return None
        if not _there(head):
            self.dashboard.tell("it is gone already: replayed or purged meanwhile")
        return choice, head

    @contextmanager
    def _busy(self, what: str) -> Iterator[None]:
        self._say_busy(what)
        try:
            yield
        finally:
            self._say_busy(None)

    def _say_busy(self, what: str | None) -> None:
        self.busy_with = what
        self.draw()

    # Replays under way

    @action("pause-replay", "Pause a replay, or let it go on", "Z", changes=True, label="pause")
    async def pause_replay(self) -> None:
        """Pause a replay that runs, or resume one that was paused."""
        if (run := self._run()) is not None:
            is_paused = self.store.state.replays[run].state == "paused"
            await self.store.act(self.client.steer_replay(run, "resume" if is_paused else "pause"))

    @action("cancel-replay", "Cancel a replay: the rest stay dead letters", "C", changes=True, label="cancel")
    async def cancel_replay(self) -> None:
        """Cancel a replay."""
        if (run := self._run()) is None:
            return
        about = [*run_words(self.store.state.replays[run]), "What was put back stays put back."]
        if await self.app.push_screen_wait(Confirm("Cancel this replay?", about, word="cancel")):
            await self.store.act(self.client.steer_replay(run, "cancel"))

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
        else:
            self.dashboard.tell(NOTHING_SELECTED)

    def copy_choice(self, choice: Choice) -> None:
        """Copy the command line that replays what was chosen."""
        socket = self.store.socket
        self.dashboard.copy(choice.command(None if socket == socket_path() else str(socket)), "the command")


def _partial_words(count: int, partial: int) -> str:
    """Return how many of what will be removed are kept copies of partial deliveries."""
    if count == 1:
        return "It is a partial copy: other targets took the message."
    which = (
        "All of them are partial copies"
        if partial >= count
        else f"{plural(partial, 'partial copy', 'partial copies')} among them"
    )
    return f"{which}: other targets took those messages."


def _there(head: PlanHead) -> int:
    """Return how many of a plan are dead letters still."""
    return head.total - head.counts.get(Verdict.ALREADY_REPLAYED, 0)
