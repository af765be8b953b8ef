"""Wrap styled lines between words, and plain texts at any character."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rich.cells import chop_cells

from relay_tui.widgets.styled_lines import Line, Piece, width_of

_WORDS = re.compile(r"\s*\S+\s*")
_MOST_ROWS = 12


def wrapped(lines: Iterable[Line], width: int, indent: int = 8) -> Iterator[Line]:
    """Yield lines that fit the width; continuations are indented."""
    for line in lines:
        if width_of(line) <= width or width <= indent + 8:
            yield line
        else:
            yield from _broken(line, width, indent)


def chopped(text: str, width: int) -> list[str]:
    """Return a sanitised text of one line in pieces that fit the width."""
    if text.isascii():
        return [text[at : at + width] for at in range(0, len(text), width)] or [""]
    return chop_cells(text, width) or [""]


def _broken(long: Line, width: int, indent: int) -> Iterator[Line]:
    row: list[Piece] = []
    rows = 0
    for text, style in long:
        for word in _WORDS.findall(text) or [text]:
            if row and width_of([*row, (word.rstrip(), style)]) > width and rows < _MOST_ROWS:
                yield tuple(row)
                rows += 1
                row = [(" " * indent, "")]
                word = word.lstrip()
            row.append((word, style))
    yield tuple(row)
