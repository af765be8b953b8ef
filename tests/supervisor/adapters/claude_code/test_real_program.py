"""The program that comes with the SDK, against a local API: what the fake one stands for is so."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.kit.processes import is_gone
from tests.kit.servers.claude_api import MessagesApi, serve_api
from tests.kit.waiting import until
from tests.supervisor.adapters.claude_code.bench import Bench

SDK = find_spec("claude_agent_sdk")
PROGRAM = Path(SDK.origin or "").parent / "_bundled" / "claude" if SDK is not None else Path("none")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PROGRAM.is_file(), reason="claude-agent-sdk has no program in it here (it was installed from source)"
    ),
]


@pytest.fixture
async def api() -> AsyncIterator[MessagesApi]:
    async with serve_api() as api:
        yield api


def agents(bench: Bench, api: MessagesApi, **settings: Any) -> dict[str, Any]:
    home = bench.directory / "home"
    home.mkdir(exist_ok=True)
    env = {
        "ANTHROPIC_API_KEY": "sk-ant-of-nobody",
        "ANTHROPIC_BASE_URL": api.url,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "HOME": str(home),
    }
    return {"a": bench.agent(env=env, **settings)}


def last_user_text(request: dict[str, Any]) -> str:
    """Return what the model is given of the user in the last turn."""
    (*_, last) = (message for message in request["messages"] if message["role"] == "user")
    return repr(last)


async def test_strangers_name_no_file_run_no_command_and_find_no_tool(bench: Bench, api: MessagesApi) -> None:
    (bench.work / "secret.txt").write_text("the content of the file")
    (bench.work / "CLAUDE.md").write_text("the memory of the directory")
    async with bench.run(agents(bench, api), cliPath=str(PROGRAM)) as desk:
        assert await desk.ask("look at @secret.txt") == "pong"
        assert await desk.ask("/clear") == "pong"
    assert "look at @secret.txt" in last_user_text(api.requests[0])
    assert "/clear" in last_user_text(api.requests[1])
    assert "look at @secret.txt" in repr(api.requests[1]["messages"])
    assert not any(request.get("tools") for request in api.requests)
    assert "the content of the file" not in repr(api.requests)
    assert "the memory of the directory" not in repr(api.requests)


async def test_a_session_is_resumed(bench: Bench, api: MessagesApi) -> None:
    for text in ("the first message", "the second message"):
        async with bench.run(agents(bench, api), cliPath=str(PROGRAM)) as desk:
            await desk.ask(text)
    assert "the first message" in repr(api.requests[-1]["messages"])


async def test_a_tool_that_is_not_allowed_is_not_run(bench: Bench, api: MessagesApi) -> None:
    mark = bench.directory / "mark"
    api.answers = [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": f"touch {mark}"}}]
    async with bench.run(agents(bench, api, tools=["Bash"]), cliPath=str(PROGRAM)) as desk:
        assert await desk.ask("run it") == "pong"
    assert not mark.exists()
    assert "is_error" in last_user_text(api.requests[-1])


async def test_what_an_allowed_tool_leaves_running_ends_with_the_adapter(bench: Bench, api: MessagesApi) -> None:
    pid = bench.directory / "pid"
    command = (
        f"setsid sh -c 'trap \"\" TERM; echo $$ > {pid}; while :; do sleep 1; done' >/dev/null 2>&1 & echo started"
    )
    api.answers = [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": command}}]
    async with bench.run(agents(bench, api, allowedTools=["Bash"]), cliPath=str(PROGRAM)) as desk:
        assert await desk.ask("run it") == "pong"
        await until(lambda: pid.exists() and pid.read_text() != "")
        left = int(pid.read_text())
        assert not is_gone(left)
        assert os.getpgid(left) == left
    assert is_gone(left)
