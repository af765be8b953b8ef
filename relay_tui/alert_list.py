"""The alerts as a list: enter goes to the screen that shows more of the one under the cursor."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from relay_tui.alerts import Alert
from relay_tui.dialogs import Dialog, step
from relay_tui.table import Column, LiveTable, Row

_MARKS = {"bad": "✗", "warn": "▲"}


class AlertList(Dialog[Alert | None]):
    """Show alerts, and answer with the one that is to be looked at."""

    DEFAULT_CSS = "AlertList > Vertical { width: 90%; height: 80%; }"

    def __init__(self, alerts: Sequence[Alert]) -> None:
        super().__init__()
        self._alerts = {str(at): alert for at, alert in enumerate(alerts)}

    def compose(self) -> ComposeResult:
        """Lay out the list."""
        with Vertical():
            yield Static("What should be looked at", classes="title", markup=False)
            yield LiveTable([Column("", 1), Column("WHAT"), Column("SCREEN", 12)], empty="✓ nothing: all is calm")
            yield Static("enter: go there · j k: move · esc: close", classes="hint", markup=False)

    def on_mount(self) -> None:
        """Fill the list."""
        table = self.query_one(LiveTable)
        table.set_rows(
            [
                Row(key, ((_MARKS[one.style], one.style), one.text, (one.view, "dim")))
                for key, one in self._alerts.items()
            ]
        )
        table.focus()

    def on_live_table_chosen(self) -> None:
        """Go to what was clicked twice."""
        self._choose()

    def on_key(self, event: events.Key) -> None:
        """Move, go, or close."""
        event.stop()
        if (count := step(event.key)) is not None:
            self.query_one(LiveTable).move(count)
        elif event.key == "enter":
            self._choose()
        elif event.key in ("escape", "q", "exclamation_mark"):
            self.dismiss(None)

    def _choose(self) -> None:
        self.dismiss(self._alerts.get(self.query_one(LiveTable).key or ""))
