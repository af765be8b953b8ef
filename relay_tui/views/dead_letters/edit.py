"""Edit a dead letter in the operator's editor, show the difference, and replay the copy in its place.

A text that was edited and not sent is kept in its file, and the operator is told where.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from relay_core.errors import RelayError
from relay_core.messages.dead_letter import group_key
from relay_core.messages.results import PublishResult
from relay_core.text.sanitize import clean, pretty_json
from relay_core.text.units import plural
from relay_tui.shell.view import View
from relay_tui.views.dead_letters.difference import DifferenceScreen, difference
from relay_tui.views.dead_letters.editor import is_unchanged, read_edited, run_editor, write_private
from relay_tui.views.dead_letters.selection import letter_words

_EDITS_KEPT = 100
_NOT_SENT = "nothing was sent"
_OUTCOME_UNKNOWN = (
    "it is unknown whether it was sent: the answer was lost. If the dead letter has left this list, it was, and the "
    "copy is among the traces (5); otherwise edit it again"
)


class LetterEditor:
    """Edits dead letters on behalf of their screen."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.originals: dict[str, str] = {}
        """The bodies of edited messages before the edit, by the id of the copy: the bus does not keep them."""

    async def edit(self, key: str) -> None:
        """Edit a dead letter, and replay the copy in its place."""
        view = self._view
        message_id, _, endpoint = key.partition("/")
        letter = await view.client.dead_letter(message_id, endpoint=endpoint)
        if letter.envelope is None:
            view.dashboard.toast("it is not a valid message, so it cannot be edited", "warning")
            return
        before = await asyncio.to_thread(pretty_json, letter.envelope.payload)
        path = await asyncio.to_thread(write_private, before)
        group = view.store.state.dead_letters.get(group_key(letter.code, endpoint, partial=letter.partial))
        target = group.endpoint_subject if group is not None else endpoint
        about = letter_words(letter.code, target, letter.envelope.sender, letter.reason)
        unsent: str | None = _NOT_SENT
        try:
            unsent = await self._edit_file(path, key, before, about)
        except OSError as error:
            view.dashboard.toast(str(error), "error")
        finally:
            if unsent is None or is_unchanged(path, before):
                with suppress(OSError):
                    path.unlink()
            else:
                view.dashboard.toast(f"{unsent}; your text is kept in {path}", "warning")

    async def _edit_file(self, path: Path, key: str, before: str, about: str) -> str | None:
        """Edit and ask until the copy is sent or given up; return why the file must be kept, or None.

        Raises:
            OSError: if the editor cannot be started, or exits with an error.
        """
        view = self._view
        message_id, _, endpoint = key.partition("/")
        while True:
            await run_editor(view.app, path)
            edited = await asyncio.to_thread(read_edited, path)
            if edited.problem is not None:
                if not await self._ask_again("This is not a valid payload", [edited.problem]):
                    return _NOT_SENT
                continue
            after = await asyncio.to_thread(pretty_json, edited.payload)
            if after == before:
                view.dashboard.toast("nothing was changed, so nothing was sent")
                return None
            title = f"Replay {message_id} with this change?"
            how = "The copy gets a new id, and replaces the dead letter once it is stored."
            changes = await asyncio.to_thread(difference, before, after)
            answer = await view.app.push_screen_wait(DifferenceScreen(title, [about, how], changes))
            if answer is None:
                return _NOT_SENT
            if answer == "again":
                continue
            try:
                result = await view.store.act(
                    view.client.edit_replay(
                        message_id, edited.payload, endpoint=endpoint, fresh_budget=answer == "send fresh"
                    )
                )
            except RelayError as error:
                if error.code == "outcome_unknown":
                    return _OUTCOME_UNKNOWN
                if not await self._ask_again("The bus refused it", [clean(str(error))]):
                    return _NOT_SENT
                continue
            return None if self._was_sent(result, before) else _NOT_SENT

    async def _ask_again(self, title: str, about: Sequence[str]) -> bool:
        return await self._view.confirm(f"{title}. Edit again?", about, word="edit")

    def _was_sent(self, result: PublishResult, before: str) -> bool:
        refusals = [rejection.reason for rejection in result.rejected or ()]
        refusals += [
            adapter.error or adapter.status for adapter in result.adapter_results or () if adapter.status != "delivered"
        ]
        toast = self._view.dashboard.toast
        if not result.delivered_to and refusals:
            toast(f"the edited copy was refused: {', '.join(dict.fromkeys(refusals))}", "error")
            return False
        self.originals[result.message_id] = before
        while len(self.originals) > _EDITS_KEPT:
            del self.originals[next(iter(self.originals))]
        toast(f"sent as {result.message_id}, to {plural(result.delivered_to, 'target')}")
        return True
