"""The dashboard: what holds the screens (screens.py) together in their frame (desk.py).

1. The first frame is painted before anything is imported that knows the bus; then the connection is made.
2. Every key, the palette and the command line end in `do`, with an action of the one registry (actions.py).
3. It never ends by itself. What fails is shown; what is stale says so; what was typed or marked stays.
4. While the display is paused the picture goes on being kept, and is shown again at once afterwards.

The module is long because the application is one object: how it wakes, what it shows, and what can be done everywhere.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import App
from textual.binding import BindingType
from textual.filter import LineFilter, NoColor
from textual.geometry import Region
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from relay_tui.actions import EVERYWHERE, Action, Registry, action, actions_of, key_of
from relay_tui.alerts import Alert, find_alerts
from relay_tui.bars import Hints, banner_line, header_line
from relay_tui.desk import Desk
from relay_tui.lines import Lines, Painted
from relay_tui.look import ANSI, THEMES, Palette, textual_name, textual_themes
from relay_tui.net import ControlNet
from relay_tui.prompt import Prompt
from relay_tui.screens import NOBODY, SCREENS, screen_class

if TYPE_CHECKING:
    from relay_core.clock import Clock
    from relay_tui.demo.world import DemoWorld
    from relay_tui.store import Store
    from relay_tui.view import View

logger = logging.getLogger(__name__)

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
        demo: DemoWorld | None = None,
        read_only: bool = False,
        slow_link: bool = False,
        theme: str = "dark",
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        if self.no_color:
            theme = ANSI  # attributes alone; any other would be sent as shades of grey
        for one in textual_themes():
            self.register_theme(one)
        self.palette = Palette(theme)
        self.theme = textual_name(theme)
        self.read_only = read_only
        self.demo = demo
        """What was started for this dashboard alone, and is to be ended with it by whoever runs it."""
        self.paused = False
        self.store: Store
        self.registry = Registry([])
        self.problems: list[str] = []
        """What is wrong with the operator's own file of keys."""
        self._supervisor_at = (socket, data_dir)
        self._slow_link = slow_link
        self._clock = clock
        self._net = ControlNet()
        self._colourless = NoColor()
        self._current = "overview"
        self._views: dict[str, View] = {}
        self._alerts: list[Alert] = []
        self.faults: list[str] = []
        """What of ours has gone wrong; tests want it empty."""
        self._showing = asyncio.Lock()
        self._early: list[events.Key] = []
        """Keys that were pressed before there was a screen; they count when there is."""
        self._doing: set[str] = set()
        """Names of actions that have not ended."""
        self._alerted_at = -1

    def get_default_screen(self) -> Screen[None]:
        """Return the one screen; everything else is a dialog over it."""
        return Desk()

    def get_line_filters(self) -> list[LineFilter]:
        """Let every line pass the net as the last thing, and before it what takes colours away, if none are wanted."""
        return [*([self._colourless] if self.no_color else []), self._net]

    def on_mount(self) -> None:
        """Paint first, then wake the rest."""
        self.call_after_refresh(self._wake)

    async def _wake(self) -> None:
        """Import what knows the bus, connect, and show the overview."""
        from relay_core.clock import SystemClock
        from relay_tui.keys import keys_path, read_keys

        self._clock = self._clock or SystemClock()
        actions = all_actions()
        keys, self.problems = read_keys(keys_path(), actions)
        self.registry = Registry(actions, read_only=self.read_only, keys=keys)
        if self.demo is not None:
            self.follow_demo(self.demo)
        else:
            self.connect(*self._supervisor_at)
        await self.goto(self._current)
        self.set_interval(_SLOW_TICK_SECS if self._slow_link else _TICK_SECS, self.draw)
        for problem in self.problems:
            self.tell(problem, "warning")
        for event in self._early:
            self.post_message(event)
        gc.freeze()  # what has been imported stays: to look through it again and again would hold the loop

    def connect(self, socket: str | Path | None, data_dir: str | Path | None) -> None:
        """Follow a supervisor from now on."""
        from relay_core.client import RelayClient
        from relay_tui.store import Store

        assert self._clock is not None
        self.store = Store(RelayClient(socket, data_dir=data_dir, name="relay-tui"), self._clock, self._changed)
        self.run_worker(self.store.run(), group="store", exclusive=True, exit_on_error=False)

    def follow_demo(self, demo: DemoWorld) -> None:
        """Follow a demo from now on."""
        self.demo = demo
        os.environ.pop("RELAY_TOKEN", None)  # the operator's token for a supervisor of theirs
        self.connect(demo.socket, demo.data_dir)
        self.start(demo.ready(), doing="Start the demo")

    # Showing

    @property
    def view(self) -> View:
        """The screen that stands on the terminal."""
        return self._views[str(self.desk.query_one(ContentSwitcher).current)]

    @property
    def where(self) -> str:
        """The name of the screen to look at: the one that was asked for, unless nobody is there to tell of."""
        is_alone = hasattr(self, "store") and self.store.link == "absent" and self.demo is None
        return NOBODY if is_alone else self._current

    async def goto(self, name: str, argument: str | None = None) -> None:
        """Look at a screen, made now if it is looked at for the first time."""
        self.prompt.close()
        self._current = name
        self._draw_frame()
        self._paint_title()
        await self._show()
        self.draw()
        if argument is not None and self.where == name:
            self._try(lambda: self._views[name].opened(argument), f"{name} {argument}")

    def _paint_title(self) -> None:
        """Have the new title on the terminal now: a key is answered before a whole screen is made.

        Textual would paint it together with the screen, 20 ms later.
        """
        desk = self.desk
        if desk.is_current:
            desk._dirty_widgets.add(desk.query_one("#header", Lines))
            desk._on_timer_update()

    async def _show(self) -> None:
        """Have the screen that is looked at on the terminal."""
        async with self._showing:
            switcher, name = self.desk.query_one(ContentSwitcher), self.where
            if name not in self._views:
                view = screen_class(name)()
                view.id = name
                await switcher.mount(view)
                self._views[name] = view
            if switcher.current != name:
                switcher.current = name
                self.desk.set_focus(self._views[name].first_focus)

    @property
    def desk(self) -> Screen[Any]:
        """The screen below all dialogs."""
        return self.screen_stack[0]

    @property
    def prompt(self) -> Prompt:
        """The line in which commands and filters are typed."""
        return self.desk.query_one(Prompt)

    def _changed(self) -> None:
        """Take note that the picture has changed."""
        if not self._slow_link or not self.store.is_live:
            self.draw()

    def draw(self) -> None:
        """Show how things are."""
        if not self._views or not self.is_running:
            return
        self._draw_frame()
        if self.desk.query_one(ContentSwitcher).current != self.where:
            self.call_later(self._show)
        elif not self.paused:
            self._try(self.view.draw, f"the screen {self.where} could not be drawn")

    def _try(self, work: Callable[[], Any], doing: str) -> Any:
        """Do something of a screen; should it fail, say so, once: a fault of one must not take the others with it."""
        try:
            return work()
        except Exception as error:
            text = f"{doing}: {type(error).__name__}: {error}"
            if text not in self.faults:
                self.faults.append(text)
                logger.exception("%s", doing)
                self.tell(text, "error")
            return None

    def _draw_frame(self) -> None:
        desk = self.desk
        header = desk.query_one("#header", Lines)
        title = next(one.title for one in SCREENS if one.name == self.where)
        if self.store.state.at != self._alerted_at:
            self._alerted_at, self._alerts = self.store.state.at, find_alerts(self.store)
        header.show(
            [
                header_line(
                    self.store,
                    self._alerts,
                    header.size.width,
                    title=title,
                    paused=self.paused,
                    read_only=self.read_only,
                    demo=self.demo is not None,
                )
            ]
        )
        banner = desk.query_one("#banner", Lines)
        stale = banner_line(self.store, header.size.width)
        moved = banner.has_class("-on") != (stale is not None)
        banner.set_class(stale is not None, "-on")
        if stale is not None:
            banner.show([stale])
        if len(self.screen_stack) > 2:
            desk.call_after_refresh(self._repaint_dialogs, moved)
        if self.screen is desk:  # a dialog says for itself what its keys do
            desk.query_one(Hints).offer(self.registry.of(self.where), typing=self._field is not None)

    def _repaint_dialogs(self, moved: bool) -> None:
        """Paint the frame under stacked dialogs: Textual repaints the top one only, the others keep an old picture."""
        frame = Region(0, 0, self.size.width, 2)
        for dialog in self.screen_stack[1:-1]:
            dialog.refresh(*(() if moved else (frame,)))

    def tell(self, text: str, severity: str = "information") -> None:
        """Say something in passing."""
        from relay_tui.safe import clean

        kind: Any = severity
        self.notify(clean(text), severity=kind, markup=False, timeout=8 if severity == "error" else 4)

    # Doing

    def start(self, work: Coroutine[Any, Any, None], *, doing: str) -> None:
        """Do work that waits, beside everything else; should it fail, say so."""
        self.run_worker(self._guarded(work, doing), exit_on_error=False)

    async def _guarded(self, work: Coroutine[Any, Any, None], doing: str) -> None:
        from relay_core.errors import RelayError

        try:
            await work
        except RelayError as error:
            self.tell(f"{doing}: {error}", "error")
        except Exception as error:  # the dashboard goes on, whatever it is
            logger.exception("%s", doing)
            self.faults.append(f"{doing}: {type(error).__name__}: {error}")
            self.tell(self.faults[-1], "error")

    async def on_event(self, event: events.Event) -> None:
        """Do what a key stands for here, before anything else gets it.

        A key that is left to Textual goes to what has the focus when it is looked at. So what is typed faster than the
        screen changes (a slash, and a filter) still goes where it is meant to.
        """
        if isinstance(event, events.Key) and not event.is_forwarded:
            if event.key == "ctrl+c" and not getattr(self.focused, "selected_text", ""):
                self.exit()
                return
            if not self._views:
                self._early.append(event)
                return
            if (found := self._meant_by(event)) is not None:
                await self.do(found)
                return
        await super().on_event(event)

    def _meant_by(self, event: events.Key) -> Action | None:
        """Return what a key stands for; None if a dialog or a text field wants it."""
        if self.screen is not self.desk:
            return None
        if self.prompt.is_open:
            self.prompt.give_keys()
            return None
        field = self._field
        if field is not None and (event.is_printable or event.key in field._bindings.key_to_bindings):
            return None
        found = self.registry.by_key(self.where, key_of(event))
        if self.desk.has_class("-small") and found is not None and found.name != "quit":
            return None  # nobody can see what it would be about
        return found

    @property
    def _field(self) -> Widget | None:
        """The text field that has the keys, if one has."""
        return None if isinstance(self.focused, Painted) else self.focused

    def on_hints_clicked(self, event: Hints.Clicked) -> None:
        """Do what was clicked."""
        self.call_later(self.do, event.action)

    async def do(self, what: Action, argument: str | None = None) -> None:
        """Do an action, on the screen it belongs to."""
        if what.method == "goto":
            await self.goto(what.name, argument)
            return
        if what.where not in (EVERYWHERE, self.where):
            await self.goto(what.where)
            if self.where != what.where:
                self.tell(f"{what.name}: no supervisor is running", "warning")
                return
        if what.needs_supervisor and not self.store.is_live:
            self.tell(f"{what.name}: {self.store.not_connected()}", "warning")
            return
        await self._show()
        owner: Any = self if what.where == EVERYWHERE else self._views[what.where]
        method = getattr(owner, what.method)
        done = self._try(lambda: method(argument) if what.argument is not None else method(), what.title)
        if asyncio.iscoroutine(done):
            self.start(self._once(what.name, done), doing=what.title)

    async def _once(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Do an action, unless it is being done: a key that is pressed twice means what it means once."""
        if name in self._doing:
            work.close()
            return
        self._doing.add(name)
        try:
            await work
        finally:
            self._doing.discard(name)

    @action("quit", "Leave the dashboard; everything goes on without it", "q", keys=("ctrl+q",), label="quit")
    def leave(self) -> None:
        """Leave."""
        self.exit()

    @action("help", "Show what can be done on this screen", "?", label="help")
    def show_help(self) -> None:
        """Show help for the screen."""
        from relay_tui.dialogs import Reader
        from relay_tui.help import help_lines

        width = int(self.size.width * 0.9) - 6
        self.push_screen(Reader(f"Help: {self.view.NAME}", help_lines(self.view, self.registry, width)))

    @action("pause", "Pause the display, or go on", "p", label="pause")
    def pause(self) -> None:
        """Let the display stand still, or show how things are again."""
        self.paused = not self.paused
        self.draw()

    @action("alerts", "List what should be looked at, and go there", "!", label="alerts")
    async def show_alerts(self) -> None:
        """List the alerts."""
        from relay_tui.alert_list import AlertList

        chosen = await self.push_screen_wait(AlertList(self._alerts))
        if chosen is not None:
            await self.goto(chosen.view, chosen.argument)

    async def on_header_clicked(self) -> None:
        """List the alerts."""
        self.start(self._once("alerts", self.show_alerts()), doing="alerts")

    @action("command", "Type a command", ":", label="command")
    def open_command_line(self) -> None:
        """Let a command be typed."""
        names = sorted({one.name for one in self.registry.offered(self.where)})
        self.prompt.open(":", self._command, suggestions=names)

    def _command(self, text: str | None) -> None:
        self.focus_view()
        if not text or not text.strip():
            return
        name, _, argument = text.strip().partition(" ")
        match self.registry.by_name(self.where, name):
            case []:
                self.tell(f"there is no command {name!r}: ? lists those of this screen", "warning")
            case [found] if argument and found.argument is None:
                self.tell(f"{found.name} takes no argument", "warning")
            case [found]:
                self.call_later(self.do, found, argument.strip() or None)
            case several:
                self.tell(f"{name!r} may be {', '.join(one.name for one in several)}", "warning")

    @action("palette", "Search everything that can be done", "ctrl+p")
    def open_palette(self) -> None:
        """Search the actions."""
        from relay_tui.palette import open_palette

        open_palette(self)

    @action("theme", "Change the colours: dark, light, colour-blind, ansi", argument="[name]")
    def change_theme(self, name: str | None) -> None:
        """Take another theme: the one that is named, or the next."""
        if self.no_color:
            self.tell("NO_COLOR is set: there are no colours to change", "warning")
            return
        now = next(one for one in THEMES if textual_name(one) == self.theme)
        chosen = name or THEMES[(THEMES.index(now) + 1) % len(THEMES)]
        if chosen not in THEMES:
            self.tell(f"there is no theme {chosen}: {', '.join(THEMES)}", "warning")
            return
        self.palette = Palette(chosen)
        self.theme = textual_name(chosen)
        self.refresh(layout=True)
        self.desk.refresh(layout=True)

    @action("focus-next", "Go to the next part of the screen", "tab")
    def go_to_next(self) -> None:
        """Give the keys to the next part."""
        self.screen.focus_next()

    @action("focus-previous", "Go to the part before", "shift+tab")
    def go_to_previous(self) -> None:
        """Give the keys to the part before."""
        self.screen.focus_previous()

    def focus_view(self) -> None:
        """Give the keys to the screen that is looked at."""
        if self._views:
            self.desk.set_focus(self.view.first_focus)

    def copy(self, text: str, what: str) -> None:
        """Send a text to the terminal's clipboard, and keep it in a file."""
        from relay_tui.clipboard import keep_copy

        self.copy_to_clipboard(text)
        try:
            self.tell(f"{what} sent to the terminal's clipboard; also in {keep_copy(text)}")
        except (OSError, ValueError) as error:
            self.tell(f"{what} sent to the terminal's clipboard; no copy in a file: {error}", "warning")


def all_actions() -> list[Action]:
    """Return every action: those of each screen, and those that are everywhere."""
    found: list[Action] = []
    for one in SCREENS:
        found += actions_of(screen_class(one.name), one.name)
    found += [
        Action(one.name, f"Go to: {one.title}", one.key, "goto", argument="[what]")
        for one in SCREENS
        if one.key is not None
    ]
    return [*found, *actions_of(Dashboard)]
