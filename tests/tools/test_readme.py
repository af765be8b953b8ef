"""The README's commands and programs work as they stand, in their order, on a machine without Relay.

Every block is run but two: the run command (test_installed.py opens the dashboard that it opens, from a wheel) and the
comparison (test_comparison.py). The test command is what CI runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay_core.config import RelayConfig, merge_config
from relay_supervisor.adapters.file import read_adapters
from relay_supervisor.adapters.loading import prepare
from relay_supervisor.observability.secrets import SecretRedactor
from tests.kit import ROOT
from tests.kit.daemon import Daemon
from tests.kit.waiting import PATIENCE_SECS

README = (ROOT / "README.md").read_text()
ELSEWHERE = ("--demo", "python3 -m tests", "benchmarks compare")
"""What is in the blocks that are run by other tests."""


def blocks(language: str, containing: str = "") -> list[str]:
    return [block for block in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if containing in block]


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a place like a checkout: the commands are in .venv/bin; a short path, since a socket's must be."""
    place = Path(tempfile.mkdtemp(prefix="relay-"))
    commands = place / ".venv" / "bin"
    commands.mkdir(parents=True)
    for name in ("relay", "relay-supervisor", "relay-tui", "python"):
        (commands / name).symlink_to(Path(sys.executable).parent / name)
    (commands / "pip").write_text("#!/bin/sh\n# The extras are in the test environment already.\n")
    (commands / "pip").chmod(0o700)
    try:
        yield place
    finally:
        shutil.rmtree(place)


async def run(script: str, place: Path) -> str:
    """Run a script in a shell that knows nothing of this machine's Relay; return what it prints."""
    home = place / "home"
    home.mkdir(mode=0o700)
    environment = {"HOME": str(home), "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}
    shell = await asyncio.create_subprocess_exec(
        "bash", "-e", "-c", script, cwd=place, env=environment, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    try:
        async with asyncio.timeout(3 * PATIENCE_SECS):
            printed = (await shell.communicate())[0].decode()
    finally:
        if shell.returncode is None:
            os.killpg(shell.pid, 9)
            await shell.communicate()
    assert shell.returncode == 0, printed
    return printed


@pytest.mark.slow
@pytest.mark.timeout(300)  # dozens of commands, one after the other, on a busy machine
async def test_every_command_works_in_its_place(place: Path) -> None:
    """From the start of the supervisor to the report, in one shell."""
    (start,), chapters = blocks("sh", "relay-supervisor run &"), blocks("sh")
    told = [block for block in chapters if block != start and not any(word in block for word in ELSEWHERE)]
    ready = "until relay status > /dev/null 2>&1; do sleep 0.05; done\n"
    printed = await run("\n".join([start, ready, *told, "kill %1; wait %1"]), place)
    assert printed.count("the tests are green") == 2  # in the inbox, and by the subscription
    assert re.search(r"OPEN .*relay\.agent\.flaky", printed)
    assert "exit code 4: refused" in printed
    assert re.search(r"5  consumer_failed .*relay\.agent\.flaky .*exit code 1: no database", printed)
    assert "5 delivered, 0 failed" in printed
    assert ".mcp.json: created" in printed
    assert re.search(r"relay\.agent\.backend +no +never +0 +knows the API", printed)
    assert '"image":"a.png"' in printed
    assert "systemctl --user" in printed or "launchctl" in printed
    assert "survives power loss" in printed
    assert re.search(r"^Report of \S+  (\d+ things? needs?|nothing needs) attention$", printed, re.MULTILINE)
    assert re.search(r"^relay\.agent\.ci +7 ", printed, re.MULTILINE)  # in the report's table of senders
    assert "Traceback" not in printed


def test_the_blocks_that_other_tests_run_are_theirs() -> None:
    (demo,) = blocks("sh", ELSEWHERE[0])
    assert demo == "python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/relay-tui --demo\n"
    (tests,) = blocks("sh", ELSEWHERE[1])
    assert (ROOT / ".ci" / "run").read_text().endswith(f"exec {tests}")
    (compare,) = blocks("sh", ELSEWHERE[2])
    assert compare.endswith("-m benchmarks compare --quick\n")


def test_the_schedules_of_the_example_are_accepted() -> None:
    _, example = blocks("json")
    (schedule,) = merge_config(RelayConfig(), json.loads(example)).schedules
    assert schedule.id == "morning"


def test_the_adapters_of_the_example_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0")
    (tmp_path / "telegram.token").write_text("123456789:AAF-a-token-of-a-bot-that-is-no-bot\n")
    (tmp_path / "telegram.token").chmod(0o600)
    example, _ = blocks("json")
    (tmp_path / "adapters.json").write_text(example)
    found = read_adapters(tmp_path / "adapters.json")
    assert [prepare(entry, tmp_path, SecretRedactor()).warning for entry in found.entries or ()] == [None, None]
    assert [binding.agent for binding in found.bindings] == ["relay.agent.backend"]


@pytest.mark.bus({})
async def test_the_client_program(daemon: Daemon, tmp_path: Path) -> None:
    async with daemon.client() as client:
        await client.register_endpoint("relay.agent.backend")
        await client.publish("relay.agent.backend", {"content": "hello"}, sender="relay.agent.ci")
    (text,) = blocks("python", "RelayClient")
    places = {"HOME": str(tmp_path), "RELAY_SOCKET": str(daemon.socket), "RELAY_DATA_DIR": str(daemon.data_dir)}
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-c", text, env={"PATH": os.environ["PATH"], **places}, stdout=PIPE
    )
    assert program.stdout is not None
    async with asyncio.timeout(PATIENCE_SECS):
        assert await program.stdout.readline() == b"{'content': 'hello'}\n"
    program.kill()
    await program.communicate()
