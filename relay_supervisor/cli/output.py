"""Lines, tables and colours on stdout.

1. Untrusted text passes through `safe` (relay_core.text), so it stays one line and moves no cursor.
2. Colour is for terminals only, and never with NO_COLOR.
3. A table's last column is cut to the terminal's width, in a pipe or a file to 400 columns.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from relay_core.text.columns import columns, cut, padded
from relay_core.text.sanitize import clean
from relay_core.text.units import format_count

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}
_PIPE_WIDTH = 400
_NARROWEST = 12


class Coded(Protocol):
    """A dead letter, or a group of them."""

    @property
    def code(self) -> str: ...  # noqa: D102
    @property
    def partial(self) -> bool: ...  # noqa: D102


def code_of(one: Coded) -> str:
    """Return a dead letter's code, marked if it is the kept copy of a partial delivery."""
    return f"{one.code} (partial)" if one.partial else one.code


class Painted(NamedTuple):
    """A text in a colour, for terminals that can."""

    text: str
    colour: str


@cache
def colourful() -> bool:
    """Tell whether stdout takes colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """Return a text in a colour, if stdout takes colours."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if colourful() else text


def terminal_width() -> int:
    """Return how much fits into a line of stdout."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH


def safe(text: object, width: int | None = None) -> str:
    """Return untrusted text as one printable line, cut to a width."""
    shown = clean(str(text), width)
    return shown if width is None else cut(shown, width)


def payload_text(payload: Any, width: int = 160) -> str:
    """Return a payload in a line: the content of a standard one, else its JSON."""
    if isinstance(payload, dict) and isinstance(payload.get("content"), str) and payload["content"]:
        return safe(payload["content"], width)
    import orjson

    return safe(orjson.dumps(payload).decode(), width)


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "none") -> Iterator[str]:
    """Yield the lines of an aligned table; numbers stand right, None is a dash, the last column is cut."""
    lines = [[_cell(value) for value in row] for row in rows]
    if not lines:
        yield empty
        return
    right = [
        any(isinstance(row[at], _Number) for row in lines)
        and all(isinstance(row[at], _Number) or row[at] == _NOTHING for row in lines)
        for at in range(len(headers))
    ]
    widths = [max(columns(header), *(columns(row[at].text) for row in lines)) for at, header in enumerate(headers)]
    last = len(headers) - 1
    widths[last] = min(widths[last], max(terminal_width() - sum(widths[:last]) - 2 * last, _NARROWEST))
    yield paint(
        "  ".join(padded(header, widths[at], right=right[at]) for at, header in enumerate(headers)).rstrip(), "dim"
    )
    for row in lines:
        row[last] = row[last]._replace(text=cut(row[last].text, widths[last]))
        cells = (_coloured(cell, padded(cell.text, widths[at], right=right[at])) for at, cell in enumerate(row))
        yield "  ".join(cells).rstrip()


class _Cell(NamedTuple):
    text: str
    colour: str | None = None


class _Number(_Cell):
    pass


_NOTHING = _Cell("-")


def _cell(value: Any) -> _Cell:
    if isinstance(value, Painted):
        return _Cell(safe(value.text), value.colour)
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return _Cell("yes" if value else "no")
    if isinstance(value, int | float):
        return _Number(format_count(value))
    return _Cell(safe(value))


def _coloured(cell: _Cell, text: str) -> str:
    return paint(text, cell.colour) if cell.colour else text
