"""The dashboard: the application that holds the screens in their frame.

1. The first frame is painted before any module that knows the bus is imported; then the connection is made.
2. Every key, the palette and the command line end in `do`, with an action of the one registry (shell/actions.py).
3. The dashboard never exits on an error. Failures are shown, stale data is labelled, typed text and marks are kept.
4. While the display is paused the live state is still updated, and drawn when the display resumes.
"""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events
from textual.app import App
from textual.binding import BindingType
from textual.filter import LineFilter, NoColor
from textual.geometry import Region
from textual.screen import Screen
from textual.widget import Widget

from relay_tui.live.alerts import Alert, find_alerts
from relay_tui.screens import SCREENS, view_class
from relay_tui.shell.actions import EVERYWHERE, NO_SUPERVISOR, Action, Registry, actions_of, key_of
from relay_tui.shell.bars import HeaderState, Hints
from relay_tui.shell.frame import Frame
from relay_tui.shell.global_actions import GlobalActions
from relay_tui.shell.prompt import Prompt
from relay_tui.shell.task_runner import TaskRunner
from relay_tui.shell.view import View
from relay_tui.widgets.control_filter import ControlCharFilter
from relay_tui.widgets.styled_lines import LineWidget
from relay_tui.widgets.theme import ANSI, Palette, textual_name, textual_themes

if TYPE_CHECKING:
    from relay_core.clock import Clock
    from relay_tui.demo.session import DemoSession
    from relay_tui.live.store import Store

_TICK_SECS = 1.0
_SLOW_TICK_SECS = 2.0


