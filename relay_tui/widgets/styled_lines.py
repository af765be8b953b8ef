"""Lines of styled text, painted with as few bytes as possible.

1. A line is a tuple of pieces: a text and the name of its style (theme.py). Texts are sanitised before they get here.
2. `show` repaints only the pieces that differ from those on the screen. An unchanged line costs nothing.
3. Lines that do not fit can be scrolled by key and wheel; new lines do not move the ones on the screen.
4. Widths are Rich's, not those of `relay_core.text.columns`: Textual measures with Rich, and the two differ for some
   combining marks and symbols.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias, cast

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from relay_tui.widgets.theme import UNDER_CURSOR, Palette

Piece: TypeAlias = tuple[str, str]
"""A text and the name of its style."""
Line: TypeAlias = tuple[Piece, ...]

BLANK: Line = ()
LAST = 1 << 60
"""A position beyond every last row."""


def line(*pieces: str | Piece) -> Line:
    """Return a line; a bare text has the plain style."""
    return tuple((piece, "") if isinstance(piece, str) else piece for piece in pieces)


def text_width(text: str) -> int:
    """Return the width of a text in columns."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Return a text in exactly `width` columns, cut with an ellipsis or padded with spaces."""
    if width <= 0:
        return ""
    length = text_width(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - length) + text if right else text + " " * (width - length)


def width_of(pieces: Iterable[Piece]) -> int:
    """Return the width of pieces in columns."""
    return sum(text_width(text) for text, _ in pieces)


def under_cursor(pieces: Iterable[Piece]) -> Line:
    """Return pieces with the background of the cursor."""
    return tuple((text, style + UNDER_CURSOR) for text, style in pieces)


def fit_line(pieces: Iterable[Piece], width: int) -> Line:
    """Return pieces in exactly `width` columns, cut or padded with spaces."""
    fitted: list[Piece] = []
    for text, style in pieces:
        part = set_cell_size(text, min(text_width(text), width))
        fitted.append((part, style))
        width -= text_width(part)
    return (*fitted, (" " * width, ""))


def joined(pieces: Line) -> list[Piece]:
    """Return fewer pieces that look the same: neighbours of one style are merged, and a space takes any style."""
    merged: list[Piece] = []
    for text, style in pieces:
        if merged and (style == merged[-1][1] or text.isspace() or not text):
            merged[-1] = (merged[-1][0] + text, merged[-1][1])
        elif text:
            merged.append((text, style))
    return merged


def changed_columns(before: Line, after: Line) -> tuple[int, int | None]:
    """Return the first and the last column in which two lines differ; None is the end of the line."""
    same = 0
    for old, new in zip(before, after, strict=False):
        if old != new:
            break
        same += 1
    begin = width_of(after[:same])
    if width_of(before) != width_of(after):
        return begin, None
    tail = 0
    while tail < min(len(before), len(after)) - same and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    return begin, width_of(after[: len(after) - tail])


class Scrollable(Protocol):
    """A widget in which keys move."""

    def move(self, count: int) -> None:
        """Move down by `count` rows or lines, or up if it is negative."""

    def go_to(self, at: int) -> None:
        """Move to a row or line; `LAST` is the last."""


class HasPalette(Protocol):
    """An application with one of our themes."""

    palette: Palette


class LineWidget(Widget):
    """A widget made of lines; subclasses provide them."""

    @property
    def palette(self) -> Palette:
        """The styles of the current theme."""
        return cast("HasPalette", self.app).palette

    def strip(self, pieces: Line, *, ground: str = "") -> Strip:
        """Return pieces as a Textual strip as wide as the widget."""
        palette = self.palette
        segments = [Segment(text, palette[style]) for text, style in joined(pieces)]
        return Strip(segments).adjust_cell_length(self.content_size.width, palette[ground])

    def repaint(self, y: int, before: Line, after: Line) -> None:
        """Paint the changed part of a line."""
        begin, end = changed_columns(before, after)
        width = self.content_size.width
        self.refresh(Region(begin, y, (width if end is None else end) - begin, 1))


class Lines(LineWidget):
    """Lines that can be scrolled."""

    def __init__(self, lines: Iterable[Line] = (), *, ground: str = "", id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: list[Line] = list(lines)
        """All lines, visible or not."""
        self._ground = ground
        self._top = 0

    @property
    def page(self) -> int:
        """By how many lines a page key moves."""
        return max(self.size.height - 1, 1)

    def show(self, lines: Iterable[Line]) -> None:
        """Replace the lines."""
        before, self.lines = self.lines, list(lines)
        top, self._top = self._top, min(self._top, self._last_top())
        if top != self._top or not self.content_size.height:  # a hidden widget is painted when it is shown
            self.refresh()
            return
        for y in range(self.content_size.height):
            at = y + self._top
            was = before[at] if at < len(before) else BLANK
            now = self.lines[at] if at < len(self.lines) else BLANK
            if was != now:
                self.repaint(y, was, now)

    def render_line(self, y: int) -> Strip:
        at = y + self._top
        return self.strip(self.lines[at] if at < len(self.lines) else BLANK, ground=self._ground)

    def move(self, count: int) -> None:
        """Scroll down by `count` lines, or up if it is negative."""
        self.go_to(self._top + count)

    def go_to(self, at: int) -> None:
        """Scroll a line to the top, as far as lines below fill the widget."""
        top = max(0, min(at, self._last_top()))
        if top != self._top:
            self._top = top
            self.refresh()

    def _last_top(self) -> int:
        return max(0, len(self.lines) - self.content_size.height)

    def on_resize(self, event: events.Resize) -> None:
        """Leave no empty space below the last line."""
        self.go_to(self._top)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.move(-3)
