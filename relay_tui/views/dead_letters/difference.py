"""The difference between a dead letter and its edited copy, and the screen that shows it before the copy is sent.

Comparing is bounded: of a difference the first lines are shown and the rest is counted; of two long texts that differ
in too many places only the sizes are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import unified_diff
from typing import Literal, TypeAlias

from textual.app import ComposeResult

from relay_core.text.sanitize import clean
from relay_core.text.units import plural
from relay_tui.views.wrap import chopped
from relay_tui.widgets.dialogs import Confirm, Dialog
from relay_tui.widgets.styled_lines import Line, Lines, Piece, line

Answer = Literal["send", "send fresh", "again"]
Difference: TypeAlias = Sequence[Piece]
"""The lines of a difference, before they are wrapped."""

_COMPARED_LINES = 2000
_SHOWN_CHARS = 20_000


def difference(before: str, after: str) -> Difference:
    """Return how two bodies differ, with three lines of context."""
    first, second = before.split("\n"), after.split("\n")
    start, end = _common(first, second)
    middle = max(len(first), len(second)) - start - end
    if middle > _COMPARED_LINES:
        return [
            (f"- {plural(len(first) - start - end, 'line')}", "bad"),
            (f"+ {plural(len(second) - start - end, 'line')}", "ok"),
            ("too many differences to list", "dim"),
        ]
    begin, rest = max(start - 3, 0), max(end - 3, 0)
    found = list(_differences(first[begin : len(first) - rest], second[begin : len(second) - rest], begin))
    shown: list[Piece] = []
    left = _SHOWN_CHARS
    for text, style in found:
        if left <= 0:
            return [*shown, (f"… {plural(len(found) - len(shown), 'more line')} of the difference", "dim")]
        shown.append((clean(text, min(left, 5000)), style))
        left -= len(text) + 20
    return shown


def diff_lines(changes: Difference, width: int) -> list[Line]:
    """Return a difference in lines that fit the width."""
    return [line((f"  {part}", style)) for text, style in changes for part in chopped(text, max(width - 2, 1))]


def _differences(first: Sequence[str], second: Sequence[str], skipped: int) -> Iterator[tuple[str, str]]:
    styles = {"+": "ok", "-": "bad", "@": "accent"}
    for text in list(unified_diff(first, second, lineterm="", n=3))[2:]:
        style = styles.get(text[:1], "dim")
        if text.startswith("@@") and skipped:
            text = f"{text} (from line {skipped + 1} on)"
        yield text, style


def _common(first: Sequence[str], second: Sequence[str]) -> tuple[int, int]:
    """Return how many lines at the start and at the end are equal."""
    least = min(len(first), len(second))
    start = next((at for at in range(least) if first[at] != second[at]), least)
    end = next((at for at in range(least - start) if first[-1 - at] != second[-1 - at]), least - start)
    return start, end


class DifferenceScreen(Dialog[Answer | None]):
    """Show the changes of an edit; answers whether to send it, or to edit again."""

    DEFAULT_CSS = "DifferenceScreen > Vertical { width: 96%; height: 90%; } DifferenceScreen Lines { height: 1fr; }"

    def __init__(self, title: str, about: Sequence[str], changes: Difference) -> None:
        hint = "enter: replay the edited copy · f: with a fresh budget · e: edit again · esc: cancel"
        super().__init__(title, about, hint=hint)
        self._changes = changes

    def content(self) -> ComposeResult:
        yield Lines()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        lines = self.query_one(Lines)
        lines.show(diff_lines(self._changes, max(lines.size.width, 20)))

    def press(self, key: str) -> None:
        if key == "enter":
            self._confirm("send", "Replay the edited copy?")
        elif key == "f":
            self._confirm("send fresh", "Replay the edited copy with a fresh budget?")
        elif key == "e":
            self.dismiss("again")

    def _confirm(self, answer: Answer, title: str) -> None:
        def taken(word: str | None) -> None:
            if word is not None:
                self.dismiss(answer)

        self.app.push_screen(Confirm(title, self._about, word="replay"), taken)
