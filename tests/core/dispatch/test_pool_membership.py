"""Members that join, leave, refuse or fail: each message is handled once."""

from __future__ import annotations

import asyncio
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_core import CircuitBreakerConfig, Envelope, RelayCore, Subscription
from relay_core.dispatch.consumer import Requeue
from tests.core.dispatch.pool_members import ended, members
from tests.kit.bus import (
    ALL,
    SENDER,
    A,
    B,
    C,
    assert_counts_match_files,
    breaker,
    codes,
    config,
    files,
    publish_all,
    span,
)
from tests.kit.handlers import Worker
from tests.kit.waiting import PATIENCE_SECS, run_ready_tasks

pytestmark = pytest.mark.bus(endpoints=[A, B])


async def test_a_member_that_closes_finishes_its_message_and_begins_nothing(relay: RelayCore) -> None:
    first, second = Worker("first"), Worker("second")
    subscription = await relay.subscribe(A, first, queue="workers")
    await relay.subscribe(A, second, queue="workers")
    await publish_all(relay, A, [1, 2, 3, 4])
    await run_ready_tasks()
    await subscription.close()
    first.end()
    await run_ready_tasks()
    assert (first.ended, first.in_flight, second.in_flight) == ([1], [], [2])
    second.release()
    await relay.idle()
    assert (first.begun, second.ended) == ([1], [2, 3, 4])


async def test_without_a_member_the_messages_wait_for_the_next(relay: RelayCore, data_dir: Path) -> None:
    worker, other = Worker(), Worker(held=False)
    subscription = await relay.subscribe(A, worker, queue="workers")
    await publish_all(relay, A, [1, 2, 3])
    await run_ready_tasks()
    await subscription.close()
    worker.end()
    async with asyncio.timeout(PATIENCE_SECS):
        await relay.idle()  # the mailbox that waited for the member has been answered
    assert (worker.ended, len(files(data_dir, A, "new")), files(data_dir, A, "cur")) == ([1], 2, [])
    await relay.subscribe(ALL, other, queue="workers")
    await relay.idle()
    assert other.ended == [2, 3]


async def test_a_member_that_joins_takes_waiting_messages(relay: RelayCore) -> None:
    (busy,) = await members(relay, 1, A)
    await publish_all(relay, A, [1, 2])
    await run_ready_tasks()
    (fresh,) = await members(relay, 1, ALL)
    await run_ready_tasks()
    assert (busy.in_flight, fresh.in_flight) == ([1], [2])
    busy.release()
    fresh.release()
    await relay.idle()


async def test_a_pool_that_leaves_does_not_block_other_consumers(relay: RelayCore) -> None:
    worker, plain = Worker(), Worker(held=False)
    subscription = await relay.subscribe(ALL, worker, queue="workers")
    await relay.subscribe(A, plain)
    await publish_all(relay, B, ["b"])
    await run_ready_tasks()
    await publish_all(relay, A, [1, 2])
    await run_ready_tasks()
    assert (worker.in_flight, plain.begun) == (["b"], [])
    await subscription.close()
    await run_ready_tasks()
    assert plain.ended == [1, 2]
    worker.release()
    await relay.idle()


async def test_a_member_that_leaves_before_the_others_are_free_is_given_nothing(relay: RelayCore) -> None:
    leaving, busy = Worker("leaving"), Worker("busy")
    subscription = await relay.subscribe(A, leaving, queue="first")
    await relay.subscribe(ALL, busy, queue="second")
    await publish_all(relay, B, ["b"])
    await run_ready_tasks()
    await publish_all(relay, A, [1])  # one of the first is there, and the second is waited for
    await run_ready_tasks()
    await subscription.close()
    busy.release()
    await relay.idle()
    assert (leaving.begun, busy.ended) == ([], ["b", 1])


async def test_a_consumer_added_while_a_member_is_awaited_gets_the_message_too(relay: RelayCore) -> None:
    (busy,) = await members(relay, 1)
    await publish_all(relay, B, ["b"])
    await run_ready_tasks()
    await publish_all(relay, A, [1])
    await run_ready_tasks()
    plain = Worker(held=False)
    await relay.subscribe(A, plain)
    busy.release()
    await relay.idle()
    assert (busy.ended, plain.ended) == (["b", 1], [1])


async def test_what_a_member_did_not_take_is_offered_to_another(relay: RelayCore, data_dir: Path) -> None:
    refusing, taking = Worker("refusing", held=False), Worker("taking")
    subscription = await relay.subscribe(A, refusing, queue="workers")
    refusing.error = Requeue("not now")
    await relay.subscribe(A, taking, queue="workers")
    (message_id,) = await publish_all(relay, A, [1])
    await run_ready_tasks()
    assert (refusing.begun, taking.in_flight) == ([1], [1])
    await subscription.close()
    taking.end()
    await relay.idle()
    (outcome,) = (await span(relay, message_id)).outcomes
    assert (outcome["handler"], outcome["ok"], breaker(relay, A).consecutive_failures) == ("taking", True, 0)
    assert_counts_match_files(relay, data_dir)


