"""``relay agent``: give an agent its place on the bus, and the agent's own files what it needs for it.

1. Adding again changes nothing but the description and the directory, and shows the configuration once more.
2. No file of a project holds a secret: `relay mcp` and `relay hook` find the token in the data directory.
3. Files are changed only with --write, one place each (relay_supervisor/agent_files). What cannot be changed safely is
   said, with what to paste.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_core.text.units import ago
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import Failed, UsageError
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.output import Painted, paint, safe, table

if TYPE_CHECKING:
    from relay_core.messages.operator_views import AgentState
    from relay_supervisor.agents.client_config.catalog import Agent, File
    from relay_supervisor.agents.client_config.merging import Outcome

app = new_group("Agents: who is there, and what their configuration must say.")

PREFIX = "relay.agent."

Name = Annotated[str, typer.Argument(help="Such as backend, or a whole subject.", metavar="NAME")]
Cwd = Annotated[Path | None, typer.Option("--cwd", help="The agent's project.", show_default="the current directory")]


@command(app, "list", examples=["relay agent", "relay agent list --all --json"])
async def list_agents(
    session: Session,
    everything: Annotated[bool, typer.Option("--all", help="Also the other endpoints.")] = False,
) -> None:
    """List the agents: who is connected, when each was last seen, and what waits for it."""
    from relay_core.clock import SystemClock

    known = await session.client.agents()
    shown = [one for one in known if everything or one.added or one.connected]
    now = SystemClock().now_ms()
    session.show(
        {"agents": [one.to_wire() for one in shown]},
        lambda: table(
            ["AGENT", "CONNECTED", "LAST SEEN", "UNREAD", "DESCRIPTION"],
            [_row(one, now) for one in shown],
            empty="no agents: 'relay agent add NAME' adds one and says how to set it up",
        ),
    )
    if len(shown) < len(known):
        others = len(known) - len(shown)
        session.note(f"and {others} endpoint{'s that are no agents' if others > 1 else ' that is no agent'} (--all)")


@command(
    app,
    "add",
    examples=[
        "relay agent add backend --for claude-code --write --description 'knows the API and its database'",
        "relay agent add frontend --cwd ~/shop/web --for codex",
        "export RELAY_TOKEN=$(relay agent add nightly --print-token)",
    ],
)
async def add_agent(
    session: Session,
    name: Name,
    cwd: Cwd = None,
    description: Annotated[str | None, typer.Option(help="What it can be asked for: the others read it.")] = None,
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            help="Which agent it is: claude-code, codex, gemini, cursor, vscode or opencode. Can be given repeatedly.",
            metavar="AGENT",
            show_default="all",
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Merge the configuration into the project's files.")] = False,
    print_token: Annotated[bool, typer.Option("--print-token", help="Print the token, and nothing else.")] = False,
) -> None:
    """Give an agent a mailbox and a token, and print its configuration or write it."""
    from relay_supervisor.agents.client_config.merging import put_into

    subject, project = _subject(name), _project(cwd)
    wanted = await asyncio.to_thread(_wanted, session, subject, chosen, project if write else None)
    lives = None if print_token and cwd is None and not write else str(project)  # a token is asked for from anywhere
    made = await session.client.add_agent(subject, description=description, cwd=lives)
    files = [file for agent in wanted for file in agent.files] if write else []
    outcomes = [await asyncio.to_thread(put_into, project, file) for file in files]
    document: dict[str, Any] = {"agent": made.agent.to_wire(), "tokenFile": made.token_file}
    if print_token:
        document["token"] = made.token
    document["configuration"] = [
        {"for": agent.id, "file": file.name, "content": _snippet(file)} for agent in wanted for file in agent.files
    ]
    if write:
        document["files"] = [
            {"file": one.file, "state": one.state, "reason": one.reason, "replaced": list(one.replaced)}
            for one in outcomes
        ]

    def lines() -> Iterator[str]:
        if print_token:
            yield made.token
        elif write:
            yield from _written(wanted, outcomes)
        else:
            yield from _to_paste(wanted, project)

    session.show(document, lines)
    session.note(f"{subject} is added; its token lies in {made.token_file}")
    if not print_token and not write:
        session.note("--write merges all this into the files of the project; --for chooses")
    if any(one.state == "by hand" for one in outcomes):
        raise Failed("not every file could be changed: paste what is shown for those")


@command(app, "rm", examples=["relay agent rm backend --write"])
async def remove_agent(
    session: Session,
    name: Name,
    cwd: Cwd = None,
    write: Annotated[bool, typer.Option("--write", help="Take it out of the project's files, too.")] = False,
) -> None:
    """Take an agent's token and endpoint away; its mail stays."""
    from relay_core.errors import NotFound
    from relay_supervisor.agents.client_config.catalog import agents
    from relay_supervisor.agents.client_config.merging import take_out_of

    subject = _subject(name)
    known = next((one for one in await session.client.agents() if one.subject == subject), None)
    project = _project(cwd, known.cwd if known else None)
    files = [file for agent in agents(["relay"], subject) for file in agent.files]
    added = True
    try:
        await session.client.remove_agent(subject)
    except NotFound:
        added = False
    found = [await asyncio.to_thread(take_out_of, project, file, subject, write=write) for file in files]
    found = [one for one in found if one.state != "same"]
    if not added and not found:
        raise Failed(f"there is no agent {subject}: 'relay agent list' shows those there are")

    def lines() -> Iterator[str]:
        yield f"{subject}: its token is worthless, its mail stays" if added else f"{subject} was removed before"
        for one in found:
            yield safe(one.text if write or one.state == "by hand" else f"{one.file}: has {', '.join(one.places)}")

    states = [{"file": one.file, "state": one.state if write else "has", "reason": one.reason} for one in found]
    session.show({"removed": subject, "files": states}, lines)
    if found and not write:
        session.note(f"to take that out of the files: relay agent rm {name} --cwd {shlex.quote(str(project))} --write")
    if write and any(one.state == "by hand" for one in found):
        raise Failed(f"not every file could be changed: take out by hand what those in {project} say of {subject}")


