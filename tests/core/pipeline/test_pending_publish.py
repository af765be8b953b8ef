"""A pending publish ends once, and every caller that waits for it gets its outcome."""

from __future__ import annotations

import asyncio

import pytest

from relay_core.messages.results import PublishResult
from relay_core.pipeline.pending_publish import PendingPublish

RESULT = PublishResult(message_id="1", delivered_to=1)


async def get(pending: PendingPublish) -> PublishResult:
    return await pending


@pytest.mark.parametrize("when", ["before", "after"])
async def test_awaiting_and_calling_back_get_the_result(when: str) -> None:
    pending, told = PendingPublish(), []
    if when == "before":
        pending.succeed(RESULT)
    pending.when_done(lambda ended: told.append(ended.result))
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(get(publish)) for publish in (pending, pending)]
        await asyncio.sleep(0)
        if when == "after":
            assert told == []
            pending.succeed(RESULT)
    assert [task.result() for task in waiting] == [RESULT] * 2
    assert told == [RESULT]
    assert pending.error is None


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_error_is_raised_wherever_the_result_is_asked_for(when: str) -> None:
    pending, told = PendingPublish(), []
    error = ValueError("no")
    if when == "before":
        pending.fail(error)
    pending.when_done(lambda ended: told.append(ended.error))
    tasks = [asyncio.ensure_future(get(publish)) for publish in (pending, pending)]  # noqa: TID251
    await asyncio.sleep(0)
    if when == "after":
        pending.fail(error)
    assert await asyncio.gather(*tasks, return_exceptions=True) == [error, error]
    assert told == [error]
    with pytest.raises(ValueError, match="no"):
        pending.get()


async def test_a_caller_that_leaves_takes_nothing_from_the_others() -> None:
    pending = PendingPublish()
    async with asyncio.TaskGroup() as group:
        leaving, staying = group.create_task(get(pending)), group.create_task(get(pending))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        pending.succeed(RESULT)
    assert leaving.cancelled()
    assert staying.result() == RESULT
