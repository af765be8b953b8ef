from __future__ import annotations

from pathlib import Path

import pytest

from relay_supervisor.adapters.claude_code import launcher
from tests.supervisor.adapters.claude_code.bench import Bench

_HASTY = f"""\
import sys
sys.path[:0] = [{str(Path(launcher.__file__).parent)!r}]
import launcher
del sys.path[0]
launcher.EOF_GRACE = launcher.TERM_GRACE = 0.2
sys.exit(launcher.main())
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def hasty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the launcher wait less for what will not end by itself anyway; return it as a program."""
    path = tmp_path / "hasty_launcher.py"
    path.write_text(_HASTY)
    monkeypatch.setattr(launcher, "__file__", str(path))
    return path
