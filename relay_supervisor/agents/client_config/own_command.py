"""The command by which an agent program can start this installation of `relay`.

Agent programs start from a login shell or a desktop, not from a shell with an activated virtual environment. So the
command is `relay` if a login shell finds this installation by that name, and its full path otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_SHELL_SECS = 5.0
_KEPT = ("HOME", "USER", "LOGNAME", "SHELL", "LANG")


def own_command() -> list[str]:
    """Return the command as a list of words."""
    beside = Path(sys.executable).parent / "relay"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("relay")
    if found is None:
        return [sys.executable, "-m", "relay_supervisor.cli"]
    by_name = login_shell_finds("relay")
    return ["relay"] if by_name and os.path.realpath(by_name) == os.path.realpath(found) else [os.path.abspath(found)]


def login_shell_finds(name: str) -> str | None:
    """Return the path of a command in the user's login shell, or None."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    environment = {key: value for key, value in os.environ.items() if key in _KEPT}
    try:
        done = subprocess.run(
            [shell, "-lc", f"command -v {name}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SHELL_SECS,
            start_new_session=True,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    last = done.stdout.strip().rpartition("\n")[2]
    return last if done.returncode == 0 and os.path.isabs(last) else None
