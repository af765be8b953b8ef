"""Texts of a dead letter in lines that fit: nothing is cut off at the right, long lines continue below.

The work for each size of the screen is bounded: a body comes as its excerpt, a reason is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay_core.clock import parse_iso
from relay_core.text.sanitize import clean_lines
from relay_tui.views.wrap import chopped
from relay_tui.widgets.styled_lines import Line, line

_REASON_CHARS = 10_000
"""Characters of a reason that are shown."""


def instant(text: str) -> int | None:
    """Return a timestamp in milliseconds, or None if the text is not one: any process may have written it."""
    try:
        return parse_iso(text)
    except (ValueError, OverflowError):
        return None


def error_lines(text: str, width: int) -> list[Line]:
    """Return a reason or a stack trace."""
    shown = text if len(text) <= _REASON_CHARS else text[:_REASON_CHARS] + "…"
    return [line((f"  {part}", "bad")) for text in clean_lines(shown, 60, 2000) for part in chopped(text, width - 2)]


def body_lines(excerpt: Sequence[str], width: int) -> list[Line]:
    """Return the excerpt of a body, which is clean, in lines that fit."""
    return [line(f"  {part}") for text in excerpt for part in chopped(text, width - 2)]
