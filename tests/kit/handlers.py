"""Handlers for tests, which collect messages and wait or fail as the test asks."""

from __future__ import annotations

import asyncio
from typing import Any

from relay_core import Envelope


class Listener:
    """A handler that collects messages; it can be held or made to fail."""

    def __init__(self, *, fails: bool = False, held: bool = False) -> None:
        self.envelopes: list[Envelope] = []
        self.fails = fails
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.running = self.most_running = 0
        if not held:
            self.gate.set()

    @property
    def got(self) -> list[Any]:
        """Return the payloads, in the order of arrival."""
        return [envelope.payload for envelope in self.envelopes]

    @property
    def ids(self) -> list[str]:
        """Return the message ids, in the order of arrival."""
        return [envelope.id for envelope in self.envelopes]

    async def __call__(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.entered.set()
        try:
            await self.gate.wait()
            if self.fails:
                raise ValueError(f"no use for {envelope.payload}")
        finally:
            self.running -= 1


class Worker:
    """A member of a pool that collects messages, and ends one at a time when the test lets it."""

    def __init__(self, name: str = "worker", *, held: bool = True, log: list[Any] | None = None) -> None:
        self.__qualname__ = name
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.log = log if log is not None else []
        self.error: Exception | None = None
        self._held = held
        self._gates: dict[Any, asyncio.Event] = {}

    async def __call__(self, envelope: Envelope) -> None:
        payload = envelope.payload
        self.begun.append(payload)
        self.log.append(payload)
        if self._held:
            gate = self._gates[payload] = asyncio.Event()
            try:
                await gate.wait()
            finally:
                self._gates.pop(payload, None)
        if self.error is not None:
            raise self.error
        self.ended.append(payload)

    @property
    def in_flight(self) -> list[Any]:
        """Return the payloads it is handling."""
        return list(self._gates)

    def end(self, payload: Any = None) -> None:
        """Let one message end, the oldest if none is named."""
        self._gates[payload if payload is not None else next(iter(self._gates))].set()

    def release(self) -> None:
        """Let every message end, now and from now on."""
        self._held = False
        for gate in self._gates.values():
            gate.set()
