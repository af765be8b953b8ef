"""The rate of a replay, and its canary: a step that must succeed before the next begins."""

from __future__ import annotations

import asyncio

import pytest

from relay_core import Envelope, RelayCore
from relay_core.deadletters import replay_run
from relay_core.messages.subjects import subject_hash
from relay_core.testing import FakeClock
from tests.core.deadletters.replays import acknowledge, config, dead, dead_by_handler, failed_files, let_run, start
from tests.kit.bus import A, dead_ids
from tests.kit.handlers import Listener
from tests.kit.waiting import advance_until, until

pytestmark = pytest.mark.bus(config(), endpoints=[A])


async def test_a_rate_spaces_the_messages_out(relay: RelayCore, clock: FakeClock) -> None:
    listener = Listener()
    await relay.subscribe(A, listener)
    await dead_by_handler(relay, listener, 4)
    run = await start(relay, rate=2)
    for count in (1, 2, 3):
        await until(lambda count=count: len(listener.got) == count)  # type: ignore[misc]
        await let_run()
        assert len(listener.got) == count
        clock.advance(0.499)
        await let_run()
        assert len(listener.got) == count
        clock.advance(0.001)
    outcome = await run.wait()
    assert (outcome.delivered, listener.got) == (4, [0, 1, 2, 3])


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
async def test_a_rate_that_is_none_is_refused_and_the_plan_stays(relay: RelayCore, rate: float) -> None:
    await dead(relay, 1)
    plan = await relay.plan_replay()
    with pytest.raises(ValueError, match="a rate must be above 0"):
        await relay.run_replay(plan.id, rate=rate)
    assert (await relay.run_replay(plan.id)).delivered == 1


@pytest.mark.parametrize(("step", "tried"), [(0, 1), (5, 11)], ids=["the first", "the next ten"])
async def test_a_canary_stops_when_one_of_its_step_fails(relay: RelayCore, step: int, tried: int) -> None:
    listener = Listener()

    async def handle(envelope: Envelope) -> None:
        await listener(envelope)
        if envelope.payload == step:
            raise ValueError("canary")

    await relay.subscribe(A, handle)
    await dead_by_handler(relay, listener, 30)
    outcome = await relay.run_replay((await relay.plan_replay()).id, canary=True)
    assert (outcome.delivered, outcome.failed, outcome.skipped) == (tried - 1, 1, 30 - tried)
    assert (outcome.state, outcome.detail) == ("stopped", f"the canary failed: {30 - tried} not tried")
    assert listener.got == list(range(tried))
    assert len(await dead_ids(relay)) == 30 - tried + 1


async def test_a_canary_waits_for_each_step_before_the_next(relay: RelayCore) -> None:
    listener = Listener()
    await relay.subscribe(A, listener)
    await dead_by_handler(relay, listener, 30)
    listener.gate.clear()
    run = await start(relay, canary=True)
    for waiting in (29, 19):
        await until(lambda waiting=waiting: failed_files(relay) == waiting)  # type: ignore[misc]
        await let_run()
        assert failed_files(relay) == waiting
        listener.gate.set()
        await until(lambda waiting=waiting: failed_files(relay) < waiting)  # type: ignore[misc]
        listener.gate.clear()
    listener.gate.set()
    outcome = await run.wait()
    assert (outcome.delivered, outcome.state) == (30, "finished")


async def test_a_canary_that_was_skipped_proves_nothing_and_the_next_takes_its_place(relay: RelayCore) -> None:
    listener = Listener()
    await relay.subscribe(A, listener)
    first, *_ = await dead_by_handler(relay, listener, 5)
    plan = await relay.plan_replay()
    await relay.purge_dead_letters(ids=[first])
    listener.fails = True
    outcome = await relay.run_replay(plan.id, canary=True)
    assert (outcome.failed, outcome.skipped, outcome.state) == (1, 4, "stopped")


