"""What adapters.json says of the agents. Deny is the default: an agent may use no tool that is not named here."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from relay_core.adapters.secret import Secret
from relay_core.messages.base import WireModel

AgentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=64)]
PermissionMode = Literal["dontAsk", "plan", "default", "acceptEdits", "bypassPermissions"]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:\[\]/@-]*$", max_length=200)]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_*-]*$", max_length=200)]
ToolRule = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_*-]*(\([^\r\n]*\))?$", max_length=500)]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class AgentConfig(WireModel):
    """One agent."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    cwd: Path
    """The directory it works in: absolute (``~`` is your home), and there already."""
    model: Word | None = None
    """The model; the program's own default if not given."""
    permission_mode: PermissionMode = "dontAsk"
    """What happens to a tool call that no rule allows: ``dontAsk`` denies it. Nobody is ever asked."""
    dangerously_skip_permissions: bool = False
    """Must be true for ``bypassPermissions``: whoever may write to the agent may then do anything that you may."""
    tools: tuple[ToolName, ...] | None = None
    """The built-in tools that are there at all; those that `allowed_tools` names if not given."""
    allowed_tools: tuple[ToolRule, ...] = ()
    """Rules of what it may do, such as ``Read`` or ``Bash(git log:*)``."""
    disallowed_tools: tuple[ToolRule, ...] = ()
    """Rules of what it may never do, whatever else allows it."""
    env: dict[str, Secret] = Field(default_factory=dict)
    """Variables that it gets, beside our PATH, HOME, USER, LOGNAME, LANG, LC_* and TMPDIR; it gets no other."""
    system_prompt: Annotated[str, Field(max_length=50_000)] | None = None
    """What it is told about itself, after Claude Code's own system prompt and Relay's."""
    max_turns: Annotated[int, Field(ge=1, le=1000)] | None = None
    """The most model turns for one message; its call budget counts as well, and the smaller one holds."""
    setting_sources: tuple[Literal["user", "project", "local"], ...] = ()
    """Which settings, CLAUDE.md and MCP servers, yours or the directory's, it reads; they may open tools."""
    resume_sessions: bool = True
    """Whether its conversation goes on after it was closed; otherwise it begins anew."""

    @field_validator("cwd")
    @classmethod
    def _cwd_is_there(cls, value: Path) -> Path:
        value = value.expanduser()
        if not value.is_absolute():
            raise ValueError("must be an absolute path")
        if not value.is_dir():
            raise ValueError("no such directory: create it, or name another one")
        return value

    @field_validator("env")
    @classmethod
    def _variables_have_names(cls, value: dict[str, Secret]) -> dict[str, Secret]:
        for name in value:
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a variable: letters, digits and underscores")
        return value

    @model_validator(mode="after")
    def _danger_is_meant(self) -> Self:
        bypasses = self.permission_mode == "bypassPermissions"
        if bypasses and not self.dangerously_skip_permissions:
            raise ValueError(
                "permissionMode bypassPermissions lets everybody who can write to the agent do anything that you can: "
                "say dangerouslySkipPermissions: true if you mean it, or use dontAsk with allowedTools"
            )
        if self.dangerously_skip_permissions and not bypasses:
            raise ValueError("dangerouslySkipPermissions goes with permissionMode bypassPermissions: remove one")
        return self


class ClaudeCodeConfig(WireModel):
    """The agents, and what they have in common."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    agents: Annotated[dict[AgentName, AgentConfig], Field(min_length=1, max_length=200)]
    """Each is ``relay.agent.{name}``."""
    cli_path: Path | None = None
    """The ``claude`` program; the one that comes with the SDK, or the one on the PATH, if not given."""
    max_concurrent: Annotated[int, Field(ge=1, le=100)] = 3
    """How many agents may have a turn at a time."""
    idle_secs: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """Seconds after its last turn until an agent's program is closed; the next turn resumes its session."""
    turn_timeout_secs: Annotated[float, Field(gt=0, le=86_400)] = 1800.0
    """Seconds a turn may take; a message that expires sooner ends its turn sooner."""

    @field_validator("cli_path")
    @classmethod
    def _cli_path_is_absolute(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        value = value.expanduser()
        if not value.is_absolute() or os.fspath(value) == os.sep:
            raise ValueError("must be an absolute path, such as what 'command -v claude' prints")
        return value
