"""A table of live rows, painted line by line, whose cursor is on a key and never on a position.

1. Rows have keys. When the rows change, the cursor stays on its key and on its line of the screen, so lists do not jump
   under it. If its row is gone, it moves to the row that took the place; if all are gone, it waits for its key.
2. Only lines that look different are repainted; widths follow from the columns and the size of the widget, never from
   the content. (A DataTable with 5 updates a second costs seven times as much.)
3. Rows come from a `Rows`, which need not hold all of them: `NearEnd` is posted when the last rows come into view.
4. Marks are keys too, and survive any change of the rows.
5. A table that `follows` shows its first rows, whichever they are, with its cursor on none until the operator moves it:
   the row that an action applies to never changes under a finger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

from textual import events
from textual.message import Message
from textual.strip import Strip

from relay_tui.widgets.styled_lines import Line, LineWidget, Piece, fit, under_cursor

Cell: TypeAlias = str | Piece


class Column(NamedTuple):
    """A column; a width of 0 takes the space that the others leave."""

    title: str
    width: int = 0
    right: bool = False
    from_width: int = 0
    """The width of the table from which the column is shown."""


class Row(NamedTuple):
    """A row: its key, and a cell for each column."""

    key: str
    cells: tuple[Cell, ...]


class Rows(Protocol):
    """The source of a table's rows."""

    def __len__(self) -> int:
        """Return how many rows are loaded."""

    def __getitem__(self, at: int, /) -> Row:
        """Return a row."""

    def find(self, key: str, /) -> int | None:
        """Return the position of a key."""


class KeyedRows:
    """Rows in the order of their keys, each formatted when it is visible."""

    def __init__(self, keys: Sequence[str], row_of: Callable[[str], Row]) -> None:
        self.keys = keys
        self._row_of = row_of

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, at: int) -> Row:
        return self._row_of(self.keys[at])

    def find(self, key: str) -> int | None:
        """Return the position of a key."""
        return self._positions.get(key)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {key: at for at, key in enumerate(self.keys)}


def row_list(rows: Sequence[Row]) -> KeyedRows:
    """Return rows that are already formatted."""
    by_key = {row.key: row for row in rows}
    return KeyedRows(list(by_key), by_key.__getitem__)


