"""Publish once per dedupe id: a retry gets the first outcome; a publish that left nothing may be tried again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path

import pytest

from relay_core import Closed, RelayConfig, RelayCore
from relay_core.config import BackpressureConfig, LimitsConfig, RateLimitConfig, ReliabilityConfig
from relay_core.errors import InvalidPayload, StorageError
from relay_core.messages.results import PublishResult, Reason
from relay_core.pipeline.pending_publish import PendingPublish
from relay_core.pipeline.publication import Publication
from relay_core.pipeline.publisher import Pipeline, Publisher
from relay_core.rules.dedupe import Dedupe
from relay_core.tasks import Tasks
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, A, refusing_journal

CONFIG = RelayConfig(durability="os")


def outcome(number: int) -> PublishResult:
    return PublishResult(message_id=f"{number}", delivered_to=1)


class Stage:
    """The only stage of a pipeline: it counts the publishes, and settles each when the test lets it."""

    def __init__(self, *, lasting: bool = True, fails: int = 0, waits: bool = True) -> None:
        self.calls = 0
        self.lasting = lasting
        """Whether a publish leaves anything on disk."""
        self.fails = fails
        """How many publishes fail, the first ones."""
        self.go_on = asyncio.Event()
        self._waits = waits

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        self.calls += 1
        if self._waits:
            return self._wait(publication, self.calls)
        self._settle(publication, self.calls)
        return None

    async def _wait(self, publication: Publication, call: int) -> None:
        await self.go_on.wait()
        self._settle(publication, call)

    def _settle(self, publication: Publication, call: int) -> None:
        if call <= self.fails:
            raise OSError("disk full")
        if not self.lasting:
            publication.reject("*", Reason.RATE_LIMITED)
        publication.result = outcome(call)


def a_publisher(stage: Stage, limit: int = 10) -> Publisher:
    return Publisher(Pipeline([stage], Tasks()), Dedupe(limit))


async def publish(publisher: Publisher, key: str = "k") -> PublishResult:
    return await publisher.publish(A, 1, sender=SENDER, dedupe_id=key)


async def test_an_outcome_that_is_there_at_once_needs_no_waiting() -> None:
    stage = Stage(waits=False)
    publisher = a_publisher(stage)
    for _ in range(2):
        assert publisher.begin(Publication(A, 1, SENDER, dedupe_id="k")) == outcome(1)
    assert stage.calls == 1


async def test_without_an_id_every_publish_happens() -> None:
    publisher = a_publisher(Stage(waits=False))
    assert [publisher.begin(Publication(A, 1, SENDER)) for _ in range(2)] == [outcome(1), outcome(2)]


async def test_a_retry_while_the_first_is_under_way_gets_its_outcome() -> None:
    stage = Stage()
    publisher = a_publisher(stage)
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(publish(publisher)) for _ in range(20)]
        await asyncio.sleep(0)
        stage.go_on.set()
    assert stage.calls == 1
    assert {task.result() for task in tries} == {outcome(1)}


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "waiting"])
async def test_retries_of_a_publish_that_left_nothing_are_tried_one_after_the_other(waits: bool) -> None:
    stage = Stage(lasting=False, waits=waits)
    publisher = a_publisher(stage)
    stage.go_on.set()
    results = await asyncio.gather(*(publish(publisher) for _ in range(5)))
    assert sorted(result.message_id for result in results) == ["1", "2", "3", "4", "5"]
    assert len(publisher._dedupe) == 0


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "waiting"])
async def test_when_the_first_fails_one_retry_tries_and_the_others_wait_for_it(waits: bool) -> None:
    stage = Stage(fails=1, waits=waits)
    publisher = a_publisher(stage)
    stage.go_on.set()
    results = await asyncio.gather(*(publish(publisher) for _ in range(5)), return_exceptions=True)
    assert isinstance(results[0], OSError)
    assert results[1:] == [outcome(2)] * 4
    assert stage.calls == 2


async def test_when_the_first_caller_is_cancelled_its_publish_goes_on_and_the_retry_gets_the_outcome() -> None:
    stage = Stage()
    publisher = a_publisher(stage)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(publish(publisher))
        retry = group.create_task(publish(publisher))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        stage.go_on.set()
    assert first.cancelled()
    assert retry.result() == await publish(publisher) == outcome(1)
    assert stage.calls == 1


async def test_a_cancelled_retry_leaves_the_first_alone() -> None:
    stage = Stage()
    publisher = a_publisher(stage)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(publish(publisher))
        await asyncio.sleep(0)
        retry = group.create_task(publish(publisher))
        await asyncio.sleep(0)
        retry.cancel()
        await asyncio.sleep(0)
        stage.go_on.set()
    assert retry.cancelled()
    assert first.result() == outcome(1)
    assert stage.calls == 1


async def test_a_forgotten_outcome_is_published_again() -> None:
    stage = Stage(waits=False)
    publisher = a_publisher(stage, limit=2)
    for key in "abca":
        await publish(publisher, key)
    assert stage.calls == 4


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
        first = await relay.publish(A, 1, sender="relay.agent.s", dedupe_id="x")
        other = await relay.publish(A, 1, sender="relay.agent.t", dedupe_id="x")
        assert first.message_id != other.message_id


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


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_what_could_not_be_stored_may_be_tried_again(data_dir: Path, durability: str) -> None:
    async with RelayCore(data_dir, RelayConfig.model_validate({"durability": durability})) as relay:
        await relay.register_endpoint(A)
        with refusing_journal(relay), pytest.raises(StorageError):
            await relay.publish(A, "once", sender=SENDER, dedupe_id="x")
        assert (await relay.publish(A, "once", sender=SENDER, dedupe_id="x")).delivered_to == 1
        assert [envelope.payload for envelope in await relay.inbox(A)] == ["once"]


async def test_a_closed_bus_fails_a_publish_that_has_to_wait() -> None:
    tasks, stage = Tasks(), Stage()
    publisher = Publisher(Pipeline([stage], tasks), Dedupe(10))
    waiting = publisher.begin(Publication(A, 1, SENDER, dedupe_id="k"))
    assert isinstance(waiting, PendingPublish)
    await asyncio.sleep(0)
    await tasks.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await publish(publisher)
