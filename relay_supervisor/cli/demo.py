"""``relay demo``: the dashboard on live traffic, which this version does not have."""

from __future__ import annotations

from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import Failed
from relay_supervisor.cli.groups import new_command

app = new_command()


@command(app, connect=False)
async def demo(session: Session) -> None:
    """Open the dashboard on live demo traffic."""
    raise Failed("the dashboard is not part of this version: 'relay-supervisor run' and 'relay status' are")
