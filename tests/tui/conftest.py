"""The operator's own files stay out of every test: keys and templates, history, what was copied, and wishes."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a test's own files are: ``config``, ``state`` and ``run``, each with a directory ``relay``."""
    places = tmp_path / "own"
    for name, place in {"XDG_CONFIG_HOME": "config", "XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run"}.items():
        monkeypatch.setenv(name, str(places / place))
    for name in ("RELAY_KEYS", "RELAY_THEME", "NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    return places
