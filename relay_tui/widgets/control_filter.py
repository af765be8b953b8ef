"""The last line of defence: no control character leaves a widget.

Untrusted text is sanitised where it enters the dashboard. This filter catches omissions, Textual's own widgets and text
that an operator pastes: every line of every widget passes through it.
"""

from __future__ import annotations

from rich.cells import set_cell_size
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from relay_core.text.sanitize import clean


class ControlCharFilter(LineFilter):
    """Replaces characters that are not printable."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments with printable characters only, each as wide as the layout expects."""
        if "".join([segment.text for segment in segments]).isprintable():
            return segments
        return [segment if segment.text.isprintable() else _cleaned(segment) for segment in segments]


def _cleaned(segment: Segment) -> Segment:
    text = clean(segment.text, limit=len(segment.text) + 1)
    return Segment(set_cell_size(text, segment.cell_length), segment.style)
