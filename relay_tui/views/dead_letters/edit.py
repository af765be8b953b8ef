"""Editing a dead letter in the operator's own editor, and looking at the difference before anything is sent.

1. The text lies in a file that only its owner can read, and is removed when it was sent or is as it was; what was
   written and not sent is kept, and the dashboard says where.
2. While the editor has the terminal the dashboard writes nothing to it and reads nothing from it, and goes on
   following the bus.
3. Nothing is published before the difference was shown and confirmed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from textual import events
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.containers import Vertical
from textual.widgets import Static

from relay_tui.dialogs import Confirm, Dialog, step
from relay_tui.lines import Lines
from relay_tui.safe import clean
from relay_tui.views.dead_letters.text import Difference, diff_lines

Answer = Literal["send", "send fresh", "again"]


class Edited(NamedTuple):
    """What came back from the editor."""

    payload: Any = None
    problem: str | None = None
    """Why it is no payload."""


def editor_command() -> list[str]:
    """Return the operator's editor.

    Raises:
        OSError: if what they have set is no command.
    """
    name = next((name for name in ("VISUAL", "EDITOR") if os.environ.get(name)), "EDITOR")
    chosen = os.environ.get(name) or "vi"
    try:
        return shlex.split(chosen) or ["vi"]
    except ValueError as error:
        raise OSError(f"{name} is no command ({str(error).lower()}): {chosen}") from None


def write_private(text: str) -> Path:
    """Write a text to a new file that only its owner can read."""
    handle, name = tempfile.mkstemp(prefix="relay-dead-letter-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    return Path(name)


def read_edited(path: Path) -> Edited:
    """Return what is in the file now."""
    try:
        return Edited(json.loads(path.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        return Edited(problem=f"not JSON: {clean(error.msg)} (line {error.lineno}, column {error.colno})")
    except (OSError, ValueError, RecursionError) as error:
        return Edited(problem=f"it cannot be read: {clean(str(error))}")


async def run_editor(app: App[Any], path: Path) -> None:
    """Let the operator edit a file, with the terminal to the editor alone.

    Raises:
        OSError: if the editor cannot be started, or ends with an error.
    """
    command = [*editor_command(), str(path)]
    problem: str | None = None
    try:
        # Batched, or what the bus does meanwhile would be painted over the editor.
        with app.batch_update(), app.suspend():
            problem = await _run(command)
    except SuspendNotSupported:
        problem = await _run(command)  # there is no terminal to give away
    app.refresh(layout=True)
    app.screen.refresh(layout=True)
    if problem is not None:
        raise OSError(problem)


async def _run(command: Sequence[str]) -> str | None:
    """Run the editor, and return what went wrong: an error that passes the suspension would make it last."""
    # The editor's own ctrl+c goes to everybody on the terminal; a handler of ours is not inherited, as ignoring is.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        process = await asyncio.create_subprocess_exec(*command)
        code = await process.wait()
    except OSError as error:
        return f"the editor {command[0]} cannot be started ({error.strerror or error}): set EDITOR to another"
    finally:
        signal.signal(signal.SIGINT, before)
    return f"the editor {command[0]} ended with code {code}" if code else None


def is_untouched(path: Path, text: str) -> bool:
    """Tell whether nothing is in the file but what was written to it."""
    try:
        return path.read_text(encoding="utf-8").strip() == text.strip()
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def discard(path: Path) -> None:
    """Remove a file that is not needed any more."""
    with suppress(OSError):
        path.unlink()


class DifferenceScreen(Dialog[Answer | None]):
    """Show what an edit has changed; answers whether to send it, or to edit again."""

    DEFAULT_CSS = "DifferenceScreen > Vertical { width: 96%; height: 90%; } DifferenceScreen Lines { height: 1fr; }"

    def __init__(self, title: str, about: Sequence[str], found: Difference) -> None:
        super().__init__()
        self._title = title
        self._about = about
        self._found = found

    def compose(self) -> ComposeResult:
        """Lay out the difference."""
        with Vertical():
            yield Static(self._title, classes="title", markup=False)
            for text in self._about:
                yield Static(text, markup=False)
            yield Lines()
            yield Static(
                "enter: replay the edited copy · f: with a fresh budget · e: edit again · esc: leave it",
                classes="hint",
                markup=False,
            )

    def on_resize(self) -> None:
        """Break the lines anew."""
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        lines = self.query_one(Lines)
        lines.show(diff_lines(self._found, max(lines.size.width, 20)))

    def on_key(self, event: events.Key) -> None:
        """Move, or answer."""
        event.stop()
        if (count := step(event.key)) is not None:
            self.query_one(Lines).scroll_lines(count)
        elif event.key == "enter":
            self._confirm("send", "Replay the edited copy?")
        elif event.key == "f":
            self._confirm("send fresh", "Replay the edited copy with a fresh budget?")
        elif event.key == "e":
            self.dismiss("again")
        elif event.key in ("escape", "q"):
            self.dismiss(None)

    def _confirm(self, answer: Answer, title: str) -> None:
        def taken(yes: bool | None) -> None:
            if yes:
                self.dismiss(answer)

        self.app.push_screen(Confirm(title, self._about, word="replay"), taken)
