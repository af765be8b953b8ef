"""What the overview's panels are made of: how much room there is, what is said in it, and how a list is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from relay_core.text.sanitize import clean
from relay_tui.views.overview.panel_grid import Entry
from relay_tui.widgets.styled_lines import Line, Piece, fit


class PanelContent(NamedTuple):
    """What a panel says: at the right of its title, and below."""

    note: Piece
    entries: list[Entry]
    wanted: int
    """How many lines there would be, were there room for all."""


class PanelSize(NamedTuple):
    """How much a panel may say."""

    width: int
    height: int
    cursor: str | None
    """The row that is shown in any case."""


def fit_subject(name: str, width: int) -> str:
    """Return a subject in exactly so many columns: its end says more than its beginning, and whole words more."""
    text = clean(name)
    if not len(text) > width > 1 or not text.isascii():
        return fit(text, width)
    end = text[1 - width :]
    return f"…{end[end.find('.') + 1 :] or end}".ljust(width)


def list_entries(
    order: Sequence[str],
    total: int,
    size: PanelSize,
    kind: str,
    exists: Callable[[str], bool],
    line_of: Callable[[str], Line],
    view: str,
    *,
    argument: str = "",
    leads_to: Callable[[str], str] | None = None,
) -> list[Entry]:
    """Return a list's rows as far as there is room, and a last line that counts the others."""
    cut = total > size.height > 1
    shown = list(order[: size.height - cut])
    kept = (size.cursor or "").removeprefix(f"{kind}:") if (size.cursor or "").startswith(f"{kind}:") else None
    if kept and shown and kept not in shown and exists(kept):
        shown[-1] = kept
    entries = [
        Entry(line_of(key), f"{kind}:{key}", (view, leads_to(key) if leads_to else f"{argument}{key}")) for key in shown
    ]
    if cut:
        left = total - len(shown)
        entries.append(Entry(((f"+{left:,} more", "dim"),), f"{kind}:", (view, argument or None)))
    return entries
