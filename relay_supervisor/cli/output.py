"""Lines, tables and colours on stdout, and a status line on stderr.

1. Untrusted text passes through `safe` (relay_core.text), so it stays one line and moves no cursor.
2. Colour is for terminals only, and never with NO_COLOR.
3. A table's last column is cut to the terminal's width, or to 400 columns in a pipe or a file.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from relay_core.text.columns import columns, cut, padded
from relay_core.text.sanitize import clean
from relay_core.text.units import format_count

if TYPE_CHECKING:
    from relay_core.messages.dead_letter import DeadLetter, DeadLetterGroup

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}
_PIPE_WIDTH = 400
_STATUS_WIDTH = 80
_NARROWEST = 12


def code_of(letter: DeadLetter | DeadLetterGroup) -> str:
    """Return a dead letter's code, marked if it is the copy kept from a partial delivery."""
    return f"{letter.code} (partial)" if letter.partial else letter.code


class Painted(NamedTuple):
    """A text in a colour, for terminals that support it."""

    text: str
    colour: str


@cache
def colourful() -> bool:
    """Return True if stdout takes colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """Return a text in a colour, if stdout takes colours."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if colourful() else text


def terminal_width() -> int:
    """Return the width of a line of stdout."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH


def safe(text: object, width: int | None = None) -> str:
    """Return untrusted text as one printable line, cut to a width."""
    shown = clean(str(text), width)
    return shown if width is None else cut(shown, width)


def payload_text(payload: Any, width: int = 160) -> str:
    """Return a payload as one line: the content of a standard payload, otherwise its JSON."""
    if isinstance(payload, dict) and isinstance(payload.get("content"), str) and payload["content"]:
        return safe(payload["content"], width)
    import orjson

    return safe(orjson.dumps(payload).decode(), width)


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "none") -> Iterator[str]:
    """Yield the lines of an aligned table: numbers on the right, a dash for None, the last column cut."""
    lines = [[_cell(value) for value in row] for row in rows]
    if not lines:
        yield empty
        return
    right = [
        any(cell.is_number for cell in column) and all(cell.is_number or cell == _NOTHING for cell in column)
        for column in zip(*lines, strict=True)
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
    is_number: bool = False


_NOTHING = _Cell("-")


def _cell(value: Any) -> _Cell:
    match value:
        case Painted():
            return _Cell(safe(value.text), value.colour)
        case None:
            return _NOTHING
        case bool():
            return _Cell("yes" if value else "no")
        case int() | float():
            return _Cell(format_count(value), is_number=True)
        case _:
            return _Cell(safe(value))


def _coloured(cell: _Cell, text: str) -> str:
    return paint(text, cell.colour) if cell.colour else text


class StatusLine:
    """One line on stderr that is drawn over itself; nothing if stderr is not a terminal."""

    def __init__(self) -> None:
        self.visible = sys.stderr.isatty()
        self._drawn = False

    def draw(self, text: str) -> None:
        """Replace the line, cut to the terminal's width."""
        if self.visible:
            width = 0  # which some terminals report
            with suppress(OSError):
                width = os.get_terminal_size(sys.stderr.fileno()).columns
            self._write(cut(text, (width or _STATUS_WIDTH) - 1))
            self._drawn = True

    def clear(self) -> None:
        """Remove the line."""
        if self._drawn:
            self._write("")
            self._drawn = False

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