class LiveTable(LineWidget, can_focus=True):
    """Rows below a header, with a cursor and marks."""

    DEFAULT_CSS = "LiveTable { height: 1fr; }"

    class Moved(Message):
        """The cursor is on another row."""

        def __init__(self, table: LiveTable) -> None:
            super().__init__()
            self.table = table

    class Chosen(Moved):
        """A row was double-clicked."""

    class NearEnd(Moved):
        """The last loaded rows are in view."""

    def __init__(
        self, columns: Sequence[Column], *, empty: str = "nothing here", follows: bool = False, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._can_follow = follows
        self._follows = follows
        self._columns = columns
        self._empty = empty
        self._rows: Rows = row_list(())
        self._painted: dict[int, Line] = {}
        """The content of each line of the screen."""
        self._top = 0
        self._cursor = 0
        self._key: str | None = None
        self._wanted: str | None = None
        """The key of the cursor when all rows disappeared (a restart); it returns there unless it is moved first."""
        self.marks: set[str] = set()

    @property
    def key(self) -> str | None:
        """The key of the row under the cursor."""
        return self._key

    @property
    def is_following(self) -> bool:
        """Whether the first rows are shown with the cursor on none."""
        return self._follows

    def follow(self) -> None:
        """Return to the first rows, with the cursor on none."""
        self._follows = self._can_follow
        self._key, self._wanted, self._cursor, self._top = None, None, 0, 0
        self.set_rows(self._rows)

    @property
    def keys(self) -> list[str]:
        """The keys of all loaded rows, in order."""
        return [self._rows[at].key for at in range(len(self._rows))]

    def set_rows(self, rows: Rows | list[Row], *, empty: str | None = None) -> None:
        """Replace the rows."""
        if empty is not None:
            self._empty = empty
        before = self._key
        self._rows = row_list(rows) if isinstance(rows, list) else rows
        if self._follows:
            self.repaint_changed()
            return
        if not len(self._rows):
            self._wanted = self._wanted or self._key
        wanted = self._wanted or self._key
        found = self._rows.find(wanted) if wanted is not None else None
        if found is not None:
            self._wanted = None
        elif self._key is not None:
            found = self._rows.find(self._key)
        at = max(found if found is not None else min(self._cursor, len(self._rows) - 1), 0)
        self._top += at - self._cursor
        self._cursor = at
        self._key = self._rows[at].key if len(self._rows) else None
        self._keep_in_view()
        self.repaint_changed()
        if self._key != before:
            self.post_message(self.Moved(self))

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Replace the columns."""
        self._columns = columns
        self._painted.clear()
        self.refresh()

    def move(self, count: int) -> None:
        """Move the cursor by `count` rows; a cursor on no row moves to the first."""
        self.go_to(0 if self._follows else self._cursor + count)

    def go_to(self, at: int) -> None:
        """Move the cursor to a row, at most to the last."""
        at = max(0, min(at, len(self._rows) - 1))
        if not len(self._rows) or (at == self._cursor and self._key is not None):
            return
        self._follows = False
        self._wanted = None
        self._cursor = at
        self._key = self._rows[at].key
        self._keep_in_view()
        self.repaint_changed()
        self.post_message(self.Moved(self))
        self._post_if_near_end()

    def go_to_key(self, key: str) -> bool:
        """Move the cursor to a key; return False if there is no such row."""
        at = self._rows.find(key)
        if at is not None:
            self.go_to(at)
        return at is not None

    def repaint_changed(self) -> None:
        """Repaint the lines that differ from those on the screen."""
        if not self.content_size.height:  # a hidden widget is painted when it is shown
            self.refresh()
        for y in range(self.content_size.height):
            before, now = self._painted.get(y), self._content_of(y)
            if before != now:
                self.repaint(y, before or (), now)

    def render_line(self, y: int) -> Strip:
        pieces = self._painted[y] = self._content_of(y)
        return self.strip(pieces, ground=pieces[-1][1] if pieces else "")

    @property
    def page(self) -> int:
        """By how many rows a page key moves."""
        return max(self._height - 1, 1)

    @property
    def _height(self) -> int:
        """The rows that fit below the header."""
        return max(self.content_size.height - 1, 0)

    def _content_of(self, y: int) -> Line:
        if y == 0:
            return self._cut([(column.title, "head") for column in self._columns], "head")
        at = self._top + y - 1
        if at >= len(self._rows):
            return ((f"  {self._empty}", "dim"),) if at == 0 else ()
        row = self._rows[at]
        pieces = self._cut(row.cells, "", row.key)
        return under_cursor(pieces) if row.key == self._key and self.has_focus_within else pieces

    def _cut(self, cells: Sequence[Cell], style: str, key: str | None = None) -> Line:
        pieces: list[Piece] = [(self._gutter(key), "mark" if key is not None else style)]
        for (column, width), cell in zip(self._widths(), cells, strict=True):
            if width:
                text, name = (cell, style) if isinstance(cell, str) else cell
                pieces += [(fit(text, width, right=column.right), name), (" ", style)]
        return tuple(pieces)

    def _gutter(self, key: str | None) -> str:
        if key is None:
            return "  "
        return ("▶" if key == self._key and self.has_focus_within else " ") + ("●" if key in self.marks else " ")

    def _widths(self) -> list[tuple[Column, int]]:
        total = self.content_size.width
        shown = [column for column in self._columns if total >= column.from_width]
        left = total - 2 - sum(column.width + 1 for column in shown)
        flexible = sum(not column.width for column in shown)
        widths = []
        for column in self._columns:
            if column not in shown:
                widths.append((column, 0))
            elif column.width:
                widths.append((column, column.width))
            else:
                widths.append((column, max(left // flexible, 8)))
        return widths

    def _keep_in_view(self) -> None:
        last = max(len(self._rows) - self._height, 0)
        self._top = max(0, min(self._top, last, self._cursor), min(self._cursor - self._height + 1, last))

    def _post_if_near_end(self) -> None:
        if self._top + 2 * self._height >= len(self._rows):
            self.post_message(self.NearEnd(self))

    def on_resize(self, event: events.Resize) -> None:
        self._keep_in_view()
        self.repaint_changed()

    def on_focus(self, event: events.Focus) -> None:
        self.repaint_changed()

    def on_blur(self, event: events.Blur) -> None:
        self.repaint_changed()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked row; choose it with a double click."""
        at = self._top + event.y - 1
        if event.y < 1 or at >= len(self._rows):
            return
        self.focus()
        self.go_to(at)
        if event.chain == 2:
            self.post_message(self.Chosen(self))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.move(-3)
