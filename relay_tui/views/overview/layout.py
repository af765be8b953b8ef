"""The layout of the overview, from the size of the screen and the content of the panels.

1. From a width of 76 there are two columns, and the newest events below them; otherwise one column, the most important
   panel first. From 100×30 panels have borders.
2. Every panel gets its minimum; the remaining lines are distributed in turn to the panels that want more. If the
   minimums do not fit, the last panels are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from textual.geometry import Region

_LEFT = ("throughput", "mailboxes", "senders")
_RIGHT = ("breakers", "dead-letters", "adapters")
_EVENTS = "events"
_ONE_COLUMN = ("throughput", "breakers", "mailboxes", "dead-letters", "senders", "adapters", _EVENTS)
_LEAST = {"throughput": 3, "mailboxes": 2, "senders": 1, "breakers": 1, "dead-letters": 2, "adapters": 1, _EVENTS: 1}

TWO_COLUMNS_FROM = 76
BOXED_FROM = (100, 30)


def is_boxed(width: int, height: int) -> bool:
    """Return True if there is room for borders."""
    return width >= BOXED_FROM[0] and height >= BOXED_FROM[1] - 2


class Placement(NamedTuple):
    """The column and the region of a panel, border included."""

    column: str
    """`left`, `right` or `below`."""
    region: Region


def arrange(width: int, height: int, wanted: Mapping[str, int]) -> dict[str, Placement]:
    """Return the placement of each panel; `wanted` is the number of lines of its whole content."""
    frame = 2 if is_boxed(width, height) else 1
    if width < TWO_COLUMNS_FROM:
        return _stack("left", _ONE_COLUMN, Region(0, 0, width, height), wanted, frame)
    below = min(max(height * 3 // 10, frame + _LEAST[_EVENTS]), frame + max(wanted[_EVENTS], 3))
    gap = 0 if frame == 2 else 1
    left = (width - gap) // 2
    return {
        **_stack("left", _LEFT, Region(0, 0, left, height - below), wanted, frame),
        **_stack("right", _RIGHT, Region(left + gap, 0, width - left - gap, height - below), wanted, frame),
        _EVENTS: Placement("below", Region(0, height - below, width, below)),
    }


def _stack(
    column: str, names: Sequence[str], area: Region, wanted: Mapping[str, int], frame: int
) -> dict[str, Placement]:
    """Return panels that fill the area from top to bottom."""
    while len(names) > 1 and sum(_LEAST[name] + frame for name in names) > area.height:
        names = names[:-1]
    lines = {name: _LEAST[name] for name in names}
    left = area.height - sum(lines.values()) - frame * len(names)
    while left > 0:
        wanting = [name for name in names if lines[name] < wanted[name]][:left]
        # The last panel gets the lines that no panel wants, so that both columns end together.
        for name in wanting:
            lines[name] += 1
        left -= len(wanting)
        if not wanting:
            lines[names[-1]] += left
            left = 0
    placements: dict[str, Placement] = {}
    y = area.y
    for name in names:
        placements[name] = Placement(column, Region(area.x, y, area.width, lines[name] + frame))
        y += lines[name] + frame
    return placements
