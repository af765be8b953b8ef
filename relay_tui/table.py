"""A table of live rows: painted line by line, with the cursor on a row's key and never on a position.

1. Rows have keys. When the rows change, the cursor stays on its key and on its line of the screen: lists do not
   jump under it. If its row is gone, it goes to the row that took the place; if all are gone, it waits for its own.
2. Only lines that look different are painted again; widths are settled by the columns and the size of the widget,
   never by the content. (A DataTable at 5 updates a second costs seven times this.)
3. Rows come from a `Rows`, which need not hold all of them: a row that is not there yet is shown as such, and
   `Reached` says when the cursor or the window comes near the end of what is held.
4. Marks are keys too, and survive whatever happens to the rows.
5. A table that `follows` shows its first rows, whichever they are, and has its cursor on none until the operator moves
   it: what an action would be about never changes under a finger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from textual import events
from textual.message import Message
from textual.strip import Strip

from relay_tui.lines import Line, Painted, Piece, fit

Cell: TypeAlias = str | Piece


class Column(NamedTuple):
    """One column; a width of 0 takes what the others leave."""

    title: str
    width: int = 0
    right: bool = False
    from_width: int = 0
    """How wide the table must be for this column to be shown."""


class Row(NamedTuple):
    """One row: its key, and a cell for each column."""

    key: str
    cells: tuple[Cell, ...]


class Rows(Protocol):
    """Where a table's rows come from."""

    def __len__(self) -> int:
        """Return how many rows are held."""

    def __getitem__(self, at: int, /) -> Row:
        """Return a row."""

    def find(self, key: str, /) -> int | None:
        """Return where a key is."""


class RowList:
    """Rows that are all there."""

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self._rows = rows
        self._at = {row.key: at for at, row in enumerate(rows)}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: int) -> Row:
        return self._rows[at]

    def find(self, key: str) -> int | None:
        """Return where a key is."""
        return self._at.get(key)


class LiveTable(Painted, can_focus=True):
    """Rows under a header, with a cursor and marks."""

    DEFAULT_CSS = "LiveTable { height: 1fr; }"

    class Moved(Message):
        """The cursor is on another row."""

        def __init__(self, table: LiveTable) -> None:
            super().__init__()
            self.table = table

        @property
        def control(self) -> LiveTable:
            """The table."""
            return self.table

    class Chosen(Moved):
        """A row was opened, by a double click."""

    class Reached(Moved):
        """The last rows that are held are in sight."""

    def __init__(
        self, columns: Sequence[Column], *, empty: str = "nothing here", follows: bool = False, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._can_follow = follows
        self._follows = follows
        self._columns = columns
        self._empty = empty
        self._rows: Rows = RowList()
        self._painted: dict[int, tuple[Line, bool]] = {}
        """What is on each line of the screen, to tell what has changed."""
        self._top = 0
        self._cursor = 0
        self._key: str | None = None
        self._wanted: str | None = None
        """Where the cursor was when all rows went away (a restart): it goes back there, unless it is moved before."""
        self.marks: set[str] = set()

    @property
    def key(self) -> str | None:
        """The key of the row under the cursor."""
        return self._key

    @property
    def is_following(self) -> bool:
        """Whether the first rows are shown and the cursor is on none of them."""
        return self._follows

    def follow(self) -> None:
        """Go back to the first rows, with the cursor on none."""
        self._follows = self._can_follow
        self._key, self._wanted, self._cursor, self._top = None, None, 0, 0
        self.set_rows(self._rows)

    @property
    def keys(self) -> list[str]:
        """The keys of all rows that are held, in their order."""
        return [self._rows[at].key for at in range(len(self._rows))]

    def set_rows(self, rows: Rows | Sequence[Row], *, empty: str | None = None) -> None:
        """Show these rows."""
        if empty is not None:
            self._empty = empty
        before = self._key
        self._rows = RowList(rows) if isinstance(rows, list | tuple) else rows  # type: ignore[assignment]
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
        self._keep_in_sight()
        self.repaint_changed()
        if self._key != before:
            self.post_message(self.Moved(self))

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Show other columns."""
        self._columns = columns
        self._painted.clear()
        self.refresh()

    def move(self, count: int) -> None:
        """Move the cursor down by so many rows, or up; the first move of one that is on no row is onto the first."""
        self.go_to(0 if self._follows else self._cursor + count)

    def go_to(self, at: int) -> None:
        """Move the cursor to a row; one beyond the end is the last."""
        at = max(0, min(at, len(self._rows) - 1))
        if not len(self._rows) or (at == self._cursor and self._key is not None):
            return
        self._follows = False
        self._wanted = None
        self._cursor = at
        self._key = self._rows[at].key
        self._keep_in_sight()
        self.repaint_changed()
        self.post_message(self.Moved(self))
        self._tell_if_reached()

    def go_to_key(self, key: str) -> bool:
        """Move the cursor to a key; False if it is not there."""
        at = self._rows.find(key)
        if at is not None:
            self.go_to(at)
        return at is not None

    def repaint_changed(self) -> None:
        """Paint the lines that look different from what is on the screen."""
        if not self.content_size.height:  # hidden: what to paint is known when it is shown
            self.refresh()
        for y in range(self.content_size.height):
            now = self._look_of(y)
            was = self._painted.get(y)
            if was == now:
                continue
            if was is None or was[1] != now[1]:
                was = ((), False)
            self.repaint(y, was[0], now[0])

    def render_line(self, y: int) -> Strip:
        """Return one line as Textual paints it."""
        pieces, under_cursor = self._painted[y] = self._look_of(y)
        return self.strip(pieces, under_cursor=under_cursor, ground="head" if y == 0 else "")

    @property
    def page(self) -> int:
        """How many rows a screen of them is."""
        return max(self._height - 1, 1)

    @property
    def _height(self) -> int:
        """Rows that fit below the header."""
        return max(self.content_size.height - 1, 0)

    def _look_of(self, y: int) -> tuple[Line, bool]:
        if y == 0:
            return self._cut([(column.title, "head") for column in self._columns], "head"), False
        at = self._top + y - 1
        if at >= len(self._rows):
            return (((f"  {self._empty}", "dim"),) if at == 0 else (), False)
        row = self._rows[at]
        return self._cut(row.cells, "", row.key), row.key == self._key and self.has_focus_within

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

    def _keep_in_sight(self) -> None:
        last = max(len(self._rows) - self._height, 0)
        self._top = max(0, min(self._top, last, self._cursor), min(self._cursor - self._height + 1, last))

    def _tell_if_reached(self) -> None:
        if self._top + 2 * self._height >= len(self._rows):
            self.post_message(self.Reached(self))

    def on_resize(self, event: events.Resize) -> None:
        """Keep the cursor in sight."""
        self._keep_in_sight()
        self.repaint_changed()

    def on_focus(self, event: events.Focus) -> None:
        """Show the cursor."""
        self.repaint_changed()

    def on_blur(self, event: events.Blur) -> None:
        """Hide the cursor."""
        self.repaint_changed()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to where it was clicked; open it with a double click."""
        at = self._top + event.y - 1
        if event.y < 1 or at >= len(self._rows):
            return
        self.focus()
        self.go_to(at)
        if event.chain == 2:
            self.post_message(self.Chosen(self))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move with the wheel."""
        self.move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move with the wheel."""
        self.move(-3)
