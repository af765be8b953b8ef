"""A list to choose a draft from: templates, or what was published before."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from relay_tui.dialogs import Dialog, step
from relay_tui.lines import Lines, line
from relay_tui.safe import clean_lines
from relay_tui.table import Column, LiveTable, Row
from relay_tui.views.publish.draft import Draft
from relay_tui.views.publish.shelf import Shelved


class Choose(Dialog[Draft | None]):
    """Let one of several drafts be taken up."""

    DEFAULT_CSS = "Choose > Vertical { width: 90%; height: 85%; } Choose Lines { height: 8; }"

    def __init__(self, title: str, shelf: Sequence[Shelved], *, empty: str) -> None:
        super().__init__()
        self._title = title
        self._shelf = shelf
        self._empty = empty

    def compose(self) -> ComposeResult:
        """Lay out the list, and the body of the one under the cursor."""
        with Vertical():
            yield Static(self._title, classes="title", markup=False)
            yield LiveTable([Column("WHAT"), Column("ABOUT")], empty=self._empty)
            yield Lines()
            yield Static("j k: move · enter: take it · esc: leave it", classes="hint", markup=False)

    def on_mount(self) -> None:
        """Show the drafts."""
        table = self.query_one(LiveTable)
        table.set_rows([Row(str(at), (one.title, (one.note, "dim"))) for at, one in enumerate(self._shelf)])
        table.focus()

    @property
    def _chosen(self) -> Draft | None:
        key = self.query_one(LiveTable).key
        return self._shelf[int(key)].draft if key is not None else None

    def on_live_table_moved(self) -> None:
        """Show the body of the draft under the cursor."""
        draft = self._chosen
        body = clean_lines(draft.body, 8) if draft is not None else []
        self.query_one(Lines).show([line((f"  {text}", "dim")) for text in body])

    def on_live_table_chosen(self) -> None:
        """Take what was double-clicked."""
        self.dismiss(self._chosen)

    def on_key(self, event: events.Key) -> None:
        """Move, take or leave."""
        event.stop()
        if (count := step(event.key)) is not None:
            self.query_one(LiveTable).move(count)
        elif event.key == "enter" and self._chosen is not None:
            self.dismiss(self._chosen)
        elif event.key in ("escape", "q"):
            self.dismiss(None)
