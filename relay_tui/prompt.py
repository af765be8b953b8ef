"""The line at the bottom in which commands (`:`) and filters (`/`) are typed.

It takes the footer's place while it is open. Enter gives the text to whoever asked, escape gives nothing; what is
typed on the way can be followed key by key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static


class Prompt(Horizontal):
    """One line of input with a sign before it."""

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
        """Lay out sign and input."""
        yield Static("", id="sign", markup=False)
        yield Input(id="typed", compact=True)

    @property
    def is_open(self) -> bool:
        """Whether something is being typed."""
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
        """Let something be typed."""
        self._done, self._typed, self._back = done, typed, 0
        self.query_one("#sign", Static).update(sign)
        field = self.query_one(Input)
        field.suggester = SuggestFromList(suggestions, case_sensitive=False) if suggestions else None
        with self.prevent(Input.Changed):
            field.value = initial
        field.cursor_position = len(initial)
        self._take_place(True)
        self.screen.set_focus(field)  # now, not when the queue is empty: the next key may be in it already

    def on_input_changed(self, event: Input.Changed) -> None:
        """Tell what has been typed so far."""
        event.stop()
        if self._typed is not None:
            self._typed(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Give what was typed."""
        event.stop()
        known = self._history.setdefault(self._sign, [])
        if event.value and event.value not in known[-1:]:
            known.append(event.value)
        self._close(event.value)

    def on_key(self, event: events.Key) -> None:
        """Leave with escape; bring back what was typed before with up and down."""
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

    def give_keys(self) -> None:
        """Take the keys back, should a click have given them to something else."""
        self.screen.set_focus(self.query_one(Input))

    def close(self) -> None:
        """Let nothing more be typed."""
        if self.is_open:
            self._close(None)

    def _close(self, text: str | None) -> None:
        self._take_place(False)
        self._done(text)

    def _take_place(self, is_open: bool) -> None:
        self.display = is_open
        self.screen.query_one("#hints").display = not is_open
