"""The pool alone, without a bus: a state machine, and who is served first."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay_core import Envelope
from relay_core.dispatch.consumer import End
from relay_core.dispatch.worker_pool import Pool, Pools
from relay_core.tasks import Tasks
from tests.kit.waiting import PATIENCE_SECS, run_ready_tasks


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
            self.release(which)
        task.cancel()
        self.turn()

    @rule(which=st.integers(0, 100))
    def give_back(self, which: int) -> None:
        self.release(which)
        self.turn()

    @rule(which=st.integers(0, 100))
    def fall_silent(self, which: int) -> None:
        busy = [one for one in self.members + self.gone if one.has]
        if busy:
            member = busy[which % len(busy)]
            self.pool.reserve(member)  # until it is given back a second time
            self.pool.give_back(member)
        self.turn()

    def release(self, which: int) -> None:
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
    async with asyncio.timeout(PATIENCE_SECS), asyncio.TaskGroup() as group:
        for mailbox in (1, 1, 0, 1):
            group.create_task(ask(mailbox))
        await run_ready_tasks()
        assert served == [1, 1]
        pool.give_back(members["one"])  # of no use to the mailbox that has waited longest
        await run_ready_tasks()
        assert served == [1, 1, 1]
        pool.give_back(members["all"])
        await run_ready_tasks()
        assert served == [1, 1, 1, 0]


@pytest.mark.parametrize("first", ["given", "cancelled"])
async def test_who_gives_up_at_the_moment_in_which_it_is_given_a_member_passes_it_on(first: str) -> None:
    pool = Pools().get("workers")
    member = Hearer(1, pool, frozenset({0}), 1)
    pool.join(member, 1)
    async with asyncio.timeout(PATIENCE_SECS), asyncio.TaskGroup() as group:
        assert await pool.take(lambda: [member]) is member
        asking = group.create_task(pool.take(lambda: [member]))
        await run_ready_tasks()
        if first == "given":
            pool.give_back(member)
            asking.cancel()
        else:
            asking.cancel()
            pool.give_back(member)
        await run_ready_tasks()
        assert await pool.take(lambda: [member]) is member
