"""What is known of the thing under the cursor: lines of a name and a value. Texts come here safe (safe.py)."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from relay_tui.widgets.styled_lines import Line, Piece, line

_NAME = 12
_MOST_LINES = 4


def fact(name: str, *pieces: str | Piece) -> Line:
    """Return a value with its name."""
    return line((f" {name}".ljust(_NAME), "dim"), *pieces)


def long_fact(name: str, text: str, style: str, width: int) -> Iterator[Line]:
    """Yield a value that may be long, over as many lines as it takes."""
    room = max(width - _NAME - 1, 20)
    for at, part in enumerate(wrap(text, room, max_lines=_MOST_LINES, placeholder=" …", break_on_hyphens=False)):
        yield fact("" if at else name, (part, style))
