"""Pools: members of a queue share the messages, one each, fairly, whoever comes, goes or fails meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import textwrap
import threading
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay_core import CircuitState, Envelope, InvalidSubject, RelayConfig, RelayCore, Subscription
from relay_core.consumers import End, PutBack
from relay_core.pools import Pool, Pools
from relay_core.tasks import Tasks
from relay_core.testing import FakeClock
from tests.core.sample_adapter import eventually
from tests.core.test_dispatch import (
    PATIENCE,
    SENDER,
    A,
    B,
    C,
    assert_depth_is_the_directory,
    breaker,
    codes,
    config,
    files,
    publish_all,
    span,
)

ALL = "relay.agent.*"


@pytest.fixture
async def relay(data_dir: Path, clock: FakeClock) -> AsyncIterator[RelayCore]:
    async with RelayCore(data_dir, config(), clock) as relay:
        for subject in (A, B):
            await relay.register_endpoint(subject)
        yield relay


class Worker:
    """A member that notes what it begins, and ends one message at a time when it is told to."""

    def __init__(self, name: str = "worker", *, held: bool = True, log: list[Any] | None = None) -> None:
        self.__qualname__ = name
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.log = log if log is not None else []
        self.error: Exception | None = None
        self._held = held
        self._gates: dict[Any, asyncio.Event] = {}

    async def __call__(self, envelope: Envelope) -> None:
        payload = envelope.payload
        self.begun.append(payload)
        self.log.append(payload)
        if self._held:
            gate = self._gates[payload] = asyncio.Event()
            try:
                await gate.wait()
            finally:
                self._gates.pop(payload, None)
        if self.error is not None:
            raise self.error
        self.ended.append(payload)

    @property
    def in_hand(self) -> list[Any]:
        return list(self._gates)

    def end(self, payload: Any = None) -> None:
        """Let one message end, the oldest if none is named."""
        self._gates[payload if payload is not None else next(iter(self._gates))].set()

    def release(self) -> None:
        """End everything, and hold nothing from now on."""
        self._held = False
        for gate in self._gates.values():
            gate.set()


async def quiet() -> None:
    """Let everything happen that can happen without anything being told to end."""
    for _ in range(30):
        await asyncio.sleep(0)


async def members(relay: RelayCore, number: int, pattern: str = ALL, **options: Any) -> list[Worker]:
    options = {"queue": "workers"} | options
    workers = [Worker(f"worker {n}") for n in range(number)]
    for worker in workers:
        await relay.subscribe(pattern, worker, **options)
    return workers


def hands(workers: list[Worker]) -> list[list[Any]]:
    return [worker.in_hand for worker in workers]


def together(workers: list[Worker]) -> list[Any]:
    return [payload for worker in workers for payload in worker.in_hand]


def ended(workers: list[Worker]) -> list[Any]:
    return [payload for worker in workers for payload in worker.ended]


# Who gets what


async def test_each_message_goes_to_one_member_and_to_everyone_else(relay: RelayCore) -> None:
    workers = [Worker(held=False) for _ in range(3)]
    plain = [Worker(held=False) for _ in range(2)]
    for worker in workers:
        await relay.subscribe(ALL, worker, queue="workers")
    for one in plain:
        await relay.subscribe(A, one)
    await publish_all(relay, A, list(range(9)))
    await relay.idle()
    assert sorted(ended(workers)) == list(range(9))
    assert [one.ended for one in plain] == [list(range(9))] * 2


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
    (state,) = [one for one in relay.mailboxes() if one.subject == C]
    assert state.consumers == 6
    for worker in workers:
        worker.release()
    await relay.idle()


async def test_the_trace_names_who_handled_it(relay: RelayCore) -> None:
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
    with pytest.raises(InvalidSubject, match="a queue is named by letters") as raised:
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
    await quiet()
    assert hands(workers) == [[0], [1], [2]]
    assert [(one.depth, one.claimed) for one in relay.mailboxes() if one.subject == A] == [(2, 3)]
    workers[1].end()  # messages are begun in order and end in any
    await quiet()
    assert hands(workers) == [[0], [3], [2]]
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
    await quiet()
    assert len(worker.in_hand) == 2
    for _ in range(2):
        worker.end()
        await quiet()
        assert len(worker.in_hand) == 2
    worker.release()
    await relay.idle()
    assert sorted(worker.ended) == ["a1", "a2", "b1", "b2"]


async def test_blocking_members_work_in_threads_side_by_side(relay: RelayCore) -> None:
    meeting = threading.Barrier(3)

    def block(envelope: Envelope) -> None:
        meeting.wait(PATIENCE)

    for _ in range(3):
        await relay.subscribe(A, block, queue="workers")
    await publish_all(relay, A, [1, 2, 3])
    await relay.idle()
    assert await relay.dead_letters() == []


async def test_it_is_one_at_a_time_as_soon_as_somebody_listens_for_itself(relay: RelayCore) -> None:
    workers = await members(relay, 3, A)
    await publish_all(relay, A, [1, 2])
    await quiet()
    plain = Worker("plain")
    subscription = await relay.subscribe(A, plain)
    await publish_all(relay, A, [3, 4, 5, 6])
    await quiet()
    assert (hands(workers), plain.in_hand) == ([[1], [2], []], [])
    workers[0].end()
    await quiet()
    assert plain.in_hand == [], "those begun before have not all ended"
    workers[1].end()
    await quiet()
    assert (together(workers), plain.in_hand) == ([3], [3])
    plain.end()
    await quiet()
    assert (together(workers), plain.in_hand) == ([3], [])
    workers[2].end()
    await quiet()
    assert (together(workers), plain.in_hand) == ([4], [4])
    await subscription.close()  # it finishes what it has, and then they are side by side again
    plain.end()
    for worker in workers:
        if worker.in_hand:
            worker.end()
    await quiet()
    assert sorted(together(workers)) == [5, 6]
    for worker in workers:
        worker.release()
    await relay.idle()
    assert plain.ended == [3, 4]


async def test_members_make_room_as_soon_as_they_are_through_whatever_another_pool_does(relay: RelayCore) -> None:
    (quick,) = await members(relay, 1, A, queue="quick")
    slow = await members(relay, 2, A, queue="slow")
    await publish_all(relay, A, [1, 2, 3])
    await quiet()
    assert (quick.in_hand, hands(slow)) == ([1], [[1], []])
    quick.end()
    await quiet()
    assert (quick.in_hand, hands(slow)) == ([2], [[1], [2]])
    quick.end()
    await quiet()
    assert quick.in_hand == [], "nobody of the other pool is free"
    slow[1].end()
    await quiet()
    assert (quick.in_hand, hands(slow)) == ([3], [[1], [3]])
    for worker in (quick, *slow):
        worker.release()
    await relay.idle()


# Fairness


@given(workers=st.integers(1, 6), messages=st.integers(0, 40), steps=st.integers(0, 5), mailboxes=st.integers(1, 3))
@settings(max_examples=25)
def test_equal_members_with_equal_work_get_equally_many(
    workers: int, messages: int, steps: int, mailboxes: int
) -> None:
    counts: Counter[int] = Counter(dict.fromkeys(range(workers), 0))

    async def run(directory: str) -> None:
        async with RelayCore(directory, config()) as relay:
            for n in range(workers):

                async def work(envelope: Envelope, n: int = n) -> None:
                    counts[n] += 1
                    for _ in range(steps):
                        await asyncio.sleep(0)

                await relay.subscribe(ALL, work, queue="workers")
            for n in range(messages):
                await relay.publish(f"relay.agent.n{n % mailboxes}", n, sender=SENDER)
            await relay.idle()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(directory))
    assert sum(counts.values()) == messages
    assert max(counts.values()) - min(counts.values()) <= 1


async def test_the_member_that_has_waited_longest_is_next(relay: RelayCore) -> None:
    workers = await members(relay, 3, A)
    await publish_all(relay, A, [1, 2, 3])
    await quiet()
    for n in (2, 0, 1):  # free in this order
        workers[n].end()
        await quiet()
    await publish_all(relay, A, [4, 5, 6])
    await quiet()
    assert hands(workers) == [[5], [6], [4]]
    for worker in workers:
        worker.release()
    await relay.idle()


async def test_a_member_with_nothing_in_hand_comes_before_one_with_room_left(relay: RelayCore) -> None:
    workers = await members(relay, 2, A, max_in_flight=3)
    await publish_all(relay, A, [1, 2])
    await quiet()
    workers[1].end()
    await quiet()
    await publish_all(relay, A, [3, 4])
    await quiet()
    assert hands(workers) == [[1, 4], [3]]
    for worker in workers:
        worker.release()
    await relay.idle()


async def test_one_message_beside_very_many_is_served_next_but_one(relay: RelayCore) -> None:
    (worker,) = await members(relay, 1)
    await publish_all(relay, A, list(range(500)))
    await quiet()
    await publish_all(relay, B, ["soon"])
    await quiet()
    while "soon" not in worker.begun:
        worker.end()
        await quiet()
    assert len(worker.begun) <= 3
    worker.release()
    await relay.idle()


async def test_mailboxes_that_wait_for_a_pool_are_served_in_turn(relay: RelayCore) -> None:
    (worker,) = await members(relay, 1)
    for subject in (A, B, C):
        await publish_all(relay, subject, [f"{subject[-1]}{n}" for n in range(3)])
    await quiet()
    for _ in range(8):
        worker.end()
        await quiet()
    assert worker.begun == ["a0", "a1", "b0", "c0", "a2", "b1", "c1", "b2", "c2"]
    worker.release()
    await relay.idle()


# Coming and going


async def test_a_member_that_closes_finishes_its_message_and_begins_nothing(relay: RelayCore) -> None:
    first, second = Worker("first"), Worker("second")
    subscription = await relay.subscribe(A, first, queue="workers")
    await relay.subscribe(A, second, queue="workers")
    await publish_all(relay, A, [1, 2, 3, 4])
    await quiet()
    await subscription.close()
    first.end()
    await quiet()
    assert (first.ended, first.in_hand, second.in_hand) == ([1], [], [2])
    second.release()
    await relay.idle()
    assert (first.begun, second.ended) == ([1], [2, 3, 4])


async def test_without_a_member_the_messages_wait_for_the_next(relay: RelayCore, data_dir: Path) -> None:
    worker, other = Worker(), Worker(held=False)
    subscription = await relay.subscribe(A, worker, queue="workers")
    await publish_all(relay, A, [1, 2, 3])
    await quiet()
    await subscription.close()
    worker.end()
    async with asyncio.timeout(PATIENCE):
        await relay.idle()  # who waited for the member has been told that it has left
    assert (worker.ended, len(files(data_dir, A, "new")), files(data_dir, A, "cur")) == ([1], 2, [])
    await relay.subscribe(ALL, other, queue="workers")
    await relay.idle()
    assert other.ended == [2, 3]


async def test_a_member_that_joins_takes_what_waits_for_the_others(relay: RelayCore) -> None:
    (busy,) = await members(relay, 1, A)
    await publish_all(relay, A, [1, 2])
    await quiet()
    (fresh,) = await members(relay, 1, ALL)
    await quiet()
    assert (busy.in_hand, fresh.in_hand) == ([1], [2])
    busy.release()
    fresh.release()
    await relay.idle()


async def test_a_pool_that_leaves_holds_nobody_else_up(relay: RelayCore) -> None:
    worker, plain = Worker(), Worker(held=False)
    subscription = await relay.subscribe(ALL, worker, queue="workers")
    await relay.subscribe(A, plain)
    await publish_all(relay, B, ["b"])
    await quiet()
    await publish_all(relay, A, [1, 2])
    await quiet()
    assert (worker.in_hand, plain.begun) == (["b"], [])
    await subscription.close()
    await quiet()
    assert plain.ended == [1, 2]
    worker.release()
    await relay.idle()


async def test_a_member_that_leaves_before_the_others_are_free_is_given_nothing(relay: RelayCore) -> None:
    leaving, busy = Worker("leaving"), Worker("busy")
    subscription = await relay.subscribe(A, leaving, queue="first")
    await relay.subscribe(ALL, busy, queue="second")
    await publish_all(relay, B, ["b"])
    await quiet()
    await publish_all(relay, A, [1])  # one of the first is there, and the second is waited for
    await quiet()
    await subscription.close()
    busy.release()
    await relay.idle()
    assert (leaving.begun, busy.ended) == ([], ["b", 1])


async def test_who_begins_to_listen_while_a_member_is_waited_for_gets_the_message_too(relay: RelayCore) -> None:
    (busy,) = await members(relay, 1)
    await publish_all(relay, B, ["b"])
    await quiet()
    await publish_all(relay, A, [1])
    await quiet()
    plain = Worker(held=False)
    await relay.subscribe(A, plain)
    busy.release()
    await relay.idle()
    assert (busy.ended, plain.ended) == (["b", 1], [1])


async def test_what_a_member_did_not_take_is_offered_to_another(relay: RelayCore, data_dir: Path) -> None:
    refusing, taking = Worker("refusing", held=False), Worker("taking")
    subscription = await relay.subscribe(A, refusing, queue="workers")
    refusing.error = PutBack("not now")
    await relay.subscribe(A, taking, queue="workers")
    (message_id,) = await publish_all(relay, A, [1])
    await quiet()
    assert (refusing.begun, taking.in_hand) == ([1], [1])
    await subscription.close()
    taking.end()
    await relay.idle()
    (outcome,) = (await span(relay, message_id)).outcomes
    assert (outcome["handler"], outcome["ok"], breaker(relay, A).consecutive_failures) == ("taking", True, 0)
    assert_depth_is_the_directory(relay, data_dir)


async def test_where_others_have_the_message_a_member_that_did_not_take_it_is_replaced(relay: RelayCore) -> None:
    plain, refusing, taking = Worker("plain", held=False), Worker("refusing", held=False), Worker("taking", held=False)
    refusing.error = PutBack("not now")
    await relay.subscribe(A, plain)
    await relay.subscribe(A, refusing, queue="workers")
    await relay.subscribe(A, taking, queue="workers")
    (message_id,) = await publish_all(relay, A, [1])
    await relay.idle()
    assert (plain.ended, refusing.begun, taking.ended) == ([1], [1], [1])
    assert [(one["handler"], one["ok"]) for one in (await span(relay, message_id)).outcomes] == [
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
        raise PutBack("it has left")

    subscription = await relay.subscribe(A, leave, queue="workers")
    (message_id,) = await publish_all(relay, A, [1])
    await relay.idle()
    found = await span(relay, message_id)
    assert (plain.ended, found.status, found.code) == ([1], "partial", "disconnected")
    assert found.reason is not None
    assert "it has left, and nobody else is there" in found.reason


async def test_what_nobody_of_several_has_taken_goes_back_in_line(relay: RelayCore, data_dir: Path) -> None:
    refusing = [Worker(name) for name in ("one", "two", "plain")]
    subscriptions = [
        await relay.subscribe(A, worker, queue=queue)
        for worker, queue in zip(refusing, ("first", "second", None), strict=True)
    ]
    (message_id,) = await publish_all(relay, A, [1])
    await quiet()
    for worker, subscription in zip(refusing, subscriptions, strict=True):
        await subscription.close()
        worker.error = PutBack("not now")
        worker.end()
    await relay.idle()
    assert (files(data_dir, A, "new"), await codes(relay)) == ([message_id], [])
    assert breaker(relay, A).consecutive_failures == 0
    taking = Worker(held=False)
    await relay.subscribe(A, taking, queue="first")
    await relay.idle()
    assert taking.ended == [1]
    assert_depth_is_the_directory(relay, data_dir)


_DO = st.sampled_from(["publish", "publish", "publish", "join", "leave", "end", "end", "fail", "put back", "plain"])


@given(script=st.lists(st.tuples(_DO, st.integers(0, 2), st.integers(1, 3)), max_size=40))
@settings(max_examples=60)
def test_each_message_is_handled_once_whoever_comes_goes_or_fails(script: list[tuple[str, int, int]]) -> None:
    async def run(directory: str) -> None:
        async with RelayCore(directory, config(enabled=False)) as relay:
            for subject in (A, B, C):
                await relay.register_endpoint(subject)
            log: list[Any] = []
            living: list[tuple[Worker, Subscription]] = []
            everyone: list[Worker] = []
            plain: Worker | None = None
            numbers = count()
            sent: list[int] = []
            put_back = failed = 0
            for what, where, number in script:
                busy = [worker for worker in everyone if worker.in_hand]
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
                elif what in ("end", "fail", "put back") and busy:
                    worker = busy[where % len(busy)]
                    worker.error = {"end": None, "fail": ValueError("no"), "put back": PutBack("no")}[what]
                    failed += what == "fail"
                    put_back += what == "put back"
                    worker.end()
                    await quiet()
                    worker.error = None
                if number == 1:
                    await quiet()
                for worker, subscription in living:
                    assert subscription.pool is not None
                    assert len(worker.in_hand) <= 3
            last = Worker(held=False, log=log)
            await relay.subscribe(ALL, last, queue="workers")
            for worker in everyone:
                worker.release()
            async with asyncio.timeout(PATIENCE):
                await relay.idle()
            done = ended([*everyone, last])
            assert len(done) == len(set(done)), "doubled"
            assert set(log) == set(sent), "lost"
            assert len(log) == len(sent) + put_back
            assert len(done) == len(sent) - failed
            assert_depth_is_the_directory(relay, Path(directory))
            assert all(one.depth == one.claimed == 0 for one in relay.mailboxes())

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(directory))


# Breakers, budgets, replay


async def test_a_half_open_breaker_lets_its_probe_through_though_many_are_free(
    data_dir: Path, clock: FakeClock
) -> None:
    settings = config(failure_threshold=2, cooldown_ms=1000, half_open_probe_count=1, success_to_close=2)
    async with RelayCore(data_dir, settings, clock) as relay:
        await relay.register_endpoint(A)
        workers = await members(relay, 4, A)
        await publish_all(relay, A, [1, 2, 3, 4, 5, 6, 7])
        await quiet()
        assert hands(workers) == [[1], [2], [3], [4]]
        for worker in workers[:2]:
            worker.error = ValueError("no")
            worker.end()
        await eventually(lambda: breaker(relay).state is CircuitState.OPEN and not together(workers[:2]))
        for worker in workers[:2]:
            worker.error = None
        await quiet()
        assert hands(workers) == [[], [], [3], [4]], "those that were begun go on, and no other begins"
        clock.advance(1.0)
        await quiet()
        assert sum(len(one) for one in hands(workers)) == 3
        workers[2].end()  # begun before: news about the target, but no probe has come back
        await quiet()
        assert (breaker(relay).state, breaker(relay).half_open_successes) == (CircuitState.HALF_OPEN, 1)
        assert sum(len(one) for one in hands(workers)) == 2, "the probe is still out"
        for worker in workers:
            worker.release()
        await relay.idle()
        assert breaker(relay).state is CircuitState.CLOSED
        assert sorted(ended(workers)) == [3, 4, 5, 6, 7]
        assert await codes(relay) == ["handler_failed"] * 2


async def test_a_breaker_learns_one_outcome_of_each_delivery(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, config(failure_threshold=4), clock) as relay:
        await relay.register_endpoint(A)
        workers = await members(relay, 3, A)
        for worker in workers:
            worker.error = ValueError("no")
        await publish_all(relay, A, [1, 2, 3])
        await quiet()
        for worker in workers:
            worker.release()
        await relay.idle()
        assert (breaker(relay).state, breaker(relay).consecutive_failures) == (CircuitState.CLOSED, 3)


async def test_what_expired_in_line_takes_no_members_time(relay: RelayCore, clock: FakeClock) -> None:
    (worker,) = await members(relay, 1, A)
    await publish_all(relay, A, [1])
    await relay.publish(A, "late", sender=SENDER, budget={"ttl": clock.now_ms() + 1000})
    await publish_all(relay, A, [2])
    await quiet()
    clock.advance(2.0)
    worker.release()
    await relay.idle()
    assert (worker.ended, await codes(relay)) == ([1, 2], ["expired"])


async def test_a_dead_letter_of_a_pool_is_replayed_to_a_member(relay: RelayCore) -> None:
    first, second = Worker("first", held=False), Worker("second", held=False)
    first.error = ValueError("no")
    for worker in (first, second):
        await relay.subscribe(A, worker, queue="workers")
    (message_id,) = await publish_all(relay, A, [1])
    await relay.idle()
    (letter,) = await relay.dead_letters()
    assert (letter.code, letter.reason) == ("handler_failed", "first: ValueError: no")
    plan = await relay.plan_replay([message_id])
    assert (await relay.run_replay(plan.id)).delivered == 1
    (outcome,) = (await span(relay, message_id)).outcomes
    assert (outcome["handler"], outcome["ok"]) == ("second", True)


async def test_a_member_that_takes_too_long_is_timed_out_and_the_others_go_on(data_dir: Path) -> None:
    async with RelayCore(data_dir, config(timeout_ms=50)) as relay:
        await relay.register_endpoint(A)
        hanging, working = Worker("hanging"), Worker("working", held=False)
        for worker in (hanging, working):
            await relay.subscribe(A, worker, queue="workers")
        await publish_all(relay, A, [1, 2, 3])
        await relay.idle()
        assert (hanging.begun[:1], await codes(relay)) == ([1], ["timeout"] * len(hanging.begun))
        assert sorted(hanging.begun + working.ended) == [1, 2, 3]


# Closing, and being killed


async def test_idle_waits_for_what_is_side_by_side(relay: RelayCore) -> None:
    workers = await members(relay, 2, A)
    await publish_all(relay, A, [1, 2])
    await quiet()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        idle = group.create_task(relay.idle())
        for worker in workers:
            await quiet()
            assert not idle.done()
            worker.end()


async def test_closing_parks_every_message_that_does_not_end_and_begins_no_other(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay_core.bus.CLOSE_GRACE_SECS", 0.05)
    async with RelayCore(data_dir, config()) as relay:
        await relay.register_endpoint(A)
        workers = await members(relay, 3, A)
        ids = await publish_all(relay, A, [1, 2, 3, 4, 5])
        await quiet()
        asyncio.get_running_loop().call_later(0.01, workers[1].release)
    assert (workers[1].ended, hands(workers)) == ([2], [[], [], []])
    assert files(data_dir, A, "cur") == []
    assert files(data_dir, A, "failed") == [ids[0], ids[2]]
    assert files(data_dir, A, "new") == ids[3:]
    async with RelayCore(data_dir, config()) as relay:
        assert await codes(relay) == ["interrupted"] * 2


VICTIM = """
    import asyncio, sys
    from relay_core import RelayConfig, RelayCore

    async def main():
        async with RelayCore(sys.argv[1], RelayConfig(durability="os")) as relay:
            async def hang(envelope):
                print(envelope.id, flush=True)
                await asyncio.Event().wait()
            await relay.register_endpoint("relay.agent.a")
            for number in range(5):
                await relay.publish("relay.agent.a", number, sender="relay.agent.sender")
            for _ in range(3):
                await relay.subscribe("relay.agent.a", hang, queue="workers")
            await asyncio.Event().wait()

    asyncio.run(main())
