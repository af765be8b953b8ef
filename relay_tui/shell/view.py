"""The base class of every screen: it draws the live state and declares actions.

1. `draw` is called while the view is on the screen: after each change of the state, at most 5 times a second, and once
   a second for ages. It computes lines and rows from the store; widgets paint the difference.
2. A view is created when it is first shown, and then kept: its cursor, marks, filter and draft survive.
3. Requests to the supervisor run through `start`: a failure is shown, and ends nothing else.
4. Data that is not in the state stream is requested by `poll`: when the view is shown, then every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.geometry import Size
from textual.widget import Widget

from relay_tui.shell.actions import action
from relay_tui.shell.host import Host, host_of
from relay_tui.widgets.dialogs import Confirm
from relay_tui.widgets.styled_lines import LAST, Lines, Scrollable
from relay_tui.widgets.table import LiveTable

if TYPE_CHECKING:
    from relay_core.client.client import RelayClient
    from relay_tui.live.store import Store


_POLL_SECS = 5.0
NOTHING_SELECTED = "nothing is selected: j picks a row"


class View(Widget):
    """A screen of the dashboard."""

    NAME: ClassVar[str]
    """Its name in the registry and on the command line."""
    HELP: ClassVar[str] = ""
    """A description of the screen in a sentence or two."""

    _polled_at = float("-inf")

    DEFAULT_CSS = "View { layout: vertical; height: 1fr; width: 1fr; }"

    @property
    def dashboard(self) -> Host:
        """The application."""
        return host_of(self.app)

    @property
    def store(self) -> Store:
        """The live state of the bus."""
        return self.dashboard.store

    @property
    def client(self) -> RelayClient:
        """The connection to the supervisor."""
        return self.dashboard.store.client

    @property
    def area(self) -> Size:
        """The size of the view, also while it is hidden."""
        return cast(Widget, self.parent).size

    @property
    def first_focus(self) -> Widget | None:
        """The widget that gets the focus when the view is shown."""
        return self.table

    def draw(self) -> None:
        """Draw the current state."""

    def on_show(self) -> None:
        self.poll_soon()
        self.dashboard.draw()

    def open_argument(self, argument: str) -> None:
        """Go to the object that another screen has named (an id, a subject)."""

    # Helpers of actions

    def start(self, work: Coroutine[Any, Any, None], *, doing: str) -> None:
        """Run a coroutine in the background; `doing` describes it if it fails."""
        self.dashboard.tasks.start(work, doing=doing)

    def poll(self, load: Callable[[], Coroutine[Any, Any, None]], *, doing: str) -> None:
        """Run `load` in the background if it is due; called by each `draw`."""
        now = self.store.clock.monotonic()
        if self.store.is_live and now - self._polled_at >= _POLL_SECS:
            self._polled_at = now
            self.start(load(), doing=doing)

    def poll_soon(self) -> None:
        """Let `poll` run at the next draw."""
        self._polled_at = float("-inf")

    async def confirm(self, title: str, about: Sequence[str] = (), *, word: str) -> bool:
        """Ask the operator to confirm an action by typing a word."""
        return await self.app.push_screen_wait(Confirm(title, about, word=word)) is not None

    async def goto_selected(self, name: str, argument: str | None) -> None:
        """Go to a screen for the row under the cursor; the argument is None if there is no such row."""
        if argument is None:
            self.dashboard.toast(NOTHING_SELECTED)
        else:
            await self.dashboard.goto(name, argument)

    def copy_text(self, text: str | None, what: str) -> None:
        """Copy a text of the row under the cursor; it is None if there is no such row."""
        if text is None:
            self.dashboard.toast(NOTHING_SELECTED)
        else:
            self.dashboard.copy(text, what)

    # Moving

    @property
    def table(self) -> LiveTable | None:
        """The table in which keys move: the one that has the focus, else the first."""
        focused = self.app.focused
        if isinstance(focused, LiveTable) and self in focused.ancestors:
            return focused
        return next(iter(self.query(LiveTable)), None)

    @property
    def scrolled(self) -> Scrollable | None:
        """The widget in which keys move."""
        focused = self.app.focused
        return focused if isinstance(focused, Lines) else self.table

    def _move(self, count: int) -> None:
        if (widget := self.scrolled) is not None:
            widget.move(count)

    @action("down", "Move down", "j", keys=("down",))
    def move_down(self) -> None:
        self._move(1)

    @action("up", "Move up", "k", keys=("up",))
    def move_up(self) -> None:
        self._move(-1)

    @action("page-down", "Move down by a screen", "ctrl+f", keys=("pagedown",))
    def move_page_down(self) -> None:
        self._move(max(self.area.height - 4, 1))

    @action("page-up", "Move up by a screen", "ctrl+b", keys=("pageup",))
    def move_page_up(self) -> None:
        self._move(-max(self.area.height - 4, 1))

    @action("top", "Go to the first row", "g", keys=("home",))
    def move_to_top(self) -> None:
        if (widget := self.scrolled) is not None:
            widget.go_to(0)

    @action("bottom", "Go to the last row", "G", keys=("end",))
    def move_to_bottom(self) -> None:
        if (widget := self.scrolled) is not None:
            widget.go_to(LAST)
