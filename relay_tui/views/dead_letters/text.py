"""Texts of a dead letter, for reading: its body line by line, and what an edit has changed in it.

1. Every text comes out safe and in lines that fit; nothing is cut off at the right, it goes on in the next line.
2. The work is bounded: of a long text the first lines are shown and the rest is counted. Of two long texts that differ
   in too many places only the sizes are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import unified_diff
from typing import Any

from rich.cells import chop_cells

from relay_tui.lines import Line, line
from relay_tui.safe import clean, clean_lines, pretty_json
from relay_tui.words import plural

MOST_LINES = 4000
_COMPARED = 2000
"""Lines that are compared with each other, at most."""
_LONGEST = 200_000


def wrapped(text: str, width: int) -> list[str]:
    """Return a safe text of one line in pieces that fit."""
    if text.isascii():
        return [text[at : at + width] for at in range(0, len(text), width)] or [""]
    return chop_cells(text, width) or [""]


def error_lines(text: str, width: int) -> list[Line]:
    """Return a reason or a stack of calls, as it was told."""
    return [line((f"  {part}", "bad")) for one in clean_lines(text, 60, 2000) for part in wrapped(one, width - 2)]


def body_text(payload: Any) -> str:
    """Return a payload as an editor and a reader get it."""
    return pretty_json(payload)


def body_lines(text: str, width: int) -> list[Line]:
    """Return a body's text (which is safe) as lines."""
    shown: list[Line] = []
    for number, one in enumerate(text.split("\n")):
        if len(shown) >= MOST_LINES:
            rest = text.count("\n") + 1 - number
            shown.append(line((f"  … {plural(rest, 'more line')}: export it to read the rest", "dim")))
            break
        shown += [line(f"  {part}") for part in wrapped(one[:_LONGEST], width - 2)]
    return shown


def diff_lines(before: str, after: str, width: int) -> list[Line]:
    """Return what is different between two bodies, with a few lines around it."""
    first, second = before.split("\n"), after.split("\n")
    start, end = _alike(first, second)
    middle = max(len(first), len(second)) - start - end
    if middle > _COMPARED:
        return [
            line((f"  - {plural(len(first) - start - end, 'line')}", "bad")),
            line((f"  + {plural(len(second) - start - end, 'line')}", "ok")),
            line(("  too many differences to show them one by one", "dim")),
        ]
    begin, rest = max(start - 3, 0), max(end - 3, 0)
    found = list(_differences(first[begin : len(first) - rest], second[begin : len(second) - rest], begin))
    return [
        line((f"  {part}", style)) for text, style in found for part in wrapped(clean(text, 20_000), max(width - 2, 1))
    ]


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
