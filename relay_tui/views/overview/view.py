"""Overview: what an operator keeps open. Everything on one screen, what needs a look first, and a way to it.

Panels are drawn on one board (board.py), placed by the size of the screen (layout.py), and filled
from the store (panels.py, problem_panels.py, events.py). A panel grows with what it has to show
and does not shrink again until the size changes, so that nothing jumps when a breaker opens and closes.
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
    "events": ("Events", event_panel.newest),
}
_CALM = ("senders", "events")
"""Lists in which something is different all the time: once they are full, they are renewed once a second."""


class Overview(View):
    """Everything at a glance."""

    NAME = "overview"
    HELP = (
        "Move with j and k over the rows of all panels, with tab from panel to panel, with h and l from side to side; "
        "enter leads to the screen that shows more."
    )

    def __init__(self) -> None:
        super().__init__()
        self._wanted: dict[str, int] = {}
        self._places: dict[str, Placement] = {}
        self._arranged_for: tuple[object, ...] = ()
        self._kept: dict[str, tuple[tuple[object, ...], PanelContent]] = {}
        """What calm panels said, and for which second and size."""

    def compose(self) -> ComposeResult:
        yield PanelGrid()

    def draw(self) -> None:
        board = self.query_one(PanelGrid)
        width, height = board.size
        if not width or not height:
            return
        if self._arranged_for != (width, height):
            self._arranged_for = (width, height)
            self._wanted = dict.fromkeys(_PANELS, 0)
            self._places = {}
        said = self._say(board)
        more = {name: max(self._wanted[name], one.wanted) for name, one in said.items()}
        if more != self._wanted or not self._places:
            self._wanted |= more
            self._places = arrange(width, height, self._wanted)
            said = self._say(board)
        boxed = is_boxed(width, height)
        board.show(
            [
                Panel(place, boxed, _PANELS[name][0], said[name].note, said[name].entries)
                for name, place in self._places.items()
            ]
        )

    def _say(self, board: PanelGrid) -> dict[str, PanelContent]:
        """Return what each panel has to say, for the room that it has."""
        boxed = int(is_boxed(*board.size))
        least = Placement("", Region(0, 0, board.size.width, 2 + boxed))
        second = self.store.state.at // 1000
        found: dict[str, PanelContent] = {}
        for name, (_, says) in _PANELS.items():
            region = self._places.get(name, least).region
            size = PanelSize(region.width - 3 * boxed - 1, region.height - 1 - boxed, board.cursor)
            kept_for, kept = self._kept.get(name, ((), None))
            if kept is None or kept_for != (second, size):
                kept = says(self.store, size)
                if name in _CALM and len(kept.entries) == size.height:
                    self._kept[name] = ((second, size), kept)
            found[name] = kept
        return found

    def on_resize(self) -> None:
        self.call_after_refresh(self.dashboard.draw)

    def on_panel_grid_chosen(self) -> None:
        self.app.call_later(self.open_row)

    @action("open", "Go to the screen that shows more of this", "enter", label="open")
    async def open_row(self) -> None:
        entry = self.query_one(PanelGrid).entry
        if entry is not None and entry.leads[0]:
            await self.dashboard.goto(*entry.leads)

    @action("next-panel", "Go to the next panel", "tab", label="panel")
    def next_panel(self) -> None:
        self.query_one(PanelGrid).move_panel(1)

    @action("previous-panel", "Go to the panel before", "shift+tab")
    def previous_panel(self) -> None:
        self.query_one(PanelGrid).move_panel(-1)

    @action("across", "Go to the other side", "l", keys=("h", "left", "right"))
    def go_across(self) -> None:
        self.query_one(PanelGrid).move_across()

    @property
    def scrolled(self) -> PanelGrid:
        """The panels."""
        return self.query_one(PanelGrid)
