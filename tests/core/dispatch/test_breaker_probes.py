"""Dispatch and the breaker: what counts as an outcome, and which message is the probe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core import CircuitBreakerConfig, CircuitState, NotFound, RelayCore
from relay_core.messages.subjects import subject_hash
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, A, breaker, codes, config, drop, files, publish_all, span
from tests.kit.handlers import Listener
from tests.kit.waiting import until


@asynccontextmanager
async def opened(
    data_dir: Path, clock: FakeClock, backlog: list[Any], *, durability: str = "os", **limits: Any
) -> AsyncIterator[tuple[RelayCore, Listener]]:
    """Run a bus whose handler at A has failed twice, which opened its breaker, with a backlog that waits."""
    limits = {"failure_threshold": 2, "cooldown_ms": 30_000, "success_to_close": 2} | limits
    listener = Listener(fails=True, held=True)
    async with RelayCore(data_dir, config(durability, circuit_breaker=CircuitBreakerConfig(**limits)), clock) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, listener)
        await publish_all(relay, A, ["bad 1", "bad 2", *backlog])
        listener.gate.set()
        await relay.idle()
        assert listener.got == ["bad 1", "bad 2"]
        assert breaker(relay).state is CircuitState.OPEN
        listener.envelopes.clear()
        listener.entered.clear()
        listener.fails = False
        yield relay, listener


async def test_failing_handlers_open_the_breaker_and_publishes_are_refused(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, []) as (relay, listener):
        result = await relay.publish(A, 1, sender=SENDER)
        assert result.delivered_to == 0
        assert [(rejection.endpoint_hash, rejection.reason) for rejection in result.rejected or ()] == [
            (subject_hash(A), "circuit_open")
        ]
        assert len(await relay.dead_letters()) == 2  # a refusal is none
        await relay.idle()
        assert listener.got == []
        assert (await span(relay, result.message_id)).status == "refused"


async def test_the_backlog_waits_for_the_cooldown_and_its_head_is_the_probe(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1, 2, 3, 4]) as (relay, listener):
        clock.advance(29.999)
        await relay.idle()
        assert (listener.got, len(await relay.inbox(A))) == ([], 4)
        listener.gate.clear()
        clock.advance(0.001)
        await listener.entered.wait()
        assert listener.got == [1]
        assert breaker(relay).state is CircuitState.HALF_OPEN
        refused = await relay.publish(A, "newcomer", sender=SENDER)
        assert [rejection.reason for rejection in refused.rejected or ()] == ["circuit_open"]
        listener.gate.set()
        await relay.idle()
        assert listener.got == [1, 2, 3, 4]
        assert breaker(relay).state is CircuitState.CLOSED
        assert (await relay.publish(A, 5, sender=SENDER)).delivered_to == 1


async def test_a_breaker_heals_only_after_enough_successes(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1], success_to_close=3) as (relay, listener):
        clock.advance(30)
        await relay.idle()
        assert (breaker(relay).state, breaker(relay).half_open_successes) == (CircuitState.HALF_OPEN, 1)
        await publish_all(relay, A, [2])
        await relay.idle()
        assert breaker(relay).half_open_successes == 2
        await publish_all(relay, A, [3])
        await relay.idle()
        assert breaker(relay).state is CircuitState.CLOSED
        assert listener.got == [1, 2, 3]


async def test_a_failed_probe_opens_the_breaker_for_another_cooldown(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1, 2]) as (relay, listener):
        listener.fails = True
        clock.advance(30)
        await relay.idle()
        assert (listener.got, breaker(relay).state) == ([1], CircuitState.OPEN)
        assert await codes(relay) == ["handler_failed"] * 3
        listener.fails = False
        clock.advance(29.999)
        await relay.idle()
        assert listener.got == [1]
        clock.advance(0.001)
        await relay.idle()
        assert listener.got == [1, 2]


async def test_only_one_probe_is_under_way_at_a_time(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, []) as (relay, listener):
        listener.gate.clear()
        clock.advance(30)
        results = [await relay.publish(A, number, sender=SENDER) for number in range(3)]
        assert [result.delivered_to for result in results] == [1, 0, 0]
        listener.gate.set()
        await relay.idle()
        assert (listener.got, breaker(relay).half_open_successes) == ([0], 1)


async def test_a_delivery_is_one_outcome_whatever_the_number_of_its_handlers(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config(circuit_breaker=CircuitBreakerConfig(failure_threshold=3)), clock) as relay:
        await relay.register_endpoint(A)
        subscriptions = [await relay.subscribe(A, Listener(fails=True)) for _ in range(5)]
        await publish_all(relay, A, [1])
        await relay.idle()
        assert breaker(relay).consecutive_failures == 1
        await publish_all(relay, A, [2])  # a successful store is no outcome of its handlers
        await relay.idle()
        assert breaker(relay).consecutive_failures == 2
        await relay.subscribe(A, Listener())
        await publish_all(relay, A, [3])  # partial: the target works
        await relay.idle()
        assert breaker(relay).consecutive_failures == 0
        for subscription in subscriptions:
            await subscription.close()


async def test_one_message_with_many_handlers_does_not_heal_a_breaker_at_once(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1]) as (relay, _):
        await relay.subscribe(A, Listener())
        clock.advance(30)
        await relay.idle()
        assert (breaker(relay).state, breaker(relay).half_open_successes) == (CircuitState.HALF_OPEN, 1)


async def test_an_expired_head_gives_its_permit_back(data_dir: Path, clock: FakeClock) -> None:
    listener = Listener(fails=True)
    async with RelayCore(data_dir, config(circuit_breaker=CircuitBreakerConfig(failure_threshold=1)), clock) as relay:
        await relay.register_endpoint(A)
        await relay.publish(A, "bad", sender=SENDER)
        brief = await relay.publish(A, 1, sender=SENDER, budget={"ttl": clock.now_ms() + 10_000})
        await publish_all(relay, A, [2, 3])
        await relay.subscribe(A, listener)
        await relay.idle()
        assert (listener.got, breaker(relay).state) == (["bad"], CircuitState.OPEN)
        listener.fails = False
        clock.advance(30)
        await relay.idle()
        assert listener.got == ["bad", 2, 3]
        assert breaker(relay).state is CircuitState.CLOSED
        assert [letter.code for letter in await relay.dead_letters()] == ["handler_failed", "expired"]
        assert (await span(relay, brief.message_id)).code == "expired"


async def test_a_malformed_head_gives_its_permit_back(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1, 2, 3]) as (relay, listener):
        head = data_dir / "mailboxes" / subject_hash(A) / "new" / f"{files(data_dir, A, 'new')[0]}.json"
        relay.bus.mailboxes.get(subject_hash(A)).fresh.clear()  # type: ignore[union-attr]
        head.write_bytes(b"not JSON")
        clock.advance(30)
        await relay.idle()
        assert (listener.got, breaker(relay).state) == ([2, 3], CircuitState.CLOSED)


async def test_a_probe_whose_subscriber_leaves_gives_its_permit_back(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, []) as (relay, listener):
        (subscription,) = relay.subscriptions()
        clock.advance(30)
        assert (await relay.publish(A, 1, sender=SENDER)).delivered_to == 1
        await subscription.close()  # before its dispatcher had a turn
        await relay.idle()
        assert relay.bus.breakers.retry_in(subject_hash(A)) == 0
        await relay.subscribe(A, listener)
        await relay.idle()
        assert listener.got == [1]
        assert (await relay.publish(A, 2, sender=SENDER)).delivered_to == 1
        await relay.idle()
        assert breaker(relay).state is CircuitState.CLOSED


async def test_a_mailbox_that_lost_its_subscriber_takes_mail_again_after_the_cooldown(
    data_dir: Path, clock: FakeClock
) -> None:
    async with opened(data_dir, clock, [1]) as (relay, listener):
        (subscription,) = relay.subscriptions()
        await subscription.close()
        clock.advance(30)
        results = [await relay.publish(A, number, sender=SENDER) for number in (2, 3)]
        assert [result.delivered_to for result in results] == [1, 1]  # no handler: storing is the outcome
        assert breaker(relay).state is CircuitState.CLOSED
        await relay.subscribe(A, listener)
        await relay.idle()
        assert listener.got == [1, 2, 3]


async def test_mail_that_overtakes_a_probe_being_stored_takes_its_permit(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [], durability="fsync") as (relay, listener):
        clock.advance(30)
        async with asyncio.TaskGroup() as group:
            publish = group.create_task(relay.publish(A, "probe", sender=SENDER))
            await asyncio.sleep(0)  # it has its permit and is being written
            mailbox = relay.bus.mailboxes.get(subject_hash(A))
            assert mailbox is not None
            mailbox.discover([drop(data_dir, A, "dropped", clock)])
            relay.bus.dispatch.wake(mailbox)
        assert publish.result().delivered_to == 1
        await until(lambda: len(listener.got) == 2)
        await relay.idle()
        assert sorted(listener.got) == ["dropped", "probe"]
        assert breaker(relay).state is CircuitState.CLOSED


async def test_an_operator_holds_a_breaker_open_and_resets_it(relay: RelayCore, clock: FakeClock) -> None:
    listener = Listener()
    await relay.register_endpoint(A)
    await publish_all(relay, A, [1, 2])
    relay.force_breaker(A, CircuitState.OPEN, "maintenance")
    await relay.subscribe(A, listener)
    clock.advance(3600 - 1)
    await relay.idle()
    assert listener.got == []
    assert [rejection.reason for rejection in (await relay.publish(A, 3, sender=SENDER)).rejected or ()] == [
        "circuit_open"
    ]
    relay.reset_breaker(A)
    await relay.idle()
    assert listener.got == [1, 2]
    assert (await relay.publish(A, 4, sender=SENDER)).delivered_to == 1
    assert [transition.why for transition in breaker(relay).transitions] == ["maintenance", "reset by the operator"]


async def test_an_operator_closes_an_open_breaker_without_waiting(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1, 2]) as (relay, listener):
        relay.force_breaker(A, CircuitState.CLOSED, "repaired")
        await relay.idle()
        assert (listener.got, breaker(relay).state) == ([1, 2], CircuitState.CLOSED)


async def test_the_breaker_of_an_unknown_target_cannot_be_moved(relay: RelayCore) -> None:
    with pytest.raises(NotFound, match=f"no target {A}"):
        relay.reset_breaker(A)
    with pytest.raises(NotFound, match=f"no target {A}"):
        relay.force_breaker(A, CircuitState.OPEN, "why")


async def test_a_cooldown_that_a_reload_shortens_ends_when_the_new_one_does(data_dir: Path, clock: FakeClock) -> None:
    async with opened(data_dir, clock, [1, 2]) as (relay, listener):
        (data_dir / "config.json").write_bytes(
            orjson.dumps({"reliability": {"circuitBreaker": {"cooldownMs": 10_000}}})
        )
        relay.bus.reload()
        await relay.idle()
        clock.advance(10)
        await relay.idle()
        assert listener.got == [1, 2]
