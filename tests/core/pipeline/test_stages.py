"""The publish pipeline, stage by stage, on a real bus."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from relay_core import (
    AccessDenied,
    AccessRule,
    BackpressureConfig,
    BudgetConfig,
    CircuitBreakerConfig,
    Closed,
    Envelope,
    InvalidPayload,
    InvalidSubject,
    PublishResult,
    RateLimitConfig,
    RelayConfig,
    RelayCore,
    ReliabilityConfig,
    Signal,
    StorageError,
)
from relay_core.journal.journal import Durability
from relay_core.messages.subjects import subject_hash
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, A, B, C, refusing_journal, write_files

pytestmark = pytest.mark.bus(RelayConfig(durability="os"))


def config(**reliability: Any) -> RelayConfig:
    return RelayConfig(durability="os", reliability=ReliabilityConfig(**reliability))


async def stored(relay: RelayCore, subject: str) -> list[str]:
    await write_files(relay)
    new = relay.bus.data_dir.mailboxes / subject_hash(subject) / "new"
    return sorted(os.listdir(new)) if new.exists() else []


@pytest.mark.parametrize(
    ("pipeline", "stages"),
    [
        ("publish", "Validate Stamp Access RateLimit BudgetGate Match Deliver Settle"),
        ("notice", "Access Match Deliver Settle"),
        ("replay", "Access BudgetGate Match Deliver Settle"),
    ],
)
def test_the_stages_are_the_specification(relay: RelayCore, pipeline: str, stages: str) -> None:
    assert [type(stage).__name__ for stage in getattr(relay.bus.pipelines, pipeline).stages] == stages.split()


# Validate


@pytest.mark.parametrize(
    ("subject", "sender", "reply_to"),
    [
        pytest.param("", SENDER, None, id="empty subject"),
        pytest.param("relay..a", SENDER, None, id="empty token"),
        pytest.param("relay.a b", SENDER, None, id="space"),
        pytest.param("relay.>.a", SENDER, None, id="tail wildcard inside"),
        pytest.param("relay.a*", SENDER, None, id="wildcard within a token"),
        pytest.param("relay/../../etc", SENDER, None, id="path"),
        pytest.param(".".join(["a"] * 17), SENDER, None, id="17 tokens"),
        pytest.param("a" * 256, SENDER, None, id="256 characters"),
        pytest.param(A, "", None, id="empty sender"),
        pytest.param(A, "relay.agent.*", None, id="sender is a pattern"),
        pytest.param(A, SENDER, "relay.>", id="reply_to is a pattern"),
        pytest.param(A, SENDER, "relay.\n", id="reply_to with a newline"),
    ],
)
async def test_bad_subjects_are_refused_and_leave_nothing(
    relay: RelayCore, subject: str, sender: str, reply_to: str | None
) -> None:
    await relay.register_endpoint(A)
    with pytest.raises(InvalidSubject):
        await relay.publish(subject, {}, sender=sender, reply_to=reply_to)
    assert not await stored(relay, A)
    assert await relay.dead_letters() == []


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        pytest.param(float("nan"), "payload_not_json", id="NaN"),
        pytest.param({"a": [float("inf")]}, "payload_not_json", id="Infinity"),
        pytest.param({"a": "\ud800"}, "payload_not_json", id="lone surrogate"),
        pytest.param({"a": object()}, "payload_not_json", id="object"),
        pytest.param({1: "a"}, "payload_not_json", id="key is no text"),
        pytest.param(nested(101), "payload_too_deep", id="101 levels"),
        pytest.param("x" * 1_048_575, "payload_too_large", id="one byte too long"),
    ],
)
async def test_bad_payloads_are_refused_and_leave_nothing(relay: RelayCore, payload: Any, code: str) -> None:
    await relay.register_endpoint(A)
    with pytest.raises(InvalidPayload) as caught:
        await relay.publish(A, payload, sender=SENDER)
    assert caught.value.code == code
    assert not await stored(relay, A)


@pytest.mark.parametrize(
    "payload",
    [None, True, 0, -1.5, "", "é\u2028", [], {}, {"a": None}, nested(100), "x" * 1_048_574],
    ids=["null", "true", "0", "float", "empty", "unicode", "list", "object", "null inside", "100 levels", "1 MiB"],
)
async def test_any_json_arrives_as_it_was(relay: RelayCore, payload: Any) -> None:
    await relay.register_endpoint(A)
    await relay.publish(A, payload, sender=SENDER)
    (envelope,) = await relay.inbox(A)
    assert envelope.payload == payload


async def test_a_closed_bus_refuses(data_dir: Path) -> None:
    relay = RelayCore(data_dir, config=config())
    with pytest.raises(Closed):
        await relay.publish(A, {}, sender=SENDER)
    async with relay:
        await relay.register_endpoint(A)
    with pytest.raises(Closed):
        await relay.publish(A, {}, sender=SENDER)


# Stamp


async def test_ids_grow_although_the_clock_goes_back(relay: RelayCore, clock: FakeClock) -> None:
    await relay.register_endpoint(A)
    ids = []
    for jump in (0.0, 5.0, -60.0, 0.0, -3600.0, 1.0):
        clock.jump_wall(jump)
        ids.append((await relay.publish(A, {}, sender=SENDER)).message_id)
    assert ids == sorted(set(ids))


async def test_the_message_is_stamped_before_it_is_refused(relay: RelayCore) -> None:
    relay.bus.access.add_rule(AccessRule(sender=">", to=A, action="deny"))
    with pytest.raises(AccessDenied) as caught:
        await relay.publish(A, {}, sender=SENDER)
    assert caught.value.message_id is not None
    (span,) = await relay.trace(caught.value.message_id)
    assert (span.status, span.code, span.target) == ("refused", "access_denied", "*")


@pytest.mark.parametrize(
    ("asked", "hops", "calls"),
    [
        pytest.param(None, 5, 9, id="nothing asked"),
        pytest.param({"maxHops": 3, "callBudgetRemaining": 4}, 3, 3, id="less than the ceiling"),
        pytest.param({"max_hops": 50, "call_budget_remaining": 1000}, 5, 9, id="more than the ceiling"),
    ],
)
async def test_budgets_are_clamped_to_the_ceilings(
    relay: RelayCore, asked: dict[str, int] | None, hops: int, calls: int
) -> None:
    await relay.register_endpoint(A)
    await relay.publish(A, {}, sender=SENDER, budget=asked)
    (envelope,) = await relay.inbox(A)
    assert (envelope.budget.max_hops, envelope.budget.call_budget_remaining) == (hops, calls)


async def test_a_ttl_beyond_the_ceiling_is_cut(relay: RelayCore, clock: FakeClock) -> None:
    await relay.register_endpoint(A)
    await relay.publish(A, {}, sender=SENDER, budget={"ttl": clock.now_ms() + 10**12})
    (envelope,) = await relay.inbox(A)
    assert envelope.budget.ttl == clock.now_ms() + 3_600_000


# Access


async def test_a_denied_publish_leaves_a_trace_and_nothing_else(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    rule = AccessRule(sender="relay.agent.*", to="relay.agent.>", action="deny", priority=5)
    relay.bus.access.add_rule(rule)
    with pytest.raises(AccessDenied) as caught:
        await relay.publish(A, {}, sender=SENDER)
    assert caught.value.rule == rule
    assert not await stored(relay, A)
    assert await relay.dead_letters() == []
    assert relay.senders() == []  # nothing of the rate limit is spent


async def test_a_broadcast_leaves_out_the_endpoints_it_may_not_reach(relay: RelayCore) -> None:
    for subject in (A, B, C):
        await relay.register_endpoint(subject)
    relay.bus.access.add_rule(AccessRule(sender=SENDER, to=B, action="deny"))
    result = await relay.publish("relay.agent.*", {}, sender=SENDER)
    assert result.delivered_to == 2
    assert (len(await stored(relay, A)), len(await stored(relay, B)), len(await stored(relay, C))) == (1, 0, 1)


async def test_a_broadcast_that_may_reach_no_endpoint_is_denied(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    relay.bus.access.add_rule(AccessRule(sender=SENDER, to=A, action="deny"))
    with pytest.raises(AccessDenied):
        await relay.publish("relay.agent.*", {}, sender=SENDER)
    assert await relay.dead_letters() == []


# Rate limit


async def test_over_the_limit_a_publish_is_refused_and_traced(data_dir: Path, clock: FakeClock) -> None:
    limits = config(rate_limit=RateLimitConfig(max_per_window=2))
    async with RelayCore(data_dir, config=limits, clock=clock) as relay:
        await relay.register_endpoint(A)
        for _ in range(2):
            await relay.publish(A, {}, sender=SENDER)
        result = await relay.publish(A, {}, sender=SENDER)
        assert result.to_wire() == {
            "messageId": result.message_id,
            "deliveredTo": 0,
            "rejected": [{"endpointHash": "*", "reason": "rate_limited"}],
        }
        (span,) = await relay.trace(result.message_id)
        assert (span.status, span.code) == ("refused", "rate_limited")
        assert span.reason == "rate limit exceeded: 2/2 messages in 60s window"
        assert await relay.dead_letters() == []
        assert len(await stored(relay, A)) == 2
        clock.advance(60)
        assert (await relay.publish(A, {}, sender=SENDER)).delivered_to == 1


async def test_a_publish_counts_once_however_many_it_reaches(data_dir: Path, clock: FakeClock) -> None:
    limits = config(rate_limit=RateLimitConfig(max_per_window=2))
    async with RelayCore(data_dir, config=limits, clock=clock) as relay:
        for number in range(5):
            await relay.register_endpoint(f"relay.team.{number}")
        for _ in range(2):
            assert (await relay.publish("relay.team.*", {}, sender=SENDER)).delivered_to == 5
        assert (await relay.publish("relay.team.*", {}, sender=SENDER)).delivered_to == 0


async def test_usage_survives_a_restart(data_dir: Path, clock: FakeClock) -> None:
    limits = config(rate_limit=RateLimitConfig(max_per_window=3))
    async with RelayCore(data_dir, config=limits, clock=clock) as relay:
        await relay.register_endpoint(A)
        for _ in range(3):
            await relay.publish(A, {}, sender=SENDER)
        await relay.publish(A, {}, sender=SENDER)  # refused, and not counted
    clock.advance(30)
    async with RelayCore(data_dir, config=limits, clock=clock) as relay:
        assert (await relay.publish(A, {}, sender=SENDER)).rejected is not None
        clock.advance(30)
        assert (await relay.publish(A, {}, sender=SENDER)).rejected is None


# Budget gate


@pytest.mark.parametrize(
    ("budget", "code", "reason"),
    [
        pytest.param({"hopCount": 5}, "max_hops", "max hops exceeded (5/5)", id="hops"),
        pytest.param({"ancestorChain": [B, A]}, "cycle", f"cycle detected: {A} already in chain", id="cycle"),
        pytest.param({"ttl": 1}, "expired", "message expired (TTL)", id="expired"),
        pytest.param({"callBudgetRemaining": 0}, "call_budget", "call budget exhausted", id="calls"),
        pytest.param(
            {"hopCount": 9, "ancestorChain": [A], "ttl": 1}, "max_hops", "max hops exceeded (9/5)", id="hops come first"
        ),
        pytest.param(
            {"ancestorChain": [A], "ttl": 1, "callBudgetRemaining": 0},
            "cycle",
            f"cycle detected: {A} already in chain",
            id="then the cycle",
        ),
    ],
)
async def test_a_spent_budget_is_a_dead_letter_and_nothing_runs(
    relay: RelayCore, budget: dict[str, Any], code: str, reason: str
) -> None:
    await relay.register_endpoint(A)
    seen: list[Envelope] = []

    async def handler(envelope: Envelope) -> None:
        seen.append(envelope)

    await relay.subscribe(A, handler)
    result = await relay.publish(A, {}, sender=SENDER, budget=budget)
    await relay.idle()
    assert result.delivered_to == 0
    assert [(rejection.endpoint_hash, rejection.reason) for rejection in result.rejected or ()] == [
        (subject_hash(A), "budget_exceeded")
    ]
    (letter,) = await relay.dead_letters()
    assert (letter.message_id, letter.code, letter.reason) == (result.message_id, code, reason)
    assert seen == []
    assert not await stored(relay, A)
    assert relay.metrics().budget_rejections[code] == 1


# Match, deliver, settle


async def test_a_message_without_a_target_is_a_dead_letter_apart_from_failures(relay: RelayCore) -> None:
    result = await relay.publish(A, {"content": "hi"}, sender=SENDER)
    assert result.to_wire() == {"messageId": result.message_id, "deliveredTo": 0}
    (letter,) = await relay.dead_letters()
    assert (letter.code, letter.reason) == ("no_match", "no matching endpoints or adapters")
    (span,) = await relay.trace(result.message_id)
    assert span.status == "no_subscriber"
    metrics = relay.metrics()
    assert (metrics.no_subscriber, metrics.deliveries.get("failed", 0)) == (1, 0)


async def test_a_broadcast_gives_each_endpoint_its_own_copy(relay: RelayCore) -> None:
    for subject in (A, B):
        await relay.register_endpoint(subject)
    result = await relay.publish("relay.agent.>", {"content": "hi"}, sender=SENDER)
    assert result.delivered_to == 2
    for subject in (A, B):
        (envelope,) = await relay.inbox(subject)
        assert (envelope.id, envelope.subject) == (result.message_id, subject)
        assert envelope.budget.ancestor_chain == (subject,)
        assert envelope.budget.hop_count == 1
    assert {span.target for span in await relay.trace(result.message_id)} == {subject_hash(A), subject_hash(B)}


async def test_a_broadcast_skips_an_endpoint_it_has_been_to(relay: RelayCore) -> None:
    for subject in (A, B):
        await relay.register_endpoint(subject)
    result = await relay.publish("relay.agent.*", {}, sender=SENDER, budget={"ancestorChain": [A]})
    assert result.delivered_to == 1
    assert [(rejection.endpoint_hash, rejection.reason) for rejection in result.rejected or ()] == [
        (subject_hash(A), "budget_exceeded")
    ]
    assert not await stored(relay, A)


async def test_a_subscription_without_an_endpoint_counts_for_each_listener(relay: RelayCore) -> None:
    seen: list[str] = []

    async def first(envelope: Envelope) -> None:
        seen.append("one")

    async def second(envelope: Envelope) -> None:
        seen.append("two")

    await relay.subscribe("relay.news.*", first)
    await relay.subscribe("relay.news.>", second)
    result = await relay.publish("relay.news.today", {}, sender=SENDER)
    await relay.idle()
    assert result.delivered_to == 2
    assert sorted(seen) == ["one", "two"]
    assert relay.endpoints() == []


async def test_a_full_mailbox_refuses_and_its_sender_is_warned(data_dir: Path, clock: FakeClock) -> None:
    limits = config(backpressure=BackpressureConfig(max_mailbox_size=5, pressure_warning_at=0.6))
    signals: list[Signal] = []
    async with RelayCore(data_dir, config=limits, clock=clock) as relay:
        await relay.register_endpoint(A)
        relay.on_signal(SENDER, lambda _, signal: signals.append(signal))
        results = [await relay.publish(A, {}, sender=SENDER) for _ in range(7)]
        key = subject_hash(A)
        assert [(result.mailbox_pressure or {})[key] for result in results] == [0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0]
        assert [result.delivered_to for result in results] == [1, 1, 1, 1, 1, 0, 0]
        assert [(signal.type, signal.state) for signal in signals] == [("backpressure", "warning")] * 2 + [
            ("backpressure", "critical")
        ] * 2
        assert signals[0].data == {"pressure": 0.6, "currentSize": 3, "maxMailboxSize": 5}
        assert await relay.dead_letters() == []
        assert len(await stored(relay, A)) == 5


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_concurrent_publishes_do_not_overshoot(data_dir: Path, durability: str) -> None:
    limits = RelayConfig.model_validate(
        {"durability": durability, "reliability": {"backpressure": {"maxMailboxSize": 10}}}
    )
    async with RelayCore(data_dir, config=limits) as relay:
        await relay.register_endpoint(A)
        results = await asyncio.gather(*(relay.publish(A, n, sender=SENDER) for n in range(40)))
        assert sum(result.delivered_to for result in results) == 10
        assert len(await stored(relay, A)) == relay.mailboxes()[0].depth == 10


async def test_policy_refusals_are_never_dead_letters(data_dir: Path, clock: FakeClock) -> None:
    limits = config(
        circuit_breaker=CircuitBreakerConfig(failure_threshold=1), backpressure=BackpressureConfig(max_mailbox_size=1)
    )
    async with RelayCore(data_dir, config=limits, clock=clock) as relay:
        await relay.register_endpoint(A)
        await relay.register_endpoint(B)
        await relay.publish(A, {}, sender=SENDER)
        relay.bus.breakers.record_failure(subject_hash(B))
        result = await relay.publish("relay.agent.*", {}, sender=SENDER)
        assert {rejection.reason for rejection in result.rejected or ()} == {"backpressure", "circuit_open"}
        assert result.delivered_to == 0
        assert await relay.dead_letters() == []
        assert {span.status for span in await relay.trace(result.message_id)} == {"refused"}


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
async def test_a_publish_is_stored_for_all_its_targets_or_fails_as_a_whole(
    data_dir: Path, durability: Durability, code: int
) -> None:
    async with RelayCore(data_dir, config=RelayConfig(durability=durability)) as relay:
        for subject in (A, B):
            await relay.register_endpoint(subject)
        with refusing_journal(relay, code), pytest.raises(StorageError) as refused:
            await relay.publish("relay.agent.*", {"n": 1}, sender=SENDER)
        assert refused.value.code == ("storage_full" if code == errno.ENOSPC else "storage_error")
        for state in relay.mailboxes():
            assert (state.depth, state.claimed, state.failed, state.pressure) == (0, 0, 0, 0)
            assert state.degraded is not None
        assert await relay.dead_letters(include_partial=True) == []
        assert (await relay.publish("relay.agent.*", {"n": 2}, sender=SENDER)).delivered_to == 2
        for subject in (A, B):
            assert [envelope.payload for envelope in await relay.inbox(subject)] == [{"n": 2}]
        assert [state.degraded for state in relay.mailboxes()] == [None, None]


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("subjects", [[A], [A, B]], ids=["one target", "two targets"])
async def test_a_retry_after_a_kill_gets_the_outcome_from_the_journal(
    data_dir: Path, tmp_path: Path, durability: Durability, subjects: list[str]
) -> None:
    lasting = RelayConfig(durability=durability)
    async with RelayCore(data_dir, config=lasting) as relay:
        for subject in subjects:
            await relay.register_endpoint(subject)
        sent = await relay.publish("relay.agent.*", {"n": 1}, sender=SENDER, dedupe_id="once")
        await asyncio.to_thread(shutil.copytree, data_dir, tmp_path / "killed")
    for name in ("index.db", "index.db-wal", "index.db-shm"):  # so that only the journal has it
        (tmp_path / "killed" / name).unlink(missing_ok=True)
    async with RelayCore(tmp_path / "killed", config=lasting) as relay:
        again = await relay.publish("relay.agent.*", {"n": 1}, sender=SENDER, dedupe_id="once")
        assert (again.message_id, again.delivered_to, again.rejected) == (sent.message_id, len(subjects), None)
        for subject in subjects:
            assert [envelope.id for envelope in await relay.inbox(subject)] == [sent.message_id]


async def test_a_misspelt_limit_of_a_budget_is_refused_and_nothing_is_stored(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    with pytest.raises(InvalidPayload, match="unknown key 'maxHop', did you mean 'maxHops'") as refused:
        await relay.publish(A, {}, sender=SENDER, budget={"maxHop": 2})
    assert refused.value.code == "invalid_budget"
    assert await relay.inbox(A) == []
    assert await relay.dead_letters() == []


async def test_publish_returns_once_stored_not_once_handled(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    may_finish = asyncio.Event()

    async def slow(envelope: Envelope) -> None:
        await may_finish.wait()

    await relay.subscribe(A, slow)
    results = [await relay.publish(A, n, sender=SENDER) for n in range(3)]
    assert [result.delivered_to for result in results] == [1, 1, 1]
    may_finish.set()
    await relay.idle()
    assert not await stored(relay, A)


async def test_the_handler_gets_a_payload_of_its_own(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    payload = {"list": [1]}
    seen: list[Any] = []

    async def handler(envelope: Envelope) -> None:
        envelope.payload["list"].append(2)
        seen.append(envelope.payload)

    await relay.subscribe(A, handler)
    await relay.publish(A, payload, sender=SENDER)
    await relay.idle()
    assert payload == {"list": [1]}
    assert seen == [{"list": [1, 2]}]


async def test_ceilings_come_from_the_configuration(data_dir: Path) -> None:
    ceilings = RelayConfig(durability="os", budget=BudgetConfig(max_hops=2, call_budget=3, ttl_ms=1000))
    async with RelayCore(data_dir, config=ceilings) as relay:
        await relay.register_endpoint(A)
        await relay.publish(A, {}, sender=SENDER)
        (envelope,) = await relay.inbox(A)
        assert (envelope.budget.max_hops, envelope.budget.call_budget_remaining) == (2, 2)


def test_the_result_leaves_out_its_empty_parts() -> None:
    assert PublishResult(message_id="x", delivered_to=1).to_wire() == {"messageId": "x", "deliveredTo": 1}


async def test_publishing_in_a_loop_lets_others_in(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    ticks = 0

    async def ticker() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(ticker())
        for n in range(90):
            await relay.publish(A, n, sender=SENDER)
        task.cancel()
    assert ticks >= 5
