"""Dedupe: a publish that is retried with its id happens once; one that left nothing may be tried again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core import RelayConfig, RelayCore
from relay_core.config import BackpressureConfig, LimitsConfig, RateLimitConfig, ReliabilityConfig
from relay_core.errors import InvalidPayload, StorageError
from relay_core.messages.results import PublishResult
from relay_core.rules.dedupe import Dedupe, dedupe_key
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, A

CONFIG = RelayConfig(durability="os")


def outcome(number: int) -> PublishResult:
    return PublishResult(message_id=f"{number}", delivered_to=1)


class Publisher:
    """Publishes on demand, and counts."""

    def __init__(self, *, lasting: bool = True) -> None:
        self.calls = 0
        self.lasting = lasting
        self.go_on = asyncio.Event()

    async def __call__(self) -> tuple[PublishResult, bool]:
        self.calls += 1
        call = self.calls
        await self.go_on.wait()
        return outcome(call), self.lasting


async def once(
    dedupe: Dedupe, key: str, publish: Callable[[], Coroutine[Any, Any, tuple[PublishResult, bool]]]
) -> PublishResult:
    begun = dedupe.once(key, publish)
    return begun if isinstance(begun, PublishResult) else await begun


def test_an_outcome_that_is_there_at_once_needs_no_waiting() -> None:
    dedupe = Dedupe(10)
    assert dedupe.once("k", lambda: (outcome(1), True)) == outcome(1)
    assert dedupe.once("k", lambda: (outcome(2), True)) == outcome(1)


async def test_a_retry_while_the_first_is_under_way_gets_its_outcome() -> None:
    dedupe, publish = Dedupe(10), Publisher()
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(once(dedupe, "k", publish)) for _ in range(20)]
        await asyncio.sleep(0)
        publish.go_on.set()
    assert publish.calls == 1
    assert {task.result() for task in tries} == {outcome(1)}


async def test_retries_of_what_left_nothing_are_tried_one_after_the_other() -> None:
    dedupe, publish = Dedupe(10), Publisher(lasting=False)
    publish.go_on.set()
    results = await asyncio.gather(*(once(dedupe, "k", publish) for _ in range(5)))
    assert sorted(result.message_id for result in results) == ["1", "2", "3", "4", "5"]
    assert len(dedupe) == 0


async def test_when_the_first_fails_one_retry_tries_and_the_others_wait_for_it() -> None:
    dedupe = Dedupe(10)
    calls = 0

    async def publish() -> tuple[PublishResult, bool]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls == 1:
            raise OSError("disk full")
        return outcome(calls), True

    results = await asyncio.gather(*(once(dedupe, "k", publish) for _ in range(5)), return_exceptions=True)
    assert isinstance(results[0], OSError)
    assert results[1:] == [outcome(2)] * 4
    assert calls == 2


async def test_when_the_first_caller_is_cancelled_the_retry_goes_on() -> None:
    dedupe, publish = Dedupe(10), Publisher()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(once(dedupe, "k", publish))
        retry = group.create_task(once(dedupe, "k", publish))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        publish.go_on.set()
    assert first.cancelled()
    assert retry.result() == outcome(2)


async def test_a_cancelled_retry_leaves_the_first_alone() -> None:
    dedupe, publish = Dedupe(10), Publisher()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(once(dedupe, "k", publish))
        await asyncio.sleep(0)
        retry = group.create_task(once(dedupe, "k", publish))
        await asyncio.sleep(0)
        retry.cancel()
        await asyncio.sleep(0)
        publish.go_on.set()
    assert first.result() == outcome(1)


@given(st.integers(0, 20), st.lists(st.integers(0, 30)))
def test_the_newest_outcomes_are_remembered_up_to_the_limit(limit: int, numbers: list[int]) -> None:
    dedupe = Dedupe(limit)
    for number in numbers:
        dedupe.remember(str(number), outcome(number))
        assert len(dedupe) <= limit
    if limit and numbers:
        assert str(numbers[-1]) in dedupe._outcomes


async def test_what_is_forgotten_is_published_again() -> None:
    dedupe, publish = Dedupe(2), Publisher()
    publish.go_on.set()
    for key in "abca":
        await once(dedupe, key, publish)
    assert publish.calls == 4


@given(
    st.text(st.characters(exclude_characters=" ")), st.text(), st.text(st.characters(exclude_characters=" ")), st.text()
)
def test_keys_of_different_senders_or_ids_differ(sender: str, id: str, other: str, other_id: str) -> None:
    assert (dedupe_key(sender, id) == dedupe_key(other, other_id)) == ((sender, id) == (other, other_id))


# Through the bus


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_the_same_id_is_published_once_concurrently_and_after_a_restart(durability: str, data_dir: Path) -> None:
    config = RelayConfig.model_validate({"durability": durability})
    async with RelayCore(data_dir, config) as relay:
        await relay.register_endpoint(A)
        first = await relay.publish(A, 1, sender=SENDER, dedupe_id="x")
        again = await asyncio.gather(*(relay.publish(A, 1, sender=SENDER, dedupe_id="x") for _ in range(10)))
        at_once = await asyncio.gather(*(relay.publish(A, 2, sender=SENDER, dedupe_id="y") for _ in range(10)))
        assert {first.message_id} == {result.message_id for result in again}
        assert len({result.message_id for result in at_once}) == 1
        assert len(await relay.inbox(A)) == 2
    async with RelayCore(data_dir, config) as relay:
        for _ in range(2):
            assert await relay.publish(A, 1, sender=SENDER, dedupe_id="x") == first
        assert len(await relay.inbox(A)) == 2


async def test_a_handled_message_is_not_published_again_after_a_restart(data_dir: Path) -> None:
    async with RelayCore(data_dir, CONFIG) as relay:
        await relay.register_endpoint(A)
        first = await relay.publish(A, 1, sender=SENDER, dedupe_id="x")
        await relay.claim(A)
        await relay.complete(A, first.message_id)
    async with RelayCore(data_dir, CONFIG) as relay:
        assert (await relay.publish(A, 1, sender=SENDER, dedupe_id="x")).message_id == first.message_id
        assert await relay.inbox(A) == []


async def test_ids_are_per_sender(data_dir: Path) -> None:
    async with RelayCore(data_dir, CONFIG) as relay:
        await relay.register_endpoint(A)
        one = await relay.publish(A, 1, sender="relay.agent.s", dedupe_id="x")
        other = await relay.publish(A, 1, sender="relay.agent.t", dedupe_id="x")
        assert one.message_id != other.message_id


async def test_a_refused_publish_is_tried_for_real(data_dir: Path, clock: FakeClock) -> None:
    limited = ReliabilityConfig(
        rate_limit=RateLimitConfig(max_per_window=1), backpressure=BackpressureConfig(max_mailbox_size=1)
    )
    async with RelayCore(data_dir, RelayConfig(durability="os", reliability=limited), clock) as relay:
        await relay.register_endpoint(A)
        await relay.publish(A, 1, sender=SENDER)
        over = await relay.publish(A, 2, sender=SENDER, dedupe_id="x")
        assert [rejection.reason for rejection in over.rejected or ()] == ["rate_limited"]
        clock.advance(61)
        full = await relay.publish(A, 2, sender=SENDER, dedupe_id="x")
        assert [rejection.reason for rejection in full.rejected or ()] == ["backpressure"]
        clock.advance(61)
        await relay.claim(A)
        taken = await relay.publish(A, 2, sender=SENDER, dedupe_id="x")
        assert (taken.delivered_to, taken.rejected) == (1, None)
        assert [message.payload for message in await relay.inbox(A)] == [2]


async def test_bad_input_is_tried_for_real(data_dir: Path) -> None:
    async with RelayCore(data_dir, CONFIG) as relay:
        await relay.register_endpoint(A)
        with pytest.raises(InvalidPayload):
            await relay.publish(A, float("nan"), sender=SENDER, dedupe_id="x")
        assert (await relay.publish(A, 1, sender=SENDER, dedupe_id="x")).delivered_to == 1


async def test_a_dead_letter_is_an_outcome_too(data_dir: Path) -> None:
    async with RelayCore(data_dir, CONFIG) as relay:
        first = await relay.publish(A, 1, sender=SENDER, dedupe_id="x")
        assert await relay.publish(A, 1, sender=SENDER, dedupe_id="x") == first
        assert len(await relay.dead_letters()) == 1
    async with RelayCore(data_dir, CONFIG) as relay:
        assert await relay.publish(A, 1, sender=SENDER, dedupe_id="x") == first
        assert len(await relay.dead_letters()) == 1


async def test_the_operator_bounds_what_is_remembered_also_over_a_restart(data_dir: Path) -> None:
    config = RelayConfig(durability="os", limits=LimitsConfig(dedupe_entries=3))
    async with RelayCore(data_dir, config) as relay:
        await relay.register_endpoint(A)
        first = [await relay.publish(A, n, sender=SENDER, dedupe_id=f"{n}") for n in range(5)]
    async with RelayCore(data_dir, config) as relay:
        assert len(relay.bus.dedupe) == 3
        for n in (2, 3, 4):
            assert (await relay.publish(A, n, sender=SENDER, dedupe_id=f"{n}")).message_id == first[n].message_id
        assert (await relay.publish(A, 0, sender=SENDER, dedupe_id="0")).message_id != first[0].message_id


@pytest.mark.parametrize("result", ["{", "[]", '{"messageId": 1}'], ids=["no JSON", "no object", "no outcome"])
async def test_an_outcome_that_the_index_has_not_whole_fails_no_start(data_dir: Path, result: str) -> None:
    async with RelayCore(data_dir) as relay:
        await relay.register_endpoint(A)
        first = [await relay.publish(A, number, sender=SENDER, dedupe_id=f"{number}") for number in range(2)]
    with closing(sqlite3.connect(data_dir / "index.db")) as db, db:
        db.execute("UPDATE publishes SET result = ? WHERE id = ?", (result, first[0].message_id))
    async with RelayCore(data_dir) as relay:
        assert (await relay.publish(A, 1, sender=SENDER, dedupe_id="1")).message_id == first[1].message_id
        assert (await relay.publish(A, 0, sender=SENDER, dedupe_id="0")).message_id != first[0].message_id


async def test_what_could_not_be_stored_anywhere_may_be_tried_again(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, RelayConfig(durability="os"), clock) as relay:
        await relay.register_endpoint("relay.a")
        (box,) = relay.bus.mailboxes
        moved = {name: box.maildir.path / name for name in ("new", "failed")}
        for path in moved.values():
            path.rename(path.with_suffix(".away"))
        with pytest.raises(StorageError):
            await relay.publish("relay.a", "once", sender="relay.b", dedupe_id="x")
        for path in moved.values():
            path.with_suffix(".away").rename(path)
        assert (await relay.publish("relay.a", "once", sender="relay.b", dedupe_id="x")).delivered_to == 1
        assert [mail.payload for mail in await relay.inbox("relay.a")] == ["once"]
