"""One column of the overview: lines of which only what differs is painted.

Textual paints a line of a widget from its left edge up to the end of the region that was asked for, and writes the
whole style before each piece. So regions end at the last piece that differs, and pieces of one style are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip

from relay_tui.widgets.styled_lines import Line, LineWidget, joined, text_width


class PanelLine(NamedTuple):
    """One line of a panel."""

    width: int
    pieces: Line
    under_cursor: bool = False
    between_sides: bool = False
    """With a piece of border before and after."""


class PanelColumn(LineWidget):
    """Lines from top to bottom."""

    DEFAULT_CSS = "PanelColumn { height: 1fr; }"

    _spans: Sequence[PanelLine] = ()

    def show(self, spans: Sequence[PanelLine]) -> None:
        """Show lines instead of those that are there."""
        before, self._spans = self._spans, spans
        if len(before) != len(spans):
            self.refresh()
            return
        changed = [
            Region(0, y, changed_until(was, now), 1)
            for y, (was, now) in enumerate(zip(before, spans, strict=True))
            if was != now
        ]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        blank = self.palette[""]
        if y >= len(self._spans):
            return Strip.blank(self.size.width, blank)
        span = self._spans[y]
        style = self.palette.under_cursor if span.under_cursor else self.palette.__getitem__
        strip = Strip([Segment(text, style(name)) for text, name in joined(span.pieces)])
        if span.between_sides:
            side = Strip([Segment("│", self.palette["dim"])], 1)
            strip = Strip.join([side, strip.adjust_cell_length(span.width - 2, style("")), side])
        else:
            strip = strip.adjust_cell_length(span.width, style(""))
        return strip.adjust_cell_length(self.size.width, blank)


def changed_until(was: PanelLine, now: PanelLine) -> int:
    """Return up to which column a line differs: the end of the last such piece, or the line's, if widths differ."""
    if was[2:] != now[2:] or len(was.pieces) != len(now.pieces):
        return now.width
    x = last = int(now.between_sides)
    for before, after in zip(was.pieces, now.pieces, strict=True):
        width = text_width(after[0])
        x += width
        if before != after:
            if text_width(before[0]) != width:
                return now.width
            last = x
    return min(last, now.width)
