"""Lines of styled text, painted with as few bytes as possible: what every part of the dashboard is made of.

1. A line is a tuple of pieces, each a text with the name of a style (look.py). Texts come here safe (safe.py).
2. `show` compares with what is there and repaints only the pieces that differ. A line that stays costs nothing.
3. More lines than fit can be scrolled, by key and by wheel; new lines do not move what is being read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from relay_tui.look import Palette

if TYPE_CHECKING:
    from relay_tui.app import Dashboard

Piece: TypeAlias = tuple[str, str]
"""A text, and the name of its style."""
Line: TypeAlias = tuple[Piece, ...]

BLANK: Line = ()


def line(*pieces: str | Piece) -> Line:
    """Return a line; a text alone is in the plain style."""
    return tuple((piece, "") if isinstance(piece, str) else piece for piece in pieces)


def text_width(text: str) -> int:
    """Return how many columns a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Return a text in exactly so many columns, cut with an ellipsis or filled with spaces."""
    if width <= 0:
        return ""
    length = text_width(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - length) + text if right else text + " " * (width - length)


def width_of(pieces: Iterable[Piece]) -> int:
    """Return how many columns pieces take."""
    return sum(text_width(text) for text, _ in pieces)


def joined(pieces: Line) -> list[Piece]:
    """Return fewer pieces that look the same: neighbours of one style are one, and a space takes any style."""
    found: list[Piece] = []
    for text, style in pieces:
        if found and (style == found[-1][1] or text.isspace() or not text):
            found[-1] = (found[-1][0] + text, found[-1][1])
        elif text:
            found.append((text, style))
    return found


def changed_columns(before: Line, after: Line) -> tuple[int, int | None]:
    """Return from where to where two lines differ; None is the end of the line."""
    same = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            break
        same += 1
    begin = width_of(after[:same])
    if width_of(before) != width_of(after):
        return begin, None
    tail = 0
    while tail < min(len(before), len(after)) - same and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    return begin, width_of(after[: len(after) - tail])


class Painted(Widget):
    """A widget of lines; subclasses say what is on each."""

    @property
    def palette(self) -> Palette:
        """The styles of the theme in force."""
        return cast("Dashboard", self.app).palette

    def strip(self, pieces: Line, *, under_cursor: bool = False, ground: str = "") -> Strip:
        """Return pieces as Textual paints them, as wide as the widget."""
        palette = self.palette
        style = palette.under_cursor if under_cursor else palette.__getitem__
        width = self.content_size.width
        segments = [Segment(text, style(name)) for text, name in joined(pieces)]
        return Strip(segments).adjust_cell_length(width, style(ground))

    def repaint(self, y: int, before: Line, after: Line) -> None:
        """Paint what has changed of a line."""
        begin, end = changed_columns(before, after)
        width = self.content_size.width
        self.refresh(Region(begin, y, (width if end is None else end) - begin, 1))


class Lines(Painted):
    """Lines that can be scrolled."""

    def __init__(self, lines: Iterable[Line] = (), *, ground: str = "", id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = list(lines)
        self._ground = ground
        self._top = 0

    @property
    def lines(self) -> Sequence[Line]:
        """What is shown."""
        return self._lines

    def show(self, lines: Iterable[Line]) -> None:
        """Show lines instead of those that are there."""
        before, self._lines = self._lines, list(lines)
        top, self._top = self._top, min(self._top, self._last_top())
        if top != self._top or not self.content_size.height:  # hidden: what to paint is known when it is shown
            self.refresh()
            return
        for y in range(self.content_size.height):
            at = y + self._top
            was = before[at] if at < len(before) else BLANK
            now = self._lines[at] if at < len(self._lines) else BLANK
            if was != now:
                self.repaint(y, was, now)

    def render_line(self, y: int) -> Strip:
        """Return one line as Textual paints it."""
        at = y + self._top
        return self.strip(self._lines[at] if at < len(self._lines) else BLANK, ground=self._ground)

    def scroll_lines(self, count: int) -> None:
        """Move down by so many lines, or up."""
        self.scroll_to_line(self._top + count)

    def scroll_to_line(self, at: int) -> None:
        """Have a line on top, as far as there are enough below it."""
        top = max(0, min(at, self._last_top()))
        if top != self._top:
            self._top = top
            self.refresh()

    def _last_top(self) -> int:
        return max(0, len(self._lines) - self.content_size.height)

    def on_resize(self, event: events.Resize) -> None:
        """Show no emptiness below the last line."""
        self.scroll_to_line(self._top)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll with the wheel."""
        self.scroll_lines(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll with the wheel."""
        self.scroll_lines(-3)
