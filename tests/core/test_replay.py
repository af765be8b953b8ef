"""Replay: what a plan says, what a run does, and that a message is never lost and never doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core import (
    AccessDenied,
    AccessRule,
    BackpressureConfig,
    CircuitBreakerConfig,
    CircuitState,
    Closed,
    DeadLetterFilter,
    Envelope,
    InvalidPayload,
    NotFound,
    RateLimitConfig,
    RelayConfig,
    RelayCore,
    ReliabilityConfig,
    ReplayPlan,
    Span,
    StorageError,
    replay,
    replay_run,
)
from relay_core.clock import iso
from relay_core.events import EventKind, read_events
from relay_core.replay_run import ReplayRun
from relay_core.subjects import subject_hash
from relay_core.testing import FakeClock
from relay_core.trace_search import TraceSearch
from tests.core.sample_adapter import SampleAdapter, eventually, refuse

A, B, C = "relay.agent.a", "relay.agent.b", "relay.agent.c"
SENDER = "relay.agent.sender"
UNKNOWN_ID = "01HF7YAT0A8CDKSYBCF7B20000"
FULL = 50


def config(durability: str = "os", **sections: Any) -> RelayConfig:
    parts: dict[str, Any] = {
        "rate_limit": RateLimitConfig(enabled=False),
        "circuit_breaker": CircuitBreakerConfig(enabled=False),
        "backpressure": BackpressureConfig(max_mailbox_size=FULL),
    }
    return RelayConfig(
        durability="fsync" if durability == "fsync" else "os", reliability=ReliabilityConfig(**(parts | sections))
    )


@pytest.fixture
async def relay(data_dir: Path, clock: FakeClock) -> AsyncIterator[RelayCore]:
    async with RelayCore(data_dir, config(), clock) as relay:
        await relay.register_endpoint(A)
        yield relay


@pytest.fixture(params=["os", "fsync"])
async def either(data_dir: Path, clock: FakeClock, request: pytest.FixtureRequest) -> AsyncIterator[RelayCore]:
    """Run a bus with either durability."""
    async with RelayCore(data_dir, config(request.param), clock) as relay:
        await relay.register_endpoint(A)
        yield relay


class Listener:
    """A handler that notes what it gets, and can be held up or made to fail."""

    def __init__(self, *, fails: bool = False, held: bool = False) -> None:
        self.envelopes: list[Envelope] = []
        self.fails = fails
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        if not held:
            self.gate.set()

    @property
    def got(self) -> list[Any]:
        return [envelope.payload for envelope in self.envelopes]

    async def __call__(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)
        self.entered.set()
        await self.gate.wait()
        if self.fails:
            raise ValueError("no")


async def dead(relay: RelayCore, *payloads: Any, subject: str = A, **options: Any) -> list[str]:
    """Make dead letters that a pull consumer has failed."""
    ids = []
    for payload in payloads:
        result = await relay.publish(subject, payload, sender=SENDER, **options)
        await relay.claim(subject)
        await relay.fail(subject, result.message_id, "no")
        ids.append(result.message_id)
    return ids


async def letters(relay: RelayCore) -> list[str]:
    return [letter.message_id for letter in await relay.dead_letters()]


async def span(relay: RelayCore, message_id: str, subject: str = A) -> Span:
    (found,) = [one for one in await relay.trace(message_id) if one.target == subject_hash(subject)]
    return found


async def start(relay: RelayCore, **options: Any) -> ReplayRun:
    return relay.replays.start((await relay.plan_replay()).id, **options)


def verdicts(plan: ReplayPlan) -> dict[str, str]:
    return {item.message_id: item.verdict for item in plan.items}


def snapshot(data_dir: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted((data_dir / "mailboxes").rglob("*")) if path.is_file()}


def places(data_dir: Path, message_id: str) -> list[str]:
    """Return where a message is, over all mailboxes."""
    return [path.parent.name for path in sorted((data_dir / "mailboxes").glob(f"*/*/{message_id}.json"))]


def assert_counts_are_the_directory(relay: RelayCore, data_dir: Path) -> None:
    for state in relay.mailboxes():
        box = data_dir / "mailboxes" / state.hash
        counts = [len(list((box / place).glob("*.json"))) for place in ("new", "cur", "failed")]
        assert [state.depth, state.claimed, state.failed] == counts, state.subject


# Plans


async def test_a_plan_changes_nothing(relay: RelayCore, data_dir: Path) -> None:
    await dead(relay, 1, 2, 3)
    before, spans = snapshot(data_dir), [await relay.trace(message_id) for message_id in await letters(relay)]
    for _ in range(2):
        await relay.plan_replay()
    assert snapshot(data_dir) == before
    assert [await relay.trace(message_id) for message_id in await letters(relay)] == spans
    assert_counts_are_the_directory(relay, data_dir)


async def test_a_plan_is_frozen_and_what_fails_later_is_not_in_it(relay: RelayCore) -> None:
    first = await dead(relay, 1, 2)
    plan = await relay.plan_replay()
    (later,) = await dead(relay, 3)
    assert [item.message_id for item in plan.items] == first
    outcome = await relay.run_replay(plan.id)
    assert (outcome.delivered, outcome.total, outcome.state) == (2, 2, "finished")
    assert await letters(relay) == [later]


async def test_a_plan_selects_by_filter_or_by_id(relay: RelayCore) -> None:
    await relay.register_endpoint(B)
    one, two = await dead(relay, {"n": 1}, {"n": 2})
    (three,) = await dead(relay, {"n": 3}, subject=B)
    by_filter = await relay.plan_replay(filter=DeadLetterFilter(endpoint=A))
    assert [item.message_id for item in by_filter.items] == [one, two]
    by_id = await relay.plan_replay([three, one, three])
    assert [(item.message_id, item.endpoint_subject) for item in by_id.items] == [(three, B), (one, A)]
    both = await relay.plan_replay([three, one], filter=DeadLetterFilter(text='"n":3'))
    assert [item.message_id for item in both.items] == [three]


async def test_a_plan_of_nothing_is_carried_out_at_once(relay: RelayCore) -> None:
    outcome = await relay.run_replay((await relay.plan_replay()).id)
    assert (outcome.delivered, outcome.failed, outcome.skipped, outcome.state) == (0, 0, 0, "finished")


async def test_a_message_that_would_be_delivered(relay: RelayCore) -> None:
    (message_id,) = await dead(relay, 1)
    (item,) = (await relay.plan_replay()).items
    assert (item.message_id, item.verdict, item.endpoint_subject) == (message_id, "will_deliver", A)


async def test_a_message_whose_breaker_is_open(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config(circuit_breaker=CircuitBreakerConfig(failure_threshold=1)), clock) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, Listener(fails=True))
        await relay.publish(A, 1, sender=SENDER)
        await relay.idle()
        assert [item.verdict for item in (await relay.plan_replay()).items] == ["breaker_open"]
        clock.advance(30)
        assert [item.verdict for item in (await relay.plan_replay()).items] == ["will_deliver"]


async def test_a_message_whose_mailbox_is_full(relay: RelayCore) -> None:
    await dead(relay, 1)
    for number in range(FULL):
        await relay.publish(A, number, sender=SENDER)
    assert [item.verdict for item in (await relay.plan_replay()).items] == ["mailbox_full"]


async def test_a_message_whose_sender_is_denied(relay: RelayCore, data_dir: Path) -> None:
    (message_id,) = await dead(relay, 1)
    await asyncio.to_thread(relay.bus.access.add_rule, AccessRule(sender=SENDER, to=A, action="deny"))
    plan = await relay.plan_replay()
    (item,) = plan.items
    assert (item.verdict, item.detail) == ("denied", f"denied by the rule {SENDER} -> {A} (priority 0)")
    outcome = await relay.run_replay(plan.id)
    assert (outcome.delivered, outcome.failed, outcome.skipped) == (0, 0, 1)
    assert places(data_dir, message_id) == ["failed"]


async def test_a_rule_that_comes_after_the_plan_still_holds(relay: RelayCore, data_dir: Path) -> None:
    (message_id,) = await dead(relay, 1)
    plan = await relay.plan_replay()
    await asyncio.to_thread(relay.bus.access.add_rule, AccessRule(sender=SENDER, to=A, action="deny"))
    assert (await relay.run_replay(plan.id)).skipped == 1
    assert places(data_dir, message_id) == ["failed"]


async def test_a_message_that_was_replayed_already(relay: RelayCore) -> None:
    (message_id,) = await dead(relay, 1)
    await relay.run_replay((await relay.plan_replay()).id)
    (item,) = (await relay.plan_replay([message_id])).items
    assert (item.verdict, item.detail) == ("already_replayed", "it is new now")
    assert (await relay.plan_replay()).items == ()


async def test_a_message_that_was_purged(relay: RelayCore) -> None:
    (message_id,) = await dead(relay, 1)
    await relay.purge_dead_letters(ids=[message_id])
    (item,) = (await relay.plan_replay([message_id])).items
    assert (item.verdict, item.detail) == ("already_replayed", "it is purged now")


async def test_a_file_that_was_no_message(relay: RelayCore, data_dir: Path) -> None:
    result = await relay.publish(A, 1, sender=SENDER)
    (data_dir / "mailboxes" / subject_hash(A) / "new" / f"{result.message_id}.json").write_bytes(b"{")
    await relay.claim(A)
    plan = await relay.plan_replay()
    assert verdicts(plan) == {result.message_id: "malformed"}
    assert (await relay.run_replay(plan.id)).skipped == 1


async def test_a_message_that_still_has_no_target(relay: RelayCore, data_dir: Path) -> None:
    result = await relay.publish(B, 1, sender=SENDER)
    plan = await relay.plan_replay()
    assert [(item.verdict, item.detail) for item in plan.items] == [("no_target", "still nobody to deliver to")]
    assert (await relay.run_replay(plan.id)).skipped == 1
    assert places(data_dir, result.message_id) == ["failed"]


async def test_a_message_whose_endpoint_is_not_registered_any_more(relay: RelayCore) -> None:
    await dead(relay, 1)
    await relay.unregister_endpoint(A)
    (item,) = (await relay.plan_replay()).items
    assert (item.verdict, item.detail) == ("no_target", "the endpoint is not registered any more")


async def failed_at_adapter(relay: RelayCore) -> str:
    """Have an adapter fail a message; return its id."""
    await relay.add_adapter(SampleAdapter(platform=refuse))
    return (await relay.publish("relay.out.x", 1, sender=SENDER)).message_id


async def test_a_message_whose_adapter_is_gone_has_no_target(relay: RelayCore) -> None:
    message = await failed_at_adapter(relay)
    assert verdicts(await relay.plan_replay()) == {message: "will_deliver"}
    await relay.remove_adapter("sample")
    plan = await relay.plan_replay()
    assert [(item.verdict, item.detail) for item in plan.items] == [
        ("no_target", "the adapter sample is not there any more")
    ]
    outcome = await relay.run_replay(plan.id)
    assert (outcome.delivered, outcome.skipped, outcome.skips) == (0, 1, {"no_target": 1})
    assert await letters(relay) == [message]


async def test_an_adapter_that_goes_between_plan_and_run_leaves_the_dead_letter(relay: RelayCore) -> None:
    message = await failed_at_adapter(relay)
    plan = await relay.plan_replay()
    await relay.remove_adapter("sample")
    outcome = await relay.run_replay(plan.id)
    assert (outcome.delivered, outcome.skipped, outcome.skips) == (0, 1, {"no_target": 1})
    assert await letters(relay) == [message]
    again = SampleAdapter()
    await relay.add_adapter(again)
    assert (await relay.run_replay((await relay.plan_replay()).id)).delivered == 1
    assert again.got == [1]


async def test_the_mailbox_of_a_removed_adapter_is_listed_until_it_is_empty(data_dir: Path, clock: FakeClock) -> None:
    def states(relay: RelayCore) -> list[tuple[str, bool, int]]:
        return [(one.subject, one.registered, one.failed) for one in relay.mailboxes() if one.kind == "adapter"]

    subject = "relay.adapter.sample"
    async with RelayCore(data_dir, config(), clock) as relay:
        await failed_at_adapter(relay)
        assert states(relay) == [(subject, True, 1)]
    async with RelayCore(data_dir, config(), clock) as relay:  # started without the adapter
        assert states(relay) == [(subject, False, 1)]
        await relay.maintenance.drop_empty_mailboxes()
        assert states(relay) == [(subject, False, 1)]
        await relay.purge_dead_letters()
        await relay.maintenance.drop_empty_mailboxes()
        assert states(relay) == []


async def test_a_message_that_the_budget_gate_would_stop_again(relay: RelayCore) -> None:
    await relay.publish(A, 1, sender=SENDER, budget={"hop_count": 5})
    (item,) = (await relay.plan_replay()).items
    assert (item.verdict, item.detail) == ("over_budget", "max hops exceeded (5/5)")
    (fresh,) = (await relay.plan_replay(fresh_budget=True)).items
    assert fresh.verdict == "will_deliver"


@pytest.mark.parametrize("message_id", [UNKNOWN_ID, "nonsense", "../../etc/passwd", ""])
async def test_an_id_that_was_never_a_message_is_not_found(relay: RelayCore, message_id: str) -> None:
    with pytest.raises(NotFound) as caught:
        await relay.plan_replay([message_id])
    assert caught.value.what == message_id


async def test_a_message_that_never_was_a_dead_letter_is_not_found(relay: RelayCore) -> None:
    result = await relay.publish(A, 1, sender=SENDER)
    with pytest.raises(NotFound, match=f"no dead letter {result.message_id}"):
        await relay.plan_replay([result.message_id])


@pytest.mark.parametrize("plan_id", [UNKNOWN_ID, "nonsense"])
async def test_an_unknown_plan_is_not_found(relay: RelayCore, plan_id: str) -> None:
    with pytest.raises(NotFound, match="make one with plan_replay or 'relay dlq plan'"):
        await relay.run_replay(plan_id)
    with pytest.raises(NotFound):
        relay.replays.run(plan_id)


async def test_a_plan_runs_once(relay: RelayCore) -> None:
    await dead(relay, 1)
    plan = await relay.plan_replay()
    await relay.run_replay(plan.id)
    with pytest.raises(NotFound, match="it has been run already"):
        await relay.run_replay(plan.id)
    assert [run.plan for run in relay.replays.runs()] == [plan]
    assert relay.replays.run(plan.id).progress().delivered == 1


# Runs


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
    assert await letters(either) == []
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
    assert [one.message_id for one in await either.conversation(parent.message_id)] == [
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
    assert_counts_are_the_directory(either, data_dir)


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
    assert_counts_are_the_directory(relay, data_dir)


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
    assert await letters(either) == []
    found = await span(either, result.message_id, B)
    assert (found.status, found.code, found.replays) == ("done", None, 1)
    assert found.sent_at == clock.now_ms() - 60_000
    assert (found.stored_at, found.claimed_at, found.handled_at) == (clock.now_ms(),) * 3
    assert await either.dead_letter_groups() == []
    assert_counts_are_the_directory(either, data_dir)


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
    (left,) = await letters(relay)
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
    assert_counts_are_the_directory(either, data_dir)


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
    assert places(data_dir, result.message_id) == ["new", "new"]
    assert_counts_are_the_directory(relay, data_dir)


async def test_a_replay_is_an_event(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config(), clock) as relay:
        await relay.register_endpoint(A)
        ids = await dead(relay, 1)
        ids.append((await relay.publish(B, 2, sender=SENDER)).message_id)
        await relay.register_endpoint(B)
        await relay.run_replay((await relay.plan_replay()).id)
    segments = sorted((data_dir / "events").rglob("*.jsonl"))
    events = [event for segment in segments for event in read_events(segment) if event.kind == EventKind.REPLAYED]
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
    told = [event for path in sorted((data_dir / "events").rglob("*.jsonl")) for event in read_events(path)]
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
    told = [event for path in sorted((data_dir / "events").rglob("*.jsonl")) for event in read_events(path)]
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
    assert await letters(either) == []
    assert_counts_are_the_directory(either, data_dir)


async def test_a_purge_during_a_run_takes_or_leaves_each_message_whole(either: RelayCore, data_dir: Path) -> None:
    listener = Listener()
    await either.subscribe(A, listener)
    ids = await dead_by_handler(either, listener, 40)
    plan = await either.plan_replay()
    outcome, purged = await asyncio.gather(either.run_replay(plan.id), either.purge_dead_letters(ids=ids[::2]))
    assert outcome.delivered == len(listener.envelopes) == len(set(listener.got))
    assert outcome.delivered + purged == 40
    assert await letters(either) == []
    assert_counts_are_the_directory(either, data_dir)


async def dead_by_handler(relay: RelayCore, listener: Listener, count: int) -> list[str]:
    listener.fails = True
    ids = [(await relay.publish(A, number, sender=SENDER)).message_id for number in range(count)]
    await relay.idle()
    listener.fails = False
    listener.envelopes.clear()
    assert await letters(relay) == ids
    return ids


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
    await relay.register_endpoint(B)
    box = data_dir / "mailboxes" / subject_hash(B)
    (box / "new").rename(box / "away")  # no store succeeds
    result = await relay.publish("relay.agent.*", 1, sender=SENDER)
    assert result.delivered_to == 1
    (box / "away").rename(box / "new")
    assert await relay.dead_letters() == []
    for plan in (await relay.plan_replay([result.message_id]), await relay.plan_replay()):
        assert [(item.endpoint_subject, item.verdict, item.partial) for item in plan.items] == [
            (B, "will_deliver", True)
        ]
    assert (await relay.run_replay(plan.id)).delivered == 1
    for subject in (A, B):
        assert [envelope.id for envelope in await relay.inbox(subject)] == [result.message_id]
    assert_counts_are_the_directory(relay, data_dir)


async def test_a_disk_that_refuses_stops_the_run_and_loses_nothing(
    relay: RelayCore, data_dir: Path, clock: FakeClock
) -> None:
    ids = await dead(relay, 1, 2, 3)
    box = data_dir / "mailboxes" / subject_hash(A)
    (box / "new").rename(box / "away")
    (box / "new").write_bytes(b"")
    outcome = await relay.run_replay((await relay.plan_replay()).id)
    assert (outcome.delivered, outcome.failed, outcome.skipped, outcome.state) == (0, 0, 3, "stopped")
    assert outcome.detail is not None
    assert "cannot replay to" in outcome.detail
    (box / "new").unlink()
    (box / "away").rename(box / "new")
    assert await letters(relay) == ids
    assert (await relay.run_replay((await relay.plan_replay()).id)).delivered == 3
    assert_counts_are_the_directory(relay, data_dir)


async def test_an_error_that_nobody_foresaw_is_why_the_run_stopped(relay: RelayCore, data_dir: Path) -> None:
    (message_id,) = await dead(relay, 1)
    record = data_dir / "mailboxes" / subject_hash(A) / "failed" / f"{message_id}.json"
    record.write_bytes(record.read_bytes().replace(b'"replays":0', b'"replays":%d' % (2**64 - 1)))
    outcome = await relay.run_replay((await relay.plan_replay()).id)
    assert (outcome.state, outcome.detail) == ("stopped", "TypeError: Integer exceeds 64-bit range")
    assert await letters(relay) == [message_id]


async def test_a_message_nobody_heard_that_cannot_be_stored_even_now_is_a_dead_letter_still(
    relay: RelayCore, data_dir: Path
) -> None:
    result = await relay.publish(B, 1, sender=SENDER)
    await relay.register_endpoint(B)
    box = data_dir / "mailboxes" / subject_hash(B)
    (box / "new").rename(box / "away")
    outcome = await relay.run_replay((await relay.plan_replay()).id)
    (box / "away").rename(box / "new")
    assert (outcome.delivered, outcome.failed) == (0, 1)
    (letter,) = await relay.dead_letters()
    assert (letter.message_id, letter.code, letter.replays) == (result.message_id, "store_failed", 1)
    assert_counts_are_the_directory(relay, data_dir)
    assert (await relay.run_replay((await relay.plan_replay()).id)).delivered == 1


# Rate and canary


async def test_a_rate_spaces_the_messages_out(relay: RelayCore, clock: FakeClock) -> None:
    listener = Listener()
    await relay.subscribe(A, listener)
    await dead_by_handler(relay, listener, 4)
    run = await start(relay, rate=2)
    for count in (1, 2, 3):
        await eventually(lambda count=count: len(listener.got) == count)  # type: ignore[misc]
        await settle()
        assert len(listener.got) == count
        clock.advance(0.499)
        await settle()
        assert len(listener.got) == count
        clock.advance(0.001)
    outcome = await run.wait()
    assert (outcome.delivered, listener.got) == (4, [0, 1, 2, 3])


async def settle() -> None:
    """Let whatever can happen without time happen."""
    for _ in range(20):
        await asyncio.sleep(0.001)


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
    assert len(await letters(relay)) == 30 - tried + 1


async def test_a_canary_waits_for_each_step_before_the_next(relay: RelayCore) -> None:
    listener = Listener()
    await relay.subscribe(A, listener)
    await dead_by_handler(relay, listener, 30)
    listener.gate.clear()
    run = await start(relay, canary=True)
    for waiting in (29, 19):
        await eventually(lambda waiting=waiting: failed_files(relay) == waiting)  # type: ignore[misc]
        await settle()
        assert failed_files(relay) == waiting
        listener.gate.set()
        await eventually(lambda waiting=waiting: failed_files(relay) < waiting)  # type: ignore[misc]
        listener.gate.clear()
    listener.gate.set()
    outcome = await run.wait()
    assert (outcome.delivered, outcome.state) == (30, "finished")


def failed_files(relay: RelayCore) -> int:
    (state,) = [state for state in relay.mailboxes() if state.subject == A]
    return state.failed


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


async def acknowledge(relay: RelayCore, *, fails: bool = False) -> list[Any]:
    """Be a pull consumer that takes what waits; return the payloads."""
    taken = await relay.claim(A, limit=100)
    for one in taken:
        await (relay.fail(A, one.id, "no") if fails else relay.complete(A, one.id))
    return [one.payload for one in taken]


async def test_a_canary_waits_for_the_acknowledgement_of_a_pull_consumer(relay: RelayCore) -> None:
    await dead(relay, *range(30))
    run = await start(relay, canary=True)
    for step in ([0], list(range(1, 11))):
        await eventually(lambda step=step: len(relay.bus.mailboxes.get(subject_hash(A)).waiting(50)) == len(step))  # type: ignore[misc,union-attr]
        await eventually(lambda: run.progress().state == "paused")
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
    await eventually(lambda: failed_files(relay) == 29)
    assert await acknowledge(relay, fails=True) == [0]
    outcome = await run.wait()
    assert (outcome.failed, outcome.state) == (1, "stopped")
    assert outcome.detail == "the canary failed: 29 not tried"
    assert len(await letters(relay)) == 30


async def test_a_canary_says_when_a_consumer_has_its_message(relay: RelayCore, clock: FakeClock) -> None:
    await dead(relay, *range(3))
    run = await start(relay, canary=True)
    await eventually(lambda: run.progress().state == "paused")
    (first,) = await relay.claim(A)
    await advance_until(clock, lambda: run.progress().state == "waiting")
    assert run.progress().detail == f"the canary waits for an acknowledgement from {A}"
    await relay.complete(A, first.id)
    assert (await run.wait()).delivered == 3


async def test_a_canary_that_was_paused_goes_on_waiting_when_it_is_resumed(relay: RelayCore) -> None:
    await dead(relay, *range(30))
    run = await start(relay, canary=True)
    await eventually(lambda: "acknowledgement" in (run.progress().detail or ""))
    run.pause()
    await eventually(lambda: run.progress().detail == "by the operator")
    run.resume()
    await eventually(lambda: "acknowledgement" in (run.progress().detail or ""))
    await settle()
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
        await eventually(lambda step=step: len(relay.bus.mailboxes.get(subject_hash(A)).waiting(50)) == step)  # type: ignore[misc,union-attr]
        await acknowledge(relay)
    async with asyncio.timeout(30):
        assert (await run.wait()).delivered == 30


@pytest.mark.parametrize("steer", ["resume", "cancel"])
async def test_a_canary_that_no_consumer_takes_can_be_resumed_or_cancelled(relay: RelayCore, steer: str) -> None:
    await dead(relay, *range(30))
    run = await start(relay, canary=True)
    await eventually(lambda: run.progress().state == "paused")
    getattr(run, steer)()
    outcome = await run.wait()
    replayed = 30 if steer == "resume" else 1
    assert (outcome.delivered, outcome.state) == (replayed, "finished" if steer == "resume" else "cancelled")
    assert len(await acknowledge(relay)) == replayed


# Waiting


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
        await eventually(lambda: run.progress().state == "waiting")
        assert run.progress().detail == f"breaker of {A} is open"
        clock.advance(29)
        await settle()
        assert (listener.got, len(await letters(relay))) == ([], 3)
        clock.advance(1)
        await advance_until(clock, lambda: run.progress().state == "finished")
        assert (await run.wait()).delivered == 3
        assert listener.got == [0, 1, 2]


async def advance_until(clock: FakeClock, holds: Any) -> None:
    """Let a run look again as often as it needs to."""
    for _ in range(500):
        if holds():
            return
        clock.advance(0.25)
        await asyncio.sleep(0.002)
    raise AssertionError("it did not come about")


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
        assert len(await letters(relay)) == 3


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
        await eventually(lambda: run.progress().state == "waiting")
        assert run.progress().detail == f"{B} refuses it: circuit_open"
        assert (await span(relay, unheard.message_id, B)).status == "no_subscriber"
        assert sorted(group.code for group in await relay.dead_letter_groups()) == ["handler_failed", "no_match"]
        assert unheard.message_id in await letters(relay)
        run.cancel()
        assert (await run.wait()).skipped == 1
        assert_counts_are_the_directory(relay, data_dir)


async def test_a_run_waits_for_pressure_to_fall(relay: RelayCore, clock: FakeClock) -> None:
    await dead(relay, "a", "b", "c")
    for number in range(39):
        await relay.publish(A, number, sender=SENDER)
    run = await start(relay)
    await eventually(lambda: run.progress().state == "waiting")
    assert run.progress().detail == f"pressure of {A} is 80%"
    assert run.progress().delivered == 0 or run.progress().delivered == 1
    clock.advance(60)
    await settle()
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
    await eventually(lambda: run.progress().delivered == 0 and len(listener.got) == 1)
    run.pause()
    await eventually(lambda: run.progress().state == "paused")
    clock.advance(60)
    await settle()
    assert (listener.got, run.progress().detail) == ([0], "by the operator")
    run.resume()
    await eventually(lambda: len(listener.got) == 2)
    run.cancel()
    outcome = await run.wait()  # although its rate holds it up
    assert (outcome.delivered, outcome.failed, outcome.skipped, outcome.state) == (2, 0, 3, "cancelled")
    assert len(await letters(relay)) == 3


async def test_a_run_is_not_forgotten_before_it_has_ended(relay: RelayCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_KEPT", 2)
    await dead(relay, 1)
    first = relay.replays.start((await relay.plan_replay()).id)
    first.pause()
    await eventually(lambda: first.progress().state == "paused")
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
    await eventually(lambda: run.progress().state == "paused")
    run.cancel()
    outcome = await run.wait()
    assert (outcome.skipped, outcome.state, outcome.detail) == (2, "cancelled", None)
    assert len(await letters(relay)) == 2


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
    await eventually(lambda: failed_files(relay) == 0)
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
            await eventually(lambda: failed_files(relay) == 0)
            asyncio.get_running_loop().call_later(0.05, listener.gate.set)
        else:
            await eventually(lambda: run.progress().state in ("paused", "waiting"))
    outcome = await run.wait()
    assert (outcome.state, outcome.detail) == ("stopped", "the bus was closed")
    async with RelayCore(data_dir, config(), clock) as relay:
        waiting = [envelope.id for envelope in await relay.inbox(A)]
        assert waiting + await letters(relay) == (ids[1:] if held_by == "a handler" else ids)
        assert_counts_are_the_directory(relay, data_dir)


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


# Edit, then replay


async def test_an_edited_copy_takes_the_place_of_the_dead_letter(either: RelayCore, data_dir: Path) -> None:
    listener = Listener()
    (original,) = await dead(either, {"content": "teh"}, reply_to=C)
    await either.subscribe(A, listener)
    result = await either.replays.edit(original, {"content": "the"})
    await either.idle()
    assert (result.delivered_to, result.message_id > original) == (1, True)
    (envelope,) = listener.envelopes
    assert (envelope.id, envelope.payload, envelope.reply_to) == (result.message_id, {"content": "the"}, C)
    assert (envelope.replay_of, envelope.replays, envelope.sender) == (original, 0, SENDER)
    assert (envelope.budget.hop_count, envelope.budget.ancestor_chain) == (1, (A,))
    assert places(data_dir, original) == []
    assert await letters(either) == []
    assert (await span(either, original)).status == "replaced"
    copy = await span(either, result.message_id)
    assert (copy.status, copy.replay_of, copy.trace_id) == ("done", original, original)
    assert_counts_are_the_directory(either, data_dir)


async def test_an_edited_copy_stays_in_the_conversation_of_the_original(relay: RelayCore) -> None:
    parent = await relay.publish(B, "parent", sender=SENDER)
    await relay.register_endpoint(B)
    (child,) = await dead(relay, "child", parent_id=parent.message_id)
    result = await relay.replays.edit(child, "better")
    copy = await span(relay, result.message_id)
    assert (copy.trace_id, copy.parent_id) == ((await span(relay, child)).trace_id, parent.message_id)


async def test_an_edited_message_nobody_heard_goes_to_its_subject(relay: RelayCore, data_dir: Path) -> None:
    original = await relay.publish(B, 1, sender=SENDER)
    await relay.register_endpoint(B)
    result = await relay.replays.edit(original.message_id, 2)
    assert result.delivered_to == 1
    assert [(envelope.id, envelope.payload) for envelope in await relay.inbox(B)] == [(result.message_id, 2)]
    assert (await span(relay, original.message_id, B)).status == "replaced"
    assert places(data_dir, original.message_id) == []
    assert_counts_are_the_directory(relay, data_dir)


@pytest.mark.parametrize("payload", [float("nan"), object(), "x" * 2_000_000], ids=["NaN", "no JSON", "too large"])
async def test_a_bad_edit_changes_nothing(relay: RelayCore, data_dir: Path, payload: Any) -> None:
    (message_id,) = await dead(relay, 1)
    before = snapshot(data_dir)
    with pytest.raises(InvalidPayload):
        await relay.replays.edit(message_id, payload)
    assert snapshot(data_dir) == before
    assert (await span(relay, message_id)).status == "failed"


async def test_an_edit_that_is_refused_leaves_the_original(relay: RelayCore, data_dir: Path) -> None:
    (message_id,) = await dead(relay, 1)
    for number in range(FULL):
        await relay.publish(A, number, sender=SENDER)
    result = await relay.replays.edit(message_id, 2)
    assert [one.reason for one in result.rejected or ()] == ["backpressure"]
    assert await letters(relay) == [message_id]
    assert (await span(relay, message_id)).status == "failed"
    assert_counts_are_the_directory(relay, data_dir)


async def test_an_edit_that_the_disk_refuses_leaves_the_original(relay: RelayCore, data_dir: Path) -> None:
    (message_id,) = await dead(relay, 1)
    box = data_dir / "mailboxes" / subject_hash(A)
    (box / "tmp").rename(box / "away")  # nothing can be written, neither to new/ nor to failed/
    with pytest.raises(StorageError):
        await relay.replays.edit(message_id, 2)
    (box / "away").rename(box / "tmp")
    assert await letters(relay) == [message_id]
    assert_counts_are_the_directory(relay, data_dir)


async def test_an_edit_that_is_denied_leaves_the_original(relay: RelayCore) -> None:
    (message_id,) = await dead(relay, 1)
    await asyncio.to_thread(relay.bus.access.add_rule, AccessRule(sender=SENDER, to=A, action="deny"))
    with pytest.raises(AccessDenied):
        await relay.replays.edit(message_id, 2)
    assert await letters(relay) == [message_id]


async def test_an_edit_may_be_given_a_fresh_budget(relay: RelayCore) -> None:
    original = await relay.publish(A, 1, sender=SENDER, budget={"hop_count": 5})
    result = await relay.replays.edit(original.message_id, 2, fresh_budget=True)
    assert result.delivered_to == 1
    (copy,) = await relay.inbox(A)
    assert copy.budget.hop_count == 1
    assert (copy.replays, copy.replayed_at) == (0, None)  # it is a new message
    assert await letters(relay) == []


@pytest.mark.parametrize("message_id", [UNKNOWN_ID, "nonsense"])
async def test_an_edit_of_nothing_is_not_found(relay: RelayCore, message_id: str) -> None:
    with pytest.raises(NotFound):
        await relay.replays.edit(message_id, 1)


async def test_a_file_that_was_no_message_cannot_be_edited(relay: RelayCore, data_dir: Path) -> None:
    result = await relay.publish(A, 1, sender=SENDER)
    (data_dir / "mailboxes" / subject_hash(A) / "new" / f"{result.message_id}.json").write_bytes(b"{")
    await relay.claim(A)
    with pytest.raises(NotFound, match="is no message and cannot be replayed"):
        await relay.replays.edit(result.message_id, 1)


async def test_an_edit_and_a_replay_of_the_same_message_never_both_happen(either: RelayCore, data_dir: Path) -> None:
    listener = Listener()
    await either.subscribe(A, listener)
    ids = await dead_by_handler(either, listener, 20)
    plan = await either.plan_replay()
    results = await asyncio.gather(
        either.run_replay(plan.id),
        *(either.replays.edit(message_id, -1) for message_id in ids),
        return_exceptions=True,
    )
    await either.idle()
    edited = [result for result in results[1:] if not isinstance(result, BaseException)]
    assert all(isinstance(result, NotFound) for result in results[1:] if isinstance(result, BaseException))
    assert len(listener.envelopes) == 20
    assert listener.got.count(-1) == len(edited)
    assert await letters(either) == []
    assert_counts_are_the_directory(either, data_dir)


def test_plans_and_outcomes_are_json(clock: FakeClock) -> None:
    plan = {
        "id": UNKNOWN_ID,
        "createdAt": "2023-11-14T22:13:20.000Z",
        "freshBudget": False,
        "items": [
            {"messageId": UNKNOWN_ID, "endpointHash": "x", "endpointSubject": A, "verdict": "denied", "partial": False}
        ],
    }
    assert orjson.loads(orjson.dumps(ReplayPlan.model_validate(plan).to_wire())) == plan
