"""A person on Telegram, an agent behind Claude Code, and a real supervisor between them that is killed on the way."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.kit.daemon import OS, Daemon, a_daemon
from tests.kit.servers.telegram import BotServer
from tests.kit.waiting import until

FAKE_CLI = Path(__file__).parent / "claude_code" / "fake_cli.py"
PERSON, STRANGER = 7, 8
AGENT = "relay.agent.backend"


class Journal:
    """What the agent's program has written down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]


@asynccontextmanager
async def a_house(root: Path) -> AsyncIterator[tuple[Daemon, BotServer, Journal]]:
    """Run a supervisor with a bot and an agent that are bound to each other."""
    work = root / "work"
    work.mkdir()
    journal = Journal(root / "journal.jsonl")
    async with BotServer() as server, a_daemon(root, OS, started=False) as daemon:
        token = daemon.data_dir / "bot.token"
        token.touch(0o600)
        token.write_text(server.token)
        bot = {"token": "file:bot.token", "apiBase": server.url, "allowUsers": [PERSON]}
        agent = {"cwd": str(work), "env": {"FAKE_CLAUDE_JOURNAL": str(journal.path)}}
        adapters = [
            {"id": "tg", "type": "telegram", "config": bot},
            {"id": "claude", "type": "claude-code", "config": {"cliPath": str(FAKE_CLI), "agents": {"backend": agent}}},
        ]
        bindings = [{"chat": "relay.human.telegram.tg.*", "agent": AGENT}]
        document = {"adapters": adapters, "bindings": bindings}
        (daemon.data_dir / "adapters.json").write_text(json.dumps(document))
        await daemon.start()
        yield daemon, server, journal


def texts(server: BotServer) -> list[str]:
    return [message["text"] for message in server.sent]


async def test_a_question_reaches_the_agent_and_its_answer_the_person(tmp_path: Path) -> None:
    async with a_house(tmp_path) as (daemon, server, journal):
        server.send(STRANGER, "let me in", user_id=STRANGER)
        server.send(PERSON, "what is 6 times 7?", user_id=PERSON)
        await until(lambda: texts(server) == ["echo: what is 6 times 7?"])
        (answer,) = server.sent
        assert (answer["chat_id"], answer["reply_to"]) == (PERSON, 2)
        assert len(journal.events("prompt")) == 1
        async with daemon.client() as client:
            assert {adapter.id: adapter.problem for adapter in (await client.adapters()).adapters} == {
                "claude": None,
                "tg": None,
            }
        assert server.token not in daemon.output()


async def test_a_supervisor_that_is_killed_on_the_way_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with a_house(tmp_path) as (daemon, server, journal):
        server.send(PERSON, "first", user_id=PERSON)
        await until(lambda: texts(server) == ["echo: first"])
        server.send(PERSON, "!silent", user_id=PERSON)
        server.send(PERSON, "second", user_id=PERSON)  # waits behind the one that never ends
        await until(lambda: len(journal.events("prompt")) == 2 and server.unconfirmed == [])
        (session,) = {event["session"] for event in journal.events("prompt")}
        daemon.send(signal.SIGKILL)
        await daemon.process.wait()
        server.send(PERSON, "third", user_id=PERSON)  # while nothing runs
        await daemon.start()
        await until(lambda: {"echo: second", "echo: third"} <= set(texts(server)) and len(server.sent) == 4)
        (told,) = [text for text in texts(server) if not text.startswith("echo: ")]
        assert "died while this message was being handled" in told
        assert [text for text in texts(server) if text != told] == ["echo: first", "echo: second", "echo: third"]
        prompts = [event["text"] for event in journal.events("prompt")]
        assert [word for word in ("first", "!silent", "second", "third") for text in prompts if word in text] == [
            "first",
            "!silent",
            "second",
            "third",
        ]
        assert journal.events("start")[-1]["resume"] == session
        async with daemon.client() as client:
            letters = await client.dead_letters()
            assert [(letter.code, letter.endpoint_hash) for letter in letters] == [
                ("interrupted", letters[0].endpoint_hash)
            ]
