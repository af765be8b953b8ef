"""Background tasks: none is lost, one that fails stops nobody, and closing waits, then cancels."""

from __future__ import annotations

import asyncio
import logging

import pytest

from relay_core.tasks import Tasks


async def forever(events: list[str] | None = None) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if events is not None:
            events.append("cancelled")
        raise


async def fails() -> None:
    raise ValueError("broken")


async def test_a_task_is_held_until_it_has_ended() -> None:
    tasks = Tasks()
    go_on = asyncio.Event()
    task = tasks.start(go_on.wait(), name="one")
    assert task is not None
    assert (len(tasks), task.get_name()) == (1, "one")
    go_on.set()
    await task
    await asyncio.sleep(0)
    assert len(tasks) == 0


async def test_a_failure_is_logged_by_name_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()
    other = tasks.start(forever(), name="other")
    failing = tasks.start(fails(), name="failing")
    assert failing is not None
    assert other is not None
    with caplog.at_level(logging.ERROR, logger="relay_core.tasks"):
        await asyncio.wait([failing])
        await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == ["background task failing failed"]
    assert caplog.records[0].exc_info is not None
    assert not other.done()
    await tasks.close()


async def test_close_cancels_what_does_not_end_and_waits_for_it() -> None:
    tasks = Tasks()
    events: list[str] = []
    tasks.start(forever(events), name="stubborn")
    await asyncio.sleep(0)
    await tasks.close()
    assert events == ["cancelled"]
    assert len(tasks) == 0


async def test_the_grace_lets_tasks_end_by_themselves() -> None:
    tasks = Tasks()
    go_on = asyncio.Event()
    ended: list[str] = []

    async def work() -> None:
        await go_on.wait()
        ended.append("by itself")

    tasks.start(work(), name="work")
    asyncio.get_running_loop().call_later(0.01, go_on.set)
    await tasks.close(grace=30)
    assert ended == ["by itself"]


async def test_close_with_nothing_under_way_returns_at_once_and_twice() -> None:
    tasks = Tasks()
    await tasks.close(grace=30)
    await tasks.close(grace=30)


async def test_after_close_work_is_dropped_without_a_warning() -> None:
    tasks = Tasks()
    await tasks.close()
    assert tasks.start(forever(), name="late") is None


async def test_work_that_a_task_starts_while_it_is_being_closed_is_dropped() -> None:
    tasks = Tasks()
    started: list[object] = []

    async def parting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            started.append(tasks.start(forever(), name="late"))

    tasks.start(parting(), name="parting")
    await asyncio.sleep(0)
    await tasks.close()
    assert started == [None]


async def test_a_task_may_close_its_own_owner() -> None:
    tasks = Tasks()
    events: list[str] = []

    async def close() -> None:
        await tasks.close(grace=0.01)
        events.append("closed")

    tasks.start(forever(events), name="other")
    closing = tasks.start(close(), name="closing")
    assert closing is not None
    await asyncio.wait([closing])
    assert events == ["cancelled", "closed"]