async def test_a_canary_that_does_well_is_followed_by_all(relay: RelayCore) -> None:
    listener = Listener()
    await relay.subscribe(A, listener)
    await dead_by_handler(relay, listener, 30)
    outcome = await relay.run_replay((await relay.plan_replay()).id, canary=True)
    assert (outcome.delivered, outcome.state) == (30, "finished")


async def test_a_canary_waits_for_the_acknowledgement_of_a_pull_consumer(relay: RelayCore) -> None:
    await dead(relay, *range(30))
    run = await start(relay, canary=True)
    for step in ([0], list(range(1, 11))):
        await until(lambda step=step: len(relay.bus.mailboxes.get(subject_hash(A)).waiting(50)) == len(step))  # type: ignore[misc,union-attr]
        await until(lambda: run.progress().state == "paused")
        assert run.progress().detail == (
            f"the canary waits for an acknowledgement from {A}: no consumer has taken the message yet; "
            "resume goes on without it"
        )
        assert await acknowledge(relay) == step
    outcome = await run.wait()
    assert (outcome.delivered, outcome.state) == (30, "finished")
    assert await acknowledge(relay) == list(range(11, 30))


async def test_a_canary_that_a_pull_consumer_fails_stops_the_replay(relay: RelayCore) -> None:
    await dead(relay, *range(30))
    run = await start(relay, canary=True)
    await until(lambda: failed_files(relay) == 29)
    assert await acknowledge(relay, fails=True) == [0]
    outcome = await run.wait()
    assert (outcome.failed, outcome.state) == (1, "stopped")
    assert outcome.detail == "the canary failed: 29 not tried"
    assert len(await dead_ids(relay)) == 30


async def test_a_canary_says_when_a_consumer_has_its_message(relay: RelayCore, clock: FakeClock) -> None:
    await dead(relay, *range(3))
    run = await start(relay, canary=True)
    await until(lambda: run.progress().state == "paused")
    (first,) = await relay.claim(A)
    await advance_until(clock, lambda: run.progress().state == "waiting")
    assert run.progress().detail == f"the canary waits for an acknowledgement from {A}"
    await relay.complete(A, first.id)
    assert (await run.wait()).delivered == 3


async def test_a_canary_that_was_paused_goes_on_waiting_when_it_is_resumed(relay: RelayCore) -> None:
    await dead(relay, *range(30))
    run = await start(relay, canary=True)
    await until(lambda: "acknowledgement" in (run.progress().detail or ""))
    run.pause()
    await until(lambda: run.progress().detail == "by the operator")
    run.resume()
    await until(lambda: "acknowledgement" in (run.progress().detail or ""))
    await let_run()
    assert failed_files(relay) == 29
    run.cancel()
    await run.wait()


async def test_what_follows_a_canary_waits_for_no_acknowledgement(
    relay: RelayCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_run, "_OUTSTANDING", 12)  # so few may be unanswered, and 19 follow
    await dead(relay, *range(30))
    run = await start(relay, canary=True)
    for step in (1, 10):
        await until(lambda step=step: len(relay.bus.mailboxes.get(subject_hash(A)).waiting(50)) == step)  # type: ignore[misc,union-attr]
        await acknowledge(relay)
    async with asyncio.timeout(30):
        assert (await run.wait()).delivered == 30


@pytest.mark.parametrize("steer", ["resume", "cancel"])
async def test_a_canary_that_no_consumer_takes_can_be_resumed_or_cancelled(relay: RelayCore, steer: str) -> None:
    await dead(relay, *range(30))
    run = await start(relay, canary=True)
    await until(lambda: run.progress().state == "paused")
    getattr(run, steer)()
    outcome = await run.wait()
    replayed = 30 if steer == "resume" else 1
    assert (outcome.delivered, outcome.state) == (replayed, "finished" if steer == "resume" else "cancelled")
    assert len(await acknowledge(relay)) == replayed
