"""Relays that are killed at the worst moment."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from relay_core import RelayCore
from relay_supervisor.adapters.nats.config import NatsConfig
from tests.kit import ROOT
from tests.kit.servers.nats import RELAXED, NatsServer, StuckProxy, config, side
from tests.kit.waiting import until


@asynccontextmanager
async def child(data_dir: Path, settings: NatsConfig) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a relay in a separate process, which does not outlive the block."""
    os.makedirs(data_dir, mode=0o700, exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.supervisor.adapters.nats.child", str(data_dir),
        orjson.dumps(settings.to_wire()).decode(), cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.communicate()


def in_mailboxes(data_dir: Path) -> list[Path]:
    return list(data_dir.glob("mailboxes/*/new/*"))


async def test_killed_between_storing_and_acknowledging_the_message_is_there_once(
    server: NatsServer, tmp_path: Path
) -> None:
    data_dir = tmp_path / "2"
    headers = {"relay-id": "01M7HTYQA9ETCYWZ3DSAVD0000", "relay-relay": "other"}
    async with (
        StuckProxy(server.port, b"$JS.ACK").running() as proxy,
        child(data_dir, config(proxy, ackWaitSecs=1)),
        server.client() as client,
    ):
        await client.jetstream().publish("relay.agent.x", b'"once"', headers=headers)
        await until(lambda: proxy.stuck.is_set() and len(in_mailboxes(data_dir)) == 1)
    # Killed: the message is in the mailbox, and the server has heard nothing of it.

    async with side(data_dir, config(server, ackWaitSecs=1)) as right, server.client() as client:
        js, durable = client.jetstream(), right.durable
        info = await js.consumer_info("RELAY", durable)
        for _ in range(1000):
            info = await js.consumer_info("RELAY", durable)
            if info.num_ack_pending == 0 and info.ack_floor is not None and info.ack_floor.stream_seq == 1:
                break
            await asyncio.sleep(0.01)
        assert info.delivered is not None
        assert info.delivered.consumer_seq > 1  # it did come again
        assert [envelope.payload for envelope in await right.relay.inbox("relay.agent.x")] == ["once"]


async def test_killed_while_exporting_the_message_is_parked_and_a_replay_does_not_double_it(
    server: NatsServer, tmp_path: Path
) -> None:
    data_dir = tmp_path / "1"
    # The stream gets the message, but its acknowledgement does not get back.
    async with (
        StuckProxy(server.port, carry_last=True).running() as proxy,
        child(data_dir, config(proxy, **{"import": []})) as process,
        server.client() as client,
    ):
        assert process.stdin is not None
        process.stdin.write(b'publish relay.agent.y "once"\n')
        for _ in range(1000):
            if (await client.jetstream().stream_info("RELAY")).state.messages == 1:
                break
            await asyncio.sleep(0.01)

    async with RelayCore(data_dir, RELAXED) as relay:
        assert [letter.code for letter in await relay.dead_letters()] == ["interrupted"]
    async with side(data_dir, config(server, **{"import": []})) as left, server.client() as client:
        plan = await left.relay.plan_replay()
        await left.relay.run_replay(plan.id)
        await until(lambda: left.relay.adapters()[0].delivered == 1)
        assert (await client.jetstream().stream_info("RELAY")).state.messages == 1
        assert await left.relay.dead_letters() == []
