"""``relay agent``: add an agent to the bus and configure the program behind it.

1. Adding an agent again changes only its description and directory, and shows the configuration again.
2. No project file holds a secret: `relay mcp` and `relay hook` find the token in the data directory.
3. Files are changed only with --write (relay_supervisor/agents/client_config). A file that cannot be changed safely is
   reported, with the text to paste.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_core.text.units import ago, plural
from relay_supervisor.cli.command import Session, command
from relay_supervisor.cli.entry import Failed, UsageError
from relay_supervisor.cli.groups import new_group
from relay_supervisor.cli.output import Painted, paint, safe

if TYPE_CHECKING:
    from relay_core.messages.operator_views import AgentState
    from relay_supervisor.agents.client_config.catalog import File, Program
    from relay_supervisor.agents.client_config.merging import Outcome

app = new_group("Agents on the bus, and their configuration.")

PREFIX = "relay.agent."

Name = Annotated[str, typer.Argument(help="Name such as backend, or a subject.", metavar="NAME")]
Cwd = Annotated[
    Path | None, typer.Option("--cwd", help="Agent's project directory.", show_default="the current directory")
]


@command(app, "list", examples=["relay agent", "relay agent list --all --json"])
async def list_agents(
    session: Session,
    everything: Annotated[bool, typer.Option("--all", help="Include endpoints that are not agents.")] = False,
) -> None:
    """List the agents with their connections and unread messages."""
    from relay_core.clock import SystemClock

    known = await session.client.agents()
    shown = [agent for agent in known if everything or agent.added or agent.connected]
    now = SystemClock().now_ms()
    session.show_table(
        {"agents": [agent.to_wire() for agent in shown]},
        ["AGENT", "CONNECTED", "LAST SEEN", "UNREAD", "DESCRIPTION"],
        [_row(agent, now) for agent in shown],
        empty="no agents: add one with 'relay agent add NAME'",
    )
    if len(shown) < len(known):
        session.note(f"not shown: {plural(len(known) - len(shown), 'other endpoint')} (use --all)")


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
    description: Annotated[str | None, typer.Option(help="What other agents can ask it for.")] = None,
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            help="Program to configure: claude-code, codex, gemini, cursor, vscode or opencode. Repeatable.",
            metavar="AGENT",
            show_default="all",
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the configuration into the project's files.")] = False,
    print_token: Annotated[bool, typer.Option("--print-token", help="Print only the token.")] = False,
) -> None:
    """Create an agent's mailbox and token, and print or write its configuration."""
    from relay_supervisor.agents.client_config.merging import put_into

    subject, project = _subject(name), _project(cwd)
    programs = await asyncio.to_thread(_programs, session, subject, chosen, project if write else None)
    # With --print-token alone, the current directory need not be the agent's.
    directory = None if print_token and cwd is None and not write else str(project)
    added = await session.client.add_agent(subject, description=description, cwd=directory)
    files = [file for program in programs for file in program.files] if write else []
    outcomes = [await asyncio.to_thread(put_into, project, file) for file in files]
    document: dict[str, Any] = {"agent": added.agent.to_wire(), "tokenFile": added.token_file}
    if print_token:
        document["token"] = added.token
    document["configuration"] = [
        {"for": program.id, "file": file.name, "content": _snippet(file)}
        for program in programs
        for file in program.files
    ]
    if write:
        document["files"] = [
            {
                "file": outcome.file,
                "state": outcome.state,
                "reason": outcome.reason,
                "replaced": list(outcome.replaced),
            }
            for outcome in outcomes
        ]

    def lines() -> Iterator[str]:
        if print_token:
            yield added.token
        elif write:
            yield from _written(programs, outcomes)
        else:
            yield from _to_paste(programs, project)

    session.show(document, lines)
    session.note(f"added {subject}; its token is in {added.token_file}")
    if not print_token and not write:
        session.note("write this into the project's files with --write; select programs with --for")
    if any(outcome.state == "by hand" for outcome in outcomes):
        raise Failed("some files could not be changed: paste the text shown for them")


