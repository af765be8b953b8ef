"""Pull consumers: peek, claim, complete or fail, at their own pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from relay_core import BackpressureConfig, Closed, Envelope, InvalidSubject, NotFound, RelayCore
from relay_core.messages.subjects import subject_hash
from relay_core.testing import FakeClock
from tests.kit.bus import (
    SENDER,
    UNKNOWN_ID,
    A,
    B,
    a_bus,
    assert_counts_match_files,
    config,
    files,
    publish_all,
    snapshot,
    write_files,
)

LIMIT = 200
CONFIG = config(backpressure=BackpressureConfig(max_mailbox_size=LIMIT))


@pytest.fixture(params=["os", "fsync"])
async def relay(data_dir: Path, clock: FakeClock, request: pytest.FixtureRequest) -> AsyncIterator[RelayCore]:
    either = CONFIG.model_copy(update={"durability": request.param})
    async with a_bus(data_dir, clock, either, endpoints=[A]) as relay:
        yield relay


async def publish(relay: RelayCore, *payloads: Any, subject: str = A) -> list[str]:
    return await publish_all(relay, subject, payloads)


def payloads(envelopes: list[Envelope]) -> list[Any]:
    return [envelope.payload for envelope in envelopes]


async def test_the_inbox_shows_the_oldest_first_and_changes_nothing(relay: RelayCore, data_dir: Path) -> None:
    ids = await publish(relay, *range(5))
    await relay.idle()
    before = snapshot(data_dir)
    for _ in range(2):
        found = await relay.inbox(A)
        assert [envelope.id for envelope in found] == ids
        assert payloads(found) == [0, 1, 2, 3, 4]
    assert payloads(await relay.inbox(A, limit=2)) == [0, 1]
    assert await relay.inbox(A, limit=0) == []
    assert snapshot(data_dir) == before
    assert_counts_match_files(relay, data_dir)


async def test_the_inbox_shows_what_a_target_would_get(relay: RelayCore) -> None:
    await relay.publish(A, {"n": 1}, sender=SENDER, reply_to=B)
    (envelope,) = await relay.inbox(A)
    assert (envelope.subject, envelope.sender, envelope.reply_to) == (A, SENDER, B)
    assert (envelope.budget.hop_count, envelope.budget.ancestor_chain) == (1, (A,))


async def test_a_bad_file_in_the_inbox_is_parked_and_the_others_are_shown(relay: RelayCore, data_dir: Path) -> None:
    first, second, third = await publish(relay, 1, 2, 3)
    await relay.idle()
    (data_dir / "mailboxes" / subject_hash(A) / "new" / f"{second}.json").write_bytes(b"{")
    assert [envelope.id for envelope in await relay.inbox(A)] == [first, third]
    (letter,) = await relay.dead_letters()
    assert (letter.message_id, letter.code) == (second, "malformed")
    assert payloads(await relay.claim(A, limit=5)) == [1, 3]


async def test_a_claimed_message_is_in_cur_until_it_is_completed(relay: RelayCore, data_dir: Path) -> None:
    first, second = await publish(relay, 1, 2)
    (envelope,) = await relay.claim(A)
    assert envelope.id == first
    await relay.idle()
    assert (files(data_dir, A, "new"), files(data_dir, A, "cur")) == ([second], [first])
    assert (await relay.trace(first))[0].status == "cur"
    assert payloads(await relay.inbox(A)) == [2]
    assert_counts_match_files(relay, data_dir)
    await relay.complete(A, first)
    assert (files(data_dir, A, "new"), files(data_dir, A, "cur"), files(data_dir, A, "failed")) == ([second], [], [])
    assert_counts_match_files(relay, data_dir)
    (span,) = await relay.trace(first)
    assert span.status == "done"
    assert span.stored_at is not None
    assert span.claimed_at is not None
    assert span.handled_at is not None
    assert span.sent_at <= span.stored_at <= span.claimed_at <= span.handled_at


async def test_a_failed_message_is_a_dead_letter_with_the_consumers_reason(relay: RelayCore, data_dir: Path) -> None:
    first, second = await publish(relay, 1, 2)
    await relay.claim(A, limit=2)
    await relay.fail(A, first, "the printer is on fire")
    await relay.fail(A, second, "gone", code="disconnected")
    letters = await relay.dead_letters()
    assert [(letter.message_id, letter.code, letter.reason) for letter in letters] == [
        (first, "consumer_failed", "the printer is on fire"),
        (second, "disconnected", "gone"),
    ]
    assert files(data_dir, A, "cur") == []
    assert [span.status for span in await relay.trace(first)] == ["failed"]
    assert_counts_match_files(relay, data_dir)


async def test_claims_come_oldest_first_and_no_more_than_asked_for(relay: RelayCore) -> None:
    await publish(relay, *range(5))
    assert payloads(await relay.claim(A)) == [0]
    assert payloads(await relay.claim(A, limit=3)) == [1, 2, 3]
    assert payloads(await relay.claim(A, limit=3)) == [4]
    assert await relay.claim(A) == []


async def test_two_claimants_never_get_the_same_message(relay: RelayCore, data_dir: Path) -> None:
    expected = await publish(relay, *range(100))
    got: list[list[str]] = [[] for _ in range(8)]

    async def consume(mine: list[str]) -> None:
        while claimed := await relay.claim(A, limit=3):
            mine.extend(envelope.id for envelope in claimed)
            await asyncio.sleep(0)
            for envelope in claimed:
                await relay.complete(A, envelope.id)

    async with asyncio.TaskGroup() as group:
        for mine in got:
            group.create_task(consume(mine))
    assert sorted(message_id for mine in got for message_id in mine) == expected
    assert all(mine == sorted(mine) for mine in got)
    assert_counts_match_files(relay, data_dir)


async def test_a_pull_consumer_and_a_handler_share_a_mailbox_without_doubling(relay: RelayCore) -> None:
    handled: list[str] = []
    pulled: list[str] = []

    async def handle(envelope: Envelope) -> None:
        await asyncio.sleep(0)
        handled.append(envelope.id)

    expected = await publish(relay, *range(60))
    await relay.subscribe(A, handle)
    while claimed := await relay.claim(A):
        pulled.append(claimed[0].id)
        await relay.complete(A, claimed[0].id)
        await asyncio.sleep(0)
    await relay.idle()
    assert sorted(handled + pulled) == expected
    assert handled
    assert pulled


async def test_only_its_handler_finishes_a_message_in_flight(relay: RelayCore, data_dir: Path) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def hold(envelope: Envelope) -> None:
        begun.set()
        await end.wait()

    await relay.subscribe(A, hold)
    (message_id,) = await publish(relay, 1)
    await begun.wait()
    with pytest.raises(NotFound, match="not claimed"):
        await relay.complete(A, message_id)
    with pytest.raises(NotFound, match="not claimed"):
        await relay.fail(A, message_id, "mine")
    await write_files(relay)
    assert files(data_dir, A, "cur") == [message_id]
    end.set()
    await relay.idle()
    assert [span.status for span in await relay.trace(message_id)] == ["done"]
    assert_counts_match_files(relay, data_dir)


async def test_an_expired_message_is_parked_and_the_next_is_claimed(relay: RelayCore, clock: FakeClock) -> None:
    brief = await relay.publish(A, 1, sender=SENDER, budget={"ttl": clock.now_ms() + 1000})
    await publish(relay, 2)
    clock.advance(1.001)
    assert payloads(await relay.claim(A)) == [2]
    (letter,) = await relay.dead_letters()
    assert (letter.message_id, letter.code) == (brief.message_id, "expired")


async def test_depth_and_pressure_follow_every_step(relay: RelayCore, data_dir: Path) -> None:
    for payload in range(20):
        await publish(relay, payload)
        assert_counts_match_files(relay, data_dir)
    for step in range(15):
        (envelope,) = await relay.claim(A)
        assert_counts_match_files(relay, data_dir)
        if step % 2:
            await relay.complete(A, envelope.id)
        else:
            await relay.fail(A, envelope.id, "no")
        assert_counts_match_files(relay, data_dir)
    assert (len(await relay.dead_letters()), len(await relay.inbox(A))) == (8, 5)


async def test_what_was_claimed_is_parked_as_interrupted_by_the_next_start(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.register_endpoint(A)
        first, _ = await publish(relay, 1, 2)
        await relay.claim(A)
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        (letter,) = await relay.dead_letters()
        assert (letter.message_id, letter.code) == (first, "interrupted")
        with pytest.raises(NotFound):
            await relay.complete(A, first)
        assert payloads(await relay.claim(A, limit=5)) == [2]
        assert_counts_match_files(relay, data_dir)


async def test_only_messages_after_an_id_are_listed(relay: RelayCore) -> None:
    first, second, third = await publish(relay, 1, 2, 3)
    assert payloads(await relay.inbox(A, after=first)) == [2, 3]
    assert payloads(await relay.inbox(A, 1, after=first)) == [2]
    assert await relay.wait_inbox(A, after=second) == [third]
    assert payloads(await relay.inbox(A, after=third)) == []


async def test_messages_are_claimed_by_id_as_far_as_they_still_wait(relay: RelayCore, data_dir: Path) -> None:
    first, second, third = await publish(relay, 1, 2, 3)
    assert payloads(await relay.claim(A, 5, ids=[third, UNKNOWN_ID, first, first])) == [3, 1]
    assert await relay.claim(A, 5, ids=[third]) == []
    assert_counts_match_files(relay, data_dir)
    assert payloads(await relay.claim(A, 5)) == [2]
    for message_id in (first, second, third):
        await relay.complete(A, message_id)
    assert_counts_match_files(relay, data_dir)


async def test_a_message_that_was_claimed_out_of_turn_and_replayed_is_listed_once(relay: RelayCore) -> None:
    first, second = await publish(relay, 1, 2)
    await relay.claim(A, ids=[second])
    await relay.fail(A, second, "no")
    await relay.run_replay((await relay.plan_replay(ids=[second])).id)
    assert payloads(await relay.inbox(A)) == [1, 2]
    assert await relay.wait_inbox(A) == [first, second]
    assert payloads(await relay.claim(A, 5)) == [1, 2]


async def test_a_waiting_consumer_is_notified_of_new_messages(relay: RelayCore) -> None:
    await relay.register_endpoint(B)
    waiting = [asyncio.ensure_future(relay.wait_inbox(A)) for _ in range(2)]  # noqa: TID251
    await publish(relay, 0, subject=B)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    (sent,) = await publish(relay, 1)
    assert await asyncio.gather(*waiting) == [[sent], [sent]]
    assert payloads(await relay.inbox(A)) == [1]


async def test_what_other_hands_have_taken_away_waits_no_longer(relay: RelayCore, data_dir: Path) -> None:
    first, second = await publish(relay, 1, 2)
    await relay.idle()
    (data_dir / "mailboxes" / subject_hash(A) / "new" / f"{first}.json").unlink()
    assert payloads(await relay.inbox(A)) == [2]
    assert await relay.wait_inbox(A) == [second]
    assert_counts_match_files(relay, data_dir)


async def test_a_consumer_that_waits_for_an_answer_is_notified_of_that_alone(relay: RelayCore) -> None:
    await publish(relay, "before")
    (asked,) = await publish(relay, "question", subject=A)
    waiting = asyncio.ensure_future(relay.wait_inbox(A, answer_to=asked))  # noqa: TID251
    await publish(relay, "something else", {"correlationId": UNKNOWN_ID})
    answer = await relay.publish(A, "answer", sender=B, parent_id=asked)
    assert answer.delivered_to == 0  # A has seen the question itself: a loop, which the budget stops
    follows = await relay.publish(A, {"correlationId": asked}, sender=B)
    assert await waiting == [follows.message_id]


async def test_an_answer_is_known_by_its_parent(relay: RelayCore) -> None:
    await relay.register_endpoint(B)
    asked = (await relay.publish(B, "question", sender=A, reply_to=A)).message_id
    waiting = asyncio.ensure_future(relay.wait_inbox(A, answer_to=asked))  # noqa: TID251
    await publish(relay, *range(150))
    answer = await relay.publish(A, "answer", sender=B, parent_id=asked)
    assert await waiting == [answer.message_id]
    assert await relay.wait_inbox(A, answer_to=asked) == [answer.message_id]


async def test_a_cancelled_wait_is_forgotten(relay: RelayCore) -> None:
    waiting = asyncio.ensure_future(relay.wait_inbox(A))  # noqa: TID251
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    mailbox = relay.bus.mailboxes.get(subject_hash(A))
    assert mailbox is not None
    assert mailbox._arrivals == []
    await publish(relay, 1)


class TestLate:
    """A consumer that returns may complete its message late, unless it was replayed before."""

    async def test_what_a_restart_has_parked_is_completed(self, data_dir: Path, clock: FakeClock) -> None:
        async with RelayCore(data_dir, CONFIG, clock) as relay:
            await relay.register_endpoint(A)
            (sent,) = await publish(relay, 1)
            await relay.claim(A)
        async with RelayCore(data_dir, CONFIG, clock) as relay:
            assert await relay.complete(A, sent, late=True) is True
            assert await relay.dead_letters() == []
            assert_counts_match_files(relay, data_dir)
            (span,) = await relay.trace(sent)
            assert span.status == "done"
            with pytest.raises(NotFound):
                await relay.complete(A, sent, late=True)
        async with RelayCore(data_dir, CONFIG, clock) as relay:
            assert (await relay.dead_letters(), await relay.inbox(A)) == ([], [])

    async def test_what_its_consumer_has_failed_is_not(self, relay: RelayCore) -> None:
        (sent,) = await publish(relay, 1)
        await relay.claim(A)
        await relay.fail(A, sent, "no")
        with pytest.raises(NotFound):
            await relay.complete(A, sent, late=True)
        assert [letter.message_id for letter in await relay.dead_letters()] == [sent]

    async def test_a_replay_that_was_quicker_wins(self, relay: RelayCore) -> None:
        (sent,) = await publish(relay, 1)
        await relay.claim(A)
        await relay.fail(A, sent, "gone", code="disconnected")
        await relay.run_replay((await relay.plan_replay(ids=[sent])).id)
        with pytest.raises(NotFound):
            await relay.complete(A, sent, late=True)
        assert payloads(await relay.inbox(A)) == [1]

    async def test_in_time_is_not_late(self, relay: RelayCore) -> None:
        (sent,) = await publish(relay, 1)
        await relay.claim(A)
        assert await relay.complete(A, sent, late=True) is False


Verb = Callable[[RelayCore, str, str], Coroutine[Any, Any, object]]
BY_ID: list[Any] = [
    pytest.param(lambda relay, subject, id: relay.complete(subject, id), id="complete"),
    pytest.param(lambda relay, subject, id: relay.fail(subject, id, "why"), id="fail"),
]
VERBS: list[Any] = [
    pytest.param(lambda relay, subject, id: relay.inbox(subject), id="inbox"),
    pytest.param(lambda relay, subject, id: relay.claim(subject), id="claim"),
    pytest.param(lambda relay, subject, id: relay.wait_inbox(subject), id="wait"),
    *BY_ID,
]


@pytest.mark.parametrize("verb", VERBS)
async def test_an_unknown_subject_is_not_found(relay: RelayCore, verb: Verb, data_dir: Path) -> None:
    with pytest.raises(NotFound, match=f"no mailbox for {B}") as caught:
        await verb(relay, B, UNKNOWN_ID)
    assert caught.value.what == B
    assert not (data_dir / "mailboxes" / subject_hash(B)).exists()


@pytest.mark.parametrize("verb", VERBS)
async def test_a_subject_that_breaks_the_rules_is_refused(relay: RelayCore, verb: Verb) -> None:
    for subject in ("", "relay..a", "relay.*", "../../etc"):
        with pytest.raises(InvalidSubject):
            await verb(relay, subject, UNKNOWN_ID)


@pytest.mark.parametrize("verb", BY_ID)
async def test_an_unclaimed_message_is_not_found(relay: RelayCore, verb: Verb, data_dir: Path) -> None:
    (waiting,) = await publish(relay, 1)
    await relay.idle()
    before = snapshot(data_dir)
    for message_id in (UNKNOWN_ID, waiting, "../../../etc/passwd", ""):
        with pytest.raises(NotFound) as caught:
            await verb(relay, A, message_id)
        assert caught.value.what == message_id
    assert snapshot(data_dir) == before


@pytest.mark.parametrize("verb", BY_ID)
@pytest.mark.parametrize("again", BY_ID)
async def test_a_message_is_finished_once(relay: RelayCore, verb: Verb, again: Verb, data_dir: Path) -> None:
    (message_id,) = await publish(relay, 1)
    await relay.claim(A)
    await verb(relay, A, message_id)
    before = snapshot(data_dir)
    with pytest.raises(NotFound):
        await again(relay, A, message_id)
    assert snapshot(data_dir) == before
    assert_counts_match_files(relay, data_dir)


async def test_a_message_is_finished_once_though_two_try_at_the_same_time(relay: RelayCore, data_dir: Path) -> None:
    (message_id,) = await publish(relay, 1)
    await relay.claim(A)
    results = await asyncio.gather(
        relay.fail(A, message_id, "one"), relay.fail(A, message_id, "two"), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), NotFound]
    assert_counts_match_files(relay, data_dir)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_closed_bus_raises_closed(data_dir: Path, verb: Verb) -> None:
    async with RelayCore(data_dir, CONFIG) as relay:
        await relay.register_endpoint(A)
    with pytest.raises(Closed):
        await verb(relay, A, UNKNOWN_ID)