def _row(one: AgentState, now: int) -> list[Any]:
    connected = (
        Painted("yes" if one.connected == 1 else f"{one.connected} sessions", "green") if one.connected else "no"
    )
    unread = Painted(str(one.unread), "yellow") if one.unread else 0
    seen = ago(one.last_seen, now) if one.last_seen is not None else "never"
    return [one.subject, connected, seen, unread, one.description]


def _subject(name: str) -> str:
    from relay_core.messages.subjects import validate_subject

    subject = name if name.startswith("relay.") else PREFIX + name
    validate_subject(subject)
    return subject


def _project(cwd: Path | None, known: str | None = None) -> Path:
    if cwd is None and known is not None and Path(known).is_dir():
        return Path(known)
    project = (cwd or Path.cwd()).expanduser().absolute()
    if not project.is_dir():
        raise UsageError(f"--cwd: {project} is no directory")
    return project


def _wanted(session: Session, subject: str, chosen: Sequence[str] | None, project: Path | None) -> list[Agent]:
    """Return the agents to be set up: those chosen, else those that the project has traces of, else all; blocks."""
    from relay_supervisor.agents.client_config.catalog import agent_ids, agents
    from relay_supervisor.agents.client_config.own_command import own_command

    known = agent_ids()
    for one in chosen or ():
        if one not in known:
            raise UsageError(f"--for: {one!r} is not known; choose from {', '.join(known)}")
    places = [
        word
        for option, path in (("--data-dir", session.data_dir), ("--socket", session.socket))
        if path is not None
        for word in (option, str(path.expanduser().absolute()))
    ]
    every = agents(own_command(), subject, places)
    if chosen:
        return [one for one in every if one.id in chosen]
    if project is None:
        return every
    traces = [one for one in every if any((project / file.name.partition("/")[0]).exists() for file in one.files)]
    if not traces:
        raise UsageError(f"{project} has no agent's files yet: say for which, such as --for {known[0]}")
    return traces


def _snippet(file: File) -> str:
    from relay_supervisor.agents.client_config.editing import put

    return put(file, "").text


def _to_paste(wanted: Sequence[Agent], project: Path) -> Iterator[str]:
    for agent in wanted:
        for file in agent.files:
            yield paint(f"# {agent.title}: {safe(project / file.name)}", "bold")
            yield _snippet(file)
        if agent.note:
            yield paint(f"# {safe(agent.note)}", "dim")
            yield ""


def _written(wanted: Sequence[Agent], outcomes: Sequence[Outcome]) -> Iterator[str]:
    after = iter(outcomes)
    for agent in wanted:
        yield paint(agent.title, "bold")
        for file in agent.files:
            outcome = next(after)
            yield f"  {safe(outcome.text)}"
            if outcome.state == "by hand":
                yield _snippet(file)
        if agent.note:
            yield paint(f"  {safe(agent.note)}", "dim")
