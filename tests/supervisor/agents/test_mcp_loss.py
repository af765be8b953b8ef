"""A supervisor that is killed and started again under the sessions of agents: nothing is lost, and nothing doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from relay_core.client.client import RelayClient
from tests.kit.bus import A, B
from tests.kit.daemon import UNLIMITED, Daemon, a_daemon
from tests.kit.waiting import until
from tests.supervisor.agents.clients import LEGACY, MODERN, Agent, an_agent

WORKERS = 6
EACH = 15


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with a_daemon(tmp_path, UNLIMITED) as daemon:
        async with daemon.client() as client:
            for subject in (A, B):
                await client.call("agents.add", {"subject": subject})
        yield daemon


async def waiting(daemon: Daemon, subject: str) -> list[Any]:
    async with daemon.client() as client:
        return [one.to_wire() for one in await client.inbox(subject, 1000)]


async def letters(client: RelayClient) -> list[str]:
    return [one.code for one in await client.dead_letters()]


@pytest.mark.parametrize("mode", [LEGACY, MODERN])
async def test_a_series_of_messages_through_a_kill(daemon: Daemon, mode: str) -> None:
    sent: list[str] = []
    enough = asyncio.Event()

    async def work(a: Agent, worker: int) -> None:
        for number in range(EACH):
            text = f"{worker}.{number}"
            sent.append((await a.ok("relay_send", to=B, content=text)).message_id)
            if len(sent) == WORKERS * EACH // 3:
                enough.set()

    async with an_agent(daemon, A, mode=mode) as a, asyncio.TaskGroup() as group:
        for worker in range(WORKERS):
            group.create_task(work(a, worker))
        await enough.wait()
        await daemon.kill()
        await daemon.start()
    found = await waiting(daemon, B)
    expected = Counter(f"{worker}.{number}" for worker in range(WORKERS) for number in range(EACH))
    assert Counter(one["payload"]["content"] for one in found) == expected
    assert {one["id"] for one in found} == set(sent)


@pytest.mark.parametrize("mode", [LEGACY, MODERN])
async def test_a_question_through_a_kill(daemon: Daemon, mode: str) -> None:
    async with an_agent(daemon, A, mode=mode) as a, an_agent(daemon, B, mode=mode) as b:
        asking = asyncio.Task(a.ok("relay_ask", to=B, content="x", timeout_secs=120))
        await until(lambda: waiting(daemon, B))
        await daemon.kill()
        await daemon.start()
        (asked,) = await waiting(daemon, B)
        await b.ok("relay_send", to=A, content="the answer", in_reply_to=asked["id"])
        assert "\nthe answer\n" in await asking

        async def nothing_waits() -> bool:
            return not await waiting(daemon, A)

        await until(nothing_waits)
    async with daemon.client() as client:
        assert await letters(client) == []


async def test_a_question_asked_while_handling_a_message_through_a_kill(daemon: Daemon) -> None:
    async with an_agent(daemon, A) as a, an_agent(daemon, B) as b:
        async with daemon.client() as client:
            await client.publish(A, {"content": "find out"}, sender="relay.agent.chief")
        await a.ok("relay_inbox")
        asking = asyncio.Task(a.ok("relay_ask", to=B, content="x", timeout_secs=120))
        await until(lambda: waiting(daemon, B))
        await daemon.kill()
        await daemon.start()
        (asked,) = await waiting(daemon, B)
        await b.ok("relay_inbox")
        await b.ok("relay_send", to=A, content="the answer", in_reply_to=asked["id"])
        assert "\nthe answer\n" in await asking


async def test_what_was_claimed_before_a_kill_is_acknowledged_late(daemon: Daemon) -> None:
    async with an_agent(daemon, A) as a:
        async with daemon.client() as client:
            id = (await client.publish(A, {"content": "x"}, sender=B)).message_id
        await a.ok("relay_inbox", claim=True)
        await daemon.kill()
        await daemon.start()
        assert "late: it had already become a dead letter" in await a.ok("relay_ack", ids=[id])
    async with daemon.client() as client:
        assert await letters(client) == []


async def test_hooks_are_heard_again_after_a_kill(daemon: Daemon) -> None:
    async with an_agent(daemon, A) as a, an_agent(daemon, B) as b:
        await b.ok("relay_send", to=A, content="hello")
        await a.ok("relay_inbox", claim=True)
        await daemon.kill()
        await daemon.start()
        await a.ok("relay_list")  # it is connected again
        async with daemon.client() as client:
            await client.call("signal.send", {"subject": A, "signal": a_signal("prompt")})
        await a.ok("relay_list")
        await a.ok("relay_send", to=B, content="by the person's wish")
        (found,) = [one for one in await waiting(daemon, B) if one["from"] == A]
        assert "parentId" not in found


def a_signal(state: str, *shown: str, about: str = A) -> dict[str, Any]:
    return {
        "type": "presence",
        "state": state,
        "endpointSubject": about,
        "timestamp": "2026-11-16T19:00:00.000Z",
        "data": {"shown": list(shown)},
    }
