"""The frame around the screens: header, banner, footer, prompt, and a notice if the terminal is too small."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen

from relay_tui.live.store import Store
from relay_tui.shell.actions import Action
from relay_tui.shell.bars import Header, HeaderState, Hints, banner_line, header_line
from relay_tui.shell.prompt import Prompt
from relay_tui.shell.view import View
from relay_tui.shell.view_switcher import ViewSwitcher
from relay_tui.widgets.styled_lines import Lines, line
from relay_tui.widgets.textual_internals import paint_now

LEAST_WIDTH, LEAST_HEIGHT = 60, 16


class Frame(Screen[None]):
    """Header, current view and footer."""

    AUTO_FOCUS = ""

    DEFAULT_CSS = """
    Frame { background: $background; }
    #header { height: 1; }
    #banner { height: 1; display: none; }
    #banner.-on { display: block; }
    #hints { height: 1; }
    #views { height: 1fr; }
    #card { display: none; height: 1fr; padding: 1 2; }
    Frame.-small > * { display: none !important; }
    Frame.-small > #card { display: block !important; }
    """

    def __init__(self, view_class: Callable[[str], type[View]]) -> None:
        super().__init__()
        self._view_class = view_class

    def compose(self) -> ComposeResult:
        yield Header()
        yield Lines(ground="banner", id="banner")
        yield ViewSwitcher(self._view_class)
        yield Hints()
        yield Prompt()
        yield Lines(id="card")

    @property
    def is_composed(self) -> bool:
        """Whether its widgets exist."""
        return bool(self.query(ViewSwitcher))

    @property
    def views(self) -> ViewSwitcher:
        """The views."""
        return self.query_one(ViewSwitcher)

    @property
    def prompt(self) -> Prompt:
        """The line in which commands and filters are typed."""
        return self.query_one(Prompt)

    @property
    def is_too_small(self) -> bool:
        """Whether the notice hides everything else."""
        return self.has_class("-small")

    def draw(self, store: Store, state: HeaderState) -> bool:
        """Draw header and banner; return True if the banner has appeared or gone, which moves the view."""
        header, banner = self.query_one(Header), self.query_one("#banner", Lines)
        header.show([header_line(store, state, header.size.width)])
        stale = banner_line(store, header.size.width)
        moved = banner.has_class("-on") != (stale is not None)
        banner.set_class(stale is not None, "-on")
        if stale is not None:
            banner.show([stale])
        return moved

    def offer(self, actions: Sequence[Action], *, typing: bool) -> None:
        """Show actions in the footer."""
        self.query_one(Hints).offer(actions, typing=typing)

    def paint_title(self) -> None:
        """Paint the header now, so that a key is answered before its screen is built, which takes up to 20 ms."""
        if self.is_current:
            paint_now(self, self.query_one(Header))

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < LEAST_WIDTH or event.size.height < LEAST_HEIGHT, "-small")
        self.query_one("#card", Lines).show(
            [
                line(("relay needs a larger terminal", "title")),
                line(f"at least {LEAST_WIDTH}×{LEAST_HEIGHT}, best 120×36"),
                line((f"this is {event.size.width}×{event.size.height}; enlarge it, or q to quit", "dim")),
            ]
        )
