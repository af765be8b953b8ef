"""Waiting in tests: for a condition, never for time to pass.

A condition is polled only where no event reports it: another process or thread, or a task that the test cannot await.
`PATIENCE_SECS` is for a busy machine; a test that passes waits for milliseconds.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

from relay_core.testing import FakeClock

PATIENCE_SECS = 60.0


async def until(condition: Callable[[], Any], patience: float = PATIENCE_SECS) -> None:
    """Return once a condition holds; it may return an awaitable."""
    pause = 0.001
    async with asyncio.timeout(patience):
        while True:
            holds = condition()
            if await holds if isawaitable(holds) else holds:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.01)


def wait_until(condition: Callable[[], Any], patience: float = PATIENCE_SECS) -> None:
    """Block until a condition holds, in a test without an event loop."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        select.select([], [], [], 0.01)


async def advance_until(clock: FakeClock, condition: Callable[[], Any], step_secs: float = 0.25) -> None:
    """Advance a clock in steps until a condition holds, leaving the tasks it wakes time to run."""

    def advanced() -> bool:
        if condition():
            return True
        clock.advance(step_secs)
        return False

    await until(advanced)


async def tasks_ended(name: str) -> None:
    """Return once no task of this name is running."""
    while tasks := [task for task in asyncio.all_tasks() if task.get_name() == name]:
        await asyncio.wait(tasks)


async def run_ready_tasks() -> None:
    """Let every task run that can run without time passing and without an answer from a thread."""
    for _ in range(30):
        await asyncio.sleep(0)
