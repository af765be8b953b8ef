"""Members of a queue share its messages, one each, while others have one of their own."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from relay_core import Envelope, InvalidSubject, RelayCore
from tests.core.dispatch.pool_members import ended, in_flight, members, together
from tests.kit.bus import ALL, SENDER, A, B, C, publish_all, span
from tests.kit.handlers import Worker
from tests.kit.waiting import PATIENCE_SECS, run_ready_tasks

pytestmark = pytest.mark.bus(endpoints=[A, B])

# Who gets what


async def test_each_message_goes_to_one_member_and_to_everyone_else(relay: RelayCore) -> None:
    workers = [Worker(held=False) for _ in range(3)]
    plain = [Worker(held=False) for _ in range(2)]
    for worker in workers:
        await relay.subscribe(ALL, worker, queue="workers")
    for worker in plain:
        await relay.subscribe(A, worker)
    await publish_all(relay, A, list(range(9)))
    await relay.idle()
    assert sorted(ended(workers)) == list(range(9))
    assert [worker.ended for worker in plain] == [list(range(9))] * 2


async def test_every_pool_gets_each_message(relay: RelayCore) -> None:
    pools = {name: [Worker(held=False) for _ in range(2)] for name in ("one", "two")}
    for name, workers in pools.items():
        for worker in workers:
            await relay.subscribe(A, worker, queue=name)
    await publish_all(relay, A, list(range(6)))
    await relay.idle()
    for workers in pools.values():
        assert sorted(ended(workers)) == list(range(6))


async def test_a_pool_counts_as_one_listener_and_its_members_are_readers_each(relay: RelayCore) -> None:
    workers = await members(relay, 3, C)
    assert (await relay.publish(C, 1, sender=SENDER)).delivered_to == 1
    await relay.subscribe(C, Worker(held=False))
    workers += await members(relay, 2, C, queue="others")
    assert (await relay.publish(C, 2, sender=SENDER)).delivered_to == 3
    (state,) = [mailbox for mailbox in relay.mailboxes() if mailbox.subject == C]
    assert state.consumers == 6
    for worker in workers:
        worker.release()
    await relay.idle()


async def test_the_trace_names_the_member_that_handled_it(relay: RelayCore) -> None:
    first, second = Worker("first", held=False), Worker("second", held=False)
    subscriptions = {
        worker.__qualname__: await relay.subscribe(A, worker, queue="workers") for worker in (first, second)
    }
    for message_id, name in zip(await publish_all(relay, A, [1, 2]), ("first", "second"), strict=True):
        await relay.idle()
        (outcome,) = (await span(relay, message_id)).outcomes
        assert outcome == {
            "handler": name,
            "ok": True,
            "error": None,
            "queue": "workers",
            "subscription": subscriptions[name].id,
        }


@pytest.mark.parametrize("name", ["", "a.b", "*", "no spaces", "ä", "x" * 65, 7])
async def test_a_bad_name_for_a_queue_is_explained(relay: RelayCore, name: Any) -> None:
    with pytest.raises(InvalidSubject, match="a queue name consists of") as raised:
        await relay.subscribe(A, Worker(), queue=name)
    assert raised.value.code == "invalid_queue"
    assert relay.subscriptions() == []


async def test_a_member_must_have_room_for_something(relay: RelayCore) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        await relay.subscribe(A, Worker(), queue="workers", max_in_flight=0)


# Side by side


async def test_while_one_works_the_next_message_goes_to_the_next_free_member(relay: RelayCore) -> None:
    workers = await members(relay, 3, A)
    await publish_all(relay, A, list(range(5)))
    await run_ready_tasks()
    assert in_flight(workers) == [[0], [1], [2]]
    assert [(mailbox.depth, mailbox.claimed) for mailbox in relay.mailboxes() if mailbox.subject == A] == [(2, 3)]
    workers[1].end()  # messages are begun in order and end in any
    await run_ready_tasks()
    assert in_flight(workers) == [[0], [3], [2]]
    await publish_all(relay, A, [5])
    for worker in workers:
        worker.release()
    await relay.idle()
    assert sorted(ended(workers)) == list(range(6))


async def test_messages_are_begun_in_order(relay: RelayCore) -> None:
    log: list[Any] = []
    for _ in range(4):
        await relay.subscribe(A, Worker(held=False, log=log), queue="workers")
    await publish_all(relay, A, list(range(40)))
    await relay.idle()
    assert log == list(range(40))


async def test_a_member_has_so_many_in_hand_over_all_mailboxes(relay: RelayCore) -> None:
    (worker,) = await members(relay, 1, max_in_flight=2)
    await publish_all(relay, A, ["a1", "a2"])
    await publish_all(relay, B, ["b1", "b2"])
    await run_ready_tasks()
    assert len(worker.in_flight) == 2
    for _ in range(2):
        worker.end()
        await run_ready_tasks()
        assert len(worker.in_flight) == 2
    worker.release()
    await relay.idle()
    assert sorted(worker.ended) == ["a1", "a2", "b1", "b2"]


async def test_blocking_members_work_in_threads_side_by_side(relay: RelayCore) -> None:
    meeting = threading.Barrier(3)

    def block(envelope: Envelope) -> None:
        meeting.wait(PATIENCE_SECS)

    for _ in range(3):
        await relay.subscribe(A, block, queue="workers")
    await publish_all(relay, A, [1, 2, 3])
    await relay.idle()
    assert await relay.dead_letters() == []


async def test_a_consumer_outside_of_pools_makes_it_one_message_at_a_time(relay: RelayCore) -> None:
    workers = await members(relay, 3, A)
    await publish_all(relay, A, [1, 2])
    await run_ready_tasks()
    plain = Worker("plain")
    subscription = await relay.subscribe(A, plain)
    await publish_all(relay, A, [3, 4, 5, 6])
    await run_ready_tasks()
    assert (in_flight(workers), plain.in_flight) == ([[1], [2], []], [])
    workers[0].end()
    await run_ready_tasks()
    assert plain.in_flight == [], "those begun before have not all ended"
    workers[1].end()
    await run_ready_tasks()
    assert (together(workers), plain.in_flight) == ([3], [3])
    plain.end()
    await run_ready_tasks()
    assert (together(workers), plain.in_flight) == ([3], [])
    workers[2].end()
    await run_ready_tasks()
    assert (together(workers), plain.in_flight) == ([4], [4])
    await subscription.close()  # it finishes what it has, and then they are side by side again
    plain.end()
    for worker in workers:
        if worker.in_flight:
            worker.end()
    await run_ready_tasks()
    assert sorted(together(workers)) == [5, 6]
    for worker in workers:
        worker.release()
    await relay.idle()
    assert plain.ended == [3, 4]


async def test_members_are_released_as_soon_as_they_finish_regardless_of_other_pools(relay: RelayCore) -> None:
    (quick,) = await members(relay, 1, A, queue="quick")
    slow = await members(relay, 2, A, queue="slow")
    await publish_all(relay, A, [1, 2, 3])
    await run_ready_tasks()
    assert (quick.in_flight, in_flight(slow)) == ([1], [[1], []])
    quick.end()
    await run_ready_tasks()
    assert (quick.in_flight, in_flight(slow)) == ([2], [[1], [2]])
    quick.end()
    await run_ready_tasks()
    assert quick.in_flight == [], "no member of the other pool is free"
    slow[1].end()
    await run_ready_tasks()
    assert (quick.in_flight, in_flight(slow)) == ([3], [[1], [3]])
    for worker in (quick, *slow):
        worker.release()
    await relay.idle()
