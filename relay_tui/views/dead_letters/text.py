"""Texts of a dead letter, for reading: its body line by line, and what an edit has changed in it.

1. Every text comes out safe and in lines that fit; nothing is cut off at the right, it goes on in the next line.
2. What is done for each size of the screen is bounded by what somebody reads, not by the text: of a body its excerpt
   is shown, of a difference the first lines, and the rest is counted. Of two long texts that differ in too many places
   only the sizes are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import unified_diff
from typing import TypeAlias

from relay_core.clock import parse_iso
from relay_tui.lines import Line, Piece, line
from relay_tui.safe import clean, clean_lines
from relay_tui.views.wrap import chopped
from relay_tui.words import plural

_COMPARED = 2000
"""Lines that are compared with each other, at most."""
_DIFFERENT = 20_000
"""Characters of a difference that are shown."""
_REASON = 10_000
"""Characters of a reason that are shown."""

Difference: TypeAlias = Sequence[Piece]
"""What is different, line by line, before it is broken to a width."""


def instant(text: str) -> int | None:
    """Return an instant in milliseconds; None for a text that is none, for strangers may have written it."""
    try:
        return parse_iso(text)
    except (ValueError, OverflowError):
        return None


def error_lines(text: str, width: int) -> list[Line]:
    """Return a reason or a stack of calls, as it was told."""
    shown = text if len(text) <= _REASON else text[:_REASON] + "…"
    return [line((f"  {part}", "bad")) for one in clean_lines(shown, 60, 2000) for part in chopped(one, width - 2)]


def body_lines(excerpt: Sequence[str], width: int) -> list[Line]:
    """Return the beginning of a body, which is safe, in lines that fit."""
    return [line(f"  {part}") for one in excerpt for part in chopped(one, width - 2)]


def difference(before: str, after: str) -> Difference:
    """Return what is different between two bodies, with a few lines around it."""
    first, second = before.split("\n"), after.split("\n")
    start, end = _alike(first, second)
    middle = max(len(first), len(second)) - start - end
    if middle > _COMPARED:
        return [
            (f"- {plural(len(first) - start - end, 'line')}", "bad"),
            (f"+ {plural(len(second) - start - end, 'line')}", "ok"),
            ("too many differences to show them one by one", "dim"),
        ]
    begin, rest = max(start - 3, 0), max(end - 3, 0)
    found = list(_differences(first[begin : len(first) - rest], second[begin : len(second) - rest], begin))
    shown: list[Piece] = []
    room = _DIFFERENT
    for text, style in found:
        if room <= 0:
            return [*shown, (f"… {plural(len(found) - len(shown), 'more line')} of the difference", "dim")]
        shown.append((clean(text, min(room, 5000)), style))
        room -= len(text) + 20
    return shown


def diff_lines(found: Difference, width: int) -> list[Line]:
    """Return a difference in lines that fit."""
    return [line((f"  {part}", style)) for text, style in found for part in chopped(text, max(width - 2, 1))]


def _differences(first: Sequence[str], second: Sequence[str], skipped: int) -> Iterator[tuple[str, str]]:
    styles = {"+": "ok", "-": "bad", "@": "accent"}
    for text in list(unified_diff(first, second, lineterm="", n=3))[2:]:
        style = styles.get(text[:1], "dim")
        if text.startswith("@@") and skipped:
            text = f"{text} (from line {skipped + 1} on)"
        yield text, style


def _alike(first: Sequence[str], second: Sequence[str]) -> tuple[int, int]:
    """Return how many lines at the beginning and at the end are the same."""
    least = min(len(first), len(second))
    start = next((at for at in range(least) if first[at] != second[at]), least)
    end = next((at for at in range(least - start) if first[-1 - at] != second[-1 - at]), least - start)
    return start, end
