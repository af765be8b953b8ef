"""Where the operator's own files are: keys and templates, history, what was copied. None of them is the bus's."""

from __future__ import annotations

import os
from pathlib import Path


def config_dir() -> Path:
    """Return where the operator's settings are."""
    return _place("XDG_CONFIG_HOME", "~/.config")


def state_dir() -> Path:
    """Return where the dashboard keeps what it remembers."""
    return _place("XDG_STATE_HOME", "~/.local/state")


def runtime_dir() -> Path:
    """Return where files are that need not last."""
    return _place("XDG_RUNTIME_DIR", "~/.cache")


def expanded(path: str) -> Path:
    """Return a path with ``~`` resolved; as it is where nobody has such a home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _place(variable: str, otherwise: str) -> Path:
    return expanded(os.environ.get(variable) or otherwise) / "relay"
