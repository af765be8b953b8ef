"""The notices to people whose messages were not delivered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relay_core import CircuitState
from relay_core.clock import sleep
from relay_core.messages.results import Reason
from relay_core.testing import FakeClock
from relay_supervisor.adapters.telegram.inbound import NO_AGENT, PUT_OFF
from tests.kit.servers.telegram import USERNAME, BotServer
from tests.kit.waiting import until
from tests.supervisor.adapters.telegram.conftest import ADA, AGENT, GROUP, FastClock, bridge

MENTION = {"entities": [{"type": "mention", "offset": 0, "length": len(USERNAME) + 1}]}
ONE_A_MINUTE = {"reliability": {"rateLimit": {"maxPerWindow": 1}}}
ONE_WAITS = {"reliability": {"backpressure": {"maxMailboxSize": 1}}}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        pytest.param(ONE_A_MINUTE, Reason.RATE_LIMITED, id="too many at once"),
        pytest.param(ONE_WAITS, Reason.BACKPRESSURE, id="the agent's mailbox is full"),
        pytest.param({}, Reason.CIRCUIT_OPEN, id="the agent's breaker is open"),
    ],
)
async def test_every_message_that_is_not_taken_is_answered_with_the_reason(
    server: BotServer, data_dir: Path, config: dict[str, Any], reason: str
) -> None:
    (data_dir / "config.json").write_text(json.dumps(config))
    async with bridge(server, data_dir, FastClock()) as here:
        server.send(ADA, "taken")
        await here.mail(1)
        if reason == Reason.CIRCUIT_OPEN:
            here.relay.force_breaker(AGENT, CircuitState.OPEN, "for a test")
        for number in range(3):
            server.send(ADA, f"not taken {number}")
        await server.wait_sent(3)
        assert [(message["reply_to"], message["text"]) for message in server.sent] == [
            (2 + n, PUT_OFF[reason]) for n in range(3)
        ]
        assert len(await here.mail(1)) == 1


async def test_remarks_are_bounded_and_the_last_speaks_for_those_that_are_left_out(
    server: BotServer, data_dir: Path, clock: FakeClock
) -> None:
    (data_dir / "config.json").write_text(json.dumps(ONE_A_MINUTE))
    async with bridge(server, data_dir, clock):
        for number in range(31):
            server.send(ADA, f"message {number}")
            if number == 1:
                await server.wait_sent(1)  # the clock stands still: the next one waits, and ten behind it
        await until(lambda: server.unconfirmed == [])
        for count in range(1, 14):
            await server.wait_sent(count)
            clock.advance(1)
        assert [message["reply_to"] for message in server.sent] == [2, *range(4, 15), 32]
        assert server.sent[-1]["text"].startswith("18 more messages, up to this one")


async def test_that_no_agent_answers_is_said_once_a_minute_and_the_messages_are_kept(
    server: BotServer, data_dir: Path
) -> None:
    async with bridge(server, data_dir, FastClock(), bound=False) as here:
        server.send(ADA, "anybody?")
        server.send(ADA, "hello?")
        await until(lambda: server.unconfirmed == [])
        await server.wait_sent(1)
        await sleep(FastClock(), 5)  # the chat's limit would let another one through by now
        assert [message["text"] for message in server.sent] == [NO_AGENT]
        assert [letter.code for letter in await here.relay.dead_letters()] == ["no_match"] * 2


async def test_a_stranger_in_a_group_does_not_mute_what_others_are_told(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, FastClock(), bound=False):
        server.send(GROUP, "noise", user_id=999)
        await until(lambda: server.unconfirmed == [])
        server.send(GROUP, f"@{USERNAME} help", user_id=ADA, **MENTION)
        await server.wait_sent(1)
        assert server.sent[0]["text"] == NO_AGENT


async def test_a_remark_that_gets_a_429_is_made_later(server: BotServer, data_dir: Path, clock: FakeClock) -> None:
    async with bridge(server, data_dir, clock, bound=False) as here:
        server.misbehave("429", times=1)
        server.send(ADA, "anybody?")
        await until(lambda: not server.has_faults)
        limits = here.adapter._outbound._bot.limits  # type: ignore[union-attr]
        await until(lambda: limits.wait(ADA) == 3.0)
        clock.advance(3)
        await server.wait_sent(1)
