"""The bus as a workload of the demo uses it.

1. Refusals are part of the demo: `BusAccess.publish` returns None and the workload continues.
2. Each workload has a `random.Random` seeded with its name, so it does not depend on the others.
3. Recurring outages are a function of the time since the start (`BusAccess.is_active`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay_core.client.client import RelayClient
from relay_core.clock import SystemClock, iso
from relay_core.errors import RelayError
from relay_core.messages.envelope import Envelope
from relay_core.messages.results import PublishResult
from relay_core.messages.signals import Signal, SignalType

Handle = Callable[[Envelope], Awaitable[None]]
Workload = Callable[["BusAccess"], Awaitable[None]]
"""A coroutine function that runs for ever."""


class HandlerError(Exception):
    """A handler fails a message; the text is the reason."""


class BusAccess:
    """The bus for one workload."""

    def __init__(self, client: RelayClient, data_dir: Path, seed: int, name: str, started: float) -> None:
        self.client = client
        self.data_dir = data_dir
        self.clock = SystemClock()
        self.random = random.Random(f"{seed} {name}")
        self._started = started

    @property
    def elapsed(self) -> float:
        """The seconds since the start."""
        return self.clock.monotonic() - self._started

    def is_active(self, *, every: float, duration: float, first: float = 0.0) -> bool:
        """Return True during the first `duration` seconds of every `every` seconds."""
        return self.elapsed >= first and (self.elapsed - first) % every < duration

    async def pause(self, least: float, most: float) -> None:
        """Sleep for a random time."""
        await asyncio.sleep(self.random.uniform(least, most))

    async def publish(self, subject: str, payload: Any, *, sender: str, **options: Any) -> PublishResult | None:
        """Publish; a refusal is ignored."""
        try:
            return await self.client.publish(subject, payload, sender=sender, **options)
        except RelayError:
            return None

    async def signal(self, subject: str, type: SignalType, state: str, data: Any = None) -> None:
        """Send a signal about a subject to itself."""
        timestamp = iso(self.clock.now_ms())
        signal = Signal(type=type, state=state, endpoint_subject=subject, timestamp=timestamp, data=data)
        with suppress(RelayError):
            await self.client.signal(subject, signal)

    async def consume(self, subject: str, handle: Handle | None = None) -> None:
        """Handle the messages of a subject for ever, or only acknowledge them; `HandlerError` makes a dead letter."""
        async with self.client.subscribe(subject) as messages:
            async for envelope in messages:
                try:
                    if handle is not None:
                        await handle(envelope)
                except HandlerError as error:
                    messages.fail(str(error))
