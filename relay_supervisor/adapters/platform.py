"""The parts that all built-in platforms share: strict configs, one lifecycle, and timeouts by the bus's clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ConfigDict

from relay_core.adapters.interface import AdapterContext, AdapterStatus
from relay_core.clock import Clock, call_later
from relay_core.messages.base import WireModel
from relay_core.messages.operator_views import StateName


class PlatformConfig(WireModel):
    """A config, or a part of one, that refuses unknown keys."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


def _check_absolute(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_check_absolute)]
"""A path that does not depend on the supervisor's working directory; ``~`` is the user's home."""


class PlatformAdapter:
    """An adapter that opens everything on one exit stack: a start that fails, and a stop, close it in reverse order."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.status = AdapterStatus("disconnected", "not started")
        self._context: AdapterContext | None = None
        self._stack = AsyncExitStack()

    async def start(self, context: AdapterContext) -> None:
        """Connect to the platform."""
        self._context = context
        self.status = AdapterStatus("starting")
        async with AsyncExitStack() as stack:
            await self._open(context, stack)
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Close everything; stopping again does nothing."""
        stack, self._stack = self._stack, AsyncExitStack()
        self.status = AdapterStatus("stopping")
        try:
            await stack.aclose()
        finally:
            self._context = None
            self.status = AdapterStatus("disconnected", "stopped")

    async def _open(self, context: AdapterContext, stack: AsyncExitStack) -> None:
        raise NotImplementedError

    def _set_status(self, state: StateName, detail: str | None = None, *, announce: bool = True) -> None:
        if self._context is not None and (state, detail) != (self.status.state, self.status.detail):
            self.status = AdapterStatus(state, detail)
            if announce:
                self._context.status_changed()


@asynccontextmanager
async def clock_timeout(clock: Clock, seconds: float) -> AsyncIterator[asyncio.Timeout]:
    """Limit the time of a block as `asyncio.timeout` does, but by an injected clock."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        timer = call_later(clock, seconds, lambda: limit.reschedule(loop.time()))
        try:
            yield limit
        finally:
            timer.cancel()


async def wait_event(clock: Clock, event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set; set it after so many seconds."""
    timer = call_later(clock, seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
