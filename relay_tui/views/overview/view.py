"""Overview: traffic, pressure, problems and events on one screen; each row opens the screen with its details.

A panel grows with its content and shrinks only when the screen is resized, so that nothing jumps when a breaker opens
and closes.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.geometry import Region

from relay_tui.shell.actions import action
from relay_tui.shell.view import View
from relay_tui.views.overview import event_panel, problem_panels, traffic_panels
from relay_tui.views.overview.layout import Placement, arrange, is_boxed
from relay_tui.views.overview.panel_content import PanelContent, PanelSize
from relay_tui.views.overview.panel_grid import Panel, PanelGrid

_PANELS = {
    "throughput": ("Throughput", traffic_panels.throughput),
    "mailboxes": ("³ Mailboxes", traffic_panels.mailboxes),
    "senders": ("³ Senders", traffic_panels.senders),
    "breakers": ("² Breakers", problem_panels.breakers),
    "dead-letters": ("⁶ Dead letters", problem_panels.dead_letters),
    "adapters": ("⁴ Adapters", problem_panels.adapters),
    "events": ("Events", event_panel.events),
}
_ONCE_A_SECOND = ("senders", "events")
"""Panels that change all the time: once they are full, they are refreshed once a second."""


class Overview(View):
    """Everything at a glance."""

    NAME = "overview"
    HELP = (
        "j and k move over the rows of all panels, tab to the next panel, h and l to the other column; enter opens "
        "the screen with the details."
    )

    def __init__(self) -> None:
        super().__init__()
        self._wanted: dict[str, int] = {}
        self._places: dict[str, Placement] = {}
        self._arranged_for: tuple[object, ...] = ()
        self._kept: dict[str, tuple[tuple[object, ...], PanelContent]] = {}
        """The content of panels that are refreshed once a second, with its second and size."""

    def compose(self) -> ComposeResult:
        yield PanelGrid()

    def draw(self) -> None:
        grid = self.query_one(PanelGrid)
        width, height = grid.size
        if not width or not height:
            return
        if self._arranged_for != (width, height):
            self._arranged_for = (width, height)
            self._wanted = dict.fromkeys(_PANELS, 0)
            self._places = {}
        contents = self._contents(grid)
        wanted = {name: max(self._wanted[name], content.wanted) for name, content in contents.items()}
        if wanted != self._wanted or not self._places:
            self._wanted |= wanted
            self._places = arrange(width, height, self._wanted)
            contents = self._contents(grid)
        boxed = is_boxed(width, height)
        grid.show(
            [
                Panel(place, boxed, _PANELS[name][0], contents[name].note, contents[name].entries)
                for name, place in self._places.items()
            ]
        )

    def _contents(self, grid: PanelGrid) -> dict[str, PanelContent]:
        """Return the content of each panel for its size."""
        boxed = int(is_boxed(*grid.size))
        least = Placement("", Region(0, 0, grid.size.width, 2 + boxed))
        second = self.store.state.at // 1000
        contents: dict[str, PanelContent] = {}
        for name, (_, content_of) in _PANELS.items():
            region = self._places.get(name, least).region
            size = PanelSize(region.width - 3 * boxed - 1, region.height - 1 - boxed, grid.cursor)
            kept_for, content = self._kept.get(name, ((), None))
            if content is None or kept_for != (second, size):
                content = content_of(self.store, size)
                if name in _ONCE_A_SECOND and len(content.entries) == size.height:
                    self._kept[name] = ((second, size), content)
            contents[name] = content
        return contents

    def on_resize(self) -> None:
        self.call_after_refresh(self.dashboard.draw)

    def on_panel_grid_chosen(self) -> None:
        self.app.call_later(self.open_row)

    @action("open", "Open the screen with the details", "enter", label="open")
    async def open_row(self) -> None:
        entry = self.query_one(PanelGrid).entry
        if entry is not None and entry.link[0]:
            await self.dashboard.goto(*entry.link)

    @action("next-panel", "Go to the next panel", "tab", label="panel")
    def next_panel(self) -> None:
        self.query_one(PanelGrid).move_panel(1)

    @action("previous-panel", "Go to the previous panel", "shift+tab")
    def previous_panel(self) -> None:
        self.query_one(PanelGrid).move_panel(-1)

    @action("across", "Go to the other column", "l", keys=("h", "left", "right"))
    def go_across(self) -> None:
        self.query_one(PanelGrid).move_across()

    @property
    def scrolled(self) -> PanelGrid:
        """The panels."""
        return self.query_one(PanelGrid)
