"""The times in a trace: in order, and true to waiting and handling."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from relay_core import Envelope, RelayCore
from relay_core.testing import FakeClock
from tests.kit.bus import A, config, publish_all, span
from tests.kit.handlers import Listener


async def test_the_times_of_a_span_are_in_order(data_dir: Path) -> None:
    async def handle(envelope: Envelope) -> None:
        await asyncio.sleep(0)
        if envelope.payload == "bad":
            raise ValueError

    async with RelayCore(data_dir, config()) as relay:
        await relay.register_endpoint(A)
        message_ids = await publish_all(relay, A, ["waits", "bad"])
    async with RelayCore(data_dir, config()) as relay:
        await relay.subscribe(A, handle)
        message_ids += await publish_all(relay, A, ["good", "bad"])
        await relay.idle()
        for message_id in message_ids:
            found = await span(relay, message_id)
            assert found.stored_at is not None
            assert found.claimed_at is not None
            assert found.handled_at is not None
            assert found.sent_at <= found.stored_at <= found.claimed_at <= found.handled_at


@pytest.mark.parametrize("restarted", [False, True], ids=["same bus", "restarted"])
async def test_times_stay_in_order_when_the_wall_clock_goes_back(
    data_dir: Path, clock: FakeClock, restarted: bool
) -> None:
    listener = Listener()
    async with RelayCore(data_dir, config(), clock) as relay:
        await relay.register_endpoint(A)
        if not restarted:
            await relay.subscribe(A, listener)
        (message_id,) = await publish_all(relay, A, [1])
        clock.jump_wall(-600)
        await relay.idle()
        found = await span(relay, message_id)
    if restarted:
        async with RelayCore(data_dir, config(), clock) as relay:
            await relay.subscribe(A, listener)
            await relay.idle()
            found = await span(relay, message_id)
    assert found.stored_at is not None
    assert found.claimed_at is not None
    assert found.handled_at is not None
    assert found.sent_at <= found.stored_at <= found.claimed_at <= found.handled_at


async def test_a_span_has_the_waiting_and_the_handling_time(relay: RelayCore, clock: FakeClock) -> None:
    listener = Listener(held=True)
    await relay.register_endpoint(A)
    await relay.subscribe(A, listener)
    _, message_id = await publish_all(relay, A, [1, 2])
    await listener.entered.wait()
    clock.advance(2)
    listener.entered.clear()
    listener.gate.set()
    await relay.idle()
    found = await span(relay, message_id)
    assert (found.sent_at, found.stored_at) == (1_700_000_000_000, 1_700_000_000_000)
    assert (found.claimed_at, found.handled_at) == (1_700_000_002_000, 1_700_000_002_000)
