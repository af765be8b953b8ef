"""The README's tour works as it stands, for somebody who has installed the commands and has nothing else."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.supervisor.daemon import READY_SECS, Daemon, a_daemon

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str, containing: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (block,) = [one for one in found if containing in one]
    return str(block)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with a_daemon(tmp_path, {}) as daemon:
        yield daemon


def environment(daemon: Daemon, home: Path) -> dict[str, str]:
    commands = Path(sys.executable).parent  # where pip has put `relay`
    return {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "HOME": str(home),
        "RELAY_SOCKET": str(daemon.socket),
        "RELAY_DATA_DIR": str(daemon.data_dir),
    }


async def test_the_tour(daemon: Daemon, tmp_path: Path) -> None:
    tour = await asyncio.create_subprocess_exec(
        "bash",
        "-e",
        "-c",
        blocks("sh", "relay endpoints add"),
        env=environment(daemon, tmp_path),
        stdout=PIPE,
        stderr=STDOUT,
    )
    async with asyncio.timeout(2 * READY_SECS):
        printed = (await tour.communicate())[0].decode()
    assert tour.returncode == 0, printed
    assert printed.count("the tests are green") == 2  # in the inbox, and by the subscription
    assert "exit code 4: nobody took it" in printed
    assert "no matching endpoints or adapters" in printed
    assert "survives power loss" in printed


async def test_the_client_program(daemon: Daemon, tmp_path: Path) -> None:
    async with daemon.client() as client:
        await client.register_endpoint("relay.agent.backend")
        await client.publish("relay.agent.backend", {"content": "hello"}, sender="relay.agent.ci")
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-u",
        "-c",
        blocks("python", "RelayClient"),
        env=environment(daemon, tmp_path),
        stdout=PIPE,
    )
    assert program.stdout is not None
    async with asyncio.timeout(READY_SECS):
        assert await program.stdout.readline() == b"{'content': 'hello'}\n"
    program.kill()
    await program.communicate()