@command(app, "rm", examples=["relay agent rm backend --write"])
async def remove_agent(
    session: Session,
    name: Name,
    cwd: Cwd = None,
    write: Annotated[bool, typer.Option("--write", help="Also remove it from the project's files.")] = False,
) -> None:
    """Remove an agent's token and endpoint; its messages stay."""
    from relay_core.errors import NotFound
    from relay_supervisor.agents.client_config.catalog import programs
    from relay_supervisor.agents.client_config.merging import take_out_of

    subject = _subject(name)
    known = next((agent for agent in await session.client.agents() if agent.subject == subject), None)
    project = _project(cwd, known.cwd if known else None)
    files = [file for program in programs(["relay"], subject) for file in program.files]
    added = True
    try:
        await session.client.remove_agent(subject)
    except NotFound:
        added = False
    found = [await asyncio.to_thread(take_out_of, project, file, subject, write=write) for file in files]
    found = [outcome for outcome in found if outcome.state != "same"]
    if not added and not found:
        raise Failed(f"no agent {subject}: see 'relay agent list'")

    def lines() -> Iterator[str]:
        yield f"{subject}: token revoked, messages kept" if added else f"{subject} is already removed"
        for outcome in found:
            if write or outcome.state == "by hand":
                yield safe(outcome.text)
            else:
                yield safe(f"{outcome.file}: has {', '.join(outcome.places)}")

    states = [
        {"file": outcome.file, "state": outcome.state if write else "has", "reason": outcome.reason}
        for outcome in found
    ]
    session.show({"removed": subject, "files": states}, lines)
    if found and not write:
        session.note(f"remove it from the files with: relay agent rm {name} --cwd {shlex.quote(str(project))} --write")
    if write and any(outcome.state == "by hand" for outcome in found):
        raise Failed(f"some files could not be changed: remove {subject} from those files in {project} by hand")


def _row(agent: AgentState, now: int) -> list[Any]:
    sessions = "yes" if agent.connected == 1 else f"{agent.connected} sessions"
    connected = Painted(sessions, "green") if agent.connected else "no"
    unread = Painted(str(agent.unread), "yellow") if agent.unread else 0
    seen = ago(agent.last_seen, now) if agent.last_seen is not None else "never"
    return [agent.subject, connected, seen, unread, agent.description]


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
        raise UsageError(f"--cwd: {project} is not a directory")
    return project


def _programs(session: Session, subject: str, chosen: Sequence[str] | None, project: Path | None) -> list[Program]:
    """Return the programs to configure: those chosen, or those that the project has files of, or all; blocks."""
    from relay_supervisor.agents.client_config.catalog import PROGRAMS, programs
    from relay_supervisor.agents.client_config.own_command import own_command

    for id in chosen or ():
        if id not in PROGRAMS:
            raise UsageError(f"--for: unknown program {id!r}; choose from {', '.join(PROGRAMS)}")
    options = [
        word
        for option, path in (("--data-dir", session.data_dir), ("--socket", session.socket))
        if path is not None
        for word in (option, str(path.expanduser().absolute()))
    ]
    every = programs(own_command(), subject, options)
    if chosen:
        return [program for program in every if program.id in chosen]
    if project is None:
        return every
    used = [
        program for program in every if any((project / file.name.partition("/")[0]).exists() for file in program.files)
    ]
    if not used:
        raise UsageError(f"{project} has no configuration files yet: choose a program, such as --for claude-code")
    return used


def _snippet(file: File) -> str:
    from relay_supervisor.agents.client_config.editing import put

    return put(file, "").text


def _to_paste(programs: Sequence[Program], project: Path) -> Iterator[str]:
    for program in programs:
        for file in program.files:
            yield paint(f"# {program.title}: {safe(project / file.name)}", "bold")
            yield _snippet(file)
        if program.note:
            yield paint(f"# {safe(program.note)}", "dim")
            yield ""


def _written(programs: Sequence[Program], outcomes: Sequence[Outcome]) -> Iterator[str]:
    remaining = iter(outcomes)
    for program in programs:
        yield paint(program.title, "bold")
        for file in program.files:
            outcome = next(remaining)
            yield f"  {safe(outcome.text)}"
            if outcome.state == "by hand":
                yield _snippet(file)
        if program.note:
            yield paint(f"  {safe(program.note)}", "dim")
