"""One screen of the dashboard: what it shows of the store, and what can be done on it.

1. `draw` is called while the view is on the screen: whenever the picture has changed, at most 5 times a second, and
   once a second for what only grows older. It computes lines and rows from the store; widgets paint what differs.
2. A view is made when it is first looked at and then kept, so its cursor, marks, filter and draft survive everything.
3. Work that waits (asking the supervisor) is begun by `start`: what goes wrong is shown, and ends nothing.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.geometry import Size
from textual.widget import Widget

from relay_tui.actions import action
from relay_tui.lines import Lines
from relay_tui.table import LiveTable

if TYPE_CHECKING:
    from relay_core.client import RelayClient
    from relay_tui.app import Dashboard
    from relay_tui.store import Store


NOTHING_SELECTED = "nothing is selected: j picks a row"


class View(Widget):
    """One screen of the dashboard."""

    NAME: ClassVar[str]
    """For the registry and the command line."""
    HELP: ClassVar[str] = ""
    """What the screen shows, in a sentence or two."""

    DEFAULT_CSS = "View { layout: vertical; height: 1fr; width: 1fr; }"

    @property
    def dashboard(self) -> Dashboard:
        """The application."""
        return cast("Dashboard", self.app)

    @property
    def store(self) -> Store:
        """What is known of the bus."""
        return self.dashboard.store

    @property
    def client(self) -> RelayClient:
        """The connection to the supervisor."""
        return self.dashboard.store.client

    @property
    def room(self) -> Size:
        """How large the view is, also while it is not on the screen."""
        return cast(Widget, self.parent).size

    @property
    def first_focus(self) -> Widget | None:
        """What gets the keys when the view is looked at."""
        return self.table

    def draw(self) -> None:
        """Show how things are now."""

    def on_show(self) -> None:
        """Show how things are when the view comes back to the screen."""
        self.dashboard.draw()

    def start(self, work: Coroutine[Any, Any, None], *, doing: str) -> None:
        """Do work that waits; `doing` says what, should it fail."""
        self.dashboard.start(work, doing=doing)

    def opened(self, argument: str) -> None:
        """Show what was asked for, when another screen leads here (an id, a subject)."""

    # Keys that move

    @property
    def table(self) -> LiveTable | None:
        """The table that keys move in: the one that has the focus, else the first."""
        focused = self.dashboard.focused
        if isinstance(focused, LiveTable) and self in focused.ancestors:
            return focused
        return next(iter(self.query(LiveTable)), None)

    @property
    def _scrolled(self) -> LiveTable | Lines | None:
        focused = self.dashboard.focused
        return focused if isinstance(focused, Lines) else self.table

    def _move(self, count: int) -> None:
        match self._scrolled:
            case LiveTable() as table:
                table.move(count)
            case Lines() as lines:
                lines.scroll_lines(count)

    @action("down", "Move down", "j", keys=("down",))
    def move_down(self) -> None:
        """Move the cursor down."""
        self._move(1)

    @action("up", "Move up", "k", keys=("up",))
    def move_up(self) -> None:
        """Move the cursor up."""
        self._move(-1)

    @action("page-down", "Move down by a screen", "ctrl+f", keys=("pagedown",))
    def move_page_down(self) -> None:
        """Move the cursor down by a screen."""
        self._move(max(self.room.height - 4, 1))

    @action("page-up", "Move up by a screen", "ctrl+b", keys=("pageup",))
    def move_page_up(self) -> None:
        """Move the cursor up by a screen."""
        self._move(-max(self.room.height - 4, 1))

    @action("top", "Go to the first row", "g", keys=("home",))
    def move_to_top(self) -> None:
        """Move the cursor to the first row."""
        match self._scrolled:
            case LiveTable() as table:
                table.go_to(0)
            case Lines() as lines:
                lines.scroll_to_line(0)

    @action("bottom", "Go to the last row", "G", keys=("end",))
    def move_to_bottom(self) -> None:
        """Move the cursor to the last row."""
        match self._scrolled:
            case LiveTable() as table:
                table.go_to(1 << 60)
            case Lines() as lines:
                lines.scroll_to_line(1 << 60)
