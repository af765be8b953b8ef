"""``relay hook``, explained: what runs is relay_supervisor/agents/hooks/command.py, without any of this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from relay_supervisor.cli.groups import new_command

app = new_command()


@app.command(
    epilog="""\b
Examples:
  relay hook --as relay.agent.backend < event.json
  relay hook session-start --as relay.agent.backend
"""
)
def hook(
    subject: Annotated[str, typer.Option("--as", help="Whose mail.", metavar="SUBJECT")],
    event: Annotated[
        Literal["session-start", "prompt", "stop"] | None,
        typer.Argument(help="What happens, if the agent does not say so itself on stdin."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="The data directory.")] = None,
    socket: Annotated[Path | None, typer.Option("--socket", help="The supervisor's socket.")] = None,
    token: Annotated[str | None, typer.Option("--token", help="The agent's token, instead of its file.")] = None,
) -> None:
    """Show an agent its unread mail, each message once in a session: for the agent's hooks.

    'relay agent add' writes it into the agent's configuration. It reads the agent's JSON on stdin and answers in the
    shape that the agent expects. Nothing is claimed or acknowledged. Whatever goes wrong, it exits with 0 and says so
    on stderr alone: a hook must not break a prompt.
    """
    from relay_supervisor.agents.hooks.command import main

    given = {"--as": subject, "--data-dir": data_dir, "--socket": socket, "--token": token}
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    raise typer.Exit(main([*options, *([event] if event else [])]))
