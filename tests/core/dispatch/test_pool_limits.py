"""Pools and the rest of dispatch: breakers, time to live, replay, timeouts, closing and being killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from relay_core import CircuitBreakerConfig, CircuitState, RelayConfig, RelayCore
from relay_core.testing import FakeClock
from tests.core.dispatch.pool_members import ended, in_flight, members, together
from tests.kit import ROOT
from tests.kit.bus import SENDER, A, B, assert_counts_match_files, breaker, codes, config, files, publish_all, span
from tests.kit.handlers import Worker
from tests.kit.waiting import PATIENCE_SECS, run_ready_tasks, until

pytestmark = pytest.mark.bus(endpoints=[A, B])

# Breakers, budgets, replay


async def test_a_half_open_breaker_lets_its_probe_through_though_many_are_free(
    data_dir: Path, clock: FakeClock
) -> None:
    settings = config(
        circuit_breaker=CircuitBreakerConfig(
            failure_threshold=2, cooldown_ms=1000, half_open_probe_count=1, success_to_close=2
        )
    )
    async with RelayCore(data_dir, settings, clock) as relay:
        await relay.register_endpoint(A)
        workers = await members(relay, 4, A)
        await publish_all(relay, A, [1, 2, 3, 4, 5, 6, 7])
        await run_ready_tasks()
        assert in_flight(workers) == [[1], [2], [3], [4]]
        for worker in workers[:2]:
            worker.error = ValueError("no")
            worker.end()
        await until(lambda: breaker(relay).state is CircuitState.OPEN and not together(workers[:2]))
        for worker in workers[:2]:
            worker.error = None
        await run_ready_tasks()
        assert in_flight(workers) == [[], [], [3], [4]], "messages that have begun continue, and no other begins"
        clock.advance(1.0)
        await run_ready_tasks()
        assert sum(len(messages) for messages in in_flight(workers)) == 3
        workers[2].end()  # begun before: news about the target, but no probe has come back
        await run_ready_tasks()
        assert (breaker(relay).state, breaker(relay).half_open_successes) == (CircuitState.HALF_OPEN, 1)
        assert sum(len(messages) for messages in in_flight(workers)) == 2, "the probe is still out"
        for worker in workers:
            worker.release()
        await relay.idle()
        assert breaker(relay).state is CircuitState.CLOSED
        assert sorted(ended(workers)) == [3, 4, 5, 6, 7]
        assert await codes(relay) == ["handler_failed"] * 2


async def test_a_breaker_learns_one_outcome_of_each_delivery(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config(circuit_breaker=CircuitBreakerConfig(failure_threshold=4)), clock) as relay:
        await relay.register_endpoint(A)
        workers = await members(relay, 3, A)
        for worker in workers:
            worker.error = ValueError("no")
        await publish_all(relay, A, [1, 2, 3])
        await run_ready_tasks()
        for worker in workers:
            worker.release()
        await relay.idle()
        assert (breaker(relay).state, breaker(relay).consecutive_failures) == (CircuitState.CLOSED, 3)


async def test_what_expired_in_line_takes_no_members_time(relay: RelayCore, clock: FakeClock) -> None:
    (worker,) = await members(relay, 1, A)
    await publish_all(relay, A, [1])
    await relay.publish(A, "late", sender=SENDER, budget={"ttl": clock.now_ms() + 1000})
    await publish_all(relay, A, [2])
    await run_ready_tasks()
    clock.advance(2.0)
    worker.release()
    await relay.idle()
    assert (worker.ended, await codes(relay)) == ([1, 2], ["expired"])


async def test_a_dead_letter_of_a_pool_is_replayed_to_a_member(relay: RelayCore) -> None:
    first, second = Worker("first", held=False), Worker("second", held=False)
    first.error = ValueError("no")
    for worker in (first, second):
        await relay.subscribe(A, worker, queue="workers")
    (message_id,) = await publish_all(relay, A, [1])
    await relay.idle()
    (letter,) = await relay.dead_letters()
    assert (letter.code, letter.reason) == ("handler_failed", "first: ValueError: no")
    plan = await relay.plan_replay([message_id])
    assert (await relay.run_replay(plan.id)).delivered == 1
    (outcome,) = (await span(relay, message_id)).outcomes
    assert (outcome["handler"], outcome["ok"]) == ("second", True)


async def test_a_member_that_takes_too_long_is_timed_out_and_the_others_go_on(data_dir: Path) -> None:
    async with RelayCore(data_dir, config(handler_timeout_ms=50)) as relay:
        await relay.register_endpoint(A)
        hanging, working = Worker("hanging"), Worker("working", held=False)
        for worker in (hanging, working):
            await relay.subscribe(A, worker, queue="workers")
        await publish_all(relay, A, [1, 2, 3])
        await relay.idle()
        assert (hanging.begun[:1], await codes(relay)) == ([1], ["timeout"] * len(hanging.begun))
        assert sorted(hanging.begun + working.ended) == [1, 2, 3]


# Closing, and being killed


async def test_idle_waits_for_concurrent_messages(relay: RelayCore) -> None:
    workers = await members(relay, 2, A)
    await publish_all(relay, A, [1, 2])
    await run_ready_tasks()
    async with asyncio.timeout(PATIENCE_SECS), asyncio.TaskGroup() as group:
        idle = group.create_task(relay.idle())
        for worker in workers:
            await run_ready_tasks()
            assert not idle.done()
            worker.end()


async def test_closing_parks_every_message_that_does_not_end_and_begins_no_other(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay_core.bus.CLOSE_GRACE_SECS", 0.05)
    async with RelayCore(data_dir, config()) as relay:
        await relay.register_endpoint(A)
        workers = await members(relay, 3, A)
        ids = await publish_all(relay, A, [1, 2, 3, 4, 5])
        await run_ready_tasks()
        asyncio.get_running_loop().call_later(0.01, workers[1].release)
    assert (workers[1].ended, in_flight(workers)) == ([2], [[], [], []])
    assert files(data_dir, A, "cur") == []
    assert files(data_dir, A, "failed") == [ids[0], ids[2]]
    assert files(data_dir, A, "new") == ids[3:]
    async with RelayCore(data_dir, config()) as relay:
        assert await codes(relay) == ["interrupted"] * 2


VICTIM = """
    import asyncio, sys
    from relay_core import RelayConfig, RelayCore

    async def main():
        async with RelayCore(sys.argv[1], RelayConfig(durability="os")) as relay:
            async def hang(envelope):
                print(envelope.id, flush=True)
                await asyncio.Event().wait()
            await relay.register_endpoint("relay.agent.a")
            for number in range(5):
                await relay.publish("relay.agent.a", number, sender="relay.agent.sender")
            for _ in range(3):
                await relay.subscribe("relay.agent.a", hang, queue="workers")
            await asyncio.Event().wait()

    asyncio.run(main())
"""


async def test_a_restart_parks_all_that_were_in_hand_and_leaves_the_rest_alone(data_dir: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(VICTIM),
        str(data_dir),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None
    begun = [(await asyncio.wait_for(child.stdout.readline(), PATIENCE_SECS)).decode().strip() for _ in range(3)]
    child.send_signal(signal.SIGKILL)
    await child.wait()
    async with RelayCore(data_dir, RelayConfig(durability="os")) as relay:
        letters = await relay.dead_letters()
        assert [(letter.message_id, letter.code) for letter in letters] == [
            (message_id, "interrupted") for message_id in begun
        ]
        worker = Worker(held=False)
        await relay.subscribe(A, worker, queue="workers")
        await relay.idle()
        assert worker.ended == [3, 4]
        assert_counts_match_files(relay, data_dir)
