"""What adapters.json may say of the agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from relay_core.adapters.validation import read_shape
from relay_supervisor.adapters.claude_code.adapter import ClaudeCodeAdapter
from relay_supervisor.adapters.claude_code.config import ClaudeCodeConfig

BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no agents": ({"agents": {}}, {}, "at least 1 item"),
    "a name of two tokens": ({"agents": {"a.b": {"cwd": "/"}}}, {}, "pattern"),
    "a relative directory": ({}, {"cwd": "work"}, "must be an absolute path"),
    "no such directory": ({}, {"cwd": "/no/such/place"}, "no such directory: create it"),
    "an unknown key": ({}, {"allowTools": []}, "Extra inputs"),
    "an unknown mode": ({}, {"permissionMode": "auto"}, "dontAsk"),
    "danger by one word": (
        {},
        {"permissionMode": "bypassPermissions"},
        "dangerouslySkipPermissions: true if you mean it",
    ),
    "danger without its mode": ({}, {"dangerouslySkipPermissions": True}, "goes with permissionMode bypassPermissions"),
    "a tool that is an option": ({}, {"allowedTools": ["--danger"]}, "pattern"),
    "two tools in one": ({}, {"allowedTools": ["Read,Bash"]}, "pattern"),
    "a model that is an option": ({}, {"model": "--danger"}, "pattern"),
    "a variable without a name": ({}, {"env": {"A=B": "x"}}, "is not a variable name"),
    "a variable that is not there": ({}, {"env": {"A": "env:NO_SUCH_VARIABLE_AT_ALL"}}, "set it where"),
    "no turns": ({}, {"maxTurns": 0}, "greater than or equal to 1"),
    "no time": ({"turnTimeoutSecs": 0}, {}, "greater than 0"),
    "endless time": ({"idleSecs": 1e9}, {}, "less than or equal to"),
    "none at once": ({"maxConcurrent": 0}, {}, "greater than or equal to 1"),
    "a program somewhere": ({"cliPath": "claude"}, {}, "must be an absolute path"),
}


@pytest.mark.parametrize(("settings", "agent", "why"), BAD.values(), ids=BAD)
def test_a_config_that_makes_no_sense_is_refused(
    tmp_path: Path, settings: dict[str, Any], agent: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValidationError, match=why):
        ClaudeCodeConfig.model_validate({"agents": {"a": {"cwd": str(tmp_path), **agent}}, **settings})


def test_the_adapter_has_the_shape_that_its_config_gives_it(tmp_path: Path) -> None:
    agents = {name: {"cwd": str(tmp_path)} for name in ("backend", "docs")}
    config = ClaudeCodeConfig.model_validate({"agents": agents, "turnTimeoutSecs": 100, "maxConcurrent": 2})
    shape = read_shape(ClaudeCodeAdapter("claude", config))
    assert shape.patterns == ("relay.agent.backend", "relay.agent.docs")
    assert shape.senders == ()  # the program itself may speak as its agent, through the socket
    assert shape.detached
    assert shape.max_in_flight == 2
    assert shape.timeout > 100
    assert shape.drain >= shape.timeout
    assert shape.lane is not None
    assert shape.lane("relay.agent.docs") == "docs"
