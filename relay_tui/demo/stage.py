"""What every member of the cast works with: the bus, its own luck, and the time since the curtain rose.

1. What the bus refuses is part of the play: `Stage.tell` returns None then, and nobody ends for it.
2. Each member has its own `random.Random`, made of the seed and its name: what one does depends on nobody else.
3. Time goes in spells: `Stage.in_spell` is a plain function of the time since the start.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from relay_core.client import RelayClient
from relay_core.clock import SystemClock, iso
from relay_core.envelope import Envelope
from relay_core.errors import RelayError
from relay_core.results import PublishResult
from relay_core.signals import Signal, SignalType

Handle = Callable[[Envelope], Awaitable[None]]
Member = Callable[["Stage"], Awaitable[None]]
"""One of the cast: it plays for ever."""


class Trouble(Exception):
    """A handler cannot do what it was asked; the text is the reason."""


class Stage:
    """The bus as one member of the cast sees it."""

    def __init__(self, client: RelayClient, data_dir: Path, seed: int, name: str, began: float) -> None:
        self.client = client
        self.data_dir = data_dir
        self.clock = SystemClock()
        self.luck = random.Random(f"{seed} {name}")
        self._began = began

    @property
    def elapsed(self) -> float:
        """Return the seconds since the curtain rose."""
        return self.clock.monotonic() - self._began

    def in_spell(self, *, every: float, lasting: float, first: float = 0.0) -> bool:
        """Tell whether a spell that comes again and again is on."""
        return self.elapsed >= first and (self.elapsed - first) % every < lasting

    async def pause(self, least: float, most: float) -> None:
        """Let some time pass."""
        await asyncio.sleep(self.luck.uniform(least, most))

    async def tell(self, subject: str, payload: Any, *, sender: str, **options: Any) -> PublishResult | None:
        """Publish, whatever the bus says to it."""
        try:
            return await self.client.publish(subject, payload, sender=sender, **options)
        except RelayError:
            return None

    async def hint(self, subject: str, type: SignalType, state: str, data: Any = None) -> None:
        """Send a signal about a subject to itself."""
        timestamp = iso(self.clock.now_ms())
        signal = Signal(type=type, state=state, endpoint_subject=subject, timestamp=timestamp, data=data)
        try:
            await self.client.signal(subject, signal)
        except RelayError:
            return

    async def consume(self, subject: str, handle: Handle) -> None:
        """Handle what comes to a subject, for ever; `Trouble` makes a dead letter of a message."""
        async with self.client.subscribe(subject) as messages:
            async for envelope in messages:
                try:
                    await handle(envelope)
                except Trouble as trouble:
                    messages.fail(str(trouble))
