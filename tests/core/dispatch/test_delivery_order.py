"""Each mailbox is first in, first out; a slow consumer delays its own mailbox only."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from relay_core import Envelope, RelayCore
from tests.kit.bus import SENDER, A, B, assert_counts_match_files, config, publish_all, span
from tests.kit.handlers import Listener
from tests.kit.waiting import PATIENCE_SECS, until


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_a_mailbox_is_first_in_first_out_however_many_publish(data_dir: Path, durability: str) -> None:
    listener = Listener()
    async with RelayCore(data_dir, config(durability)) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, listener)

        async def publish(publisher: int) -> None:
            for number in range(25):
                await relay.publish(A, [publisher, number], sender=f"relay.agent.p{publisher}")
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for publisher in range(20):
                group.create_task(publish(publisher))
        await relay.idle()
        assert len(listener.got) == 500
        assert listener.ids == sorted(set(listener.ids))
        for publisher in range(20):
            assert [number for who, number in listener.got if who == publisher] == list(range(25))
        assert listener.most_running == 1
        assert_counts_match_files(relay, data_dir)


async def test_a_publish_returns_before_its_message_is_handled(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    listener = Listener(held=True)
    await relay.subscribe(A, listener)
    result = await relay.publish(A, 1, sender=SENDER)
    assert (result.delivered_to, listener.running) == (1, 0)
    await listener.entered.wait()
    assert (await span(relay, result.message_id)).handled_at is None
    listener.gate.set()
    await relay.idle()
    assert (await span(relay, result.message_id)).status == "done"


async def test_a_slow_handler_delays_only_its_own_mailbox(relay: RelayCore) -> None:
    slow, quick = Listener(held=True), Listener()
    for subject, listener in ((A, slow), (B, quick)):
        await relay.register_endpoint(subject)
        await relay.subscribe(subject, listener)
    await publish_all(relay, A, [1, 2, 3])
    await slow.entered.wait()
    await publish_all(relay, B, [1, 2, 3])
    await until(lambda: quick.got == [1, 2, 3])
    await publish_all(relay, A, [4])
    assert slow.got == [1]
    slow.gate.set()
    await relay.idle()
    assert slow.got == [1, 2, 3, 4]


async def test_a_handler_that_blocks_its_thread_delays_only_its_own_mailbox(relay: RelayCore) -> None:
    blocked, entered, quick, got = threading.Event(), threading.Event(), Listener(), []

    def block(envelope: Envelope) -> None:
        got.append(envelope.payload)
        entered.set()
        assert blocked.wait(PATIENCE_SECS)

    await relay.register_endpoint(A)
    await relay.register_endpoint(B)
    await relay.subscribe(A, block)
    await relay.subscribe(B, quick)
    try:
        await publish_all(relay, A, [1, 2])
        await asyncio.to_thread(entered.wait, PATIENCE_SECS)
        await publish_all(relay, B, [1, 2, 3])
        await publish_all(relay, A, [3])
        await until(lambda: quick.got == [1, 2, 3])
        assert got == [1]
    finally:
        blocked.set()
    await relay.idle()
    assert got == [1, 2, 3]
