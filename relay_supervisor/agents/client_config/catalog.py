"""The common agent programs: their configuration files, and the entries that Relay needs there.

1. Every program gets the MCP server `relay`; those that run commands as hooks get `relay hook` at session start, prompt
   and stop. The files are in the project and hold no secret: the token stays in the data directory.
2. Claude Code's hooks go into `.claude/settings.local.json`, not `settings.json`: the subject and the command's path
   belong to this machine, not to everyone who clones the project.
3. An entry is ours if its command line runs `relay mcp` or `relay hook` for a subject. Any other entry named `relay` is
   kept.

The formats follow the programs' documentation as of November 2026; docs/agents.md has the sources.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

NAME = "relay"
_HOOK_SECS = 10


class Server(NamedTuple):
    """An MCP server's entry: its path in the document and its value."""

    path: tuple[str, ...]
    value: dict[str, Any]


class Hook(NamedTuple):
    """A hook's entry: the path of its list and its value."""

    path: tuple[str, ...]
    value: dict[str, Any]


class File(NamedTuple):
    """A configuration file and the entries that Relay needs in it."""

    name: str
    entries: list[Server | Hook]
    frame: dict[str, Any]
    """Keys that the file needs beside the entries, and that mean nothing without them."""


class Program(NamedTuple):
    """An agent program that can be configured."""

    id: str
    title: str
    files: list[File]
    note: str


def programs(relay: Sequence[str], subject: str, options: Sequence[str] = ()) -> list[Program]:
    """Return every program, configured for a subject; `relay` is the command, `options` its further options."""
    mcp = [*relay, "mcp", "--as", subject, *options]
    hook = shlex.join([*relay, "hook", "--as", subject, *options])
    return [configure(mcp, hook) for configure in PROGRAMS.values()]


def subject_of(entry: Any) -> str | None:
    """Return the subject of a server's or hook's entry; None if the entry is not ours."""
    if not isinstance(entry, dict):
        return None
    command, args = entry.get("command"), entry.get("args", [])
    if isinstance(command, str) and isinstance(args, list):
        words = [command, *args] if args else _split(command)
    else:
        words = command if isinstance(command, list) else []
    if not all(isinstance(word, str) for word in words) or "--as" not in words[:-1]:
        return None
    verb = words[words.index("--as") - 1]
    program = words[0].replace("\\", "/").rpartition("/")[2]
    if verb not in ("mcp", "hook") or (program != "relay" and "relay_supervisor.cli" not in words):
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


def _claude_code(mcp: Sequence[str], hook: str) -> Program:
    events = ("SessionStart", "UserPromptSubmit", "Stop")
    return Program(
        "claude-code",
        "Claude Code",
        [
            File(".mcp.json", [Server(("mcpServers", NAME), _plain(mcp))], {}),
            File(".claude/settings.local.json", _grouped(hook, events, _HOOK_SECS), {}),
        ],
        f".mcp.json is usually shared; to keep Relay out of it, run: claude mcp add {NAME} -- {shlex.join(mcp)}",
    )


def _codex(mcp: Sequence[str], hook: str) -> Program:
    events = ("SessionStart", "UserPromptSubmit", "Stop")
    # Codex passes few variables to a server, and without these it would not find the socket.
    environment = {"env_vars": ["XDG_RUNTIME_DIR", "RELAY_DATA_DIR", "RELAY_SOCKET"]}
    return Program(
        "codex",
        "Codex CLI",
        [
            File(".codex/config.toml", [Server(("mcp_servers", NAME), _plain(mcp) | environment)], {}),
            File(".codex/hooks.json", _grouped(hook, events, _HOOK_SECS), {}),
        ],
        "Codex reads .codex only in trusted projects, and asks you to review the hooks (/hooks)",
    )


def _gemini(mcp: Sequence[str], hook: str) -> Program:
    events = ("SessionStart", "BeforeAgent", "AfterAgent")
    entries = [Server(("mcpServers", NAME), _plain(mcp)), *_grouped(hook, events, _HOOK_SECS * 1000, name=NAME)]
    return Program("gemini", "Gemini CLI", [File(".gemini/settings.json", entries, {})], "")


def _cursor(mcp: Sequence[str], hook: str) -> Program:
    events = ("sessionStart", "beforeSubmitPrompt", "stop")
    hooks: list[Server | Hook] = [Hook(("hooks", event), {"command": hook}) for event in events]
    return Program(
        "cursor",
        "Cursor",
        [
            File(".cursor/mcp.json", [Server(("mcpServers", NAME), _plain(mcp))], {}),
            File(".cursor/hooks.json", hooks, {"version": 1}),
        ],
        "Cursor shows mail at session start and at a stop; at a prompt it accepts no text from a hook",
    )


def _vscode(mcp: Sequence[str], hook: str) -> Program:
    server = {"type": "stdio", **_plain(mcp)}
    return Program(
        "vscode",
        "VS Code (Copilot)",
        [File(".vscode/mcp.json", [Server(("servers", NAME), server)], {})],
        "VS Code also runs the hooks in .claude/settings.local.json (--for claude-code), as a preview feature",
    )


def _opencode(mcp: Sequence[str], hook: str) -> Program:
    server = {"type": "local", "command": list(mcp)}
    schema = {"$schema": "https://opencode.ai/config.json"}
    return Program(
        "opencode",
        "opencode",
        [File("opencode.json", [Server(("mcp", NAME), server)], schema)],
        "opencode cannot run commands as hooks: it sees new mail when it calls relay_inbox",
    )


PROGRAMS: dict[str, Callable[[Sequence[str], str], Program]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "gemini": _gemini,
    "cursor": _cursor,
    "vscode": _vscode,
    "opencode": _opencode,
}
