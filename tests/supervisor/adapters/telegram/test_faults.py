"""What each failure of the platform must come to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import ClientSession

from relay_core.testing import FakeClock, check_adapter
from relay_supervisor.adapters.telegram.adapter import TelegramAdapter
from relay_supervisor.adapters.telegram.api import RateLimited, _read_response
from tests.kit.servers.telegram import BotServer
from tests.kit.waiting import until
from tests.supervisor.adapters.telegram.conftest import ADA, AGENT, CHAT, FastClock, bridge, make_config


async def test_it_keeps_the_rules_of_the_seam(server: BotServer) -> None:
    async with BotServer() as failing, BotServer() as slow:
        failing.misbehave("403")
        slow.misbehave("slow")
        await check_adapter(
            lambda: TelegramAdapter("tg", make_config(server)),
            subject=CHAT,
            make_failing=lambda: TelegramAdapter("tg", make_config(failing)),
            make_slow=lambda: TelegramAdapter("tg", make_config(slow)),
        )


@pytest.mark.parametrize(
    ("fault", "reason", "sent"),
    [
        pytest.param("403", "blocked by the user", 0, id="blocked"),
        pytest.param("chat_not_found", "(chat_not_found)", 0, id="no such chat"),
        pytest.param("migrated", "relay.human.telegram.tg.group.-100999", 0, id="the group has another id"),
        pytest.param("500", "may have been sent", 0, id="500"),
        pytest.param("garbage", "is not the Bot API's", 0, id="malformed answer"),
        pytest.param("cut", "may have been sent", 1, id="cut mid-body"),
        pytest.param("slow", "in time", 0, id="slow"),
        pytest.param("dribble", "in time", 0, id="an answer that never ends"),
    ],
)
async def test_a_delivery_that_fails_is_parked_with_its_reason_and_never_repeated(
    server: BotServer, data_dir: Path, fault: str, reason: str, sent: int
) -> None:
    async with bridge(server, data_dir, requestTimeoutSecs=1) as here:
        server.misbehave(fault)
        result = await here.answer("hello")
        await here.relay.idle()
        assert result.delivered_to == 0
        [letter] = await here.relay.dead_letters()
        assert letter.code == "adapter_failed"
        assert reason in letter.reason
        assert len(server.sent) == sent
        assert [method for method, _ in server.calls].count("sendMessage") == 1
        # A platform that refused one message is not down: the poller says how it is.
        assert here.state().state == "connected"


async def test_failures_open_the_breaker_of_that_chat_alone(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, FastClock(), allowUsers=[ADA, 9]) as here:
        server.misbehave("403")
        for _ in range(5):
            await here.answer("hello")
        await here.relay.idle()
        states = {breaker.subject: breaker.state for breaker in here.relay.breakers()}
        assert states[f"relay.adapter.tg.{ADA}"] == "OPEN"
        server.behave()
        assert (await here.answer("hi", "relay.human.telegram.tg.9")).delivered_to == 1


async def test_a_429_before_the_first_part_is_asked_again_by_the_bus(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, FastClock()) as here:
        server.misbehave("429", times=2)
        await here.answer("hello")
        await server.wait_sent(1)
        await here.relay.idle()
        assert [message["text"] for message in server.sent] == ["hello"]
        assert (here.state().delivered, here.state().failed) == (1, 0)
        assert await here.relay.dead_letters() == []


async def test_a_429_between_parts_waits_and_sends_no_part_twice(server: BotServer, data_dir: Path) -> None:
    text = "\n".join(f"line {number} of a long answer" for number in range(500))
    async with bridge(server, data_dir, FastClock()) as here:
        await here.answer("first")
        answer = asyncio.gather(here.answer(text))
        await server.wait_sent(2)
        server.misbehave("429", times=2)
        await answer
        await here.relay.idle()
        assert "\n".join(message["text"] for message in server.sent[1:]) == text


async def test_an_answer_that_is_cut_between_parts_says_how_far_it_came(server: BotServer, data_dir: Path) -> None:
    text = "\n".join(f"line {number} of a long answer" for number in range(500))
    async with bridge(server, data_dir, FastClock()) as here:
        answer = asyncio.gather(here.answer(text))
        await server.wait_sent(1)
        server.misbehave("500", times=1)
        await answer
        await here.relay.idle()
        [letter] = await here.relay.dead_letters()
        assert "1 of 4 parts were sent" in letter.reason
        assert len(server.sent) == 1


async def test_mail_waits_while_the_platform_is_down(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, FastClock()) as here:
        await server.down()
        state = await here.until("disconnected")
        assert "retrying" in (state.detail or "")
        await here.answer("hello")
        await server.up()
        await server.wait_sent(1)
        assert await here.relay.dead_letters() == []
        assert here.state().state == "connected"
        server.send(ADA, "still there?")
        await here.mail(1)


async def test_a_message_that_finds_no_network_is_asked_again(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, FastClock()) as here:
        await until(lambda: server.polls == 1)
        await server.down()
        # Not noticed by the poller yet, as far as the bus knows.
        result = await here.relay.publish(CHAT, {"content": "hello"}, sender=AGENT)
        await server.up()
        await server.wait_sent(1)
        await here.relay.idle()
        assert result.message_id
        assert [message["text"] for message in server.sent] == ["hello"]
        assert await here.relay.dead_letters() == []


@pytest.mark.parametrize(
    ("fault", "state", "remedy"),
    [
        pytest.param("401", "error", "@BotFather", id="revoked"),
        pytest.param("500", "disconnected", "retrying", id="500"),
        pytest.param("garbage", "disconnected", "not the Bot API's", id="malformed answer"),
        pytest.param("cut", "disconnected", "broke", id="cut mid-body"),
    ],
)
async def test_a_poll_that_fails_is_the_adapters_status_until_it_works(
    server: BotServer, data_dir: Path, fault: str, state: str, remedy: str
) -> None:
    async with bridge(server, data_dir, FastClock()) as here:
        server.misbehave(fault, "getUpdates")
        server.send(ADA, "during the fault")
        await until(lambda: remedy in (here.state().detail or ""))
        assert here.state().state == state
        server.behave()
        [only] = await here.mail(1)
        assert only.payload["content"] == "during the fault"
        await until(lambda: (here.state().state, here.state().detail) == ("connected", None))
        assert len(await here.mail(1)) == 1


async def test_a_429_while_polling_is_waited_out(server: BotServer, data_dir: Path, clock: FakeClock) -> None:
    async with bridge(server, data_dir, clock) as here:
        polls = count(server, "getUpdates")
        await until(lambda: server.polls == 1)
        server.misbehave("429", "getUpdates")
        before = polls()
        server.send(ADA, "hello")  # ends the poll that is being held
        await here.mail(1)
        await waits(clock, 3)
        server.behave()
        clock.advance(2.9)
        await here.answer("it can still send")
        assert (polls(), here.state().state) == (before + 1, "connected")
        clock.advance(0.1)
        await until(lambda: server.unconfirmed == [])


async def test_a_429_for_long_is_in_the_status(server: BotServer, data_dir: Path, clock: FakeClock) -> None:
    async with bridge(server, data_dir, clock) as here:
        server.misbehave("429_long", "getUpdates", times=1)
        server.send(ADA, "hello")
        await waits(clock, 600)
        assert here.state().state == "connected"  # it can send
        assert "no updates for the next 600 s" in (here.state().detail or "")
        clock.advance(600)
        await until(lambda: here.state().detail is None)


async def waits(clock: FakeClock, seconds: float) -> None:
    """Wait until a timer of so many seconds is set."""
    await until(lambda: any(abs(due / 1e9 - clock.monotonic() - seconds) < 0.001 for due, _, _ in clock._timers))


def count(server: BotServer, method: str) -> Callable[[], int]:
    return lambda: [name for name, _ in server.calls].count(method)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        pytest.param("3", 3.0, id="whole"),
        pytest.param("0.5", 0.5, id="a fraction"),
        pytest.param("86400", 3600.0, id="a day"),
        pytest.param("1" + "0" * 400, 3600.0, id="no float"),
        pytest.param("1e999", 1.0, id="endless"),
        pytest.param("NaN", 1.0, id="no number"),
        pytest.param("-1", 1.0, id="negative"),
        pytest.param('"9"', 1.0, id="text"),
        pytest.param("true", 1.0, id="truth"),
        pytest.param("null", 1.0, id="nothing"),
    ],
)
def test_no_response_can_make_us_wait_for_long(given: str, seconds: float) -> None:
    body = f'{{"ok": false, "error_code": 429, "parameters": {{"retry_after": {given}}}}}'
    with pytest.raises(RateLimited) as caught:
        _read_response("sendMessage", 429, body.encode())
    assert caught.value.retry_after == seconds


async def test_an_answer_without_any_update_that_can_be_used_is_no_reason_to_ask_at_once(
    server: BotServer, data_dir: Path, clock: FakeClock
) -> None:
    async with bridge(server, data_dir, clock) as here:
        polls = count(server, "getUpdates")
        server._updates.append({"update_id": "x"})
        server._notify()
        state = await here.until("disconnected")
        assert "no update with a number" in (state.detail or "")
        before = polls()
        await here.relay.idle()
        assert polls() == before
        server._updates.clear()
        clock.advance(60)
        await here.until("connected")


async def test_a_message_that_takes_too_long_says_how_far_it_came(
    server: BotServer, data_dir: Path, clock: FakeClock
) -> None:
    text = "\n".join(f"line {number} of a long answer" for number in range(500))
    async with bridge(server, data_dir, clock) as here:
        answer = asyncio.gather(here.answer(text))
        await server.wait_sent(1)
        server.misbehave("429_long", times=1)
        await waits(clock, 1)
        clock.advance(1)  # the second part is told to wait for ten minutes
        await answer
        await here.relay.idle()
        [letter] = await here.relay.dead_letters()
        assert "1 of 4 parts were sent" in letter.reason


async def test_a_hold_that_others_brought_about_does_not_let_the_bus_cut_a_message(
    server: BotServer, data_dir: Path, clock: FakeClock
) -> None:
    text = "\n".join(f"line {number} of a long answer" for number in range(500))
    async with bridge(server, data_dir, clock) as here:
        answer = asyncio.gather(here.answer(text))
        await server.wait_sent(1)
        await waits(clock, 1)
        here.adapter._outbound._bot.limits.hold(ADA, 600)  # type: ignore[union-attr]  # as a remark that got a 429 does
        clock.advance(161)  # the bus would cut it after 180
        await answer
        await until(lambda: here.state().failed == 1)
        assert "out of time" in (here.state().last_error or "")
        assert "1 of 4 parts were sent" in (here.state().last_error or "")


async def test_a_second_poller_is_an_error_with_a_remedy(
    server: BotServer, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bridge(server, data_dir, FastClock(), pollTimeoutSecs=1) as here:
        await until(lambda: server.polls == 1)
        async with TelegramPoller(server):
            state = await here.until("error")
            assert "another program polls" in (state.detail or "")
            assert any("another program polls" in record.message for record in caplog.records)
            assert server.token not in caplog.text
        await here.until("connected")


class TelegramPoller:
    """Another program that polls now and then."""

    def __init__(self, server: BotServer) -> None:
        self._server = server

    async def __aenter__(self) -> None:
        async with ClientSession() as http:
            await http.get(f"{self._server.url}/bot{self._server.token}/getUpdates")

    async def __aexit__(self, *_: object) -> None:
        pass


async def test_a_webhook_is_an_error_with_a_remedy(server: BotServer, data_dir: Path) -> None:
    server.webhook = True
    async with bridge(server, data_dir, FastClock(), deleteWebhook=True) as here:
        assert server.webhook is False
        server.webhook = True
        server.send(ADA, "x")  # ends the poll that is being held
        state = await here.until("error")
        assert "deleteWebhook" in (state.detail or "")
        server.webhook = False
        await here.until("connected")


async def test_a_wrong_token_does_not_start(server: BotServer, data_dir: Path) -> None:
    with pytest.raises(Exception, match="BotFather"):
        async with bridge(server, data_dir, token="4242:another-token-than-that"):
            pass


async def test_it_starts_without_a_network_and_connects_later(server: BotServer, data_dir: Path) -> None:
    await server.down()
    async with bridge(server, data_dir, FastClock()) as here:
        assert here.state().state == "disconnected"
        await server.up()
        await here.until("connected")


async def test_two_adapters_cannot_have_one_bot(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir) as here:
        with pytest.raises(Exception, match="adapter tg uses this bot already"):
            await here.relay.add_adapter(TelegramAdapter("other", make_config(server)))
        server.send(ADA, "still here?")
        await here.mail(1)


def all_texts(directory: Path) -> list[str]:
    return [path.read_bytes().decode(errors="replace") for path in directory.rglob("*") if path.is_file()]


async def test_the_token_is_in_no_text(server: BotServer, data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    async with bridge(server, data_dir, FastClock(), requestTimeoutSecs=1) as here:
        for fault in ("401", "403", "500", "429", "garbage", "cut", "slow", "migrated", "chat_not_found"):
            for method in ("sendMessage", "getUpdates"):
                if (fault, method) == ("slow", "getUpdates"):
                    continue
                server.misbehave(fault, method, times=1)
            server.send(ADA, "hello", document={"file_id": "x", "file_name": "a"})
            await here.relay.publish(CHAT, {"content": "answer"}, sender=AGENT)
            await until(lambda: server.unconfirmed == [] and not server.has_faults)
            texts.append(repr(here.state()))
        await server.down()
        texts.append(repr(await here.until("disconnected")))
        await here.relay.idle()
        texts += [repr(letter) for letter in await here.relay.dead_letters()]
        texts += [repr(vars(here.adapter)), repr(here.adapter.status)]
    texts += [record.getMessage() + str(record.exc_info) for record in caplog.records]
    texts += all_texts(data_dir)
    assert [text for text in texts if "CANARY" in text] == []
