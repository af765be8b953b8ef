"""The overview's panels side by side, and one cursor over all their rows.

1. The cursor is on a row's key. It follows its row; if that is gone, it goes to the row that took its place in the
   panel. Until the operator has moved it, it is on the first row there is.
2. Only lines that look different are painted again, and each only as far as it does: Textual paints a line from the
   left edge of its widget up to where it was told to. So the columns are widgets of their own (column.py),
   and the panels are not: each would cost a layout and a paint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widget import Widget

from relay_tui.views.overview.layout import Placement
from relay_tui.views.overview.panel_column import PanelColumn, PanelLine
from relay_tui.widgets.styled_lines import Line, Piece, width_of


class Entry(NamedTuple):
    """A line of a panel; with a key the cursor can be on it, and it leads to another screen."""

    pieces: Line
    key: str | None = None
    leads: tuple[str, str | None] = ("", None)


class Panel(NamedTuple):
    """What a panel says, and where it is."""

    placement: Placement
    boxed: bool
    """With a border all around; otherwise with a line for the title alone."""
    title: str
    note: Piece
    """What stands at the right of the title."""
    entries: Sequence[Entry]


class PanelGrid(Widget):
    """Panels with one cursor."""

    DEFAULT_CSS = """
    PanelGrid { layout: vertical; height: 1fr; }
    PanelGrid Horizontal { height: 1fr; }
    PanelGrid #right { width: 1fr; }
    """

    class Chosen(Message):
        """A row was opened, by a double click."""

    def __init__(self) -> None:
        super().__init__()
        self._columns = {name: PanelColumn(id=name) for name in ("left", "right", "below")}
        self._panels: Sequence[Panel] = ()
        self._where: dict[str, tuple[int, int]] = {}
        """The panel and the row of each key, in the order in which the cursor goes."""
        self._cursor: str | None = None
        self._place = (0, 0)
        self._was_moved = False

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self._columns["left"]
            yield self._columns["right"]
        yield self._columns["below"]

    @property
    def cursor(self) -> str | None:
        """The key of the row under the cursor."""
        return self._cursor

    @property
    def entry(self) -> Entry | None:
        """The row under the cursor."""
        if self._cursor is None:
            return None
        panel, row = self._where[self._cursor]
        return self._panels[panel].entries[row]

    def show(self, panels: Sequence[Panel]) -> None:
        """Show panels instead of those that are there."""
        if [panel.placement for panel in panels] != [panel.placement for panel in self._panels]:
            self._lay_out([panel.placement for panel in panels])
        self._panels = panels
        self._where = {
            entry.key: (at, row)
            for at, panel in enumerate(panels)
            for row, entry in enumerate(panel.entries)
            if entry.key is not None
        }
        self._keep_cursor()
        self._paint_changed()

    # The cursor

    def move(self, count: int) -> None:
        """Move the cursor down by so many rows, or up."""
        keys = list(self._where)
        if self._cursor is not None:
            self._go_to(keys[max(0, min(keys.index(self._cursor) + count, len(keys) - 1))])

    def go_to(self, at: int) -> None:
        """Move the cursor to a row, at most to the last."""
        if keys := list(self._where):
            self._go_to(keys[max(0, min(at, len(keys) - 1))])

    def move_panel(self, count: int) -> None:
        """Move the cursor to the first row of the next panel that has one, or of the one before; around the end."""
        firsts: dict[int, str] = {}
        for key, (panel, _) in self._where.items():
            firsts.setdefault(panel, key)
        if self._cursor is not None:
            order = list(firsts)
            at = order.index(self._where[self._cursor][0])
            self._go_to(firsts[order[(at + count) % len(order)]])

    def move_across(self) -> None:
        """Move the cursor to the nearest row of the other column."""
        if self._cursor is None:
            return
        x, y = self._position(self._cursor)
        beside = [(abs(self._position(key)[1] - y), key) for key in self._where if self._position(key)[0] != x]
        if beside:
            self._go_to(min(beside, key=lambda found: found[0])[1])

    def _position(self, key: str) -> tuple[int, int]:
        panel, row = self._where[key]
        region = self._panels[panel].placement.region
        return region.x, region.y + 1 + row

    def _go_to(self, key: str) -> None:
        self._was_moved = True
        self._cursor = key
        self._place = self._where[key]
        self._paint_changed()

    def _keep_cursor(self) -> None:
        if not self._was_moved or self._cursor not in self._where:
            panel, row = self._place if self._was_moved else (0, 0)
            near = [key for key, place in self._where.items() if place[0] == panel and place[1] <= row]
            here = [key for key, place in self._where.items() if place[0] == panel]
            self._cursor = next(iter(near[-1:] or here or self._where), None)
        if self._cursor is not None:
            self._place = self._where[self._cursor]

    # Painting

    def _lay_out(self, places: Sequence[Placement]) -> None:
        """Give the columns their sizes."""
        areas = {column: [one.region for one in places if one.column == column] for column in self._columns}
        for column, regions in areas.items():
            self._columns[column].display = bool(regions)
        # A column of its own between the two belongs to the left one.
        self._columns["left"].styles.width = min((one.x for one in areas["right"]), default=self.size.width)
        self._columns["below"].styles.height = sum(one.height for one in areas["below"])

    def _paint_changed(self) -> None:
        spans: dict[str, list[PanelLine]] = {column: [] for column in self._columns}
        for panel in self._panels:
            spans[panel.placement.column] += self._spans(panel)
        for column, found in spans.items():
            self._columns[column].show(found)

    def _spans(self, panel: Panel) -> Iterator[PanelLine]:
        _, _, width, height = panel.placement.region
        body = height - 1 - panel.boxed
        yield PanelLine(width, _title(panel))
        for pieces, key, _ in panel.entries[:body]:
            lit = key is not None and key == self._cursor
            yield PanelLine(width, (_POINTER if lit else _NO_POINTER, *pieces), lit, panel.boxed)
        for _ in range(body - len(panel.entries)):
            yield PanelLine(width, (), between_sides=panel.boxed)
        if panel.boxed:
            yield PanelLine(width, (("╰" + "─" * (width - 2) + "╯", "dim"),))

    # The mouse

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to where it was clicked; open it with a double click."""
        x, y = event.screen_x - self.region.x, event.screen_y - self.region.y
        for key, (at, row) in self._where.items():
            region = self._panels[at].placement.region
            if region.contains(x, y) and y == region.y + 1 + row:
                self._go_to(key)
                if event.chain == 2:
                    self.post_message(self.Chosen())
                return

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.move(-1)


_POINTER: Piece = ("▶", "mark")
_NO_POINTER: Piece = (" ", "")


def _title(panel: Panel) -> Line:
    """Return a panel's first line; the note is left out where there is no room for it."""
    begin, end = ("╭─ ", "─╮") if panel.boxed else ("── ", "──")
    note = f" {panel.note[0]} " if panel.note[0] else ""
    gap = panel.placement.region.width - width_of([(begin, ""), (panel.title, ""), (note, ""), (end, "")]) - 1
    if gap < 1:
        gap, note = gap + width_of([(note, "")]), ""
    return (
        (begin, "dim"),
        (panel.title, "title"),
        (" " + "─" * max(gap, 0), "dim"),
        (note, panel.note[1]),
        (end, "dim"),
    )
