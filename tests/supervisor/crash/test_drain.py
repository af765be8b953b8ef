"""SIGTERM under load: what was answered is there, what was in hand is finished, what came too late is asked again."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from relay_core.client.client import RelayClient
from relay_core.messages.dead_letter import Code
from relay_supervisor.server import socket_server as server
from tests.kit.daemon import UNLIMITED, Daemon, a_daemon
from tests.kit.raw_client import Raw
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until
from tests.supervisor.crash.traffic import KEPT, Traffic

SLOW = "relay.work.slow"


class SlowConsumer:
    """A consumer that holds one message in flight until it is released."""

    def __init__(self) -> None:
        self.in_hand = asyncio.Event()
        self.release = asyncio.Event()
        self.handled: list[Any] = []

    async def consume(self, client: RelayClient) -> None:
        """Take one message, and go."""
        async with client.subscribe(SLOW) as messages:
            async for envelope in messages:
                self.in_hand.set()
                await self.release.wait()
                self.handled.append(envelope.payload)
                return


async def begin_to_stop(daemon: Daemon) -> None:
    daemon.send(signal.SIGTERM)
    await until(lambda: not daemon.socket.exists())


@pytest.mark.parametrize("durability", [pytest.param("os", marks=pytest.mark.slow), "fsync"])
async def test_a_stop_under_load_loses_and_doubles_nothing(tmp_path: Path, durability: str) -> None:
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(a_daemon(tmp_path, {**UNLIMITED, "durability": durability}))
        clients = [await stack.enter_async_context(daemon.client(timeout=60)) for _ in range(8)]
        traffic, slow = Traffic(daemon.data_dir), SlowConsumer()
        await traffic.register(clients[0])
        await clients[0].register_endpoint(SLOW)
        await clients[0].publish(SLOW, {"n": -1}, sender="s")
        raw = await stack.enter_async_context(Raw(daemon.socket))
        async with asyncio.TaskGroup() as group:
            group.create_task(slow.consume(clients[0]))
            await slow.in_hand.wait()
            for client in clients:
                for _ in range(4):
                    group.create_task(traffic.publish(client))
            await until(lambda: traffic.answered_more_than(200))
            await begin_to_stop(daemon)
            refused = await raw.answer(raw.ask("publish", subject=KEPT, payload={"n": -2}, **{"from": "s"}))
            assert refused["error"]["data"]["code"] == "stopping"
            assert "result" in await raw.answer(raw.ask("server.ping"))
            await raw.close()
            assert daemon.process.returncode is None
            slow.release.set()
            assert await daemon.process.wait() == 0
            before = len(traffic.answered)
            assert not daemon.socket.exists()
            assert not [copy for copy in traffic.found() if copy[2] in ("cur", "failed")]
            await daemon.start()
            await until(lambda: traffic.answered_more_than(before + 200))
            traffic.stop()
        assert await daemon.stop() == 0
    assert slow.handled == [{"n": -1}]
    traffic.check(parked=frozenset())
    assert {number for number, *_ in traffic.found()} == set(traffic.answered)


async def test_what_is_in_hand_is_finished_and_nothing_more_is_begun(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, daemon.client() as client:
        slow = SlowConsumer()
        await client.register_endpoint(SLOW)
        for number in range(3):
            await client.publish(SLOW, number, sender="s")
        async with asyncio.TaskGroup() as group:
            group.create_task(slow.consume(client))
            await slow.in_hand.wait()
            await begin_to_stop(daemon)
            slow.release.set()
        assert await daemon.process.wait() == 0
        assert slow.handled == [0]
        assert len(list(daemon.data_dir.glob("mailboxes/*/new/*.json"))) == 2
        assert list(daemon.data_dir.glob("mailboxes/*/failed/*.json")) == []


async def test_a_claim_can_still_be_completed_while_it_stops(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.register_endpoint(SLOW)
        await client.publish(SLOW, 1, sender="s")
        (taken,) = await client.claim(SLOW)
        await begin_to_stop(daemon)
        await client.complete(SLOW, taken.id)
        assert await daemon.process.wait() == 0
        assert list(daemon.data_dir.glob("mailboxes/*/*/*.json")) == []


@pytest.mark.slow
async def test_a_consumer_that_never_answers_cannot_prevent_a_stop(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.register_endpoint(SLOW)
        await client.register_endpoint(KEPT)
        await client.publish(SLOW, "pushed", sender="s")
        await client.publish(KEPT, "claimed", sender="s")
        messages = await client.subscribe(SLOW)
        await anext(messages)
        await client.claim(KEPT)
        assert await daemon.stop() == 0
        await daemon.start()
        letters = await client.dead_letters()
        assert sorted(letter.envelope.payload for letter in letters if letter.envelope) == ["claimed", "pushed"]
        assert {letter.code for letter in letters} <= {Code.DISCONNECTED, Code.INTERRUPTED}


async def test_who_only_watches_something_does_not_hold_up_a_stop(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "DRAIN_SECS", 3600.0)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group, AsyncExitStack() as stack:
        supervisor = await stack.enter_async_context(a_supervisor(data_dir))
        relay = supervisor.context.relay
        await relay.register_endpoint(SLOW)
        await relay.publish(SLOW, 1, sender="s")
        (message,) = await relay.claim(SLOW)
        await relay.fail(SLOW, message.id, "no")
        run = relay.replays.start((await relay.plan_replay()).id)
        run.pause()  # before it has begun: it waits for ever
        client = a_client(supervisor)
        await client.__aenter__()
        watching = group.create_task(client.wait_replay(run.plan.id))
        await until(lambda: any(task.get_name() == "deadletters.wait" for task in asyncio.all_tasks()))
        await stack.aclose()
        watching.cancel()
        await client.close()
