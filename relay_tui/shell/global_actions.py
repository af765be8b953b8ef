"""The actions that are available on every screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay_tui.shell.actions import action
from relay_tui.shell.view import View
from relay_tui.widgets.dialogs import Picker, Reader
from relay_tui.widgets.table import Column
from relay_tui.widgets.theme import THEMES, textual_name

if TYPE_CHECKING:
    from textual.app import App

    from relay_tui.shell.host import ActionHost


_SIGNS = {"bad": "✗", "warn": "▲"}


class GlobalActions:
    """Quit, help, pause, alerts, command line, palette, theme and focus."""

    def __init__(self, app: App[None], host: ActionHost) -> None:
        self._app = app
        self._host = host
        """The same object, by the interface that screens use."""

    @action("quit", "Quit the dashboard; the supervisor keeps running", "q", keys=("ctrl+q",), label="quit")
    def quit(self) -> None:
        self._app.exit()

    @action("help", "Show the actions of this screen", "?", label="help")
    def show_help(self) -> None:
        from relay_tui.shell.help import help_lines

        width = int(self._app.size.width * 0.9) - 6
        view = self._host.view
        assert isinstance(view, View)
        self._app.push_screen(Reader(f"Help: {view.NAME}", list(help_lines(view, self._host.registry, width))))

    @action("pause", "Pause or resume the display", "p", label="pause")
    def pause(self) -> None:
        self._host.paused = not self._host.paused
        self._host.draw()

    @action("alerts", "List the alerts, and go to the screen of one", "!", label="alerts")
    async def show_alerts(self) -> None:
        alerts = list(self._host.alerts)
        rows = [((_SIGNS[alert.style], alert.style), alert.text, (alert.view, "dim")) for alert in alerts]
        columns = [Column("", 1), Column("ALERT"), Column("SCREEN", 12)]
        chosen = await self._app.push_screen_wait(
            Picker("Alerts", columns, rows, empty="✓ no alerts", verb="go to its screen")
        )
        if chosen is not None:
            await self._host.goto(alerts[chosen].view, alerts[chosen].argument)

    @action("command", "Type a command", ":", label="command")
    def open_command_line(self) -> None:
        names = sorted({offered.name for offered in self._host.registry.offered(self._host.where)})
        self._host.prompt.open(":", self._run_command, suggestions=names)

    def _run_command(self, text: str | None) -> None:
        self._host.focus_view()
        if not text or not text.strip():
            return
        name, _, argument = text.strip().partition(" ")
        match self._host.registry.by_name(self._host.where, name):
            case []:
                self._host.toast(f"there is no command {name!r}: ? lists those of this screen", "warning")
            case [only] if argument and only.argument is None:
                self._host.toast(f"{only.name} takes no argument", "warning")
            case [only]:
                self._app.call_later(self._host.do, only, argument.strip() or None)
            case several:
                self._host.toast(f"{name!r} may be {', '.join(match.name for match in several)}", "warning")

    @action("palette", "Search all actions", "ctrl+p")
    def open_palette(self) -> None:
        from relay_tui.shell.palette import action_palette

        self._app.push_screen(action_palette())

    @action("theme", "Change the colours: dark, light, colour-blind, ansi", argument="[name]")
    def change_theme(self, name: str | None) -> None:
        if self._app.no_color:
            self._host.toast("NO_COLOR is set: there are no colours to change", "warning")
            return
        now = next(theme for theme in THEMES if textual_name(theme) == self._app.theme)
        chosen = name or THEMES[(THEMES.index(now) + 1) % len(THEMES)]
        if chosen not in THEMES:
            self._host.toast(f"there is no theme {chosen}: {', '.join(THEMES)}", "warning")
            return
        self._host.use_theme(chosen)
        for screen in self._app.screen_stack:
            screen.refresh(layout=True)

    @action("focus-next", "Focus the next part of the screen", "tab")
    def focus_next(self) -> None:
        self._app.screen.focus_next()

    @action("focus-previous", "Focus the previous part of the screen", "shift+tab")
    def focus_previous(self) -> None:
        self._app.screen.focus_previous()
