from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from relay_core.adapters.secret import Secret
from relay_core.clock import iso, sleep
from relay_core.messages.signals import Signal, SignalType
from relay_core.tasks import Tasks
from relay_core.testing import FakeClock
from relay_supervisor.adapters.telegram.api import Api
from relay_supervisor.adapters.telegram.bot import Bot
from relay_supervisor.adapters.telegram.presence import Presence
from tests.kit.servers.telegram import BotServer
from tests.kit.waiting import until
from tests.supervisor.adapters.telegram.conftest import ADA, AGENT, CHAT, GROUP, ROOM, Bridge, FastClock, bridge


@pytest.fixture
async def here(server: BotServer, data_dir: Path) -> AsyncIterator[Bridge]:
    async with bridge(server, data_dir, FastClock(), groupMessages="all") as here:
        yield here


def say(here: Bridge, kind: str, state: str, ask: str, subject: str = CHAT, text: str | None = None) -> None:
    data = {"messageId": ask, "text": text}
    signal = Signal(
        type=SignalType(kind), state=state, endpoint_subject=AGENT, timestamp=iso(1_700_000_000_000), data=data
    )
    here.relay.signal(subject, signal)


async def ask(here: Bridge, chat: int = ADA) -> str:
    before = len(await here.mail(0))
    here.server.send(chat, "work for me", user_id=ADA)
    mail = await here.mail(before + 1)
    await until(lambda: here.server.unconfirmed == [])
    return mail[-1].id


def is_over() -> bool:
    return not any("presence" in task.get_name() for task in asyncio.all_tasks())


def count(here: Bridge, method: str) -> Callable[[], int]:
    return lambda: [name for name, _ in here.server.calls].count(method)


async def test_a_chat_sees_typing_until_the_answer(here: Bridge) -> None:
    asked = await ask(here)
    say(here, "typing", "started", asked)
    typed = count(here, "sendChatAction")
    await until(lambda: typed() >= 3)
    await here.relay.publish(CHAT, {"content": "done"}, sender=AGENT, parent_id=asked)
    await until(is_over)


async def test_a_chat_sees_typing_until_it_stops(here: Bridge) -> None:
    asked = await ask(here)
    typed = count(here, "sendChatAction")
    say(here, "typing", "started", asked)
    await until(lambda: typed() >= 1)
    say(here, "typing", "stopped", asked)
    await until(is_over)


async def test_progress_is_one_message_that_goes_when_the_answer_comes(here: Bridge) -> None:
    asked = await ask(here)
    say(here, "progress", "working", asked, text="reading")
    await here.server.wait_sent(1)
    for step in range(20):
        say(here, "progress", "working", asked, text=f"step {step}")
    await until(lambda: here.server.sent[0]["text"] == "⏳ step 19")
    assert len(here.server.sent) == 1
    assert len(here.server.edits) <= 3
    await here.relay.publish(CHAT, {"content": "done"}, sender=AGENT, parent_id=asked)
    await until(lambda: [message["text"] for message in here.server.sent] == ["done"])
    say(here, "progress", "working", asked, text="too late")  # work goes on: it shows again, as one message
    await here.server.wait_sent(2)


async def test_the_progress_of_a_killed_adapter_goes_with_the_answer(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, FastClock()) as here:
        asked = await ask(here)
        say(here, "progress", "working", asked, text="reading")
        await server.wait_sent(1)
        await until(lambda: b'"progress":[[7,' in (data_dir / "adapters/tg/bot-4242.json").read_bytes())
    async with bridge(server, data_dir, FastClock()) as here:
        await here.relay.publish(CHAT, {"content": "done"}, sender=AGENT)
        await until(lambda: [message["text"] for message in server.sent] == ["done"])


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        pytest.param(CHAT, "01ARZ3NDEKTSV4RRFFQ69G5FAV", id="an unknown message"),
        pytest.param("relay.human.telegram.tg.9", None, id="another chat's message"),
        pytest.param("relay.human.telegram.tg", None, id="no chat"),
    ],
)
async def test_nothing_shows_that_the_chat_did_not_ask_for(here: Bridge, subject: str, message: str | None) -> None:
    asked = await ask(here)
    say(here, "progress", "working", message or asked, subject, text="buy this")
    say(here, "typing", "started", message or asked, subject)
    await ask(here)
    await here.answer("real")
    await here.relay.idle()
    assert [message["text"] for message in here.server.sent] == ["real"]
    assert count(here, "sendChatAction")() == 0


async def test_typing_leaves_a_group_room_for_messages(server: BotServer, data_dir: Path) -> None:
    clock = FakeClock()
    async with bridge(server, data_dir, clock, groupMessages="all") as here:
        asked = await ask(here, GROUP)
        typed = count(here, "sendChatAction")
        say(here, "typing", "started", asked, ROOM)
        for second in range(60):
            least = 1 + second // 15
            await until(lambda: typed() >= least)  # noqa: B023 - it is awaited
            clock.advance(1)
        assert typed() <= 5


async def test_a_lost_answer_to_progress_never_makes_a_second_message(here: Bridge) -> None:
    asked = await ask(here)
    here.server.misbehave("cut", times=1)
    say(here, "progress", "working", asked, text="one")
    await here.server.wait_sent(1)
    say(here, "typing", "started", asked)
    say(here, "progress", "working", asked, text="two")
    await until(lambda: count(here, "sendChatAction")() >= 2)
    assert len(here.server.sent) == 1


