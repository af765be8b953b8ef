"""A replay run: each message goes back to its target; none is lost and none is doubled."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from relay_core import DeadLetterFilter, RateLimitConfig, RelayCore
from relay_core.clock import iso
from relay_core.messages.delivery import TraceSearch
from relay_core.messages.subjects import subject_hash
from relay_core.records.events import EventKind
from relay_core.testing import FakeClock
from tests.core.deadletters.replays import config, dead, dead_by_handler, places
from tests.kit.adapters import SampleAdapter, accept, refuse
from tests.kit.bus import SENDER, A, B, C, assert_counts_match_files, dead_ids, refusing_journal, span
from tests.kit.events import EventReader
from tests.kit.handlers import Listener

pytestmark = pytest.mark.bus(config(), endpoints=[A])


async def test_a_replay_goes_back_to_its_target_and_keeps_what_it_was(either: RelayCore, clock: FakeClock) -> None:
    listener, other = Listener(), Listener()
    await either.register_endpoint(B)
    await either.subscribe(B, other)
    (message_id,) = await dead(
        either,
        {"n": 1},
        reply_to=C,
        budget={"hop_count": 1, "ancestor_chain": ["relay.agent.x"], "call_budget_remaining": 7},
    )
    (before,) = await either.dead_letters()
    assert before.envelope is not None
    await either.subscribe(A, listener)
    clock.advance(7200)  # its first TTL is long over
    outcome = await either.run_replay((await either.plan_replay()).id)
    assert (outcome.delivered, outcome.failed, outcome.skipped, outcome.state) == (1, 0, 0, "finished")
    (after,) = listener.envelopes
    assert other.got == []
    renewed = before.envelope.budget.model_copy(update={"ttl": clock.now_ms() + 3_600_000})
    assert after == before.envelope.model_copy(
        update={"budget": renewed, "replays": 1, "replayed_at": iso(clock.now_ms())}
    )
    assert (after.id, after.budget.hop_count, after.budget.ancestor_chain) == (message_id, 2, ("relay.agent.x", A))
    assert await dead_ids(either) == []
    found = await span(either, message_id)
    assert (found.status, found.replays, found.code, found.expires_at) == ("done", 1, None, renewed.ttl)


async def test_a_replay_with_a_fresh_budget_begins_anew(relay: RelayCore, clock: FakeClock) -> None:
    listener = Listener()
    await dead(relay, 1, budget={"hop_count": 3, "ancestor_chain": ["relay.agent.x"], "call_budget_remaining": 2})
    await relay.subscribe(A, listener)
    await relay.run_replay((await relay.plan_replay(fresh_budget=True)).id)
    budget = listener.envelopes[0].budget
    assert (budget.hop_count, budget.ancestor_chain, budget.call_budget_remaining) == (1, (A,), 9)
    found = (await relay.trace(listener.envelopes[0].id))[0]
    assert (found.hops_after, found.ancestors, found.calls_after) == (1, (A,), 9)


async def test_a_replay_stays_in_the_conversation_it_belongs_to(either: RelayCore) -> None:
    parent = await either.publish(A, "parent", sender=SENDER)
    await either.register_endpoint(B)
    child = await either.publish(B, "child", sender=A, parent_id=parent.message_id)
    await either.claim(B)
    await either.fail(B, child.message_id, "no")
    await either.subscribe(B, Listener())
    await either.run_replay((await either.plan_replay()).id)
    found = await span(either, child.message_id, B)
    assert (found.status, found.trace_id, found.parent_id) == ("done", parent.message_id, parent.message_id)
    grandchild = await either.publish(A, "grandchild", sender=B, parent_id=child.message_id)
    assert [span.message_id for span in await either.conversation(parent.message_id)] == [
        parent.message_id,
        child.message_id,
        grandchild.message_id,
    ]


async def test_a_replay_that_fails_again_is_a_dead_letter_again(either: RelayCore, data_dir: Path) -> None:
    (message_id,) = await dead(either, 1)
    await either.subscribe(A, Listener(fails=True))
    for replays in (1, 2):
        outcome = await either.run_replay((await either.plan_replay()).id)
        assert (outcome.delivered, outcome.failed, outcome.state) == (0, 1, "finished")
        (letter,) = await either.dead_letters()
        assert (letter.message_id, letter.code, letter.replays) == (message_id, "handler_failed", replays)
        found = await span(either, message_id)
        assert (found.status, found.replays) == ("failed", replays)
    assert_counts_match_files(either, data_dir)


async def test_a_trace_shows_the_outcome_of_the_replay_not_of_what_failed_before(relay: RelayCore) -> None:
    listener = Listener(fails=True)
    await relay.subscribe(A, listener)
    result = await relay.publish(A, 1, sender=SENDER)
    await relay.idle()
    listener.fails = False
    await relay.run_replay((await relay.plan_replay()).id)
    found = await span(relay, result.message_id)
    assert (found.status, [outcome["ok"] for outcome in found.outcomes]) == ("done", [True])


async def test_where_nobody_handles_a_replay_is_delivered_when_it_is_stored(relay: RelayCore, data_dir: Path) -> None:
    ids = await dead(relay, 1, 2, 3)
    outcome = await relay.run_replay((await relay.plan_replay()).id)
    assert outcome.delivered == 3
    assert [envelope.id for envelope in await relay.inbox(A)] == ids
    assert_counts_match_files(relay, data_dir)


async def test_a_replay_goes_behind_the_mail_that_waits(relay: RelayCore) -> None:
    await dead(relay, "replayed")
    await relay.publish(A, "waits", sender=SENDER)
    await relay.run_replay((await relay.plan_replay()).id)
    assert [envelope.payload for envelope in await relay.inbox(A)] == ["waits", "replayed"]


async def test_a_replay_spends_nothing_of_the_senders_rate_limit(data_dir: Path, clock: FakeClock) -> None:
    limits = config(rate_limit=RateLimitConfig(max_per_window=5))
    async with RelayCore(data_dir, limits, clock) as relay:
        await relay.register_endpoint(A)
        await dead(relay, 1, 2, 3)
        unheard = await relay.publish(B, 4, sender=SENDER)
        await relay.register_endpoint(B)
        before = relay.senders()
        assert (await relay.run_replay((await relay.plan_replay()).id)).delivered == 4
        assert relay.senders() == before
        assert (await relay.inbox(B))[0].id == unheard.message_id
    async with RelayCore(data_dir, limits, clock) as relay:  # usage is warmed from the index
        assert (await relay.publish(A, 5, sender=SENDER)).delivered_to == 1
        assert (await relay.publish(A, 6, sender=SENDER)).delivered_to == 0


@pytest.mark.parametrize("restarted", [False, True], ids=["same bus", "restarted"])
async def test_an_edit_spends_nothing_of_the_senders_rate_limit(
    data_dir: Path, clock: FakeClock, restarted: bool
) -> None:
    limits = config(rate_limit=RateLimitConfig(max_per_window=2))
    async with RelayCore(data_dir, limits, clock) as relay:
        await relay.register_endpoint(A)
        (message_id,) = await dead(relay, 1)
        assert (await relay.replays.edit(message_id, 2)).delivered_to == 1
        if not restarted:
            assert (await relay.publish(A, 3, sender=SENDER)).delivered_to == 1
    if restarted:
        async with RelayCore(data_dir, limits, clock) as relay:
            assert (await relay.publish(A, 3, sender=SENDER)).delivered_to == 1


@pytest.mark.parametrize("taker", ["endpoint", "subscription"])
async def test_a_message_nobody_heard_goes_to_its_subject_once_there_is_a_taker(
    either: RelayCore, data_dir: Path, clock: FakeClock, taker: str
) -> None:
    result = await either.publish(B, {"n": 1}, sender=SENDER, reply_to=C)
    clock.advance(60)
    listener = Listener()
    if taker == "endpoint":
        await either.register_endpoint(B)
    await either.subscribe(B, listener)
    outcome = await either.run_replay((await either.plan_replay()).id)
    assert (outcome.delivered, outcome.failed, outcome.skipped) == (1, 0, 0)
    (envelope,) = listener.envelopes
    assert (envelope.id, envelope.payload, envelope.reply_to, envelope.replays) == (
        result.message_id,
        {"n": 1},
        C,
        1,
    )
    assert (envelope.budget.hop_count, envelope.budget.ancestor_chain) == (1, (B,))
    assert envelope.budget.ttl == clock.now_ms() + 3_600_000
    assert places(data_dir, result.message_id) == []
    assert await dead_ids(either) == []
    found = await span(either, result.message_id, B)
    assert (found.status, found.code, found.replays) == ("done", None, 1)
    assert found.sent_at == clock.now_ms() - 60_000
    assert (found.stored_at, found.claimed_at, found.handled_at) == (clock.now_ms(),) * 3
    assert await either.dead_letter_groups() == []
    assert_counts_match_files(either, data_dir)


async def test_what_was_accepted_once_is_replayed_though_the_limit_is_lower_now(
    relay: RelayCore, data_dir: Path
) -> None:
    large = await relay.publish(B, "x" * 100, sender=SENDER)
    await relay.publish(B, "y", sender=SENDER)
    await relay.publish(C, "z" * 100, sender=SENDER)
    for subject in (B, C):
        await relay.register_endpoint(subject)
    (data_dir / "config.json").write_text('{"limits": {"maxPayloadBytes": 50}}')
    relay.bus.reload()
    outcome = await relay.run_replay((await relay.plan_replay(filter=DeadLetterFilter(endpoint=B))).id)
    assert (outcome.delivered, outcome.skipped) == (2, 0)
    assert (await relay.inbox(B))[0].id == large.message_id
    (left,) = await dead_ids(relay)
    await relay.replays.edit(left, "short")
    assert [envelope.payload for envelope in await relay.inbox(C)] == ["short"]


async def test_a_message_nobody_heard_whose_new_taker_fails_it_counts_as_failed(
    either: RelayCore, data_dir: Path
) -> None:
    result = await either.publish(B, 1, sender=SENDER)
    await either.register_endpoint(B)
    await either.subscribe(B, Listener(fails=True))
    outcome = await either.run_replay((await either.plan_replay()).id)
    assert (outcome.delivered, outcome.failed) == (0, 1)
    (letter,) = await either.dead_letters()
    assert (letter.message_id, letter.code, letter.replays) == (result.message_id, "handler_failed", 1)
    assert_counts_match_files(either, data_dir)


async def test_a_broadcast_nobody_heard_goes_to_every_endpoint_there_is_by_then(
    relay: RelayCore, data_dir: Path
) -> None:
    result = await relay.publish("relay.new.*", 1, sender=SENDER)
    for name in ("x", "y"):
        await relay.register_endpoint(f"relay.new.{name}")
    outcome = await relay.run_replay((await relay.plan_replay()).id)
    assert (outcome.delivered, outcome.failed) == (1, 0)
    for name in ("x", "y"):
        (envelope,) = await relay.inbox(f"relay.new.{name}")
        assert (envelope.id, envelope.subject) == (result.message_id, f"relay.new.{name}")
    await relay.idle()
    assert places(data_dir, result.message_id) == ["new", "new"]
    assert_counts_match_files(relay, data_dir)


async def test_a_replay_is_an_event(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config(), clock) as relay:
        await relay.register_endpoint(A)
        ids = await dead(relay, 1)
        ids.append((await relay.publish(B, 2, sender=SENDER)).message_id)
        await relay.register_endpoint(B)
        await relay.run_replay((await relay.plan_replay()).id)
    segments = sorted((data_dir / "events").rglob("*.jsonl"))
    events = [event for segment in segments for event in EventReader(segment) if event.kind == EventKind.REPLAYED]
    assert [event.message_id for event in events] == ids


HOUR_US = 3_600_000_000


@pytest.mark.parametrize("taker", ["handler", "pull", "after a restart"])
@pytest.mark.parametrize("stage", ["target", "gate"])
async def test_the_time_as_a_dead_letter_is_not_counted_as_waiting(
    data_dir: Path, clock: FakeClock, taker: str, stage: str
) -> None:
    listener = Listener()
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(RelayCore(data_dir, config(), clock))
        if stage == "target":
            await relay.register_endpoint(A)
            (message,) = await dead(relay, 1)
        else:
            message = (await relay.publish(A, 1, sender=SENDER)).message_id
            await relay.register_endpoint(A)
        clock.advance(24 * 3600)
        if taker == "handler":
            await relay.subscribe(A, listener)
        assert (await relay.run_replay((await relay.plan_replay()).id)).delivered == 1
        if taker == "after a restart":
            await stack.aclose()
            relay = await stack.enter_async_context(RelayCore(data_dir, config(), clock))
        if taker != "handler":
            clock.advance(60)
            (taken,) = await relay.claim(A)
            clock.advance(1)
            await relay.complete(A, taken.id)
        await relay.idle()
        metrics = relay.metrics()
        waited = 0 if taker == "handler" else 60_000_000
        assert metrics.queue_us.count == 1
        assert waited <= metrics.queue_us.longest <= metrics.total_us.longest < HOUR_US
        (found,) = (await relay.search_traces(TraceSearch(id=message))).rows
        assert found.total_us is not None
        assert found.total_us < HOUR_US
    told = [event for path in sorted((data_dir / "events").rglob("*.jsonl")) for event in EventReader(path)]
    (handled,) = [event for event in told if event.kind == EventKind.HANDLED]
    assert handled.queue_us is not None
    assert waited <= handled.queue_us < HOUR_US
    assert [event.kind for event in told if max(event.total_us or 0, event.store_us or 0) >= HOUR_US] == []


async def test_a_replay_is_no_message_in_any_count(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config(), clock) as relay:
        await relay.publish(A, 1, sender=SENDER)  # no_match
        await relay.register_endpoint(A)
        await dead(relay, 2)
        assert (await relay.run_replay((await relay.plan_replay()).id)).delivered == 2
        assert (relay.metrics().publishes, relay.metrics().bytes) == (2, 2)
    told = [event for path in sorted((data_dir / "events").rglob("*.jsonl")) for event in EventReader(path)]
    assert [event.status for event in told if event.kind == EventKind.PUBLISH] == ["no_subscriber", "accepted"]
    assert sum(event.kind == EventKind.REPLAYED for event in told) == 2


async def test_a_message_that_is_gone_when_its_turn_comes_is_skipped(relay: RelayCore) -> None:
    first, second = await dead(relay, 1, 2)
    plan = await relay.plan_replay()
    await relay.purge_dead_letters(ids=[first])
    outcome = await relay.run_replay(plan.id)
    assert (outcome.delivered, outcome.skipped) == (1, 1)
    assert [envelope.id for envelope in await relay.inbox(A)] == [second]


async def test_two_plans_over_the_same_message_never_double_it(either: RelayCore, data_dir: Path) -> None:
    listener = Listener()
    await either.subscribe(A, listener)
    ids = await dead_by_handler(either, listener, 40)
    plans = [await either.plan_replay() for _ in range(4)]
    outcomes = await asyncio.gather(*(either.run_replay(plan.id) for plan in plans))
    assert sorted(envelope.id for envelope in listener.envelopes) == ids
    assert sum(outcome.delivered for outcome in outcomes) == 40
    assert sum(outcome.skipped for outcome in outcomes) == 120
    assert {outcome.state for outcome in outcomes} == {"finished"}
    assert await dead_ids(either) == []
    assert_counts_match_files(either, data_dir)


async def test_a_purge_during_a_run_takes_or_leaves_each_message_whole(either: RelayCore, data_dir: Path) -> None:
    listener = Listener()
    await either.subscribe(A, listener)
    ids = await dead_by_handler(either, listener, 40)
    plan = await either.plan_replay()
    outcome, purged = await asyncio.gather(either.run_replay(plan.id), either.purge_dead_letters(ids=ids[::2]))
    assert outcome.delivered == len(listener.envelopes) == len(set(listener.got))
    assert outcome.delivered + purged == 40
    assert await dead_ids(either) == []
    assert_counts_match_files(either, data_dir)


async def test_copies_of_a_broadcast_are_replayed_each_to_its_own_target(relay: RelayCore) -> None:
    await relay.register_endpoint(B)
    result = await relay.publish("relay.agent.*", 1, sender=SENDER)
    for subject in (A, B):
        await relay.claim(subject)
        await relay.fail(subject, result.message_id, "no")
    plan = await relay.plan_replay([result.message_id])
    assert sorted(item.endpoint_subject for item in plan.items) == [A, B]
    assert (await relay.run_replay(plan.id)).delivered == 2
    for subject in (A, B):
        assert [envelope.id for envelope in await relay.inbox(subject)] == [result.message_id]


async def test_a_copy_kept_aside_is_replayed_to_its_target_only(relay: RelayCore, data_dir: Path) -> None:
    adapter = SampleAdapter(patterns=[A], platform=refuse)
    await relay.add_adapter(adapter)
    result = await relay.publish(A, 1, sender=SENDER)
    assert result.delivered_to == 1
    adapter.platform = accept
    assert await relay.dead_letters() == []
    for plan in (await relay.plan_replay([result.message_id]), await relay.plan_replay()):
        assert [(item.endpoint_subject, item.verdict, item.partial) for item in plan.items] == [
            ("relay.adapter.sample", "will_deliver", True)
        ]
    assert (await relay.run_replay(plan.id)).delivered == 1
    assert adapter.got == [1, 1]
    assert [envelope.id for envelope in await relay.inbox(A)] == [result.message_id]
    assert_counts_match_files(relay, data_dir)


async def test_a_disk_that_refuses_stops_the_run_and_loses_nothing(relay: RelayCore, data_dir: Path) -> None:
    ids = await dead(relay, 1, 2, 3)
    with refusing_journal(relay):
        outcome = await relay.run_replay((await relay.plan_replay()).id)
    assert (outcome.delivered, outcome.failed, outcome.skipped, outcome.state) == (0, 0, 3, "stopped")
    assert outcome.detail is not None
    assert "cannot replay to" in outcome.detail
    assert await dead_ids(relay) == ids
    assert (await relay.run_replay((await relay.plan_replay()).id)).delivered == 3
    assert_counts_match_files(relay, data_dir)


async def test_an_error_that_nobody_foresaw_is_why_the_run_stopped(relay: RelayCore, data_dir: Path) -> None:
    (message_id,) = await dead(relay, 1)
    record = data_dir / "mailboxes" / subject_hash(A) / "failed" / f"{message_id}.json"
    record.write_bytes(record.read_bytes().replace(b'"replays":0', b'"replays":%d' % (2**64 - 1)))
    outcome = await relay.run_replay((await relay.plan_replay()).id)
    assert (outcome.state, outcome.detail) == ("stopped", "TypeError: Integer exceeds 64-bit range")
    assert await dead_ids(relay) == [message_id]


async def test_a_message_nobody_heard_that_cannot_be_stored_even_now_is_a_dead_letter_still(
    relay: RelayCore, data_dir: Path
) -> None:
    result = await relay.publish(B, 1, sender=SENDER)
    await relay.register_endpoint(B)
    with refusing_journal(relay):
        outcome = await relay.run_replay((await relay.plan_replay()).id)
    assert (outcome.delivered, outcome.failed, outcome.skipped, outcome.state) == (0, 0, 1, "stopped")
    (letter,) = await relay.dead_letters()
    assert (letter.message_id, letter.code, letter.replays) == (result.message_id, "no_match", 0)
    assert_counts_match_files(relay, data_dir)
    assert (await relay.run_replay((await relay.plan_replay()).id)).delivered == 1
