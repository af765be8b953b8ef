"""The application as its screens and dialogs use it.

Screens depend on this interface instead of on the application, which imports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from textual.widget import Widget

if TYPE_CHECKING:
    from textual.app import App

    from relay_tui.demo.session import DemoSession
    from relay_tui.live.alerts import Alert
    from relay_tui.live.store import Store
    from relay_tui.shell.actions import Action, Registry
    from relay_tui.shell.prompt import Prompt
    from relay_tui.shell.task_runner import TaskRunner


class Host(Protocol):
    """The interface for screens and dialogs."""

    read_only: bool
    paused: bool

    @property
    def store(self) -> Store:
        """The live state of the bus."""

    @property
    def registry(self) -> Registry:
        """All actions."""

    @property
    def tasks(self) -> TaskRunner:
        """The background tasks."""

    @property
    def prompt(self) -> Prompt:
        """The line in which commands and filters are typed."""

    @property
    def where(self) -> str:
        """The name of the current screen."""

    @property
    def view(self) -> Widget:
        """The current screen."""

    def draw(self) -> None:
        """Redraw the frame and the current screen."""

    async def goto(self, name: str, argument: str | None = None) -> None:
        """Switch to a screen."""

    def focus_widget(self, widget: Widget | None) -> None:
        """Focus a widget of the current screen, even while a dialog is open."""

    def toast(self, text: str, severity: str = "information") -> None:
        """Show a short notification."""

    def copy(self, text: str, what: str) -> None:
        """Copy a text to the clipboard."""

    def follow_demo(self, demo: DemoSession) -> None:
        """Connect to a demo."""


class ActionHost(Host, Protocol):
    """The interface for the global actions and the palette."""

    alerts: list[Alert]

    async def do(self, action: Action, argument: str | None = None) -> None:
        """Run an action."""

    def focus_view(self) -> None:
        """Focus the current screen."""

    def use_theme(self, name: str) -> None:
        """Change the colours."""


def host_of(app: App[Any]) -> Host:
    """Return the application of a widget, a dialog or a command provider."""
    return cast("Host", app)