"""


async def test_a_restart_parks_all_that_were_in_hand_and_leaves_the_rest_alone(data_dir: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(VICTIM),
        str(data_dir),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert child.stdout is not None
    begun = [(await asyncio.wait_for(child.stdout.readline(), PATIENCE)).decode().strip() for _ in range(3)]
    child.send_signal(signal.SIGKILL)
    await child.wait()
    assert files(data_dir, A, "cur") == begun
    async with RelayCore(data_dir, RelayConfig(durability="os")) as relay:
        letters = await relay.dead_letters()
        assert [(letter.message_id, letter.code) for letter in letters] == [(one, "interrupted") for one in begun]
        worker = Worker(held=False)
        await relay.subscribe(A, worker, queue="workers")
        await relay.idle()
        assert worker.ended == [3, 4]
        assert_depth_is_the_directory(relay, data_dir)


# The pool by itself


class Hearer:
    """A member of the machine below, and what it hears."""

    slots = None
    keeps_time = False

    def __init__(self, number: int, pool: Pool, hears: frozenset[int], room: int) -> None:
        self.name = self.id = f"{number}"
        self.pool = pool
        self.hears = hears
        self.room = room
        self.has: list[int] = []

    async def deliver(self, envelope: Envelope, end: End) -> None:
        raise NotImplementedError


class PoolMachine(RuleBasedStateMachine):
    """Mailboxes ask, members come, go and give back: nobody waits for what is free, and nobody is overtaken."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.tasks = Tasks()
        self.pool = Pools().get("workers")
        self.members: list[Hearer] = []
        self.gone: list[Hearer] = []
        self.waiting: dict[asyncio.Task[Any], int] = {}
        """Who asks, oldest first, and for which mailbox."""
        self.numbers = count()

    def teardown(self) -> None:
        self.pool.stop()
        self.turn()
        assert not self.waiting
        self.runner.close()

    def turn(self) -> None:
        """Let those who were answered go on, and note what they got."""

        async def steps() -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        self.runner.run(steps())
        older: list[int] = []
        for task, mailbox in list(self.waiting.items()):
            if not task.done():
                older.append(mailbox)
                continue
            del self.waiting[task]
            if task.cancelled() or (member := task.result()) is None:
                continue
            assert mailbox in member.hears
            assert not member.hears.intersection(older), "somebody who asked before could have had it"
            member.has.append(mailbox)

    @rule(hears=st.frozensets(st.integers(0, 2), min_size=1), room=st.integers(1, 3))
    def join(self, hears: frozenset[int], room: int) -> None:
        member = Hearer(next(self.numbers), self.pool, hears, room)
        self.members.append(member)
        self.pool.join(member, room)
        self.turn()

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 100))
    def leave(self, which: int) -> None:
        member = self.members.pop(which % len(self.members))
        self.gone.append(member)
        self.pool.leave(member)
        self.turn()

    @rule(mailbox=st.integers(0, 2))
    def ask(self, mailbox: int) -> None:
        def listeners() -> list[Hearer]:
            return [one for one in self.members if mailbox in one.hears]

        async def begin() -> None:
            task = self.tasks.start(self.pool.take(listeners), name=f"ask for {mailbox}")
            assert task is not None
            self.waiting[task] = mailbox

        self.runner.run(begin())
        self.turn()

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 100), given=st.booleans())
    def give_up(self, which: int, given: bool) -> None:
        task = list(self.waiting)[which % len(self.waiting)]
        if given:  # at the moment in which it may be given a member
            self.let_go(which)
        task.cancel()
        self.turn()

    @rule(which=st.integers(0, 100))
    def give_back(self, which: int) -> None:
        self.let_go(which)
        self.turn()

    @rule(which=st.integers(0, 100))
    def fall_silent(self, which: int) -> None:
        busy = [one for one in self.members + self.gone if one.has]
        if busy:
            member = busy[which % len(busy)]
            self.pool.occupy(member)  # until it is given back a second time
            self.pool.give_back(member)
        self.turn()

    def let_go(self, which: int) -> None:
        busy = [one for one in self.members + self.gone if one.has]
        if busy:
            member = busy[which % len(busy)]
            member.has.pop()
            self.pool.give_back(member)

    @invariant()
    def nobody_has_more_than_it_has_room_for(self) -> None:
        assert all(len(member.has) <= member.room for member in self.members)

    @invariant()
    def nobody_waits_for_what_is_free(self) -> None:
        free = [member for member in self.members if len(member.has) < member.room]
        assert not any(mailbox in member.hears for mailbox in self.waiting.values() for member in free)

    @invariant()
    def nobody_waits_for_nobody(self) -> None:
        assert all(any(mailbox in one.hears for one in self.members) for mailbox in self.waiting.values())


PoolMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30)
TestPool = PoolMachine.TestCase


async def test_who_asks_first_is_served_first_and_one_that_cannot_use_a_member_is_passed_by() -> None:
    pool = Pools().get("workers")
    members = {
        "all": Hearer(1, pool, frozenset({0, 1}), 1),
        "one": Hearer(2, pool, frozenset({1}), 1),
    }
    served: list[int] = []

    async def ask(mailbox: int) -> None:
        assert await pool.take(lambda: [one for one in members.values() if mailbox in one.hears]) is not None
        served.append(mailbox)

    for member in members.values():
        pool.join(member, 1)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for mailbox in (1, 1, 0, 1):
            group.create_task(ask(mailbox))
        await quiet()
        assert served == [1, 1]
        pool.give_back(members["one"])  # of no use to the mailbox that has waited longest
        await quiet()
        assert served == [1, 1, 1]
        pool.give_back(members["all"])
        await quiet()
        assert served == [1, 1, 1, 0]


@pytest.mark.parametrize("first", ["given", "cancelled"])
async def test_who_gives_up_at_the_moment_in_which_it_is_given_a_member_passes_it_on(first: str) -> None:
    pool = Pools().get("workers")
    member = Hearer(1, pool, frozenset({0}), 1)
    pool.join(member, 1)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        assert await pool.take(lambda: [member]) is member
        asking = group.create_task(pool.take(lambda: [member]))
        await quiet()
        if first == "given":
            pool.give_back(member)
            asking.cancel()
        else:
            asking.cancel()
            pool.give_back(member)
        await quiet()
        assert await pool.take(lambda: [member]) is member
