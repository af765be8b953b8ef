"""The content of panels: the size that is available, the entries, and lists that are cut to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from relay_core.text.sanitize import clean
from relay_tui.views.overview.panel_grid import Entry
from relay_tui.widgets.styled_lines import Line, Piece, fit


class PanelContent(NamedTuple):
    """The content of a panel."""

    note: Piece
    """At the right of the title."""
    entries: list[Entry]
    wanted: int
    """The number of lines of the whole content."""


class PanelSize(NamedTuple):
    """The space of a panel."""

    width: int
    height: int
    cursor: str | None
    """The row under the cursor, which is always shown."""


def fit_subject(name: str, width: int) -> str:
    """Return a subject in exactly `width` columns; if it is too long, its last tokens."""
    text = clean(name)
    if not len(text) > width > 1 or not text.isascii():
        return fit(text, width)
    end = text[1 - width :]
    return f"…{end[end.find('.') + 1 :] or end}".ljust(width)


def list_entries(
    kind: str,
    view: str,
    keys: Collection[str],
    order: Sequence[str],
    size: PanelSize,
    line_of: Callable[[str], Line],
    *,
    empty: Piece,
    prefix: str = "",
    argument_of: Callable[[str], str] | None = None,
) -> list[Entry]:
    """Return the rows that fit, which open a view, and a last line that counts the others."""
    if not keys:
        return [Entry((empty,))]
    is_cut = len(keys) > size.height > 1
    shown = list(order[: size.height - is_cut])
    cursor_kind, _, cursor = (size.cursor or "").partition(":")
    if cursor_kind == kind and shown and cursor not in shown and cursor in keys:
        shown[-1] = cursor
    entries = [
        Entry(line_of(key), f"{kind}:{key}", (view, argument_of(key) if argument_of else f"{prefix}{key}"))
        for key in shown
    ]
    if is_cut:
        more = f"+{len(keys) - len(shown):,} more"
        entries.append(Entry(((more, "dim"),), f"{kind}:", (view, prefix or None)))
    return entries
