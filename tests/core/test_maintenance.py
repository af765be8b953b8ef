"""Upkeep: each job does its part by the bus's clock, twice does no more, and what somebody has is left alone."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import weakref
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from relay_core import RelayConfig, RelayCore
from relay_core.config import (
    BackpressureConfig,
    BudgetConfig,
    CircuitBreakerConfig,
    RateLimitConfig,
    ReliabilityConfig,
    RetentionConfig,
)
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import subject_hash
from relay_core.rules.breaker import CircuitState
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, A, B
from tests.kit.waiting import PATIENCE_SECS, tasks_ended

DAY = 86_400
RELIABILITY = ReliabilityConfig(
    rate_limit=RateLimitConfig(enabled=False), backpressure=BackpressureConfig(max_mailbox_size=10_000)
)
CONFIG = RelayConfig(
    durability="os",
    reliability=RELIABILITY,
    retention=RetentionConfig(event_days=2),
)
LONG_LIVED = CONFIG.model_copy(update={"budget": BudgetConfig(ttl_ms=365 * DAY * 1000)})

pytestmark = pytest.mark.bus(CONFIG, endpoints=[A, B])


@pytest.fixture
async def relay(relay: RelayCore) -> RelayCore:
    """Wait for the check of the index that opening starts."""
    await tasks_ended("check index")
    return relay


@pytest.fixture
async def patient(data_dir: Path, clock: FakeClock) -> AsyncIterator[RelayCore]:
    """Return a bus whose messages outlive every retention."""
    async with RelayCore(data_dir, LONG_LIVED, clock) as relay:
        await relay.register_endpoint(A)
        yield relay


def box(data_dir: Path, subject: str) -> Path:
    return data_dir / "mailboxes" / subject_hash(subject)


def depth(relay: RelayCore, subject: str) -> int:
    return next(state.depth for state in relay.mailboxes() if state.subject == subject)


async def test_expire_makes_dead_letters_of_what_has_outlived_its_ttl(relay: RelayCore, clock: FakeClock) -> None:
    now = clock.now_ms()
    short = await relay.publish(A, 1, sender=SENDER, budget={"ttl": now + 1000})
    await relay.publish(A, 2, sender=SENDER, budget={"ttl": now + 2000})
    clock.advance(1)
    assert await relay.maintenance.expire() == 0  # a message lives up to and including its TTL
    clock.advance(0.001)
    assert await relay.maintenance.expire() == 1
    (letter,) = await relay.dead_letters(A)
    assert (letter.message_id, letter.code, letter.reason) == (short.message_id, "expired", "message expired (TTL)")
    assert [message.payload for message in await relay.inbox(A)] == [2]
    assert depth(relay, A) == 1
    (span,) = await relay.trace(short.message_id)
    assert (span.status, span.code) == ("failed", "expired")
    assert await relay.maintenance.expire() == 0
    assert len(await relay.dead_letters()) == 1


async def test_expire_takes_any_number_and_lets_others_in(relay: RelayCore, clock: FakeClock) -> None:
    for number in range(700):
        await relay.publish(A if number % 2 else B, number, sender=SENDER)
    clock.advance(3601)
    assert await relay.maintenance.expire() == 700
    assert len(await relay.dead_letters()) == 700
    assert [depth(relay, subject) for subject in (A, B)] == [0, 0]


async def test_a_message_that_is_being_handled_is_left_alone(relay: RelayCore, clock: FakeClock) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def handle(envelope: Envelope) -> None:
        entered.set()
        await go_on.wait()

    handled = await relay.publish(A, 1, sender=SENDER)
    await relay.publish(B, 1, sender=SENDER)
    (claimed,) = await relay.claim(B)
    await relay.subscribe(A, handle)
    await entered.wait()
    clock.advance(8 * DAY)
    assert await relay.maintenance.expire() == 0
    assert await relay.maintenance.expire_unread() == 0
    assert await relay.maintenance.purge_dead_letters() == 0
    assert await relay.maintenance.drop_empty_mailboxes() == 0
    await relay.maintenance.checkpoint_index()
    go_on.set()
    await relay.idle()
    await relay.complete(B, claimed.id)
    for message_id in (handled.message_id, claimed.id):
        assert [span.status for span in await relay.trace(message_id)] == ["done"]
    assert await relay.dead_letters() == []


async def test_what_cannot_be_taken_does_not_hide_the_rest(relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    for number in range(600):
        await relay.publish(A, number, sender=SENDER, budget={"ttl": clock.now_ms() + 1000 + number})
    await relay.idle()
    for name in sorted(os.listdir(box(data_dir, A) / "new"))[:550]:
        os.unlink(box(data_dir, A) / "new" / name)  # other hands; the index still says that they wait
    clock.advance(60)
    assert await relay.maintenance.expire() == 50


async def test_an_expired_probe_gives_its_permit_back(data_dir: Path, clock: FakeClock) -> None:
    breaker = CircuitBreakerConfig(failure_threshold=1, cooldown_ms=1000)
    config = CONFIG.model_copy(update={"reliability": RELIABILITY.model_copy(update={"circuit_breaker": breaker})})
    async with RelayCore(data_dir, config, clock) as relay:
        await relay.register_endpoint(A)

        async def fail(envelope: Envelope) -> None:
            raise ValueError

        async with await relay.subscribe(A, fail):
            await relay.publish(A, 1, sender=SENDER)
            await relay.idle()
            clock.advance(2)
            relay.bus.dispatch.stop()  # so that the probe waits in new/
            probe = await relay.publish(A, 2, sender=SENDER)
        assert probe.delivered_to == 1
        clock.advance(3601)
        assert await relay.maintenance.expire() == 1
        verdict = relay.bus.breakers.check(subject_hash(A))
        assert (verdict.allowed, verdict.state) == (True, CircuitState.HALF_OPEN)


async def test_a_replay_whose_message_expires_comes_to_an_end(relay: RelayCore, clock: FakeClock) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def handle(envelope: Envelope) -> None:
        entered.set()
        await go_on.wait()

    result = await relay.publish(A, 1, sender=SENDER)
    await relay.claim(A)
    await relay.fail(A, result.message_id, "no")
    await relay.subscribe(A, handle)
    await relay.publish(A, 2, sender=SENDER)
    await entered.wait()  # so that the other one waits in new/
    plan = await relay.plan_replay([result.message_id])
    run = relay.replays.start(plan.id)
    async with asyncio.timeout(PATIENCE_SECS):
        while not depth(relay, A):
            await relay.bus.index.flush()
        clock.advance(3601)
        assert await relay.maintenance.expire() == 1
        outcome = await run.wait()
    go_on.set()
    assert (outcome.delivered, outcome.failed) == (0, 1)


async def test_a_bad_file_met_on_the_way_is_set_aside(relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    result = await relay.publish(A, 1, sender=SENDER)
    await relay.idle()
    (box(data_dir, A) / "new" / f"{result.message_id}.json").write_bytes(b"garbage")
    clock.advance(3601)
    assert await relay.maintenance.expire() == 0
    assert [letter.code for letter in await relay.dead_letters()] == ["malformed"]


async def test_unread_mail_is_retired_after_its_days(patient: RelayCore, clock: FakeClock) -> None:
    old = await patient.publish(A, 1, sender=SENDER)
    clock.advance(DAY)
    await patient.publish(A, 2, sender=SENDER)
    clock.advance(6 * DAY)
    assert await patient.maintenance.expire_unread() == 0
    clock.advance(1)
    assert await patient.maintenance.expire_unread() == 1
    assert await patient.maintenance.expire_unread() == 0
    (letter,) = await patient.dead_letters()
    assert (letter.message_id, letter.code, letter.reason) == (old.message_id, "unread", "unread for 7 days")
    assert [message.payload for message in await patient.inbox(A)] == [2]


async def test_a_replayed_message_is_unread_from_its_replay_on(patient: RelayCore, clock: FakeClock) -> None:
    result = await patient.publish(A, 1, sender=SENDER)
    await patient.claim(A)
    await patient.fail(A, result.message_id, "no")
    clock.advance(6 * DAY)
    await patient.run_replay((await patient.plan_replay([result.message_id])).id)
    clock.advance(6 * DAY)
    assert await patient.maintenance.expire_unread() == 0
    clock.advance(2 * DAY)
    assert await patient.maintenance.expire_unread() == 1


async def test_dead_letters_are_purged_after_their_days(patient: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    for _ in range(2):
        await patient.publish("relay.agent.nobody", 1, sender=SENDER)
        clock.advance(4 * DAY)
    assert await patient.maintenance.purge_dead_letters() == 1
    assert await patient.maintenance.purge_dead_letters() == 0
    assert len(os.listdir(box(data_dir, "relay.agent.nobody") / "failed")) == 1
    page, total, _ = await patient.dead_letter_page()
    assert (len(page), total) == (1, 1)


async def test_traces_are_forgotten_after_their_days_but_never_of_what_is_there(
    patient: RelayCore, clock: FakeClock
) -> None:
    waiting = await patient.publish(A, 0, sender="relay.agent.t")
    dead = await patient.publish("relay.agent.nobody", 1, sender=SENDER)
    await patient.register_endpoint(B)
    done = await patient.publish(B, 1, sender=SENDER)
    await patient.claim(B)
    await patient.complete(B, done.message_id)
    clock.advance(7 * DAY)
    assert await patient.maintenance.forget_traces() == 0
    clock.advance(1)
    assert await patient.maintenance.forget_traces() == 1
    assert await patient.maintenance.forget_traces() == 0
    assert await patient.trace(done.message_id) == []
    assert [span.status for span in await patient.trace(waiting.message_id)] == ["new"]
    assert [span.status for span in await patient.trace(dead.message_id)] == ["no_subscriber"]
    publishes = await patient.bus.index.run(lambda db: db.execute("SELECT id FROM publishes").fetchall())
    assert sorted(publishes) == [(waiting.message_id,), (dead.message_id,)]


async def test_events_are_removed_by_whole_days(relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    days = []
    for _ in range(4):
        await relay.publish(A, 1, sender=SENDER)
        await asyncio.wrap_future(relay.bus.events.seal())
        days.append(f"date={datetime.fromtimestamp(clock.now_ms() / 1000, UTC):%Y-%m-%d}")
        clock.advance(DAY)
    assert sorted(os.listdir(data_dir / "events")) == days
    assert await relay.maintenance.expire_events() == 2  # of today, none yet, and the two days before stay
    assert sorted(os.listdir(data_dir / "events")) == days[2:]
    assert await relay.maintenance.expire_events() == 0


async def test_the_tmp_sweep_removes_old_leftovers_only(relay: RelayCore, data_dir: Path) -> None:
    old, young = (box(data_dir, A) / "tmp" / name for name in ("old.json", "young.json"))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    assert await relay.maintenance.sweep_tmp() == 1
    assert await relay.maintenance.sweep_tmp() == 0
    assert os.listdir(old.parent) == ["young.json"]


async def test_mailboxes_that_hold_nothing_are_dropped_unless_they_are_endpoints(
    relay: RelayCore, data_dir: Path
) -> None:
    await relay.publish("relay.agent.nobody", 1, sender=SENDER)
    await relay.unregister_endpoint(B)
    assert await relay.maintenance.drop_empty_mailboxes() == 1  # only B: the other holds a dead letter
    await relay.purge_dead_letters()
    assert await relay.maintenance.drop_empty_mailboxes() == 1
    assert await relay.maintenance.drop_empty_mailboxes() == 0
    assert [state.subject for state in relay.mailboxes()] == [A]
    assert os.listdir(data_dir / "mailboxes") == [subject_hash(A)]
    await relay.register_endpoint(B)
    assert (await relay.publish(B, 1, sender=SENDER)).delivered_to == 1
    assert len(await relay.inbox(B)) == 1


async def test_any_number_of_mailboxes_is_dropped_and_others_are_let_in(relay: RelayCore) -> None:
    async def ignore(envelope: Envelope) -> None:
        pass

    async with await relay.subscribe("relay.once.*", ignore):
        for number in range(100):
            await relay.publish(f"relay.once.{number}", 1, sender=SENDER)
        await relay.idle()
        turns = 0
        async with asyncio.TaskGroup() as group:
            dropping = group.create_task(relay.maintenance.drop_empty_mailboxes())
            while not dropping.done():
                turns += 1
                await asyncio.sleep(0)
    assert dropping.result() == 100
    assert turns > 5


async def test_a_dropped_mailbox_keeps_no_subscription(relay: RelayCore) -> None:
    async def ignore(envelope: Envelope) -> None:
        pass

    subscription = await relay.subscribe("relay.once.*", ignore)
    await relay.publish("relay.once.1", 1, sender=SENDER)
    await relay.idle()
    assert await relay.maintenance.drop_empty_mailboxes() == 1
    await subscription.close()
    there = weakref.ref(subscription)
    del subscription
    gc.collect()
    assert there() is None


@pytest.mark.parametrize("leftover", ["tmp/half.json", "new/.hidden", "stranger.txt"])
async def test_a_mailbox_that_cannot_be_dropped_stays_whole(leftover: str, relay: RelayCore, data_dir: Path) -> None:
    await relay.unregister_endpoint(B)
    (box(data_dir, B) / leftover).write_bytes(b"")
    assert await relay.maintenance.drop_empty_mailboxes() == 0
    await relay.register_endpoint(B)
    assert (await relay.publish(B, 1, sender=SENDER)).delivered_to == 1
    (message,) = await relay.claim(B)
    await relay.fail(B, message.id, "no")
    assert (box(data_dir, B) / "endpoint.json").exists()
    assert len(await relay.dead_letters(B)) == 1


async def test_the_checkpoint_repairs_the_index_and_empties_its_log(relay: RelayCore, data_dir: Path) -> None:
    lost = await relay.publish(A, 1, sender=SENDER)
    taken = await relay.publish(A, 2, sender=SENDER)
    await relay.bus.index.run(lambda db: db.execute("DELETE FROM deliveries WHERE message_id = ?", (lost.message_id,)))
    await relay.idle()
    os.unlink(box(data_dir, A) / "new" / f"{taken.message_id}.json")
    relay.bus.index.dirty = True
    assert await relay.maintenance.checkpoint_index() == {"added": 1, "ended": 1}
    assert not relay.bus.index.dirty
    assert os.stat(data_dir / "index.db-wal").st_size == 0
    assert [span.status for span in await relay.trace(lost.message_id)] == ["new"]
    assert [span.status for span in await relay.trace(taken.message_id)] == ["gone"]
    assert await relay.maintenance.checkpoint_index() == {"added": 0, "ended": 0}


async def test_the_checkpoint_finds_files_that_nobody_told_us_of(relay: RelayCore, data_dir: Path) -> None:
    result = await relay.publish(B, 1, sender=SENDER)
    name = f"{result.message_id}.json"
    await relay.idle()
    os.link(box(data_dir, B) / "new" / name, box(data_dir, A) / "new" / name)  # gives no event of a rename
    assert await relay.inbox(A) == []
    await relay.maintenance.checkpoint_index()
    async with asyncio.timeout(PATIENCE_SECS):
        while not depth(relay, A):
            await relay.bus.index.flush()
    assert [message.id for message in await relay.inbox(A)] == [result.message_id]


async def test_every_job_is_harmless_on_an_empty_bus(relay: RelayCore) -> None:
    jobs = relay.maintenance
    for job in (
        jobs.expire,
        jobs.expire_unread,
        jobs.purge_dead_letters,
        jobs.forget_traces,
        jobs.expire_events,
        jobs.sweep_tmp,
        jobs.drop_empty_mailboxes,
    ):
        assert await job() == 0
    assert await jobs.checkpoint_index() == {"added": 0, "ended": 0}


async def test_jobs_at_the_same_time_as_traffic_lose_and_double_nothing(relay: RelayCore, clock: FakeClock) -> None:
    handled: list[str] = []

    async def handle(envelope: Envelope) -> None:
        handled.append(envelope.id)
        await asyncio.sleep(0)

    await relay.subscribe(A, handle)
    published: list[str] = []

    async def publish() -> None:
        for number in range(300):
            result = await relay.publish(A, number, sender=SENDER, budget={"ttl": clock.now_ms() + number % 3 * 1000})
            published.append(result.message_id)
            clock.advance(0.5)
            if number % 10 == 0:
                await asyncio.sleep(0)

    async def keep_up() -> None:
        jobs = relay.maintenance
        while len(published) < 300:
            await jobs.expire()
            await jobs.expire_unread()
            await jobs.checkpoint_index()
            await jobs.drop_empty_mailboxes()

    async with asyncio.TaskGroup() as group:
        group.create_task(publish())
        group.create_task(keep_up())
    await relay.idle()
    clock.advance(10)
    await relay.maintenance.expire()
    dead = [letter.message_id for letter in await relay.dead_letters()]
    assert sorted(handled + dead) == sorted(published)
    await relay.maintenance.checkpoint_index()
    rows = await relay.bus.index.run(
        lambda db: db.execute("SELECT status, count(*) FROM deliveries GROUP BY status").fetchall()
    )
    assert dict(rows) == {status: count for status, count in (("done", len(handled)), ("failed", len(dead))) if count}


async def test_an_unwritable_index_is_an_error_of_the_job_and_of_nothing_else(relay: RelayCore) -> None:
    await relay.publish(A, 1, sender=SENDER)
    await relay.bus.index.flush()
    await relay.bus.index.run(lambda db: db.execute("PRAGMA query_only = 1"))
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await relay.maintenance.forget_traces()
    await relay.bus.index.run(lambda db: db.execute("PRAGMA query_only = 0"))
    assert await relay.maintenance.forget_traces() == 0
