from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from relay_core.errors import StorageError
from relay_core.pipeline.publication import Publication
from relay_core.pipeline.publisher import BegunPublish
from relay_core.rules.bindings import Binding
from relay_core.testing import FakeClock
from relay_supervisor.adapters.telegram import inbound
from relay_supervisor.adapters.telegram.adapter import TelegramAdapter
from relay_supervisor.adapters.telegram.bot import Bot
from relay_supervisor.adapters.telegram.inbound import UNUSABLE
from tests.kit.adapters import Gate, SampleAdapter
from tests.kit.servers.telegram import BotServer
from tests.kit.waiting import until
from tests.supervisor.adapters.telegram.conftest import ADA, CHAT, FastClock, bridge, make_config


def stored_offset(data_dir: Path) -> int | None:
    path = data_dir / "adapters" / "tg" / "bot-4242.json"
    return json.loads(path.read_bytes())["offset"] if path.exists() else None


async def test_updates_are_published_once_across_restarts(server: BotServer, data_dir: Path) -> None:
    server.send(ADA, "one")
    async with bridge(server, data_dir) as here:
        await here.mail(1)
        last = server.send(ADA, "two")
        await here.mail(2)
        await until(lambda: stored_offset(data_dir) == last + 1)
    async with bridge(server, data_dir) as here:
        server.send(ADA, "three")
        assert [envelope.payload["content"] for envelope in await here.mail(3)] == ["one", "two", "three"]


async def test_an_update_that_telegram_sends_again_is_not_published_again(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, allowUsers=[ADA, 9]) as here:
        update = server.send(ADA, "one")
        await here.mail(1)
        await until(lambda: server.unconfirmed == [])
        # Telegram has forgotten that it was confirmed. It seems to be another chat's, so that the bus cannot tell.
        server._updates.append({"update_id": update, "message": server_message(9, "again")})
        server.send(ADA, "two")
        assert [envelope.payload["content"] for envelope in await here.mail(2)] == ["one", "two"]


async def test_an_update_that_was_published_but_not_written_down_is_not_published_twice(
    server: BotServer, data_dir: Path
) -> None:
    server.send(ADA, "one")
    async with bridge(server, data_dir) as here:
        await here.mail(1)
        kept = list(server._updates)
    (data_dir / "adapters" / "tg" / "bot-4242.json").unlink()
    server._updates[:] = kept or [{"update_id": 1000, "message": server_message(ADA, "one")}]
    async with bridge(server, data_dir) as here:
        server.send(ADA, "two")
        assert [envelope.payload["content"] for envelope in await here.mail(2)] == ["one", "two"]


def server_message(chat: int, text: str) -> dict[str, object]:
    person = {"id": chat, "is_bot": False, "first_name": "Ada", "last_name": "L", "username": "ada"}
    return {"message_id": 1, "chat": {"id": chat, "type": "private"}, "from": person, "text": text}


