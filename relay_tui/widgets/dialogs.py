"""Dialogs: modal screens that answer with a value, or with None if they are closed.

1. A question is answered by typing a word and pressing enter, never by a key that has a meaning on a screen: keys meant
   for a screen do nothing in a dialog. A destructive action has its count in the word.
2. The subject of a question is frozen when the question is asked.
3. A dialog answers once: keys pressed between the answer and its closing are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from relay_tui.widgets.styled_lines import LAST, Line, Lines, line
from relay_tui.widgets.table import Column, LiveTable, Row

R = TypeVar("R")

_PREVIEW_LINES = 8


class Dialog(ModalScreen[R]):
    """A title, a description, the content, and a hint about keys; answers once."""

    CLOSING_KEYS: ClassVar[tuple[str, ...]] = ("escape", "q")
    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog > Vertical {
        width: 76; max-width: 96%; height: auto; max-height: 94%; padding: 0 1;
        border: round $accent; background: $background;
    }
    Dialog .title { text-style: bold; color: $accent; height: auto; }
    Dialog .hint { color: $text-muted; height: auto; }
    Dialog Input { border: tall $accent 50%; }
    """

    def __init__(self, title: str, about: Sequence[str] = (), *, hint: str) -> None:
        super().__init__()
        self._title = title
        self._about = about
        self._hint = hint

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._title, classes="title", markup=False)
            for text in self._about:
                yield Static(text, markup=False)
            yield from self.content()
            yield Static(self._hint, classes="hint", markup=False)

    def content(self) -> ComposeResult:
        yield from ()

    def dismiss(self, result: R | None = None) -> AwaitComplete:
        """Answer, unless an answer was given."""
        return super().dismiss(result) if self.is_current else AwaitComplete()

    def on_key(self, event: events.Key) -> None:
        """Handle a key. Textual calls the `on_key` of every base class, so subclasses override `take_key` instead."""
        self.take_key(event)

    def take_key(self, event: events.Key) -> None:
        """Move in the table or the lines, close, or handle another key of the dialog."""
        event.stop()
        part = next(iter([*self.query(LiveTable), *self.query(Lines)]))
        if (count := step(event.key, part.page)) is not None:
            part.move(count)
        elif event.key in self.CLOSING_KEYS:
            self.dismiss()
        else:
            self.press(event.key)

    def press(self, key: str) -> None:
        """Handle a key that neither moves nor closes."""


def step(key: str, page: int) -> int | None:
    """Return by how many rows or lines a key moves in a dialog, or None."""
    by = {"j": 1, "down": 1, "k": -1, "up": -1, "g": -LAST, "home": -LAST, "G": LAST, "end": LAST}
    by |= {"pagedown": page, "ctrl+f": page, "space": page, "pageup": -page, "ctrl+b": -page}
    return by.get(key)


class Ask(Dialog[str | None]):
    """Ask for a line of text."""

    def __init__(
        self, title: str, about: Sequence[str] = (), *, initial: str = "", hint: str = "enter: confirm · esc: cancel"
    ) -> None:
        super().__init__(title, about, hint=hint)
        self._initial = initial

    def content(self) -> ComposeResult:
        yield Input(self._initial, id="answer")

    def problem_of(self, answer: str) -> str | None:
        """Return why an answer is not accepted, or None."""
        return None if answer.strip() else "type an answer, or cancel with esc"

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer, or show why the answer is not accepted."""
        event.stop()
        problem = self.problem_of(event.value)
        if problem is None:
            self.dismiss(event.value.strip())
        else:
            self.query_one(".hint", Static).update(problem)

    def take_key(self, event: events.Key) -> None:
        """Cancel with escape; the field gets all other keys."""
        if event.key == "escape":
            event.stop()
            self.dismiss()


class Confirm(Ask):
    """Ask for a word that confirms an action; the answer is the word, or None."""

    def __init__(self, title: str, about: Sequence[str] = (), *, word: str) -> None:
        super().__init__(title, [*about, "", f"Type {word} and press enter to confirm."], hint="esc: cancel")
        self._word = word

    def problem_of(self, answer: str) -> str | None:
        """Accept the word only."""
        return None if answer.strip() == self._word else f"that is not {self._word}: nothing was done. esc: cancel"


class Reader(Dialog[None]):
    """Show lines to read."""

    CLOSING_KEYS = ("escape", "q", "enter", "question_mark")
    DEFAULT_CSS = "Reader > Vertical { width: 90%; height: 90%; } Reader Lines { height: 1fr; }"

    def __init__(self, title: str, lines: Sequence[Line]) -> None:
        super().__init__(title, hint="j k g G: move · esc: close")
        self._lines = lines

    def content(self) -> ComposeResult:
        yield Lines(self._lines or [line("nothing")])


class Picker(Dialog[int | None]):
    """Choose a row of a table; the answer is its position."""

    CLOSING_KEYS = ("escape", "q", "exclamation_mark")
    DEFAULT_CSS = "Picker > Vertical { width: 90%; height: 85%; }"

    def __init__(
        self,
        title: str,
        columns: Sequence[Column],
        rows: Iterable[Sequence[str | tuple[str, str]]],
        *,
        empty: str,
        verb: str,
        preview: Callable[[int], Iterable[Line]] | None = None,
    ) -> None:
        super().__init__(title, hint=f"enter: {verb} · j k: move · esc: close")
        self._columns = columns
        self._rows = [Row(str(at), tuple(cells)) for at, cells in enumerate(rows)]
        self._empty = empty
        self._preview = preview

    def content(self) -> ComposeResult:
        yield LiveTable(self._columns, empty=self._empty)
        if self._preview is not None:
            preview = Lines(id="preview")
            preview.styles.height = _PREVIEW_LINES
            yield preview

    def on_mount(self) -> None:
        table = self.query_one(LiveTable)
        table.set_rows(self._rows)
        table.focus()

    def on_live_table_moved(self) -> None:
        key = self.query_one(LiveTable).key
        if self._preview is not None and key is not None:
            self.query_one("#preview", Lines).show(self._preview(int(key)))

    def on_live_table_chosen(self) -> None:
        self.press("enter")

    def press(self, key: str) -> None:
        chosen = self.query_one(LiveTable).key
        if key == "enter" and chosen is not None:
            self.dismiss(int(chosen))
