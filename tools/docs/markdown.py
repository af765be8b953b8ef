"""The Markdown that generated pages share: lines that fit a terminal, and tables that are aligned there."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

WIDTH = 120


def paragraph(text: str, *, indent: str = "") -> str:
    """Return a text in lines, without the newline at its end."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def item(text: str) -> str:
    """Return an item of a list."""
    return f"{paragraph(f'- {text}', indent='  ')}\n"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table; the last column is not padded."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head) - 1)]
    lines = [head, ["-" * len(name) for name in head], *rows]
    return "".join(f"| {' | '.join(_padded(line, widths))} |\n" for line in lines)


def _padded(cells: list[str], widths: list[int]) -> Iterator[str]:
    yield from (cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
    yield cells[-1]
