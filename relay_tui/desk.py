"""The frame around the screens: header, banner, footer, prompt, and a card where there is too little room for it."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from relay_tui.bars import Header, Hints
from relay_tui.lines import Lines, line
from relay_tui.prompt import Prompt

LEAST_WIDTH, LEAST_HEIGHT = 60, 16


class Desk(Screen[None]):
    """Header, the screen that is looked at, and footer."""

    AUTO_FOCUS = ""

    DEFAULT_CSS = """
    Desk { background: $background; }
    #header { height: 1; }
    #banner { height: 1; display: none; }
    #banner.-on { display: block; }
    #hints { height: 1; }
    #views { height: 1fr; }
    #card { display: none; height: 1fr; padding: 1 2; }
    Desk.-small > * { display: none !important; }
    Desk.-small > #card { display: block !important; }
    """

    def compose(self) -> ComposeResult:
        """Lay out the frame; the screens come into it as they are looked at."""
        yield Header()
        yield Lines(ground="banner", id="banner")
        yield ContentSwitcher(id="views")
        yield Hints()
        yield Prompt()
        yield Lines(id="card")

    def on_resize(self, event: events.Resize) -> None:
        """Say what is needed where there is too little room."""
        small = event.size.width < LEAST_WIDTH or event.size.height < LEAST_HEIGHT
        self.set_class(small, "-small")
        self.query_one("#card", Lines).show(
            [
                line(("relay needs a little more room", "title")),
                line(f"at least {LEAST_WIDTH}×{LEAST_HEIGHT}, best 120×36"),
                line((f"this is {event.size.width}×{event.size.height}; make it larger, or q to quit", "dim")),
            ]
        )
