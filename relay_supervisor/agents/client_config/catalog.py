"""The common agents: which files configure them, and what must stand there for Relay.

1. Every agent gets the MCP server `relay`; those with hooks that are commands get `relay hook` at a session's start, at
   each prompt and at each stop. All of it lies in the project, and nothing of it is secret: the token stays in the data
   directory.
2. Claude Code's hooks go into `.claude/settings.local.json`, not `settings.json`: the name of an agent on this
   machine's bus, and the path of a command, are no business of whoever else clones the project.
3. What is ours is known by its command line: it runs `relay mcp` or `relay hook` for a subject. Anything else under the
   name `relay` is somebody else's and stays.

The formats are those of the agents' documentation as of November 2026; docs/agents.md says where each was read.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

NAME = "relay"
_HOOK_SECS = 10


class Server(NamedTuple):
    """An MCP server's entry: where it stands, and what it says."""

    path: tuple[str, ...]
    value: dict[str, Any]


class Hook(NamedTuple):
    """A hook's entry: the list it stands in, and what it says."""

    path: tuple[str, ...]
    value: dict[str, Any]


class File(NamedTuple):
    """A file of an agent, and what goes into it."""

    name: str
    entries: list[Server | Hook]
    frame: dict[str, Any]
    """What the file needs beside them, and what means nothing without them."""


class Agent(NamedTuple):
    """An agent that can be set up."""

    id: str
    title: str
    files: list[File]
    note: str


def agents(relay: Sequence[str], subject: str, places: Sequence[str] = ()) -> list[Agent]:
    """Return all of them, set up for a subject: `relay` is the command, `places` the options that it needs."""
    mcp = [*relay, "mcp", "--as", subject, *places]
    hook = shlex.join([*relay, "hook", "--as", subject, *places])
    return [make(mcp, hook) for make in _AGENTS.values()]


def agent_ids() -> list[str]:
    """Return what the agents are called."""
    return list(_AGENTS)


def subject_of(entry: Any) -> str | None:
    """Return whose server or hook an entry is; None if it is none of ours."""
    if not isinstance(entry, dict):
        return None
    command, args = entry.get("command"), entry.get("args", [])
    if isinstance(command, str) and isinstance(args, list):
        words = [command, *args] if args else _split(command)
    else:
        words = command if isinstance(command, list) else []
    if not all(isinstance(one, str) for one in words) or "--as" not in words[:-1]:
        return None
    verb = words[words.index("--as") - 1]
    runs = words[0].replace("\\", "/").rpartition("/")[2]
    if verb not in ("mcp", "hook") or (runs != "relay" and "relay_supervisor.cli" not in words):
        return None
    return str(words[words.index("--as") + 1])


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _plain(argv: Sequence[str]) -> dict[str, Any]:
    return {"command": argv[0], "args": list(argv[1:])}


def _grouped(command: str, events: Sequence[str], timeout: int, **more: Any) -> list[Server | Hook]:
    handler = {**more, "type": "command", "command": command, "timeout": timeout}
    return [Hook(("hooks", event), {"hooks": [handler]}) for event in events]


def _claude_code(mcp: Sequence[str], hook: str) -> Agent:
    events = ("SessionStart", "UserPromptSubmit", "Stop")
    return Agent(
        "claude-code",
        "Claude Code",
        [
            File(".mcp.json", [Server(("mcpServers", NAME), _plain(mcp))], {}),
            File(".claude/settings.local.json", _grouped(hook, events, _HOOK_SECS), {}),
        ],
        f".mcp.json is usually shared; to keep it out of the project: claude mcp add {NAME} -- {shlex.join(mcp)}",
    )


def _codex(mcp: Sequence[str], hook: str) -> Agent:
    events = ("SessionStart", "UserPromptSubmit", "Stop")
    # Codex hands few variables on to a server, and without these it would look for the socket elsewhere.
    passed_on = {"env_vars": ["XDG_RUNTIME_DIR", "RELAY_DATA_DIR", "RELAY_SOCKET"]}
    return Agent(
        "codex",
        "Codex CLI",
        [
            File(".codex/config.toml", [Server(("mcp_servers", NAME), _plain(mcp) | passed_on)], {}),
            File(".codex/hooks.json", _grouped(hook, events, _HOOK_SECS), {}),
        ],
        "Codex reads .codex only in a project that it trusts, and asks you to review the hooks (/hooks)",
    )


def _gemini(mcp: Sequence[str], hook: str) -> Agent:
    events = ("SessionStart", "BeforeAgent", "AfterAgent")
    entries = [Server(("mcpServers", NAME), _plain(mcp)), *_grouped(hook, events, _HOOK_SECS * 1000, name=NAME)]
    return Agent("gemini", "Gemini CLI", [File(".gemini/settings.json", entries, {})], "")


def _cursor(mcp: Sequence[str], hook: str) -> Agent:
    events = ("sessionStart", "beforeSubmitPrompt", "stop")
    hooks: list[Server | Hook] = [Hook(("hooks", event), {"command": hook}) for event in events]
    return Agent(
        "cursor",
        "Cursor",
        [
            File(".cursor/mcp.json", [Server(("mcpServers", NAME), _plain(mcp))], {}),
            File(".cursor/hooks.json", hooks, {"version": 1}),
        ],
        "Cursor shows mail at a session's start and at a stop: at a prompt it takes no text from a hook",
    )


def _vscode(mcp: Sequence[str], hook: str) -> Agent:
    server = {"type": "stdio", **_plain(mcp)}
    return Agent(
        "vscode",
        "VS Code (Copilot)",
        [File(".vscode/mcp.json", [Server(("servers", NAME), server)], {})],
        "its hooks are a preview, and it also reads those in .claude/settings.local.json (--for claude-code)",
    )


def _opencode(mcp: Sequence[str], hook: str) -> Agent:
    server = {"type": "local", "command": list(mcp)}
    schema = {"$schema": "https://opencode.ai/config.json"}
    return Agent(
        "opencode",
        "opencode",
        [File("opencode.json", [Server(("mcp", NAME), server)], schema)],
        "it has no hooks that are commands: it learns of mail by relay_inbox",
    )


_AGENTS: dict[str, Callable[[Sequence[str], str], Agent]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "gemini": _gemini,
    "cursor": _cursor,
    "vscode": _vscode,
    "opencode": _opencode,
}
