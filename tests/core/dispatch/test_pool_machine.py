"""The pool alone, without a bus: a state machine, and the order of service."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay_core.dispatch.consumer import Ack
from relay_core.dispatch.worker_pool import Pool, Pools
from relay_core.storage.stored_message import StoredMessage
from relay_core.tasks import Tasks
from tests.kit.waiting import PATIENCE_SECS, run_ready_tasks


class Member:
    """A member of the pool, and the mailboxes it consumes."""

    slots = None
    enforces_timeout = False
    hands_over = False

    def __init__(self, number: int, pool: Pool, mailboxes: frozenset[int], capacity: int) -> None:
        self.name = self.id = f"{number}"
        self.pool = pool
        self.mailboxes = mailboxes
        self.capacity = capacity
        self.in_flight: list[int] = []

    async def deliver(self, message: StoredMessage, ack: Ack) -> None:
        raise NotImplementedError


class PoolMachine(RuleBasedStateMachine):
    """Mailboxes ask, members join, leave and are released: none waits for a free member, and none is overtaken."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.tasks = Tasks()
        self.pool = Pools().get("workers")
        self.members: list[Member] = []
        self.gone: list[Member] = []
        self.waiting: dict[asyncio.Task[Any], int] = {}
        """The waiting tasks, oldest first, and their mailboxes."""
        self.numbers = count()

    def teardown(self) -> None:
        self.pool.stop()
        self.turn()
        assert not self.waiting
        self.runner.close()

    def turn(self) -> None:
        """Let the answered tasks run, and record the members they got."""

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
            assert mailbox in member.mailboxes
            assert not member.mailboxes.intersection(older), "an older request could have had the member"
            member.in_flight.append(mailbox)

    @rule(mailboxes=st.frozensets(st.integers(0, 2), min_size=1), capacity=st.integers(1, 3))
    def join(self, mailboxes: frozenset[int], capacity: int) -> None:
        member = Member(next(self.numbers), self.pool, mailboxes, capacity)
        self.members.append(member)
        self.pool.join(member, capacity)
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
        def consumers() -> list[Member]:
            return [member for member in self.members if mailbox in member.mailboxes]

        async def begin() -> None:
            task = self.tasks.start(self.pool.take(consumers), name=f"ask for {mailbox}")
            assert task is not None
            self.waiting[task] = mailbox

        self.runner.run(begin())
        self.turn()

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 100), given=st.booleans())
    def give_up(self, which: int, given: bool) -> None:
        task = list(self.waiting)[which % len(self.waiting)]
        if given:  # just as it may be assigned a member
            self._release(which)
        task.cancel()
        self.turn()

    @rule(which=st.integers(0, 100))
    def release(self, which: int) -> None:
        self._release(which)
        self.turn()

    @rule(which=st.integers(0, 100))
    def fall_silent(self, which: int) -> None:
        busy = [member for member in self.members + self.gone if member.in_flight]
        if busy:
            member = busy[which % len(busy)]
            self.pool.reserve(member)  # until it is released a second time
            self.pool.release(member)
        self.turn()

    def _release(self, which: int) -> None:
        busy = [member for member in self.members + self.gone if member.in_flight]
        if busy:
            member = busy[which % len(busy)]
            member.in_flight.pop()
            self.pool.release(member)

    @invariant()
    def no_member_exceeds_its_capacity(self) -> None:
        assert all(len(member.in_flight) <= member.capacity for member in self.members)

    @invariant()
    def no_mailbox_waits_for_a_free_member(self) -> None:
        free = [member for member in self.members if len(member.in_flight) < member.capacity]
        assert not any(mailbox in member.mailboxes for mailbox in self.waiting.values() for member in free)

    @invariant()
    def no_mailbox_waits_without_members(self) -> None:
        assert all(any(mailbox in member.mailboxes for member in self.members) for mailbox in self.waiting.values())


PoolMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30)
TestPool = PoolMachine.TestCase


async def test_mailboxes_are_served_in_order_except_those_that_cannot_use_the_member() -> None:
    pool = Pools().get("workers")
    members = {
        "all": Member(1, pool, frozenset({0, 1}), 1),
        "second": Member(2, pool, frozenset({1}), 1),
    }
    served: list[int] = []

    async def ask(mailbox: int) -> None:
        assert (
            await pool.take(lambda: [member for member in members.values() if mailbox in member.mailboxes]) is not None
        )
        served.append(mailbox)

    for member in members.values():
        pool.join(member, 1)
    async with asyncio.timeout(PATIENCE_SECS), asyncio.TaskGroup() as group:
        for mailbox in (1, 1, 0, 1):
            group.create_task(ask(mailbox))
        await run_ready_tasks()
        assert served == [1, 1]
        pool.release(members["second"])  # not a consumer of the mailbox that has waited longest
        await run_ready_tasks()
        assert served == [1, 1, 1]
        pool.release(members["all"])
        await run_ready_tasks()
        assert served == [1, 1, 1, 0]


@pytest.mark.parametrize("first", ["given", "cancelled"])
async def test_a_request_cancelled_just_as_it_is_assigned_a_member_passes_it_on(first: str) -> None:
    pool = Pools().get("workers")
    member = Member(1, pool, frozenset({0}), 1)
    pool.join(member, 1)
    async with asyncio.timeout(PATIENCE_SECS), asyncio.TaskGroup() as group:
        assert await pool.take(lambda: [member]) is member
        asking = group.create_task(pool.take(lambda: [member]))
        await run_ready_tasks()
        if first == "given":
            pool.release(member)
            asking.cancel()
        else:
            asking.cancel()
            pool.release(member)
        await run_ready_tasks()
        assert await pool.take(lambda: [member]) is member
