"""The beginning of a payload as lines of JSON: as much as somebody reads, for as little time as a key may wait.

1. A payload has up to a mebibyte, and writing one out as JSON takes up to half a second. So it is cut first, by a count
   of characters that its texts, names and indents share, and only then written.
2. What was left out is said in a last line. What is shown is JSON, but for the texts and lists that end early.
"""

from __future__ import annotations

from typing import Any

from relay_core.text.sanitize import clean_lines, pretty_json

SHOWN = 16_000
"""Characters of a payload that are shown."""
_DEEPEST = 100
_LINES = 1000
_LINE = 20_000
_SMALL = 8
"""What a number, a bracket or a comma counts."""


def excerpt(payload: Any) -> list[str]:
    """Return the beginning of a payload as clean lines, the last one saying that it goes on, if it does."""
    cut = _Cut()
    lines = clean_lines(pretty_json(cut.take(payload, 0)), _LINES, _LINE)
    return [*lines, "… it goes on: this is its beginning"] if cut.is_cut else lines


class _Cut:
    """What is left of the count, while a payload is gone through."""

    def __init__(self) -> None:
        self._left = SHOWN
        self.is_cut = False

    def take(self, value: Any, depth: int) -> Any:
        """Return as much of a value as there is room for."""
        self._left -= _SMALL + 2 * depth
        if isinstance(value, str):
            return self._text(value)
        if depth == _DEEPEST and isinstance(value, dict | list):
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
