"""Every example runs, and says what it is meant to say."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.kit import ROOT
from tests.kit.daemon import Daemon
from tests.kit.servers.telegram import BotServer
from tests.kit.waiting import PATIENCE_SECS, until

EXAMPLES = ROOT / "examples"

SAYS = {
    "loop.py": [
        "relay.agent.bob answered",
        "relay.agent.ann is stopped: budget_exceeded",
        "$ relay dlq list",
        "cycle detected: relay.agent.bob already in chain",
        "$ relay trace",
        "relay.agent.bob → relay.agent.ann",
    ],
    "two_agents.py": [
        "coder is asked: write the parser",
        "planner is asked: which Python?",
        "planner hears from relay.agent.coder: done, for Python 3.11",
        "relay.agent.coder -> the requester: 8 calls left",
    ],
    "worker_pool.py": [
        "delivered to 1 mailbox and handled by one of three workers",
        "ann did the compiler\n",
        "bob did test ",
        "cat did test ",
        "ann of builders did the compiler",
    ],
    "worker.py": ["15 / 3 = 5.0", "dead letter: division by zero", "replayed with {'divide': 15, 'by': 1}"],
}


def run(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    printed = run(str(EXAMPLES / name), cwd=tmp_path)
    for words in SAYS[name]:
        assert words in printed


def test_the_readmes_program_runs(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (program,) = [code for code in programs if "RelayCore" in code]  # the other needs a supervisor: test_readme.py
    printed = run("-c", program, cwd=tmp_path)
    assert printed.splitlines() == ["relay.agent.ci: the tests are green", "relay.agent.backend done"]


async def start(name: str, *arguments: str, daemon: Daemon, **more: str) -> asyncio.subprocess.Process:
    """Start a script as cron or a person would: by its name, with `relay` on the PATH."""
    environment: Mapping[str, str] = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RELAY_SOCKET": str(daemon.socket),
        "RELAY_DATA_DIR": str(daemon.data_dir),
        **more,
    }
    return await asyncio.create_subprocess_exec(
        str(EXAMPLES / name), *arguments, env=environment, stdout=PIPE, stderr=PIPE, start_new_session=True
    )


async def test_the_cron_job_tells_a_person_once_and_only_if_it_may(daemon: Daemon) -> None:
    async with BotServer() as telegram, daemon.client() as operator:
        await operator.add_agent("relay.agent.cron")
        config = {"token": telegram.token, "apiBase": telegram.url, "allowUsers": [7], "pollTimeoutSecs": 1}
        bound = {"chat": "relay.human.telegram.tg.7", "agent": "relay.agent.cron", "start": "both"}
        adapters = {"adapters": [{"id": "tg", "type": "telegram", "config": config}], "bindings": [bound]}
        (daemon.data_dir / "adapters.json").write_text(json.dumps(adapters))
        await operator.call("adapters.reload")

        async def notify(person: int, limit: int) -> tuple[int | None, str]:
            script = await start("cron_notify.sh", f"relay.human.telegram.tg.{person}", "/", str(limit), daemon=daemon)
            async with asyncio.timeout(PATIENCE_SECS):
                _, complaint = await script.communicate()
            return script.returncode, complaint.decode()

        assert await notify(7, 101) == (0, "")
        assert await notify(7, 0) == (0, "")
        await telegram.wait_sent(1)
        assert await notify(7, 0) == (0, "")
        code, complaint = await notify(8, 0)
        assert (code, "is not bound to relay.human.telegram.tg.8" in complaint) == (4, True)
        assert [(message["chat_id"], "% full" in message["text"]) for message in telegram.sent] == [(7, True)]


async def test_the_shell_agent_answers_and_acknowledges(daemon: Daemon) -> None:
    async with daemon.client() as operator:
        token = (await operator.add_agent("relay.agent.counter")).token
        agent = await start("shell_agent.sh", daemon=daemon, RELAY_TOKEN=token)
        try:
            for text, counted in (("one two three", "3 words"), ("", "0 words")):
                asked = {"content": text}
                answer = await operator.request("relay.agent.counter", asked, sender="relay.me", timeout=PATIENCE_SECS)
                assert (answer.sender, answer.payload) == ("relay.agent.counter", {"content": counted})

            async def is_done() -> bool:
                (row,) = [mailbox for mailbox in await operator.mailboxes() if mailbox.subject == "relay.agent.counter"]
                return (row.depth, row.claimed, row.failed) == (0, 0, 0)

            await until(is_done)
        finally:
            os.killpg(agent.pid, 9)
            await agent.communicate()
