"""Parents: a child inherits the remaining budget of its parent's delivery, as the bus recorded it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay_core import Envelope, InvalidPayload, PublishResult, RelayConfig, RelayCore
from relay_core.config import BudgetConfig
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, A, B, C

CONFIG = RelayConfig(durability="os", budget=BudgetConfig(max_hops=4, ttl_ms=60_000, call_budget=6))
UNKNOWN = "01HF7YAT0A8CDKSYBCF7B20000"
LAVISH = {"max_hops": 99, "call_budget_remaining": 99, "hop_count": 0, "ancestor_chain": [], "ttl": 1 << 60}

pytestmark = pytest.mark.bus(CONFIG, endpoints=[A, B, C])


async def received(relay: RelayCore, subject: str) -> Envelope:
    """Claim the newest message of a mailbox and leave it claimed."""
    claimed = await relay.claim(subject, limit=100)
    return claimed[-1]


def left(envelope: Envelope) -> tuple[int, int, int, tuple[str, ...], int]:
    budget = envelope.budget
    return (budget.hop_count, budget.max_hops, budget.call_budget_remaining, budget.ancestor_chain, budget.ttl)


@pytest.mark.parametrize("when", ["held", "waiting", "completed", "failed"])
async def test_a_child_inherits_the_remaining_budget_of_its_parents_delivery(
    when: str, relay: RelayCore, clock: FakeClock
) -> None:
    ttl = clock.now_ms() + 60_000
    parent = await relay.publish(A, 1, sender=SENDER)
    if when != "waiting":
        await relay.claim(A)
    if when == "completed":
        await relay.complete(A, parent.message_id)
    if when == "failed":
        await relay.fail(A, parent.message_id, "no")
    clock.advance(10)
    await relay.publish(B, 2, sender=A, parent_id=parent.message_id)
    assert left(await received(relay, B)) == (2, 4, 4, (A, B), ttl)


async def test_the_callers_claims_can_only_shrink_it(relay: RelayCore, clock: FakeClock) -> None:
    ttl = clock.now_ms() + 60_000
    parent = await relay.publish(A, 1, sender=SENDER)
    await relay.claim(A)
    await relay.publish(B, 2, sender=A, parent_id=parent.message_id, budget=LAVISH)
    assert left(await received(relay, B)) == (2, 4, 4, (A, B), ttl)
    frugal = {"max_hops": 3, "call_budget_remaining": 2, "ttl": ttl - 1}
    await relay.publish(C, 2, sender=A, parent_id=parent.message_id, budget=frugal)
    assert left(await received(relay, C)) == (2, 3, 1, (A, C), ttl - 1)


async def test_a_chain_runs_dry_whatever_its_members_ask_for(relay: RelayCore) -> None:
    result = await relay.publish(A, 1, sender=SENDER)
    spent = []
    for number in range(10):
        me, other = (A, B) if number % 2 == 0 else (B, A)
        await relay.register_endpoint(f"{other}.x{number}")
        claimed = await relay.claim(me if number == 0 else f"{me}.x{number - 1}")
        if not claimed:
            break
        spent.append(claimed[0].budget.hop_count)
        sender = claimed[0].budget.ancestor_chain[-1]
        result = await relay.publish(f"{other}.x{number}", 1, sender=sender, parent_id=result.message_id, budget=LAVISH)
    assert spent == [1, 2, 3, 4]
    assert [rejection.reason for rejection in result.rejected or ()] == ["budget_exceeded"]


async def test_a_cycle_is_found_in_the_parents_chain(relay: RelayCore) -> None:
    parent = await relay.publish(A, 1, sender=SENDER)
    await relay.claim(A)
    back = await relay.publish(A, 2, sender=A, parent_id=parent.message_id, budget={"ancestor_chain": []})
    assert back.delivered_to == 0
    assert [letter.code for letter in await relay.dead_letters()] == ["cycle"]


async def test_the_trace_is_passed_on_over_any_number_of_steps(relay: RelayCore) -> None:
    first = await relay.publish(A, 1, sender=SENDER)
    await relay.claim(A)
    second = await relay.publish(B, 2, sender=A, parent_id=first.message_id)
    await relay.complete(A, first.message_id)
    await relay.claim(B)
    await relay.complete(B, second.message_id)
    third = await relay.publish(C, 3, sender=B, parent_id=second.message_id)
    spans = await relay.conversation(first.message_id)
    assert [(span.message_id, span.parent_id, span.trace_id) for span in spans] == [
        (first.message_id, None, first.message_id),
        (second.message_id, first.message_id, first.message_id),
        (third.message_id, second.message_id, first.message_id),
    ]


@pytest.mark.parametrize("completed", [False, True], ids=["waiting", "completed"])
async def test_after_a_restart_the_parent_is_still_known(completed: bool, data_dir: Path, clock: FakeClock) -> None:
    ttl = clock.now_ms() + 60_000
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.register_endpoint(A)
        await relay.register_endpoint(B)
        root = await relay.publish(B, 0, sender=SENDER)
        await relay.claim(B)
        parent = await relay.publish(A, 1, sender=B, parent_id=root.message_id)
        await relay.complete(B, root.message_id)
        if completed:
            await relay.claim(A)
            await relay.complete(A, parent.message_id)
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.register_endpoint(C)
        await relay.publish(C, 2, sender=A, parent_id=parent.message_id, budget=LAVISH)
        child = await received(relay, C)
        assert left(child) == (3, 4, 3, (B, A, C), ttl)
        assert [span.trace_id for span in await relay.trace(child.id)] == [root.message_id]


async def test_a_parent_claimed_after_a_restart_keeps_its_trace(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.register_endpoint(A)
        await relay.register_endpoint(B)
        root = await relay.publish(B, 0, sender=SENDER)
        parent = await relay.publish(A, 1, sender=B, parent_id=root.message_id)
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.register_endpoint(C)
        await relay.claim(A)
        child = await relay.publish(C, 2, sender=A, parent_id=parent.message_id)
        assert [span.trace_id for span in await relay.trace(parent.message_id)] == [root.message_id]
        assert [span.trace_id for span in await relay.trace(child.message_id)] == [root.message_id]


async def test_a_replayed_parent_keeps_its_trace(relay: RelayCore) -> None:
    root = await relay.publish(B, 0, sender=SENDER)
    parent = await relay.publish(A, 1, sender=B, parent_id=root.message_id)
    children = []

    async def fail(envelope: Envelope) -> None:
        raise ValueError

    async def reply(envelope: Envelope) -> None:
        children.append(await relay.publish(C, 2, sender=A, parent_id=envelope.id))

    async with await relay.subscribe(A, fail):
        await relay.idle()
    await relay.subscribe(A, reply)
    await relay.run_replay((await relay.plan_replay([parent.message_id])).id)
    for child in children:
        assert [span.trace_id for span in await relay.trace(child.message_id)] == [root.message_id]
    assert len(children) == 1


async def test_of_a_broadcast_each_receiver_passes_on_its_own_share(relay: RelayCore) -> None:
    parent = await relay.publish("relay.agent.*", 1, sender=SENDER)
    for subject in (A, B):
        await relay.claim(subject)
        await relay.complete(subject, parent.message_id)
    await relay.publish(C, 2, sender=B, parent_id=parent.message_id)
    assert (await received(relay, C)).budget.ancestor_chain == (B, C)


async def test_a_sender_that_never_received_the_parent_inherits_the_smallest_budget(relay: RelayCore) -> None:
    root = await relay.publish(A, 1, sender=SENDER)
    await relay.claim(A)
    parent = await relay.publish(B, 2, sender=A, parent_id=root.message_id)
    await relay.publish(C, 3, sender="relay.stranger", parent_id=parent.message_id, budget=LAVISH)
    assert left(await received(relay, C))[:4] == (3, 4, 3, (A, B, C))


@pytest.mark.parametrize(
    "parent_id", ["", "nonsense", "\x00", "\ud800", "x" * 10_000], ids=["empty", "word", "NUL", "surrogate", "long"]
)
async def test_a_parent_that_is_no_message_id_is_refused(parent_id: str, relay: RelayCore) -> None:
    with pytest.raises(InvalidPayload) as caught:
        await relay.publish(A, 1, sender=SENDER, parent_id=parent_id)
    assert caught.value.code == "invalid_parent_id"


async def test_an_unknown_parent_passes_on_nothing(relay: RelayCore) -> None:
    child = await relay.publish(A, 1, sender=SENDER, parent_id=UNKNOWN)
    assert child.delivered_to == 1
    assert left(await received(relay, A))[:4] == (1, 4, 5, (A,))
    assert [span.trace_id for span in await relay.trace(child.message_id)] == [child.message_id]


async def test_a_refused_publish_is_no_parent(relay: RelayCore, data_dir: Path) -> None:
    parent = await relay.publish("relay.agent.nowhere", 1, sender=SENDER, budget={"call_budget_remaining": 0})
    child: PublishResult = await relay.publish(A, 1, sender=SENDER, parent_id=parent.message_id)
    assert [rejection.reason for rejection in child.rejected or ()] == ["budget_exceeded"]


async def test_a_malformed_file_is_no_parent(relay: RelayCore, data_dir: Path) -> None:
    (data_dir / "draft").write_bytes(b"<message/>")
    place = next(endpoint.maildir_path for endpoint in relay.endpoints() if endpoint.subject == B)
    os.rename(data_dir / "draft", place / "new" / f"{UNKNOWN}.json")
    await relay.wait_inbox(B)
    assert await relay.claim(B) == []
    assert [(letter.message_id, letter.code) for letter in await relay.dead_letters()] == [(UNKNOWN, "malformed")]
    child = await relay.publish(A, 1, sender=SENDER, parent_id=UNKNOWN)
    assert child.delivered_to == 1
    assert left(await received(relay, A))[:4] == (1, 4, 5, (A,))


async def test_without_an_index_the_publish_goes_on(relay: RelayCore, data_dir: Path) -> None:
    parent = await relay.publish(A, 1, sender=SENDER)
    await relay.claim(A)
    await relay.complete(A, parent.message_id)
    os.unlink(data_dir / "index.db")
    os.mkdir(data_dir / "index.db")
    child = await relay.publish(B, 1, sender=A, parent_id=parent.message_id)
    assert child.delivered_to == 1
