"""The owner of background tasks.

An `asyncio.TaskGroup` cancels all its tasks when one fails, and only the task that entered it may leave it. Here a
failing task is logged and does not affect the others, and any task may call `close`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)

_CANCEL_SECS = 5.0


class Tasks:
    """Hold background tasks until they end or are closed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def running(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that have not ended."""
        return list(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any] | None:
        """Run a coroutine in the background; after `close` it is dropped."""
        if self._closed:
            work.close()
            return None
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self, *, grace: float = 0.0) -> None:
        """Wait up to `grace` seconds for tasks to end, then cancel the rest."""
        self._closed = True
        own = asyncio.current_task()  # a task that closes its own owner cannot wait for itself
        if grace > 0 and (others := self._tasks - {own}):
            await asyncio.wait(others, timeout=grace)
        for task in (others := self._tasks - {own}):
            task.cancel()
        if others:
            _, stuck = await asyncio.wait(others, timeout=_CANCEL_SECS)
            for task in stuck:
                logger.error("background task %s ignores its cancellation: left behind", task.get_name())

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background task %s failed", task.get_name(), exc_info=error)
