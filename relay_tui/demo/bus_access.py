"""What every member of the cast works with: the bus, its own luck, and the time since the curtain rose.

1. What the bus refuses is part of the play: `BusAccess.tell` returns None then, and nobody ends for it.
2. Each member has its own `random.Random`, made of the seed and its name: what one does depends on nobody else.
3. Time goes in spells: `BusAccess.is_active` is a plain function of the time since the start.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
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
"""One of the cast: it plays for ever."""


class HandlerError(Exception):
    """A handler cannot do what it was asked; the text is the reason."""


class BusAccess:
    """The bus as one member of the cast sees it."""

    def __init__(self, client: RelayClient, data_dir: Path, seed: int, name: str, began: float) -> None:
        self.client = client
        self.data_dir = data_dir
        self.clock = SystemClock()
        self.random = random.Random(f"{seed} {name}")
        self._began = began

    @property
    def elapsed(self) -> float:
        """Return the seconds since the curtain rose."""
        return self.clock.monotonic() - self._began

    def is_active(self, *, every: float, duration: float, first: float = 0.0) -> bool:
        """Tell whether a spell that comes again and again is on."""
        return self.elapsed >= first and (self.elapsed - first) % every < duration

    async def pause(self, least: float, most: float) -> None:
        """Let some time pass."""
        await asyncio.sleep(self.random.uniform(least, most))

    async def publish(self, subject: str, payload: Any, *, sender: str, **options: Any) -> PublishResult | None:
        """Publish, whatever the bus says to it."""
        try:
            return await self.client.publish(subject, payload, sender=sender, **options)
        except RelayError:
            return None

    async def signal(self, subject: str, type: SignalType, state: str, data: Any = None) -> None:
        """Send a signal about a subject to itself."""
        timestamp = iso(self.clock.now_ms())
        signal = Signal(type=type, state=state, endpoint_subject=subject, timestamp=timestamp, data=data)
        try:
            await self.client.signal(subject, signal)
        except RelayError:
            return

    async def consume(self, subject: str, handle: Handle) -> None:
        """Handle what comes to a subject, for ever; `HandlerError` makes a dead letter of a message."""
        async with self.client.subscribe(subject) as messages:
            async for envelope in messages:
                try:
                    await handle(envelope)
                except HandlerError as error:
                    messages.fail(str(error))
