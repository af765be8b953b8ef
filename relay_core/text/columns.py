"""Text measured, cut, wrapped and padded in columns of a terminal: East Asian characters take two, marks none."""

from __future__ import annotations

from unicodedata import category, east_asian_width


def columns(text: str) -> int:
    """Return how many columns a clean text takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def cut(text: str, width: int) -> str:
    """Return a text of at most `width` columns, ending in `…` if it was wider."""
    return text if columns(text) <= width else _beginning(text, width - 1) + "…"


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines of at most `width` columns (2 or more); a word longer than a line is broken anywhere."""
    lines, line = [], ""
    for word in text.split():
        gap = " " if line else ""
        if columns(line + gap + word) <= width:
            line += gap + word
            continue
        if columns(word) > width and (start := _beginning(word, width - columns(line + gap))):
            line, word = line + gap + start, word[len(start) :]
        lines.append(line)
        while columns(word) > width:
            lines.append(_beginning(word, width))
            word = word[len(lines[-1]) :]
        line = word
    return [*lines, line]


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return a text filled with spaces to `width` columns, on the left of it if `right`."""
    space = " " * (width - columns(text))
    return space + text if right else text + space


def _beginning(text: str, width: int) -> str:
    used = 0
    for at, char in enumerate(text):
        used += _width(char)
        if used > width:
            return text[:at]
    return text


def _width(char: str) -> int:
    if category(char) in ("Mn", "Me") or "\u1160" <= char <= "\u11ff":  # marks; vowels and finals of Hangul
        return 0
    return 2 if east_asian_width(char) in "WF" else 1
