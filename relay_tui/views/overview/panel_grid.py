"""The panels of the overview, and one cursor over all their rows.

1. The cursor is on a key and follows its row. If the row is gone, it moves to the row that took its place in the panel.
   Until the operator moves it, it is on the first row.
2. Columns are widgets, so that a change repaints a part of one column. Panels are not: each would cost a layout and a
   paint.
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
from relay_tui.widgets.styled_lines import Line, Lines, Piece, fit_line, under_cursor, width_of


class Entry(NamedTuple):
    """A line of a panel; with a key it can have the cursor and open another screen."""

    pieces: Line
    key: str | None = None
    link: tuple[str, str | None] = ("", None)
    """The screen and its argument."""


class Panel(NamedTuple):
    """A panel with its content and placement."""

    placement: Placement
    boxed: bool
    """With a border; otherwise with a title line only."""
    title: str
    note: Piece
    """At the right of the title."""
    entries: Sequence[Entry]


class PanelGrid(Widget):
    """Panels with one cursor."""

    DEFAULT_CSS = """
    PanelGrid { layout: vertical; height: 1fr; }
    PanelGrid Horizontal, PanelGrid Lines { height: 1fr; }
    PanelGrid #right { width: 1fr; }
    """

    class Chosen(Message):
        """A row was double-clicked."""

    def __init__(self) -> None:
        super().__init__()
        self._columns = {name: Lines(id=name) for name in ("left", "right", "below")}
        self._panels: Sequence[Panel] = ()
        self._where: dict[str, tuple[int, int]] = {}
        """The panel and the row of each key, in the order of the cursor."""
        self.cursor: str | None = None
        """The key of the row under the cursor."""
        self._place = (0, 0)
        self._was_moved = False

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self._columns["left"]
            yield self._columns["right"]
        yield self._columns["below"]

    @property
    def entry(self) -> Entry | None:
        """The row under the cursor."""
        if self.cursor is None:
            return None
        panel, row = self._where[self.cursor]
        return self._panels[panel].entries[row]

    def show(self, panels: Sequence[Panel]) -> None:
        """Replace the panels."""
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
        """Move the cursor down by `count` rows, or up if it is negative."""
        keys = list(self._where)
        if self.cursor is not None:
            self._go_to(keys[max(0, min(keys.index(self.cursor) + count, len(keys) - 1))])

    def go_to(self, at: int) -> None:
        """Move the cursor to a row, at most to the last."""
        if keys := list(self._where):
            self._go_to(keys[max(0, min(at, len(keys) - 1))])

    def move_panel(self, count: int) -> None:
        """Move the cursor to the first row of the next panel, or of the previous one; it wraps around."""
        firsts: dict[int, str] = {}
        for key, (panel, _) in self._where.items():
            firsts.setdefault(panel, key)
        if self.cursor is not None:
            order = list(firsts)
            at = order.index(self._where[self.cursor][0])
            self._go_to(firsts[order[(at + count) % len(order)]])

    def move_across(self) -> None:
        """Move the cursor to the nearest row of the other column."""
        if self.cursor is None:
            return
        x, y = self._position(self.cursor)
        beside = [(abs(self._position(key)[1] - y), key) for key in self._where if self._position(key)[0] != x]
        if beside:
            self._go_to(min(beside, key=lambda pair: pair[0])[1])

    def _position(self, key: str) -> tuple[int, int]:
        panel, row = self._where[key]
        region = self._panels[panel].placement.region
        return region.x, region.y + 1 + row

    def _go_to(self, key: str) -> None:
        self._was_moved = True
        self.cursor = key
        self._place = self._where[key]
        self._paint_changed()

    def _keep_cursor(self) -> None:
        if not self._was_moved or self.cursor not in self._where:
            panel, row = self._place if self._was_moved else (0, 0)
            near = [key for key, place in self._where.items() if place[0] == panel and place[1] <= row]
            here = [key for key, place in self._where.items() if place[0] == panel]
            self.cursor = next(iter(near[-1:] or here or self._where), None)
        if self.cursor is not None:
            self._place = self._where[self.cursor]

    # Painting

    def _lay_out(self, places: Sequence[Placement]) -> None:
        """Set the sizes of the columns."""
        areas = {column: [place.region for place in places if place.column == column] for column in self._columns}
        for column, regions in areas.items():
            self._columns[column].display = bool(regions)
        # The gap between the columns belongs to the left one.
        self._columns["left"].styles.width = min((region.x for region in areas["right"]), default=self.size.width)
        self._columns["below"].styles.height = sum(region.height for region in areas["below"])

    def _paint_changed(self) -> None:
        lines: dict[str, list[Line]] = {column: [] for column in self._columns}
        for panel in self._panels:
            lines[panel.placement.column] += self._lines(panel)
        for name, column in self._columns.items():
            column.show(lines[name])

    def _lines(self, panel: Panel) -> Iterator[Line]:
        _, _, width, height = panel.placement.region
        body = height - 1 - panel.boxed
        side: Line = (("│", "dim"),) if panel.boxed else ()
        yield _title(panel)
        for pieces, key, _ in panel.entries[:body]:
            has_cursor = key is not None and key == self.cursor
            content = fit_line((_POINTER if has_cursor else _NO_POINTER, *pieces), width - 2 * panel.boxed)
            yield (*side, *(under_cursor(content) if has_cursor else content), *side)
        for _ in range(body - len(panel.entries)):
            yield (*side, *fit_line((), width - 2 * panel.boxed), *side)
        if panel.boxed:
            yield (("╰" + "─" * (width - 2) + "╯", "dim"),)

    # The mouse

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked row; open it with a double click."""
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
    """Return the title line of a panel; a note that does not fit is left out."""
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
