"""An adapter and the one that replaces it, while the old one still has a delivery in hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relay_core.clock import iso
from relay_core.messages.signals import Signal, SignalType
from relay_core.testing import FakeClock
from relay_supervisor.adapters.telegram import adapter
from relay_supervisor.adapters.telegram.adapter import TelegramAdapter
from relay_supervisor.adapters.telegram.bot import Bot
from tests.kit.servers.telegram import BotServer
from tests.kit.waiting import until
from tests.supervisor.adapters.telegram.conftest import (
    ADA,
    AGENT,
    CHAT,
    ROOM,
    Bridge,
    FastClock,
    bridge,
    make_config,
)

EVE = 9


def say(here: Bridge, ask: str, kind: SignalType, text: str | None = None) -> None:
    data = {"messageId": ask, "text": text}
    state = "started" if kind == SignalType.TYPING else "working"
    here.relay.signal(CHAT, Signal(type=kind, state=state, endpoint_subject=AGENT, timestamp=iso(0), data=data))


def calls(server: BotServer, method: str, chat: int) -> list[Any]:
    return [params for name, params in server.calls if name == method and params.get("chat_id") == chat]


@asynccontextmanager
async def replaced(here: Bridge, **config: Any) -> AsyncIterator[TelegramAdapter]:
    """Replace the adapter while it has a delivery to Eve in hand, which ends with the block."""
    here.server.misbehave("late", times=1)
    held = asyncio.gather(here.answer("held", f"relay.human.telegram.tg.{EVE}"))
    await here.server.wait_for(lambda: len(calls(here.server, "sendMessage", EVE)) == 1)
    new = TelegramAdapter("tg", make_config(here.server, **config))
    replacing = asyncio.gather(here.relay.replace_adapter(new))
    await until(lambda: new.status.state == "connected")
    yield new
    assert not replacing.done()
    here.server.behave()
    await replacing
    await held
    assert [message["text"] for message in here.server.sent if message["chat_id"] == EVE] == ["held"]


async def test_progress_is_one_message_and_goes_with_the_answer(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, FastClock(), allowUsers=[ADA, EVE]) as here:
        server.send(ADA, "work for me")
        [asked] = await here.mail(1)
        async with replaced(here, allowUsers=[ADA, EVE]):
            for step in ("reading", "writing"):
                say(here, asked.id, SignalType.PROGRESS, step)
                await until(lambda: [message["text"] for message in server.sent] == [f"⏳ {step}"])  # noqa: B023
            await here.relay.publish(CHAT, {"content": "done"}, sender=AGENT, parent_id=asked.id)
            await until(lambda: [message["text"] for message in server.sent] == ["done"])
        assert len(calls(server, "sendMessage", ADA)) == 2


async def test_work_that_shows_goes_on(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, FastClock(), allowUsers=[ADA, EVE]) as here:
        server.send(ADA, "work for me")
        [asked] = await here.mail(1)
        say(here, asked.id, SignalType.TYPING)
        say(here, asked.id, SignalType.PROGRESS, "reading")
        await server.wait_sent(1)
        async with replaced(here, allowUsers=[ADA, EVE]):
            say(here, asked.id, SignalType.PROGRESS, "writing")
            await until(lambda: server.sent[0]["text"] == "⏳ writing")
        typed = len(calls(server, "sendChatAction", ADA))
        await until(lambda: len(calls(server, "sendChatAction", ADA)) > typed)
        await here.relay.publish(CHAT, {"content": "done"}, sender=AGENT, parent_id=asked.id)
        await until(lambda: [message["text"] for message in server.sent if message["chat_id"] == ADA] == ["done"])


async def test_progress_that_a_stop_leaves_behind_goes_with_the_next_answer(
    server: BotServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "_CLOSING_SECS", 0.01)
    async with bridge(server, data_dir, FastClock(), allowUsers=[ADA, EVE]) as here:
        server.send(ADA, "work for me")
        [asked] = await here.mail(1)
        say(here, asked.id, SignalType.PROGRESS, "reading")
        await server.wait_sent(1)
        server.misbehave("slow", "deleteMessage")
        await here.relay.publish(CHAT, {"content": "done"}, sender=AGENT, parent_id=asked.id)
        await until(lambda: len(calls(server, "deleteMessage", ADA)) == 1)
        await here.relay.replace_adapter(TelegramAdapter("tg", make_config(server)))
        server.behave()
        await here.answer("more")
        await until(lambda: [message["text"] for message in server.sent] == ["done", "more"])


async def test_who_is_taken_off_the_list_is_not_heard_any_more(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, FastClock(), allowUsers=[ADA, EVE]) as here:
        async with replaced(here, allowUsers=[EVE]):
            server.send(ADA, "I am not listed")
            server.send(EVE, "I am")
            [only] = await here.mail(1)
            assert only.payload["content"] == "I am"
            await until(lambda: server.unconfirmed == [])
        assert len(await here.mail(1)) == 1
        assert server.most_polls == 1


@pytest.mark.parametrize("subject", [CHAT, ROOM], ids=["private", "group"])
async def test_an_answer_of_many_parts_goes_out_whole_and_once(server: BotServer, data_dir: Path, subject: str) -> None:
    text = "\n".join(f"line {number} of a long answer" for number in range(1500))
    async with bridge(server, data_dir, FastClock()) as here:
        answer = asyncio.gather(here.answer(text, subject))
        await server.wait_sent(2)
        await here.relay.replace_adapter(TelegramAdapter("tg", make_config(server)))
        await answer
        await here.answer("next", subject)
        await here.relay.idle()
        assert "\n".join(message["text"] for message in server.sent) == f"{text}\nnext"
        assert await here.relay.dead_letters() == []


def test_a_message_in_hand_has_all_the_time_a_delivery_has() -> None:
    assert TelegramAdapter.drain >= TelegramAdapter.timeout


async def test_one_bot_is_one_wherever_its_server_is(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir) as here, BotServer() as other:
        with pytest.raises(Exception, match="adapter tg uses this bot already"):
            await here.relay.add_adapter(TelegramAdapter("other", make_config(other)))


async def test_the_newest_takes_over_and_gives_back_when_it_goes(data_dir: Path, clock: FakeClock) -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def resume(self) -> None:
            log.append(f"{self.name} on")

        def pause(self) -> None:
            log.append(f"{self.name} off")

    log: list[str] = []
    old, new = [Named("old")], [Named("new")]
    async with Bot.open("tg", data_dir / "bot.json", clock) as bot:
        bot.enter(old)
        bot.enter(new)
        assert log == ["old on", "old off", "new on"]
        bot.leave(new)
        assert log[3:] == ["new off", "old on"]
        bot.enter(new)
        log.clear()
        bot.leave(old)
        assert log == ["old off"]
