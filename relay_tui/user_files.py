"""The operator's files: keys and templates, publish history, the last copied text. The bus does not use them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def config_dir() -> Path:
    """Return the directory of the operator's settings."""
    return _user_dir("XDG_CONFIG_HOME", "~/.config")


def state_dir() -> Path:
    """Return the directory of the dashboard's history."""
    return _user_dir("XDG_STATE_HOME", "~/.local/state")


def save_copy(text: str) -> Path:
    """Save a copied text to a file, since no terminal confirms OSC 52; return the path.

    Raises:
        OSError: if it cannot be written.
    """
    path = _user_dir("XDG_RUNTIME_DIR", "~/.cache") / "clipboard.txt"
    write_private(path, text)
    return path


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically; it is readable by its owner only.

    Raises:
        OSError: if it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def expanded(path: str) -> Path:
    """Return a path with ``~`` resolved, or unchanged if that home directory is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _user_dir(variable: str, default: str) -> Path:
    return expanded(os.environ.get(variable) or default) / "relay"
