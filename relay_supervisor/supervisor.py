"""The supervisor: everything that runs in the daemon, and the order in which it starts and stops.

Start: the bus (which locks the data directory) → identity → adapters → jobs → what others may look at → the socket.
Stop, in reverse: the socket lets nobody in and lets what is in flight end, the jobs are broken off, the adapters
finish their message, the bus makes everything last. A start that fails halfway undoes what it had done.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from relay_core.clock import Clock, SystemClock
from relay_core.config import RelayConfig
from relay_core.core import RelayCore
from relay_core.places import operator_token_path, socket_path
from relay_core.tasks import Tasks
from relay_supervisor.adapters.configured import ConfiguredAdapters
from relay_supervisor.agents import Agents
from relay_supervisor.connection import Connection
from relay_supervisor.deliveries import Deliveries
from relay_supervisor.jobs import Jobs
from relay_supervisor.methods import Methods
from relay_supervisor.reply_mailboxes import ReplyMailboxes, unregister_replies
from relay_supervisor.server import SocketServer
from relay_supervisor.services import Services, find_problems
from relay_supervisor.state_stream import StateStream
from relay_supervisor.state_view import StateView
from relay_supervisor.tokens import TOKENS_FILE, Tokens, write_operator_token
from relay_supervisor.vault import Vault

logger = logging.getLogger(__name__)


class Supervisor:
    """One bus, its adapters, its jobs and its socket."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        socket: str | os.PathLike[str] | None = None,
        *,
        config: RelayConfig | None = None,
        clock: Clock | None = None,
        vault: Vault | None = None,
    ) -> None:
        self.socket: Path = socket_path(socket, data_dir)
        self.stopping = asyncio.Event()
        """Set when somebody wants it to stop."""
        self.vault = vault or Vault()
        """The secrets of the adapters, which no text may show."""
        self.services: Services
        self._clock = clock or SystemClock()
        self._relay = RelayCore(data_dir, config, self._clock)
        self._stack: AsyncExitStack

    async def __aenter__(self) -> Self:
        """Start.

        Raises:
            StorageError: if the data directory or the socket cannot be used, or another process uses it.
            ConfigError: if config.json cannot be used.
        """
        async with AsyncExitStack() as stack:
            after_the_bus = await stack.enter_async_context(AsyncExitStack())
            relay = await stack.enter_async_context(self._relay)
            bus = relay.bus
            await unregister_replies(relay)
            tasks = Tasks()
            stack.push_async_callback(tasks.close, grace=1.0)
            tokens = Tokens(bus.data_dir.path / TOKENS_FILE, self._clock, bus.data_dir.read)
            tokens.load()
            agents = await stack.enter_async_context(Agents(relay, tokens, self._clock))
            configured = ConfiguredAdapters(relay, bus.data_dir.adapters, self._clock, self.vault)
            adapters = await stack.enter_async_context(configured)
            jobs = await stack.enter_async_context(Jobs(relay, self._clock))
            bus.on_reload = lambda: jobs.apply(bus.config.jobs)
            await self._open_windows(stack, after_the_bus)
            view = StateView(
                relay, adapters.states, jobs.states, lambda: find_problems(relay, adapters, tokens, agents)
            )
            connections: set[Connection] = set()
            deliveries = Deliveries(relay, tasks)
            self.services = Services(
                relay=relay,
                adapters=adapters,
                agents=agents,
                jobs=jobs,
                tokens=tokens,
                operator_token=write_operator_token(operator_token_path(bus.data_dir.path)),
                deliveries=deliveries,
                replies=ReplyMailboxes(relay, deliveries, tasks),
                stream=await stack.enter_async_context(StateStream(view)),
                tasks=tasks,
                socket=self.socket,
                started_at=self._clock.now_ms(),
                stop=self.stopping.set,
                connections=connections,
            )
            server = SocketServer(self.socket, Methods(self.services), connections)
            server.before_close = bus.dispatch.stop
            await stack.enter_async_context(server)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop: what is in flight is finished or parked, everything stored stays."""
        await self._stack.aclose()

    async def _open_windows(self, stack: AsyncExitStack, after: AsyncExitStack) -> None:
        """Let Prometheus and OpenTelemetry look in, if the operator wants that; spans are taken to the bus's end."""
        bus = self._relay.bus
        if bus.config.prometheus.enabled:
            from relay_supervisor.prometheus import PrometheusServer

            served = await stack.enter_async_context(PrometheusServer(self._relay, bus.config.prometheus.port))
            logger.info("metrics are served on http://127.0.0.1:%d/metrics", served.port)
        if bus.config.telemetry.enabled:
            from relay_supervisor.telemetry import SpanExport

            export = await after.enter_async_context(SpanExport(bus.config.telemetry, self._clock))
            bus.recorder.on_ended = export.ended
