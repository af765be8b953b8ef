"""Questions to the operator: each is a modal screen that answers with a value, or None if it was left with escape.

1. A question is answered by typing a word and enter, never by a key that means something on a screen: keys that were
   pressed for a screen and come to a dialog do nothing. What destroys has its count in the word.
2. A question shows what it is about, frozen at the moment it was asked.
3. It is answered once: what is pressed after the answer, and before the screen is gone, is for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from relay_tui.lines import Line, Lines, line

if TYPE_CHECKING:
    from relay_tui.app import Dashboard

R = TypeVar("R")

_FAR = 1 << 60


class Dialog(ModalScreen[R]):
    """A screen over the others, which answers once."""

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

    @property
    def dashboard(self) -> Dashboard:
        """The application."""
        return cast("Dashboard", self.app)

    def dismiss(self, result: R | None = None) -> AwaitComplete:
        """Answer, unless that has been done."""
        return super().dismiss(result) if self.is_current else AwaitComplete()


def step(key: str, page: int = 10) -> int | None:
    """Return by how many rows or lines a key moves in a dialog; None if it does not."""
    by = {"j": 1, "down": 1, "k": -1, "up": -1, "g": -_FAR, "home": -_FAR, "G": _FAR, "end": _FAR}
    by |= {"pagedown": page, "ctrl+f": page, "space": page, "pageup": -page, "ctrl+b": -page}
    return by.get(key)


class Ask(Dialog[str | None]):
    """Ask for a line of text."""

    def __init__(
        self, title: str, about: Sequence[str] = (), *, initial: str = "", hint: str = "enter: do it · esc: leave it"
    ) -> None:
        super().__init__()
        self._title = title
        self._about = about
        self._initial = initial
        self._hint = hint

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        with Vertical():
            yield Static(self._title, classes="title", markup=False)
            for text in self._about:
                yield Static(text, markup=False)
            yield Input(self._initial, id="answer")
            yield Static(self._hint, classes="hint", markup=False)

    def accepts(self, answer: str) -> str | None:
        """Return why an answer will not do, or None."""
        return None if answer.strip() else "say something, or leave with escape"

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer, if the answer will do."""
        event.stop()
        problem = self.accepts(event.value)
        if problem is None:
            self.dismiss(event.value.strip())
        else:
            self.query_one(".hint", Static).update(problem)

    def on_key(self, event: events.Key) -> None:
        """Leave with escape."""
        if event.key == "escape":
            event.stop()
            self.dismiss(None)


class Confirm(Dialog[bool]):
    """Have a word typed before something is done."""

    def __init__(self, title: str, about: Sequence[str] = (), *, word: str) -> None:
        super().__init__()
        self._title = title
        self._about = about
        self._word = word

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        with Vertical():
            yield Static(self._title, classes="title", markup=False)
            for text in self._about:
                yield Static(text, markup=False)
            yield Static("")
            yield Static(f"Type {self._word} and press enter to do it.", markup=False)
            yield Input(id="answer")
            yield Static("esc: leave everything as it is", classes="hint", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the word and nothing else."""
        event.stop()
        if event.value.strip() == self._word:
            self.dismiss(True)
        else:
            self.query_one(".hint", Static).update(f"that is not {self._word}: nothing was done. esc: leave it")

    def on_key(self, event: events.Key) -> None:
        """Leave with escape."""
        if event.key == "escape":
            event.stop()
            self.dismiss(False)


class Reader(Dialog[None]):
    """Show lines to read, and nothing to decide."""

    DEFAULT_CSS = "Reader > Vertical { width: 90%; height: 90%; } Reader Lines { height: 1fr; }"

    def __init__(self, title: str, lines: Sequence[Line]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Lay out the lines."""
        with Vertical():
            yield Static(self._title, classes="title", markup=False)
            yield Lines(self._lines or [line("nothing")])
            yield Static("j k g G: move · esc: close", classes="hint", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Move, or close."""
        event.stop()
        lines = self.query_one(Lines)
        if (count := step(event.key, max(lines.size.height - 1, 1))) is not None:
            lines.scroll_lines(count)
        elif event.key in ("escape", "q", "enter", "question_mark"):
            self.dismiss(None)
