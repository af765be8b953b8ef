"""The agents' config. Everything is denied by default: an agent may use only the tools that are listed here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from relay_core.adapters.secret import Secret
from relay_supervisor.adapters.platform import AbsolutePath, PlatformConfig

AgentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=64)]
PermissionMode = Literal["dontAsk", "plan", "default", "acceptEdits", "bypassPermissions"]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:\[\]/@-]*$", max_length=200)]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_*-]*$", max_length=200)]
ToolRule = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_*-]*(\([^\r\n]*\))?$", max_length=500)]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class AgentConfig(PlatformConfig):
    """One agent."""

    cwd: AbsolutePath
    """The directory it works in: absolute (``~`` is your home), and existing."""
    model: Word | None = None
    """The model; the program's own default if not given."""
    permission_mode: PermissionMode = "dontAsk"
    """How a tool call that no rule allows is handled: ``dontAsk`` denies it. No one is ever asked."""
    dangerously_skip_permissions: bool = False
    """Must be true for ``bypassPermissions``: every sender to the agent can then do anything that you can."""
    tools: tuple[ToolName, ...] | None = None
    """The available built-in tools; those in `allowed_tools` by default."""
    allowed_tools: tuple[ToolRule, ...] = ()
    """Rules for what it may do, such as ``Read`` or ``Bash(git log:*)``."""
    disallowed_tools: tuple[ToolRule, ...] = ()
    """Rules for what it may never do, whatever else allows it."""
    env: dict[str, Secret] = Field(default_factory=dict)
    """Its environment, in addition to our PATH, HOME, USER, LOGNAME, LANG, LC_* and TMPDIR; it gets no other."""
    system_prompt: Annotated[str, Field(max_length=50_000)] | None = None
    """Instructions after Claude Code's own system prompt and Relay's."""
    max_turns: Annotated[int, Field(ge=1, le=1000)] | None = None
    """The maximum of model turns per message; the message's call budget applies as well."""
    setting_sources: tuple[Literal["user", "project", "local"], ...] = ()
    """The settings, CLAUDE.md and MCP servers, yours or the directory's, that it reads; they may enable tools."""
    resume_sessions: bool = True
    """Whether its conversation continues after its program was closed."""

    @field_validator("cwd")
    @classmethod
    def _check_cwd(cls, value: Path) -> Path:
        if not value.is_dir():
            raise ValueError("no such directory: create it, or name another one")
        return value

    @field_validator("env")
    @classmethod
    def _check_env(cls, value: dict[str, Secret]) -> dict[str, Secret]:
        for name in value:
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is not a variable name: letters, digits and underscores")
        return value

    @model_validator(mode="after")
    def _check_bypass(self) -> Self:
        bypasses = self.permission_mode == "bypassPermissions"
        if bypasses and not self.dangerously_skip_permissions:
            raise ValueError(
                "permissionMode bypassPermissions lets every sender to the agent do anything that you can: "
                "add dangerouslySkipPermissions: true if you mean it, or use dontAsk with allowedTools"
            )
        if self.dangerously_skip_permissions and not bypasses:
            raise ValueError("dangerouslySkipPermissions goes with permissionMode bypassPermissions: remove one")
        return self


class ClaudeCodeConfig(PlatformConfig):
    """The agents, and their common settings."""

    agents: Annotated[dict[AgentName, AgentConfig], Field(min_length=1, max_length=200)]
    """Each is ``relay.agent.{name}``."""
    cli_path: AbsolutePath | None = None
    """The ``claude`` program; by default the one that comes with the SDK, or the one on the PATH."""
    max_concurrent: Annotated[int, Field(ge=1, le=100)] = 3
    """How many agents may run a turn at the same time."""
    idle_secs: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """Seconds after its last turn until an agent's program is closed; the next turn resumes its session."""
    turn_timeout_secs: Annotated[float, Field(gt=0, le=86_400)] = 1800.0
    """Time limit for a turn; a message that expires earlier ends it earlier."""