class Dashboard(App[None]):
    """The application."""

    ENABLE_COMMAND_PALETTE = False  # ours comes from the registry
    BINDINGS: ClassVar[list[BindingType]] = []
    TITLE = "relay"

    def __init__(
        self,
        *,
        socket: str | Path | None = None,
        data_dir: str | Path | None = None,
        demo: DemoSession | None = None,
        read_only: bool = False,
        slow_link: bool = False,
        theme: str = "dark",
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        for textual_theme in textual_themes():
            self.register_theme(textual_theme)
        # Without colours the themes differ in attributes alone; any but ANSI would be sent as shades of grey.
        self.use_theme(ANSI if self.no_color else theme)
        self.read_only = read_only
        self.demo = demo
        """A demo that was started for this dashboard; the caller of `run` stops it."""
        self.paused = False
        self.store: Store
        self.registry = Registry([])
        self.key_file_problems: list[str] = []
        self.alerts: list[Alert] = []
        self.tasks = TaskRunner(lambda work: self.run_worker(work, exit_on_error=False), self.toast)
        self._global_actions = GlobalActions(self, self)
        self._supervisor_at = (socket, data_dir)
        self._slow_link = slow_link
        self._clock = clock
        self._control_filter = ControlCharFilter()
        self._colour_filter = NoColor()
        self._requested = "overview"
        """The screen the operator asked for last."""
        self._early_keys: list[events.Key] = []
        """Keys pressed before the first screen existed; they are handled once it does."""
        self._alerts_at = -1

    def get_default_screen(self) -> Screen[None]:
        """Return the frame; every other Textual screen is a dialog over it."""
        return Frame(view_class)

    def get_line_filters(self) -> list[LineFilter]:
        """Return the filters of every painted line: colours if they are not wanted, control characters last."""
        return [*([self._colour_filter] if self.no_color else []), self._control_filter]

    def use_theme(self, name: str) -> None:
        """Change the colours."""
        self.palette = Palette(name)
        self.theme = textual_name(name)

    # Starting and connecting

    def on_mount(self) -> None:
        """Paint first, then import and connect."""
        self.call_after_refresh(self._wake)

    async def _wake(self) -> None:
        """Import the modules that know the bus, connect, and show the overview."""
        from relay_core.clock import SystemClock
        from relay_tui.shell.keys import keys_path, read_keys

        self._clock = self._clock or SystemClock()
        actions = all_actions()
        keys, self.key_file_problems = read_keys(keys_path(), actions)
        self.registry = Registry(actions, read_only=self.read_only, keys=keys)
        if self.demo is not None:
            self.follow_demo(self.demo)
        else:
            self.connect(*self._supervisor_at)
        await self.goto(self._requested)
        self.set_interval(_SLOW_TICK_SECS if self._slow_link else _TICK_SECS, self.draw)
        for problem in self.key_file_problems:
            self.toast(problem, "warning")
        for event in self._early_keys:
            self.post_message(event)
        gc.freeze()  # imported modules stay: scanning them again and again would block the loop

    def connect(self, socket: str | Path | None, data_dir: str | Path | None) -> None:
        """Follow a supervisor from now on."""
        from relay_core.client.client import RelayClient
        from relay_tui.live.store import Store

        assert self._clock is not None
        self.store = Store(RelayClient(socket, data_dir=data_dir, name="relay-tui"), self._clock, self._state_changed)
        self.run_worker(self.store.run(), group="store", exclusive=True, exit_on_error=False)

    def follow_demo(self, demo: DemoSession) -> None:
        """Follow a demo from now on."""
        self.demo = demo
        os.environ.pop("RELAY_TOKEN", None)  # it belongs to the operator's own supervisor
        self.connect(demo.socket, demo.data_dir)
        self.tasks.start(demo.ready(), doing="starting the demo")

    # Navigating

    @property
    def frame(self) -> Frame:
        """The Textual screen below all dialogs."""
        return cast(Frame, self.screen_stack[0])

    @property
    def prompt(self) -> Prompt:
        """The line in which commands and filters are typed."""
        return self.frame.prompt

    @property
    def view(self) -> View:
        """The current screen."""
        return self.frame.views.view

    @property
    def where(self) -> str:
        """The name of the current screen: the one asked for, unless there is no supervisor."""
        is_alone = hasattr(self, "store") and self.store.connection == "absent" and self.demo is None
        return NO_SUPERVISOR if is_alone else self._requested

    async def goto(self, name: str, argument: str | None = None) -> None:
        """Switch to a screen, and open the object that the argument names."""
        self.prompt.close()
        self._requested = name
        self._draw_frame()
        self.frame.paint_title()
        await self._show()
        self.draw()
        if argument is not None and self.where == name:
            self.tasks.attempt(lambda: self.view.open_argument(argument), f"{name} {argument}")

    async def _show(self) -> None:
        await self.frame.views.show(lambda: self.where)

    def focus_widget(self, widget: Widget | None) -> None:
        """Focus a widget of the current screen, even while a dialog is open."""
        self.frame.set_focus(widget)

    def focus_view(self) -> None:
        """Focus the current screen."""
        if not self.frame.views.is_empty:
            self.focus_widget(self.view.first_focus)

    # Drawing

    def _state_changed(self) -> None:
        if not self._slow_link or not self.store.is_live:
            self.draw()

    def draw(self) -> None:
        if not self.is_running or not self.screen_stack or not self.frame.is_composed:
            return  # a timer may fire before the frame exists, or while it is taken down
        views = self.frame.views
        if views.is_empty:
            return
        self._draw_frame()
        if views.current != self.where:
            self.call_later(self._show)
        elif not self.paused:
            self.tasks.attempt(self.view.draw, f"the screen {self.where} could not be drawn")

    def _draw_frame(self) -> None:
        if self.store.state.at != self._alerts_at:
            self._alerts_at, self.alerts = self.store.state.at, find_alerts(self.store)
        frame = self.frame
        title = next(entry.title for entry in SCREENS if entry.name == self.where)
        state = HeaderState(title, self.alerts, self.paused, self.read_only, self.demo is not None)
        moved = frame.draw(self.store, state)
        if len(self.screen_stack) > 2:
            frame.call_after_refresh(self._repaint_dialogs, moved)
        if self.screen is frame:  # a dialog shows its own keys
            frame.offer(self.registry.of(self.where), typing=self._text_field is not None)

    def _repaint_dialogs(self, moved: bool) -> None:
        """Repaint the frame under stacked dialogs: Textual updates the top one only, the others keep an old image."""
        bars = Region(0, 0, self.size.width, 2)
        for dialog in self.screen_stack[1:-1]:
            dialog.refresh(*(() if moved else (bars,)))

    def toast(self, text: str, severity: str = "information") -> None:
        """Show a short notification."""
        from relay_core.text.sanitize import clean

        kind: Any = severity
        self.notify(clean(text), severity=kind, markup=False, timeout=8 if severity == "error" else 4)

    def copy(self, text: str, what: str) -> None:
        """Send a text to the terminal's clipboard, and save it to a file."""
        from relay_tui.user_files import save_copy

        self.copy_to_clipboard(text)
        try:
            self.toast(f"{what} sent to the terminal's clipboard; also in {save_copy(text)}")
        except (OSError, ValueError) as error:
            self.toast(f"{what} sent to the terminal's clipboard; no copy in a file: {error}", "warning")

    # Keys and actions

    async def on_event(self, event: events.Event) -> None:
        """Run the action of a key before any widget gets the key.

        A key that is left to Textual goes to the widget that has the focus when the key is processed. So text typed
        faster than the screen changes (a slash, and a filter) still reaches its field.
        """
        if isinstance(event, events.Key) and not event.is_forwarded:
            if event.key == "ctrl+c" and not getattr(self.focused, "selected_text", ""):
                self.exit()
                return
            if self.frame.views.is_empty:
                self._early_keys.append(event)
                return
            if (action := self._action_of(event)) is not None:
                await self.do(action)
                return
        await super().on_event(event)

    def _action_of(self, event: events.Key) -> Action | None:
        """Return the action of a key, or None if a dialog or a text field gets the key."""
        if self.screen is not self.frame:
            return None
        if self.prompt.is_open:
            self.prompt.take_focus()
            return None
        field = self._text_field
        if field is not None and (event.is_printable or self._is_bound(field, event.key)):
            return None
        action = self.registry.by_key(self.where, key_of(event))
        if self.frame.is_too_small and action is not None and action.name != "quit":
            return None  # the operator could not see its effect
        return action

    def _is_bound(self, field: Widget, key: str) -> bool:
        bound = self.screen.active_bindings.get(key)
        return bound is not None and bound.node is field

    @property
    def _text_field(self) -> Widget | None:
        """The text field that has the focus, if any."""
        return None if isinstance(self.focused, LineWidget) else self.focused

    def on_hints_clicked(self, event: Hints.Clicked) -> None:
        self.call_later(self.do, event.action)

    def on_header_clicked(self) -> None:
        self.tasks.start_once("alerts", self._global_actions.show_alerts(), doing="alerts")

    async def do(self, action: Action, argument: str | None = None) -> None:
        """Run an action, on the screen it belongs to."""
        if action.method == "goto":
            await self.goto(action.name, argument)
            return
        if action.where not in (EVERYWHERE, self.where):
            await self.goto(action.where)
            if self.where != action.where:
                self.toast(f"{action.name}: no supervisor is running", "warning")
                return
        if action.needs_supervisor and not self.store.is_live:
            self.toast(f"{action.name}: {self.store.not_connected()}", "warning")
            return
        await self._show()
        owner = self._global_actions if action.where == EVERYWHERE else self.frame.views.get(action.where)
        method = getattr(owner, action.method)
        result = self.tasks.attempt(lambda: method(argument) if action.argument is not None else method(), action.title)
        if asyncio.iscoroutine(result):
            self.tasks.start_once(action.name, result, doing=action.title)


def all_actions() -> list[Action]:
    """Return every action: those of each screen, one that goes to each screen, and the global ones."""
    actions: list[Action] = []
    for entry in SCREENS:
        actions += actions_of(view_class(entry.name), entry.name)
    actions += [
        Action(entry.name, f"Go to: {entry.title}", entry.key, "goto", argument="[what]")
        for entry in SCREENS
        if entry.key is not None
    ]
    return [*actions, *actions_of(GlobalActions)]
