"""What several users have in common: made for the first, closed after the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from relay_core.adapters.shared_resource import Shared
from tests.kit.waiting import until


class Maker:
    """Make something, and keep a diary of it."""

    def __init__(self) -> None:
        self.diary: list[str] = []
        self.fails = False
        self.gate = asyncio.Event()
        self.gate.set()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[int]:
        self.diary.append("make")
        await self.gate.wait()
        if self.fails:
            raise OSError("no room")
        yield self.diary.count("make")
        self.diary.append("close")
        await self.gate.wait()


async def test_all_users_at_one_time_have_the_same_one() -> None:
    shared, make = Shared(), Maker()
    async with shared.use("a", make) as one, shared.use("a", make) as other, shared.use("b", make) as different:
        assert (one, other, different) == (1, 1, 2)
        assert make.diary == ["make", "make"]
    assert make.diary == ["make", "make", "close", "close"]
    async with shared.use("a", make) as again:
        assert again == 3


async def test_whoever_comes_while_it_is_made_waits_for_it() -> None:
    shared, make = Shared(), Maker()
    make.gate.clear()
    got: list[int] = []

    async def use() -> None:
        async with shared.use("a", make) as value:
            got.append(value)

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(use())
        await asyncio.sleep(0)
        make.gate.set()
    assert (got, make.diary) == ([1, 1, 1], ["make", "close"])


async def test_whoever_comes_while_it_is_closed_gets_a_new_one() -> None:
    shared, make = Shared(), Maker()
    leave = asyncio.Event()
    got: list[int] = []

    async def use() -> None:
        async with shared.use("a", make) as value:
            got.append(value)
            await leave.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(use())
        await until(lambda: got == [1])
        make.gate.clear()
        leave.set()
        await until(lambda: make.diary == ["make", "close"])
        group.create_task(use())
        await asyncio.sleep(0)
        make.gate.set()
    assert (got, make.diary) == ([1, 2], ["make", "close", "make", "close"])


async def test_a_making_that_fails_is_the_failure_of_that_user_alone() -> None:
    shared, make = Shared(), Maker()
    make.fails = True
    with pytest.raises(OSError, match="no room"):
        async with shared.use("a", make):
            raise AssertionError("nobody gets here")
    make.fails = False
    async with shared.use("a", make) as value:
        assert value == 2
