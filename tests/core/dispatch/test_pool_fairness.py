"""Which member is next, and which mailbox."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_core import Envelope, RelayCore
from tests.core.dispatch.pool_members import in_flight, members
from tests.kit.bus import ALL, SENDER, A, B, C, config, publish_all
from tests.kit.waiting import run_ready_tasks

pytestmark = pytest.mark.bus(endpoints=[A, B])


@given(workers=st.integers(1, 6), messages=st.integers(0, 40), steps=st.integers(0, 5), mailboxes=st.integers(1, 3))
@settings(max_examples=25)
def test_equal_members_with_equal_work_get_equally_many(
    workers: int, messages: int, steps: int, mailboxes: int
) -> None:
    counts: Counter[int] = Counter(dict.fromkeys(range(workers), 0))

    async def run(directory: str) -> None:
        async with RelayCore(directory, config()) as relay:
            for n in range(workers):

                async def work(envelope: Envelope, n: int = n) -> None:
                    counts[n] += 1
                    for _ in range(steps):
                        await asyncio.sleep(0)

                await relay.subscribe(ALL, work, queue="workers")
            for n in range(messages):
                await relay.publish(f"relay.agent.n{n % mailboxes}", n, sender=SENDER)
            await relay.idle()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(directory))
    assert sum(counts.values()) == messages
    assert max(counts.values()) - min(counts.values()) <= 1


async def test_the_member_that_has_waited_longest_is_next(relay: RelayCore) -> None:
    workers = await members(relay, 3, A)
    await publish_all(relay, A, [1, 2, 3])
    await run_ready_tasks()
    for n in (2, 0, 1):  # free in this order
        workers[n].end()
        await run_ready_tasks()
    await publish_all(relay, A, [4, 5, 6])
    await run_ready_tasks()
    assert in_flight(workers) == [[5], [6], [4]]
    for worker in workers:
        worker.release()
    await relay.idle()


async def test_an_idle_member_comes_before_one_with_capacity_left(relay: RelayCore) -> None:
    workers = await members(relay, 2, A, max_in_flight=3)
    await publish_all(relay, A, [1, 2])
    await run_ready_tasks()
    workers[1].end()
    await run_ready_tasks()
    await publish_all(relay, A, [3, 4])
    await run_ready_tasks()
    assert in_flight(workers) == [[1, 4], [3]]
    for worker in workers:
        worker.release()
    await relay.idle()


async def test_one_message_beside_very_many_is_served_next_but_one(relay: RelayCore) -> None:
    (worker,) = await members(relay, 1)
    await publish_all(relay, A, list(range(500)))
    await run_ready_tasks()
    await publish_all(relay, B, ["soon"])
    await run_ready_tasks()
    while "soon" not in worker.begun:
        worker.end()
        await run_ready_tasks()
    assert len(worker.begun) <= 3
    worker.release()
    await relay.idle()


async def test_mailboxes_that_wait_for_a_pool_are_served_in_turn(relay: RelayCore) -> None:
    (worker,) = await members(relay, 1)
    for subject in (A, B, C):
        await publish_all(relay, subject, [f"{subject[-1]}{n}" for n in range(3)])
    await run_ready_tasks()
    for _ in range(8):
        worker.end()
        await run_ready_tasks()
    assert worker.begun == ["a0", "a1", "b0", "c0", "a2", "b1", "c1", "b2", "c2"]
    worker.release()
    await relay.idle()
