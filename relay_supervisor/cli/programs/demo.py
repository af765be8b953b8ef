"""``relay demo``: the dashboard on live traffic. It is a program of its own, which takes this one's place."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.groups import new_command

app = new_command()


@command(app, connect=False)
async def demo(session: Session) -> None:
    """Open the dashboard on live demo traffic: nothing needs to run, and nothing is left behind."""
    packages = str(Path(__file__).parents[3])
    paths = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")]))
    # -P: not what happens to lie in the working directory.
    program = [sys.executable, "-P", "-m", "relay_tui", "--demo"]
    os.execve(sys.executable, program, {**os.environ, "PYTHONPATH": paths})