async def test_the_offset_does_not_pass_an_update_that_could_not_be_stored(
    server: BotServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bridge(server, data_dir, FastClock()) as here:
        publisher = here.relay.bus.publisher
        begin = publisher.begin
        full, refused = [True], []

        def refuse(publication: Publication) -> BegunPublish:
            if full:
                refused.append(publication.subject)
                raise StorageError("cannot write: no space", retryable=True, code="storage_full")
            return begin(publication)

        monkeypatch.setattr(publisher, "begin", refuse)
        update = server.send(ADA, "one")
        await until(lambda: len(refused) >= 5)
        assert stored_offset(data_dir) is None or stored_offset(data_dir) == update
        full.clear()
        await here.mail(1)
        await until(lambda: server.unconfirmed == [])


async def test_a_hot_reload_never_polls_twice_at_once_and_loses_nothing(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, FastClock()) as here:
        for turn in range(5):
            for number in range(4):
                server.send(ADA, f"{turn}.{number}")
            await here.relay.replace_adapter(TelegramAdapter("tg", make_config(server)))
            await here.relay.publish(CHAT, {"content": "x"}, sender="relay.agent.backend")
        mail = await here.mail(20)
        assert [envelope.payload["content"] for envelope in mail] == [
            f"{turn}.{n}" for turn in range(5) for n in range(4)
        ]
        await here.until("connected")
        assert server.most_polls == 1
        assert not any(message["method"] != "sendMessage" for message in server.sent)


async def test_one_chat_does_not_hold_up_another(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, allowUsers=[ADA, 9], requestTimeoutSecs=30) as here:
        server.misbehave("slow", "getFile")
        server.send(ADA, "slow", document={"file_id": "x"})
        server.send(9, "fast")
        [only] = await here.mail(1)
        assert only.payload["content"] == "fast"
        server.behave()
        await here.mail(2)


async def test_an_offset_is_not_used_after_a_week_of_silence(data_dir: Path, clock: FakeClock) -> None:
    async with Bot.open("tg", data_dir / "bot-4242.json", clock) as bot:
        bot.finish(10, 11)
        await bot.save()
    async with Bot.open("tg", data_dir / "bot-4242.json", clock) as bot:
        before = bot.offset
        clock.advance(7 * 24 * 3600)
        assert (before, bot.offset) == (11, None)
        assert bot.is_done(10)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"offset": "x"}', "null"], ids=["empty", "cut", "list", "odd", "null"]
)
async def test_a_memory_that_cannot_be_read_is_set_aside(data_dir: Path, clock: FakeClock, text: str) -> None:
    (data_dir / "bot-4242.json").write_text(text)
    async with Bot.open("tg", data_dir / "bot-4242.json", clock) as bot:
        assert bot.offset is None
        bot.remember("m", 1, 2)
        await asyncio.gather(bot.save(), bot.save())
    assert (data_dir / "bot-4242.bad").read_text() == text
    async with Bot.open("tg", data_dir / "bot-4242.json", clock) as bot:
        assert bot.find_origin("m", 1) == 2
        assert bot.find_origin("m", 3) is None


async def test_a_poller_that_is_cut_short_leaves_nothing_to_be_published_twice(
    server: BotServer, data_dir: Path
) -> None:
    gate = Gate()
    slow = SampleAdapter("agents", ["relay.agent.slow"], gate)
    async with bridge(server, data_dir) as here:
        here.relay.set_bindings([Binding(chat="relay.human.telegram.tg.>", agent="relay.agent.slow", start="both")])
        await here.relay.add_adapter(slow)
        server.send(ADA, "once")
        await gate.reached.wait()  # published, and perhaps not written down yet
        poller = next(task for task in asyncio.all_tasks() if task.get_name() == "telegram tg polls")
        poller.cancel()  # as a stop does whose patience is at its end
        await here.relay.replace_adapter(TelegramAdapter("tg", make_config(server)))
        gate.opened.set()
        await until(lambda: server.unconfirmed == [])
        await here.relay.idle()
        assert len(slow.got) == 1


async def test_another_bot_has_a_memory_of_its_own(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir) as here, BotServer("99:another-bot-of-this-adapter") as other:
        server.send(ADA, "to the first bot")
        await here.mail(1)
        await here.relay.replace_adapter(TelegramAdapter("tg", make_config(other)))
        other.send(ADA, "to the second bot")
        await here.mail(2)


@pytest.mark.parametrize(
    ("name", "told"), [("content_of", [(1, UNUSABLE)]), ("read_chat", [])], ids=["told", "unknown sender"]
)
async def test_an_update_with_an_unexpected_error_is_retried_and_does_not_keep_the_others_waiting(
    server: BotServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: list[tuple[int, str]]
) -> None:
    really, tries = getattr(inbound, name), list[int]()

    def explode(message: dict[str, object], *args: object) -> object:
        if message.get("text") == "poison":
            tries.append(1)
            raise ZeroDivisionError
        return really(message, *args)

    monkeypatch.setattr(inbound, name, explode)
    clock = FakeClock()
    async with bridge(server, data_dir, clock) as here:
        server.send(ADA, "poison")
        server.send(ADA, "fine")
        for most in (1, 2):
            await until(lambda: len(tries) == most)  # noqa: B023 - it is awaited
            assert await here.mail(0) == []
            clock.advance(2)
        [only] = await here.mail(1)
        assert only.payload["content"] == "fine"
        await server.wait_for(lambda: [(message["reply_to"], message["text"]) for message in server.sent] == told)
