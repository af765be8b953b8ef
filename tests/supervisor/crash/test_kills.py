"""kill -9 of the daemon, again and again under load: what was answered is there, once, although the client retries."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.kit.daemon import UNLIMITED, a_daemon
from tests.kit.waiting import until
from tests.supervisor.crash.traffic import Traffic, consuming

logger = logging.getLogger(__name__)

KILLS = int(os.environ.get("RELAY_KILLS", "20"))
SEED = int(os.environ.get("RELAY_SEED", "3"))


@pytest.mark.slow
@pytest.mark.may_block("in the end it reads every message there is")
@pytest.mark.timeout(60 + 5 * KILLS)
async def test_nothing_that_was_answered_is_lost_or_doubled_by_kills(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    logger.warning("RELAY_SEED=%d RELAY_KILLS=%d", SEED, KILLS)
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(a_daemon(tmp_path, UNLIMITED))
        clients = [await stack.enter_async_context(daemon.client(timeout=120)) for _ in range(5)]
        traffic = Traffic(daemon.data_dir)
        await traffic.register(clients[0])
        async with consuming(traffic, clients[4]), asyncio.TaskGroup() as publishers:
            for client, batch in zip(clients, (1, 1, 1, 7), strict=False):
                publishers.create_task(traffic.publish(client, batch=batch))
            for _ in range(KILLS):
                await until(partial(traffic.answered_more_than, len(traffic.answered)))
                await asyncio.sleep(chance.uniform(0.002, 0.2))
                await daemon.kill()
                await daemon.launch()
            traffic.stop()
        assert await daemon.stop() == 0
    traffic.check()
    parked = [copy for copy in traffic.found() if copy[2] == "failed"]
    logger.warning(
        "%d answered, %d seen, %d parked, %d unclear",
        len(traffic.answered),
        len(traffic.seen),
        len(parked),
        len(traffic.unclear),
    )
    assert len(traffic.answered) > 10 * KILLS
    assert len(traffic.seen) > 5 * KILLS
    assert parked
