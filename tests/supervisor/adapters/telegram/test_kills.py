"""A process that is killed at any instant loses no update, publishes none twice, and sends no answer twice."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.kit.servers.telegram import BotServer
from tests.kit.waiting import until
from tests.supervisor.adapters.telegram.child_program import AGENT, USERS
from tests.supervisor.adapters.telegram.conftest import CHAT, FastClock, bridge


@asynccontextmanager
async def killed(data_dir: Path, server: BotServer, *todo: str) -> AsyncIterator[None]:
    """Run the program, and kill it at the end of the block."""
    module = "tests.supervisor.adapters.telegram.child_program"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, str(data_dir), server.url, server.token, *todo
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


def done(data_dir: Path) -> int:
    """Return how many updates the adapter has written down as done."""
    path = data_dir / "adapters" / "tg" / "bot-4242.json"
    return len(json.loads(path.read_bytes())["done"]) if path.exists() else 0


def polls(server: BotServer) -> int:
    return [name for name, _ in server.calls].count("getUpdates")


async def test_every_update_is_published_exactly_once(server: BotServer, data_dir: Path) -> None:
    chosen = random.Random(4)
    sent: list[int] = []
    for turn in range(2):
        sent += [server.send(chosen.choice(USERS), "hello") for _ in range(50)]
        before = polls(server)
        async with killed(data_dir, server):
            wanted = 50 * turn + chosen.randrange(1, 40)  # in the midst of what one poll has brought
            await server.wait_for(lambda: polls(server) > before)  # noqa: B023 - it is awaited
            await until(lambda: done(data_dir) >= wanted)  # noqa: B023
    async with bridge(server, data_dir, allowUsers=USERS) as here:
        await here.mail(len(sent))
        await until(lambda: server.unconfirmed == [])
        mail = await here.relay.inbox(AGENT, 1000)
        assert Counter(envelope.payload["platformData"]["updateId"] for envelope in mail) == Counter(sent)
        for user in USERS:  # and in the order of its chat
            order = [
                envelope.payload["platformData"]["updateId"]
                for envelope in mail
                if envelope.payload["conversationId"] == str(user)
            ]
            assert order == sorted(order)


async def test_an_answer_that_was_going_out_is_parked_not_sent_twice(server: BotServer, data_dir: Path) -> None:
    server.misbehave("slow")
    async with killed(data_dir, server, "answer"):
        await server.wait_for(lambda: "sendMessage" in [name for name, _ in server.calls])
    server.behave()
    async with bridge(server, data_dir, FastClock(), allowUsers=USERS) as here:
        await here.answer("after", CHAT)
        await here.relay.idle()
        [letter] = await here.relay.dead_letters()
        assert letter.code == "interrupted"
        assert [message["text"] for message in server.sent] == ["after"]
