"""``relay demo``: replace this process by the dashboard on demo traffic."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.groups import new_command

app = new_command()


@command(app, connect=False)
async def demo(session: Session) -> None:
    """Open the dashboard on live demo traffic; it needs no supervisor and leaves nothing behind."""
    packages = str(Path(__file__).parents[3])
    paths = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")]))
    # -P: never import modules from the working directory.
    program = [sys.executable, "-P", "-m", "relay_tui", "--demo"]
    os.execve(sys.executable, program, {**os.environ, "PYTHONPATH": paths})
