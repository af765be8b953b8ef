"""A replay plan: which dead letters it holds, and its verdict on each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from relay_core import AccessRule, CircuitBreakerConfig, DeadLetterFilter, NotFound, RelayCore, ReplayPlan
from relay_core.messages.subjects import subject_hash
from relay_core.testing import FakeClock
from tests.core.deadletters.replays import FULL, config, dead, failed_at_adapter, places, verdicts
from tests.kit.adapters import SampleAdapter
from tests.kit.bus import SENDER, UNKNOWN_ID, A, B, assert_counts_match_files, dead_ids, snapshot
from tests.kit.handlers import Listener

pytestmark = pytest.mark.bus(config(), endpoints=[A])


async def test_a_plan_changes_nothing(relay: RelayCore, data_dir: Path) -> None:
    await dead(relay, 1, 2, 3)
    before, spans = snapshot(data_dir), [await relay.trace(message_id) for message_id in await dead_ids(relay)]
    for _ in range(2):
        await relay.plan_replay()
    assert snapshot(data_dir) == before
    assert [await relay.trace(message_id) for message_id in await dead_ids(relay)] == spans
    assert_counts_match_files(relay, data_dir)


async def test_a_plan_is_frozen_and_what_fails_later_is_not_in_it(relay: RelayCore) -> None:
    first = await dead(relay, 1, 2)
    plan = await relay.plan_replay()
    (later,) = await dead(relay, 3)
    assert [item.message_id for item in plan.items] == first
    outcome = await relay.run_replay(plan.id)
    assert (outcome.delivered, outcome.total, outcome.state) == (2, 2, "finished")
    assert await dead_ids(relay) == [later]


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
    await relay.idle()
    (data_dir / "mailboxes" / subject_hash(A) / "new" / f"{result.message_id}.json").write_bytes(b"{")
    await relay.claim(A)
    plan = await relay.plan_replay()
    assert verdicts(plan) == {result.message_id: "malformed"}
    assert (await relay.run_replay(plan.id)).skipped == 1


async def test_a_message_that_still_has_no_target(relay: RelayCore, data_dir: Path) -> None:
    result = await relay.publish(B, 1, sender=SENDER)
    plan = await relay.plan_replay()
    assert [(item.verdict, item.detail) for item in plan.items] == [("no_target", "there is still no target")]
    assert (await relay.run_replay(plan.id)).skipped == 1
    assert places(data_dir, result.message_id) == ["failed"]


async def test_a_message_whose_endpoint_is_no_longer_registered(relay: RelayCore) -> None:
    await dead(relay, 1)
    await relay.unregister_endpoint(A)
    (item,) = (await relay.plan_replay()).items
    assert (item.verdict, item.detail) == ("no_target", "the endpoint is no longer registered")


async def test_a_message_whose_adapter_is_gone_has_no_target(relay: RelayCore) -> None:
    message = await failed_at_adapter(relay)
    assert verdicts(await relay.plan_replay()) == {message: "will_deliver"}
    await relay.remove_adapter("sample")
    plan = await relay.plan_replay()
    assert [(item.verdict, item.detail) for item in plan.items] == [("no_target", "the adapter sample is not running")]
    outcome = await relay.run_replay(plan.id)
    assert (outcome.delivered, outcome.skipped, outcome.skips) == (0, 1, {"no_target": 1})
    assert await dead_ids(relay) == [message]


async def test_an_adapter_that_goes_between_plan_and_run_leaves_the_dead_letter(relay: RelayCore) -> None:
    message = await failed_at_adapter(relay)
    plan = await relay.plan_replay()
    await relay.remove_adapter("sample")
    outcome = await relay.run_replay(plan.id)
    assert (outcome.delivered, outcome.skipped, outcome.skips) == (0, 1, {"no_target": 1})
    assert await dead_ids(relay) == [message]
    again = SampleAdapter()
    await relay.add_adapter(again)
    assert (await relay.run_replay((await relay.plan_replay()).id)).delivered == 1
    assert again.got == [1]


async def test_the_mailbox_of_a_removed_adapter_is_listed_until_it_is_empty(data_dir: Path, clock: FakeClock) -> None:
    def states(relay: RelayCore) -> list[tuple[str, bool, int]]:
        return [(box.subject, box.registered, box.failed) for box in relay.mailboxes() if box.kind == "adapter"]

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