async def test_typing_ends_after_ten_minutes(server: BotServer, data_dir: Path) -> None:
    clock = FakeClock()
    async with bridge(server, data_dir, clock) as here:
        asked = await ask(here)
        typed = count(here, "sendChatAction")
        say(here, "typing", "started", asked)
        await until(lambda: typed() == 1)
        clock.advance(599)
        await until(lambda: typed() == 2)
        clock.advance(1)
        await until(is_over)


async def test_progress_that_is_on_its_way_never_outlives_the_answer(here: Bridge) -> None:
    asked = await ask(here)
    here.server.misbehave("late", times=1)
    say(here, "progress", "working", asked, text="on its way")
    await here.server.wait_for(lambda: count(here, "sendMessage")() == 1)
    answer = asyncio.gather(here.relay.publish(CHAT, {"content": "done"}, sender=AGENT, parent_id=asked))
    await until(lambda: any(box.claimed for box in here.relay.mailboxes()))
    await sleep(FastClock(), 3)  # the chat's limit would let the answer through by now
    assert here.server.sent == []
    here.server.behave()
    await answer
    await until(lambda: [message["text"] for message in here.server.sent] == ["done"])
    assert len(here.server.deleted) == 1


def typing(ask: str, correlation: str) -> Signal:
    data = {"messageId": ask, "correlationId": correlation}
    when = iso(1_700_000_000_000)
    return Signal(type=SignalType.TYPING, state="started", endpoint_subject=AGENT, timestamp=when, data=data)


async def test_an_agent_may_be_at_work_before_the_publish_has_returned(server: BotServer, data_dir: Path) -> None:
    clock, tasks = FastClock(), Tasks()
    async with Api(Secret(server.token), server.url, timeout=5) as api, Bot.open("tg", data_dir / "b", clock) as bot:
        presence = Presence("tg", api, bot, clock, tasks, tasks)
        presence.resume()
        presence.on_signal(CHAT, typing("stranger", f"telegram-{ADA}-1"))
        assert len(tasks) == 0
        bot.publishing.add((ADA, 1))
        await asyncio.to_thread(
            presence.on_signal, CHAT, typing("agent", f"telegram-{ADA}-1")
        )  # as a thread's handler does
        await server.wait_for(lambda: "sendChatAction" in [name for name, _ in server.calls])
        presence.answered(ADA, "agent")
        await until(is_over)
        await tasks.close()


async def test_a_429_for_typing_or_progress_keeps_the_chat_quiet_and_the_latest_shows_after_it(
    server: BotServer, data_dir: Path, clock: FakeClock
) -> None:
    async with bridge(server, data_dir, clock) as here:
        asked = await ask(here)
        for method in ("sendChatAction", "sendMessage"):
            server.misbehave("429", method, times=1)
        limits = here.adapter._outbound._bot.limits  # type: ignore[union-attr]
        say(here, "typing", "started", asked)
        await until(lambda: limits.wait(ADA) == 3.0)
        say(here, "progress", "working", asked, text="reading")
        say(here, "typing", "stopped", asked)
        clock.advance(2.9)
        await here.relay.idle()
        assert (count(here, "sendChatAction")(), count(here, "sendMessage")()) == (1, 0)
        clock.advance(0.1)
        await until(lambda: count(here, "sendMessage")() == 1 and limits.wait(ADA) == 3.0)
        clock.advance(3)
        await server.wait_sent(1)
        assert server.sent[0]["text"] == "⏳ reading"


async def test_everything_together_keeps_telegrams_limits(server: BotServer, data_dir: Path, clock: FakeClock) -> None:
    (data_dir / "config.json").write_text('{"reliability": {"rateLimit": {"maxPerWindow": 1}}}')
    text = "\n".join(f"line {number} of a long answer" for number in range(2500))
    server.now = clock.monotonic
    async with bridge(server, data_dir, clock, groupMessages="all") as here:
        asked = {GROUP: await ask(here, GROUP), ADA: await ask(here, ADA)}
        answers = asyncio.gather(here.answer(text, ROOM), here.answer(text, CHAT))
        for step in range(150):
            for chat, subject in ((GROUP, ROOM), (ADA, CHAT)):
                say(here, "typing", "started", asked[chat], subject)
                say(here, "progress", "working", asked[chat], subject, text=f"step {step}")
                if step % 10 == 0:
                    server.send(chat, "one too many", user_id=ADA)  # brings about a remark
            for _ in range(4):
                await asyncio.sleep(0.001)  # what has its turn reaches the server
            clock.advance(0.5)
        clock.advance(60)
        await answers
    late = 0.5  # a call may be seen a step later than it was made
    counted = {"sendMessage", "editMessageText", "sendChatAction", "sendDocument"}
    seen = [
        (params["chat_id"], at)
        for (name, params), at in zip(server.calls, server.times, strict=True)
        if name in counted
    ]
    for chat, most, seconds in ((GROUP, 20, 60.0), (GROUP, 1, 1.0), (ADA, 1, 1.0)):
        times = [at for place, at in seen if place == chat]
        assert len(times) > most
        assert all(last - first >= seconds - late for first, last in zip(times, times[most:], strict=False))
    assert {name for name, _ in server.calls} >= counted - {"sendDocument"}
