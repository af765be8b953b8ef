"""``relay mcp``, explained: what runs is relay_supervisor/agents/mcp/command.py, without any of this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relay_supervisor.cli.groups import new_command

app = new_command()


@app.command(
    epilog="""\b
Examples:
  relay mcp --as relay.agent.backend
"""
)
def mcp(
    subject: Annotated[str, typer.Option("--as", help="The agent that the tools act for.", metavar="SUBJECT")],
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="The data directory.")] = None,
    socket: Annotated[Path | None, typer.Option("--socket", help="The supervisor's socket.")] = None,
    token: Annotated[str | None, typer.Option("--token", help="The agent's token, instead of its file.")] = None,
) -> None:
    """Serve an agent that speaks MCP: six tools to send, ask, read and acknowledge messages.

    'relay agent add' writes it into the agent's configuration, and the agent starts it. It speaks MCP on stdin and
    stdout, and goes on when the supervisor is restarted.
    """
    from relay_supervisor.agents.mcp.command import main

    given = {"--as": subject, "--data-dir": data_dir, "--socket": socket, "--token": token}
    raise typer.Exit(main([f"{name}={value}" for name, value in given.items() if value is not None]))
