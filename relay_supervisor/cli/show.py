"""Text for people: tables, times and colours, with foreign text made harmless.

1. `safe` is the only way for a text that somebody else has written: control characters (and everything else that
   shows nothing, such as changes of writing direction and variation selectors) are escaped, so that it stays one line
   and moves no cursor.
2. Colour is for terminals alone, and never with NO_COLOR.
3. A table's last column is cut to the terminal's width; into a pipe or a file it goes nearly uncut.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from relay_core.invisible import is_invisible

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
    """Return foreign text as one harmless line, cut to a width."""
    shown = str(text)
    if width is not None:
        shown = shown[: width + 1]  # what is cut off need not be looked at
    if not (shown.isascii() and shown.isprintable()):
        shown = "".join(char.encode("unicode_escape").decode() if _is_hidden(char) else char for char in shown)
    return shown if width is None else cut(shown, width)


def _is_hidden(char: str) -> bool:
    return not char.isprintable() or is_invisible(char)


def cut(text: str, width: int) -> str:
    """Return a text that is at most so many columns wide."""
    return text if columns(text) <= width else _beginning(text, width - 1) + "…"


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines of at most so many columns (2 or more); a word longer than a line is broken anywhere."""
    lines, line = [], ""
    for word in text.split():
        gap = " " if line else ""
        if columns(line + gap + word) <= width:
            line += gap + word
            continue
        if columns(word) > width and (begun := _beginning(word, width - columns(line + gap))):
            line, word = line + gap + begun, word[len(begun) :]
        lines.append(line)
        while columns(word) > width:
            lines.append(_beginning(word, width))
            word = word[len(lines[-1]) :]
        line = word
    return [*lines, line]


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return a text with spaces up to so many columns."""
    space = " " * (width - columns(text))
    return space + text if right else text + space


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


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


def number(value: float) -> str:
    """Return a number as people read it."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def lasting(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    whole = int(seconds)
    for size, unit, below, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size}{unit} {rest}{smaller}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def ago(ms: float, now_ms: int) -> str:
    """Return how long ago an instant was."""
    return f"{lasting(max(now_ms - ms, 0) / 1000)} ago"


def _beginning(text: str, width: int) -> str:
    """Return as much of a text as fits into so many columns."""
    used = 0
    for at, char in enumerate(text):
        used += columns(char)
        if used > width:
            return text[:at]
    return text


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
        return _Number(number(value))
    return _Cell(safe(value))


def _coloured(cell: _Cell, text: str) -> str:
    return paint(text, cell.colour) if cell.colour else text
