"""A Bot API server, a bus, and an adapter between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relay_core import AdapterState, Envelope, RelayConfig, RelayCore
from relay_core.clock import Clock, SystemClock, Timer
from relay_core.rules.bindings import Binding
from relay_supervisor.adapters.telegram.adapter import TelegramAdapter
from relay_supervisor.adapters.telegram.config import TelegramConfig
from tests.kit.servers.telegram import BotServer
from tests.kit.waiting import until

AGENT = "relay.agent.backend"
ADA = 7
GROUP = -100123
CHAT = f"relay.human.telegram.tg.{ADA}"
ROOM = f"relay.human.telegram.tg.group.{GROUP}"

Make = Callable[..., TelegramAdapter]


class FastClock(SystemClock):
    """A clock that runs fifty times as fast, so that limits and pauses are kept but cost no time."""

    SPEED = 50.0

    def monotonic(self) -> float:
        return super().monotonic() * self.SPEED

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(max(delay, 0.0) / self.SPEED, callback)


def make_config(server: BotServer, **more: Any) -> TelegramConfig:
    return TelegramConfig.model_validate(
        {
            "token": server.token,
            "apiBase": server.url,
            "allowUsers": [ADA],
            "allowChats": [GROUP],
            "pollTimeoutSecs": 5,
            **more,
        }
    )


@dataclass
class Bridge:
    """A running bus with a Telegram adapter and an agent's mailbox."""

    relay: RelayCore
    server: BotServer
    adapter: TelegramAdapter

    async def mail(self, count: int) -> list[Envelope]:
        """Return what the agent has got, once it is so much."""
        await until(lambda: self._depth() >= count)
        return await self.relay.inbox(AGENT, 1000)

    def _depth(self) -> int:
        return next(box.depth for box in self.relay.mailboxes() if box.subject == AGENT)

    async def answer(self, content: str, subject: str = CHAT, **more: Any) -> Any:
        return await self.relay.publish(subject, {"content": content, **more}, sender=AGENT)

    def state(self) -> AdapterState:
        return next(adapter for adapter in self.relay.adapters() if adapter.id == "tg")

    async def until(self, state: str) -> AdapterState:
        await until(lambda: self.state().state == state)
        return self.state()


@asynccontextmanager
async def bridge(
    server: BotServer, data_dir: Path, clock: Clock | None = None, *, bound: bool = True, **more: Any
) -> AsyncIterator[Bridge]:
    async with RelayCore(data_dir, RelayConfig(durability="os"), clock) as relay:
        await relay.register_endpoint(AGENT)
        if bound:
            relay.set_bindings([Binding(chat="relay.human.telegram.tg.>", agent=AGENT, start="both")])
        adapter = TelegramAdapter("tg", make_config(server, **more))
        await relay.add_adapter(adapter)
        found = Bridge(relay, server, adapter)
        if adapter.status.state in ("starting", "connected"):
            await found.until("connected")
        yield found


@pytest.fixture
async def server() -> AsyncIterator[BotServer]:
    async with BotServer() as server:
        yield server