async def test_where_others_have_the_message_a_member_that_did_not_take_it_is_replaced(relay: RelayCore) -> None:
    plain, refusing, taking = Worker("plain", held=False), Worker("refusing", held=False), Worker("taking", held=False)
    refusing.error = Requeue("not now")
    await relay.subscribe(A, plain)
    await relay.subscribe(A, refusing, queue="workers")
    await relay.subscribe(A, taking, queue="workers")
    (message_id,) = await publish_all(relay, A, [1])
    await relay.idle()
    assert (plain.ended, refusing.begun, taking.ended) == ([1], [1], [1])
    assert [(outcome["handler"], outcome["ok"]) for outcome in (await span(relay, message_id)).outcomes] == [
        ("plain", True),
        ("taking", True),
    ]


async def test_where_others_have_the_message_and_no_member_is_left_that_is_a_failure_of_the_pool_alone(
    relay: RelayCore,
) -> None:
    plain = Worker("plain", held=False)
    await relay.subscribe(A, plain)

    async def leave(envelope: Envelope) -> None:
        await subscription.close()
        raise Requeue("it has left")

    subscription = await relay.subscribe(A, leave, queue="workers")
    (message_id,) = await publish_all(relay, A, [1])
    await relay.idle()
    found = await span(relay, message_id)
    assert (plain.ended, found.status, found.code) == ([1], "partial", "disconnected")
    assert found.reason is not None
    assert "it has left, and no other consumer can take it" in found.reason


async def test_a_message_that_none_of_several_consumers_took_is_requeued(relay: RelayCore, data_dir: Path) -> None:
    refusing = [Worker(name) for name in ("one", "two", "plain")]
    subscriptions = [
        await relay.subscribe(A, worker, queue=queue)
        for worker, queue in zip(refusing, ("first", "second", None), strict=True)
    ]
    (message_id,) = await publish_all(relay, A, [1])
    await run_ready_tasks()
    for worker, subscription in zip(refusing, subscriptions, strict=True):
        await subscription.close()
        worker.error = Requeue("not now")
        worker.end()
    await relay.idle()
    assert (files(data_dir, A, "new"), await codes(relay)) == ([message_id], [])
    assert breaker(relay, A).consecutive_failures == 0
    taking = Worker(held=False)
    await relay.subscribe(A, taking, queue="first")
    await relay.idle()
    assert taking.ended == [1]
    assert_counts_match_files(relay, data_dir)


_DO = st.sampled_from(["publish", "publish", "publish", "join", "leave", "end", "end", "fail", "requeue", "plain"])


@given(script=st.lists(st.tuples(_DO, st.integers(0, 2), st.integers(1, 3)), max_size=40))
@settings(max_examples=60)
def test_each_message_is_handled_once_while_members_join_leave_and_fail(script: list[tuple[str, int, int]]) -> None:
    async def run(directory: str) -> None:
        async with RelayCore(directory, config(circuit_breaker=CircuitBreakerConfig(enabled=False))) as relay:
            for subject in (A, B, C):
                await relay.register_endpoint(subject)
            log: list[Any] = []
            living: list[tuple[Worker, Subscription]] = []
            everyone: list[Worker] = []
            plain: Worker | None = None
            numbers = count()
            sent: list[int] = []
            requeued = failed = 0
            for what, where, number in script:
                busy = [worker for worker in everyone if worker.in_flight]
                if what == "publish":
                    for _ in range(number):
                        sent.append(next(numbers))
                        await relay.publish((A, B, C)[where], sent[-1], sender=SENDER)
                elif what == "join":
                    worker = Worker(log=log)
                    pattern = (A, B, ALL)[where]
                    living.append(
                        (worker, await relay.subscribe(pattern, worker, queue="workers", max_in_flight=number))
                    )
                    everyone.append(worker)
                elif what == "leave" and living:
                    await living.pop(where % len(living))[1].close()
                elif what == "plain" and plain is None:
                    everyone.append(Worker(log=log))  # who stays: without a member, it would have the message alone
                    await relay.subscribe(A, everyone[-1], queue="workers")
                    plain = Worker(held=False)
                    await relay.subscribe(A, plain)
                elif what in ("end", "fail", "requeue") and busy:
                    worker = busy[where % len(busy)]
                    worker.error = {"end": None, "fail": ValueError("no"), "requeue": Requeue("no")}[what]
                    failed += what == "fail"
                    requeued += what == "requeue"
                    worker.end()
                    await run_ready_tasks()
                    worker.error = None
                if number == 1:
                    await run_ready_tasks()
                for worker, subscription in living:
                    assert subscription.pool is not None
                    assert len(worker.in_flight) <= 3
            last = Worker(held=False, log=log)
            await relay.subscribe(ALL, last, queue="workers")
            for worker in everyone:
                worker.release()
            async with asyncio.timeout(PATIENCE_SECS):
                await relay.idle()
            done = ended([*everyone, last])
            assert len(done) == len(set(done)), "doubled"
            assert set(log) == set(sent), "lost"
            assert len(log) == len(sent) + requeued
            assert len(done) == len(sent) - failed
            assert_counts_match_files(relay, Path(directory))
            assert all(mailbox.depth == mailbox.claimed == 0 for mailbox in relay.mailboxes())

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(directory))
