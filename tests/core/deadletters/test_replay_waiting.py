"""A replay that waits for a breaker or for room; pause, resume, cancel and the end of the bus."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from relay_core import CircuitBreakerConfig, CircuitState, Closed, DeadLetterFilter, RelayCore
from relay_core.deadletters import replay
from relay_core.testing import FakeClock
from tests.core.deadletters.replays import config, dead, dead_by_handler, failed_files, let_run, places, start, verdicts
from tests.kit.bus import SENDER, A, B, assert_counts_match_files, dead_ids, span
from tests.kit.handlers import Listener
from tests.kit.waiting import advance_until, until

pytestmark = pytest.mark.bus(config(), endpoints=[A])


async def test_a_run_waits_for_an_open_breaker_and_goes_on_by_itself(data_dir: Path, clock: FakeClock) -> None:
    breakers = CircuitBreakerConfig(failure_threshold=3, success_to_close=1)
    async with RelayCore(data_dir, config(circuit_breaker=breakers), clock) as relay:
        listener = Listener(fails=True)
        await relay.register_endpoint(A)
        await relay.subscribe(A, listener)
        for number in range(3):
            await relay.publish(A, number, sender=SENDER)
            await relay.idle()
        listener.envelopes.clear()
        listener.fails = False
        plan = await relay.plan_replay()
        assert set(verdicts(plan).values()) == {"breaker_open"}
        run = relay.replays.start(plan.id)
        await until(lambda: run.progress().state == "waiting")
        assert run.progress().detail == f"breaker of {A} is open"
        clock.advance(29)
        await let_run()
        assert (listener.got, len(await dead_ids(relay))) == ([], 3)
        clock.advance(1)
        await advance_until(clock, lambda: run.progress().state == "finished")
        assert (await run.wait()).delivered == 3
        assert listener.got == [0, 1, 2]


async def test_a_breaker_that_opens_during_a_run_stops_it_short(data_dir: Path, clock: FakeClock) -> None:
    breakers = CircuitBreakerConfig(failure_threshold=3, success_to_close=1)
    async with RelayCore(data_dir, config(circuit_breaker=breakers), clock) as relay:
        listener = Listener()
        await relay.register_endpoint(A)
        await dead(relay, *range(20))
        listener.fails = True
        await relay.subscribe(A, listener)
        run = await start(relay, rate=10)
        await advance_until(clock, lambda: run.progress().state == "waiting")
        assert listener.got == [0, 1, 2]
        assert failed_files(relay) >= 19
        listener.fails = False
        clock.advance(30)
        await advance_until(clock, lambda: run.progress().state == "finished")
        outcome = await run.wait()
        assert (outcome.delivered, outcome.failed) == (17, 3)
        assert len(await dead_ids(relay)) == 3


async def test_a_message_nobody_heard_that_is_refused_now_stays_a_dead_letter_in_every_list(
    data_dir: Path, clock: FakeClock
) -> None:
    breakers = CircuitBreakerConfig(failure_threshold=1)
    async with RelayCore(data_dir, config(circuit_breaker=breakers), clock) as relay:
        unheard = await relay.publish(B, 1, sender=SENDER)
        listener = Listener(fails=True, held=True)
        await relay.register_endpoint(B)
        await relay.subscribe(B, listener)
        await relay.publish(B, "bad", sender=SENDER)
        await relay.publish(B, "waits", sender=SENDER)
        listener.gate.set()
        await relay.idle()
        relay.bus.dispatch.stop()  # so that the mail that waits does not take the permit
        clock.advance(30)
        plan = await relay.plan_replay([unheard.message_id])
        assert verdicts(plan) == {unheard.message_id: "will_deliver"}
        run = relay.replays.start(plan.id)
        await until(lambda: run.progress().state == "waiting")
        assert run.progress().detail == f"{B} refuses it: circuit_open"
        assert (await span(relay, unheard.message_id, B)).status == "no_subscriber"
        assert sorted(group.code for group in await relay.dead_letter_groups()) == ["handler_failed", "no_match"]
        assert unheard.message_id in await dead_ids(relay)
        run.cancel()
        assert (await run.wait()).skipped == 1
        assert_counts_match_files(relay, data_dir)


async def test_a_run_waits_for_pressure_to_fall(relay: RelayCore, clock: FakeClock) -> None:
    await dead(relay, "a", "b", "c")
    for number in range(39):
        await relay.publish(A, number, sender=SENDER)
    run = await start(relay)
    await until(lambda: run.progress().state == "waiting")
    assert run.progress().detail == f"pressure of {A} is 80%"
    assert run.progress().delivered == 0 or run.progress().delivered == 1
    clock.advance(60)
    await let_run()
    assert failed_files(relay) == 2
    for envelope in await relay.claim(A, limit=2):
        await relay.complete(A, envelope.id)
    clock.advance(0.25)
    outcome = await run.wait()
    assert (outcome.delivered, outcome.state) == (3, "finished")
    assert failed_files(relay) == 0


async def test_pause_resume_and_cancel(relay: RelayCore, clock: FakeClock) -> None:
    listener = Listener()
    await relay.subscribe(A, listener)
    await dead_by_handler(relay, listener, 5)
    run = await start(relay, rate=1)
    await until(lambda: run.progress().delivered == 0 and len(listener.got) == 1)
    run.pause()
    await until(lambda: run.progress().state == "paused")
    clock.advance(60)
    await let_run()
    assert (listener.got, run.progress().detail) == ([0], "by the operator")
    run.resume()
    await until(lambda: len(listener.got) == 2)
    run.cancel()
    outcome = await run.wait()  # although its rate holds it up
    assert (outcome.delivered, outcome.failed, outcome.skipped, outcome.state) == (2, 0, 3, "cancelled")
    assert len(await dead_ids(relay)) == 3


async def test_a_run_is_not_forgotten_before_it_has_ended(relay: RelayCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_KEPT", 2)
    await dead(relay, 1)
    first = relay.replays.start((await relay.plan_replay()).id)
    first.pause()
    await until(lambda: first.progress().state == "paused")
    ended = []
    for _ in range(4):
        plan = await relay.plan_replay(filter=DeadLetterFilter(code="nonsense"))
        await relay.run_replay(plan.id)
        ended.append(plan.id)
    assert [run.plan.id for run in relay.replays.runs()] == [first.plan.id, ended[-1]]
    first.cancel()
    await first.wait()


async def test_a_paused_run_can_be_cancelled(relay: RelayCore) -> None:
    await dead(relay, 1, 2)
    plan = await relay.plan_replay()
    run = relay.replays.start(plan.id)
    run.pause()
    await until(lambda: run.progress().state == "paused")
    run.cancel()
    outcome = await run.wait()
    assert (outcome.skipped, outcome.state, outcome.detail) == (2, "cancelled", None)
    assert len(await dead_ids(relay)) == 2


async def test_a_run_ends_though_the_subscriber_it_waits_for_has_left(relay: RelayCore, clock: FakeClock) -> None:
    listener = Listener()
    subscription = await relay.subscribe(A, listener)
    await dead_by_handler(relay, listener, 3)
    listener.gate.clear()
    listener.entered.clear()
    run = await start(relay)
    await listener.entered.wait()
    await subscription.close()
    listener.gate.set()
    await advance_until(clock, lambda: run.progress().state == "finished")
    assert run.progress().delivered == 3
    assert len(await relay.inbox(A)) == 2


async def test_a_run_ends_though_a_pull_consumer_took_what_it_put_back(relay: RelayCore, clock: FakeClock) -> None:
    listener = Listener()
    await relay.subscribe(A, listener)
    await dead_by_handler(relay, listener, 3)
    listener.gate.clear()
    listener.entered.clear()
    run = await start(relay)
    await listener.entered.wait()
    await until(lambda: failed_files(relay) == 0)
    second, third = await relay.claim(A, limit=2)
    await relay.complete(A, second.id)
    await relay.fail(A, third.id, "no")
    listener.gate.set()
    await advance_until(clock, lambda: run.progress().state == "finished")
    assert (run.progress().delivered, run.progress().failed) == (2, 1)


@pytest.mark.parametrize("held_by", ["the operator", "a breaker", "a handler"])
async def test_closing_the_bus_ends_a_run_and_what_it_has_not_replayed_stays(
    data_dir: Path, clock: FakeClock, held_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay_core.bus.CLOSE_GRACE_SECS", 600.0)  # is for messages under way, not for runs
    listener = Listener()
    async with asyncio.timeout(30), RelayCore(data_dir, config(), clock) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, listener)
        ids = await dead_by_handler(relay, listener, 3)
        plan = await relay.plan_replay()
        listener.gate.clear()
        listener.entered.clear()
        if held_by == "a breaker":
            relay.force_breaker(A, CircuitState.OPEN, "maintenance")
        run = relay.replays.start(plan.id)
        if held_by == "the operator":
            run.pause()
        if held_by == "a handler":
            await listener.entered.wait()
            await until(lambda: failed_files(relay) == 0)
            asyncio.get_running_loop().call_later(0.05, listener.gate.set)
        else:
            await until(lambda: run.progress().state in ("paused", "waiting"))
    outcome = await run.wait()
    assert (outcome.state, outcome.detail) == ("stopped", "the bus was closed")
    async with RelayCore(data_dir, config(), clock) as relay:
        waiting = [envelope.id for envelope in await relay.inbox(A)]
        assert waiting + await dead_ids(relay) == (ids[1:] if held_by == "a handler" else ids)
        assert_counts_match_files(relay, data_dir)


async def test_a_closed_bus_replays_nothing(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config(), clock) as relay:
        await relay.register_endpoint(A)
        (message_id,) = await dead(relay, 1)
        plan = await relay.plan_replay()
    with pytest.raises(Closed):
        await relay.run_replay(plan.id)
    with pytest.raises(Closed):
        await relay.plan_replay()
    assert places(data_dir, message_id) == ["failed"]
