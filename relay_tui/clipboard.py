"""Copying: a text is sent to the terminal by OSC 52, and kept in a file: no terminal says whether it took it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from relay_tui.user_files import runtime_dir


def save_copy(text: str) -> Path:
    """Write a text to the operator's own file and return where it is.

    Raises:
        OSError: if it cannot be written.
    """
    directory = runtime_dir()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / "clipboard.txt"
    handle, name = tempfile.mkstemp(dir=directory)  # private from the start, and whole when it is in place
    with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    os.replace(name, path)
    return path
