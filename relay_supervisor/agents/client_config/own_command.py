"""By which command an agent can start this very `relay`.

An agent is started from a login shell or by a desktop, not from the shell in which somebody has activated a virtual
environment. So it is `relay` if a login shell finds this one by that name, and else the whole path.
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
    """Return the words of the command."""
    beside = Path(sys.executable).parent / "relay"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("relay")
    if found is None:
        return [sys.executable, "-m", "relay_supervisor.cli"]
    by_name = login_shell_finds("relay")
    return ["relay"] if by_name and os.path.realpath(by_name) == os.path.realpath(found) else [os.path.abspath(found)]


def login_shell_finds(name: str) -> str | None:
    """Return what a command is for a login shell of this user; None if it is nothing, or the shell does not say."""
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
