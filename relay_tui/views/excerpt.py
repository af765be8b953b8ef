"""The start of a payload as lines of JSON, bounded in size.

1. Formatting a payload of a mebibyte takes up to half a second. So it is cut before it is formatted: its texts, names
   and indents share a number of characters.
2. A last line tells if something was left out. Otherwise the lines are valid JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from relay_core.text.sanitize import clean_lines, pretty_json
from relay_tui.views.wrap import chopped
from relay_tui.widgets.styled_lines import Line, line

SHOWN = 16_000
"""Characters of a payload that are shown."""
_MAX_DEPTH = 100
_LINES = 1000
_LINE = 20_000
_SMALL = 8
"""The characters that a number, a bracket or a comma counts as."""


def excerpt(payload: Any) -> list[str]:
    """Return the start of a payload as clean lines; the last one tells if it was cut."""
    cut = _Cut()
    lines = clean_lines(pretty_json(cut.take(payload, 0)), _LINES, _LINE)
    return [*lines, "… cut: only the start is shown"] if cut.is_cut else lines


def excerpt_lines(texts: Iterable[str], width: int) -> list[Line]:
    """Return an excerpt in lines that fit the width."""
    return [line(f"  {part}") for text in texts for part in chopped(text, max(width - 2, 8))]


class _Cut:
    """Cuts a payload to the number of characters that are left."""

    def __init__(self) -> None:
        self._left = SHOWN
        self.is_cut = False

    def take(self, value: Any, depth: int) -> Any:
        """Return the part of a value that fits."""
        self._left -= _SMALL + 2 * depth
        if isinstance(value, str):
            return self._text(value)
        if depth == _MAX_DEPTH and isinstance(value, dict | list):
            self.is_cut = True
            return "…"
        if isinstance(value, dict):
            return {self._text(key): self.take(part, depth + 1) for key, part in value.items() if self._has_room()}
        if isinstance(value, list):
            return [self.take(part, depth + 1) for part in value if self._has_room()]
        return value

    def _text(self, text: str) -> str:
        kept = text[: max(self._left, 0)]
        self._left -= len(kept)
        self.is_cut = self.is_cut or len(kept) < len(text)
        return kept

    def _has_room(self) -> bool:
        self.is_cut = self.is_cut or self._left <= 0
        return self._left > 0
