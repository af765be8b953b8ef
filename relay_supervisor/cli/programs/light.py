"""Help for ``relay hook`` and ``relay mcp``, which usually run without this module (`LIGHT` in the package)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from relay_supervisor.cli.groups import new_command

hook_app = new_command()
mcp_app = new_command()

Subject = Annotated[str, typer.Option("--as", help="Subject of the agent.", metavar="SUBJECT")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Data directory.")]
Socket = Annotated[Path | None, typer.Option("--socket", help="Supervisor's socket.")]
Token = Annotated[str | None, typer.Option("--token", help="Agent's token, instead of its token file.")]


@hook_app.command(
    epilog="""\b
Examples:
  relay hook --as relay.agent.backend < event.json
  relay hook session-start --as relay.agent.backend
"""
)
def hook(
    subject: Subject,
    event: Annotated[
        Literal["session-start", "prompt", "stop"] | None,
        typer.Argument(help="Event, if the agent does not name it on stdin.", metavar="EVENT"),
    ] = None,
    data_dir: DataDir = None,
    socket: Socket = None,
    token: Token = None,
) -> None:
    """Show an agent its unread mail, each message once per session.

    The agent's hooks run it: 'relay agent add' writes it into the agent's configuration. It reads the agent's event
    from stdin and answers in the agent's format. It does not claim or acknowledge messages. It always exits with 0 and
    reports errors on stderr, so that it never breaks a prompt.
    """
    from relay_supervisor.agents.hooks.command import main

    words = [event] if event else []
    raise typer.Exit(main([*words, *_options(subject, data_dir, socket, token)]))


@mcp_app.command(
    epilog="""\b
Examples:
  relay mcp --as relay.agent.backend
"""
)
def mcp(subject: Subject, data_dir: DataDir = None, socket: Socket = None, token: Token = None) -> None:
    """Serve an MCP client: six tools to send, ask, read and acknowledge messages.

    The agent starts it: 'relay agent add' writes it into the agent's configuration. It speaks MCP on stdin and stdout,
    and survives a restart of the supervisor.
    """
    from relay_supervisor.agents.mcp.command import main

    raise typer.Exit(main(_options(subject, data_dir, socket, token)))


def _options(subject: str, data_dir: Path | None, socket: Path | None, token: str | None) -> list[str]:
    given = {"--as": subject, "--data-dir": data_dir, "--socket": socket, "--token": token}
    return [f"{name}={value}" for name, value in given.items() if value is not None]
