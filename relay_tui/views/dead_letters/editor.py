"""Run the operator's editor on a private file.

1. The file is readable by its owner only.
2. While the editor runs, the dashboard neither writes to the terminal nor reads from it, and keeps following the bus.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from textual.app import App, SuspendNotSupported

from relay_core.text.sanitize import clean


class Edited(NamedTuple):
    """The payload that the editor has left in the file, or what is wrong with it."""

    payload: Any = None
    problem: str | None = None


def editor_command() -> list[str]:
    """Return the operator's editor.

    Raises:
        OSError: if VISUAL or EDITOR is not a command line.
    """
    name = next((name for name in ("VISUAL", "EDITOR") if os.environ.get(name)), "EDITOR")
    chosen = os.environ.get(name) or "vi"
    try:
        return shlex.split(chosen) or ["vi"]
    except ValueError as error:
        raise OSError(f"{name} is not a command ({str(error).lower()}): {chosen}") from None


def write_private(text: str) -> Path:
    """Write a text to a new file that only its owner can read."""
    handle, name = tempfile.mkstemp(prefix="relay-dead-letter-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    return Path(name)


def read_edited(path: Path) -> Edited:
    """Return the content of the file."""
    try:
        return Edited(json.loads(path.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        return Edited(problem=f"not JSON: {clean(error.msg)} (line {error.lineno}, column {error.colno})")
    except (OSError, ValueError, RecursionError) as error:
        return Edited(problem=f"cannot be read: {clean(str(error))}")


async def run_editor(app: App[Any], path: Path) -> None:
    """Run the editor with exclusive use of the terminal.

    Raises:
        OSError: if the editor cannot be started, or exits with an error.
    """
    command = [*editor_command(), str(path)]
    problem: str | None = None
    try:
        # Batched: updates of the bus must not be painted over the editor.
        with app.batch_update(), app.suspend():
            problem = await _run(command)
    except SuspendNotSupported:
        problem = await _run(command)  # there is no terminal to hand to the editor
    app.refresh(layout=True)
    app.screen.refresh(layout=True)
    if problem is not None:
        raise OSError(problem)


async def _run(command: Sequence[str]) -> str | None:
    """Run the editor and return its error: an exception raised in `suspend` would leave the app suspended."""
    # Ctrl+c in the editor reaches every process of the terminal; unlike SIG_IGN, a handler is not inherited.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        process = await asyncio.create_subprocess_exec(*command)
        code = await process.wait()
    except OSError as error:
        return f"the editor {command[0]} cannot be started ({error.strerror or error}): set EDITOR to another"
    finally:
        signal.signal(signal.SIGINT, before)
    return f"the editor {command[0]} exited with code {code}" if code else None


def is_unchanged(path: Path, text: str) -> bool:
    """Return True if the file holds the text that was written to it, or is gone."""
    try:
        return path.read_text(encoding="utf-8").strip() == text.strip()
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
