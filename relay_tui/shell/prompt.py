"""The line at the bottom in which commands (`:`) and filters (`/`) are typed.

While it is open it replaces the footer. Enter passes the text to the `done` callback, escape passes None; `typed` is
called with the text after each key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static


class Prompt(Horizontal):
    """One line of input after a sign."""

    DEFAULT_CSS = """
    Prompt { height: 1; dock: bottom; background: $panel; }
    Prompt Static { width: auto; color: $accent; text-style: bold; }
    Prompt Input { border: none; height: 1; padding: 0; width: 1fr; background: $panel; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self._done: Callable[[str | None], None] = lambda text: None
        self._typed: Callable[[str], None] | None = None
        self._history: dict[str, list[str]] = {}
        self._back = 0

    def compose(self) -> ComposeResult:
        yield Static("", id="sign", markup=False)
        yield Input(id="typed", compact=True)

    @property
    def is_open(self) -> bool:
        """Whether the prompt is open."""
        return bool(self.display)

    def open(
        self,
        sign: str,
        done: Callable[[str | None], None],
        *,
        initial: str = "",
        suggestions: Sequence[str] = (),
        typed: Callable[[str], None] | None = None,
    ) -> None:
        """Open the prompt."""
        self._done, self._typed, self._back = done, typed, 0
        self.query_one("#sign", Static).update(sign)
        field = self.query_one(Input)
        field.suggester = SuggestFromList(suggestions, case_sensitive=False) if suggestions else None
        with self.prevent(Input.Changed):
            field.value = initial
        field.cursor_position = len(initial)
        self._set_open(True)
        self.screen.set_focus(field)  # immediately: the next key may already be in the queue

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._typed is not None:
            self._typed(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        known = self._history.setdefault(self._sign, [])
        if event.value and event.value not in known[-1:]:
            known.append(event.value)
        self._close(event.value)

    def on_key(self, event: events.Key) -> None:
        """Cancel with escape; recall earlier texts with up and down."""
        if event.key == "escape":
            event.stop()
            self._close(None)
        elif event.key in ("up", "down"):
            event.stop()
            known = self._history.get(self._sign, [])
            self._back = max(0, min(self._back + (1 if event.key == "up" else -1), len(known)))
            self.query_one(Input).value = known[-self._back] if self._back else ""

    @property
    def _sign(self) -> str:
        return str(self.query_one("#sign", Static).content)

    def take_focus(self) -> None:
        """Focus the field again, in case a click moved the focus."""
        self.screen.set_focus(self.query_one(Input))

    def close(self) -> None:
        """Close the prompt."""
        if self.is_open:
            self._close(None)

    def _close(self, text: str | None) -> None:
        self._set_open(False)
        self._done(text)

    def _set_open(self, is_open: bool) -> None:
        self.display = is_open
        self.screen.query_one("#hints").display = not is_open
