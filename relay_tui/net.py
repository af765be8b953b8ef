"""The last net: no control character leaves a widget, whoever put it there.

Every text from outside is made safe where it comes in (safe.py). This is for what was forgotten, for Textual's own
widgets, and for what an operator pastes: each line of every widget passes here on its way to the screen.
"""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from relay_tui.safe import clean


class ControlNet(LineFilter):
    """Replace whatever does not print."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments with nothing in them but what prints."""
        if "".join([segment.text for segment in segments]).isprintable():
            return segments
        return [
            segment if segment.text.isprintable() else Segment(_of_same_width(segment), segment.style)
            for segment in segments
        ]


def _of_same_width(segment: Segment) -> str:
    """Return the text made safe, cut or filled to the width that the layout has reserved for it."""
    from rich.cells import set_cell_size

    return set_cell_size(clean(segment.text, limit=len(segment.text) + 1), segment.cell_length)
