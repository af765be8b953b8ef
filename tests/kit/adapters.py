"""An adapter to a platform that does as the test says, for the tests of the seam."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from relay_core import AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult, Envelope

DIARY_PLUGIN = Path(__file__).with_name("diary_plugin.py")
"""The file of an adapter that writes a diary, for the tests of loading."""

Platform = Callable[[Envelope, DeliveryContext], Awaitable[object]]


async def accept(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
    return DeliveryResult(ok=True)


async def refuse(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
    return DeliveryResult(ok=False, error="chat not found", code="404")


async def explode(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
    raise ConnectionError("platform is down")


async def hang(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
    await asyncio.Event().wait()
    raise AssertionError("it is never set")


class Gate:
    """A platform that answers when the test lets it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        self.reached.set()
        await self.opened.wait()
        return DeliveryResult(ok=True)


class SampleAdapter:
    """A good adapter; `log` may be shared by several of them."""

    def __init__(
        self,
        id: str = "sample",
        patterns: Sequence[str] = ("relay.out.>",),
        platform: Platform = accept,
        *,
        detached: bool = False,
        priority: int = 0,
        rate: float | None = None,
        timeout: float = 30.0,
        connects: bool = True,
        log: list[tuple[str, object]] | None = None,
    ) -> None:
        self.id = id
        self.patterns = patterns
        self.platform = platform
        self.detached = detached
        self.priority = priority
        self.rate = rate
        self.timeout = timeout
        self.connects = connects
        self.log = log if log is not None else []
        self.status = AdapterStatus("disconnected")
        self.contexts: list[AdapterContext] = []
        self.deliveries: list[DeliveryContext] = []
        self.stops = 0

    @property
    def context(self) -> AdapterContext:
        return self.contexts[-1]

    @property
    def got(self) -> list[object]:
        """Return the payloads that this adapter took, in order."""
        return [payload for name, payload in self.log if name == self.id]

    async def start(self, context: AdapterContext) -> None:
        self.contexts.append(context)
        if self.connects:
            self.status = AdapterStatus("connected")

    async def stop(self) -> None:
        self.stops += 1
        self.status = AdapterStatus("disconnected")

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        self.log.append((self.id, envelope.payload))
        self.deliveries.append(context)
        return await self.platform(envelope, context)  # type: ignore[return-value]  # a test may mean to

    def set_status(self, status: AdapterStatus, *, announce: bool = True) -> None:
        self.status = status
        if announce:
            self.context.status_changed()
