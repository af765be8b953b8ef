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
from relay_core.paths import operator_token_path, socket_path
from relay_core.tasks import Tasks
from relay_supervisor.adapters.configured import ConfiguredAdapters
from relay_supervisor.agents.registry import Agents
from relay_supervisor.api.claims import Claims
from relay_supervisor.api.consumers import PushConsumers
from relay_supervisor.api.context import ApiContext, find_problems
from relay_supervisor.api.methods import Methods
from relay_supervisor.api.reply_mailboxes import ReplyMailboxes, unregister_replies
from relay_supervisor.api.state_snapshot import StateSnapshot
from relay_supervisor.api.state_stream import StateStream
from relay_supervisor.jobs.runner import Jobs
from relay_supervisor.observability.secrets import SecretRedactor
from relay_supervisor.server.connection import Connection
from relay_supervisor.server.socket_server import SocketServer
from relay_supervisor.server.tokens import TOKENS_FILE, Tokens, write_operator_token

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
        redactor: SecretRedactor | None = None,
    ) -> None:
        self.socket: Path = socket_path(socket, data_dir)
        self.stopping = asyncio.Event()
        """Set when somebody wants it to stop."""
        self.redactor = redactor or SecretRedactor()
        """The secrets of the adapters, which no text may show."""
        self.context: ApiContext
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
            await unregister_replies(relay)
            tasks = Tasks()
            stack.push_async_callback(tasks.close, grace=1.0)
            tokens = Tokens(relay.data_dir.path / TOKENS_FILE, self._clock, relay.data_dir.read)
            tokens.load()
            agents = await stack.enter_async_context(Agents(relay, tokens, self._clock))
            configured = ConfiguredAdapters(relay, relay.data_dir.adapters, self._clock, self.redactor)
            adapters = await stack.enter_async_context(configured)
            jobs = await stack.enter_async_context(Jobs(relay, self._clock))
            relay.on_reload(lambda: jobs.apply(relay.config.jobs))
            await self._open_windows(stack, after_the_bus)
            view = StateSnapshot(
                relay, adapters.states, jobs.states, lambda: find_problems(relay, adapters, tokens, agents)
            )
            connections: set[Connection] = set()
            consumers = PushConsumers(relay, tasks)
            self.context = ApiContext(
                relay=relay,
                adapters=adapters,
                agents=agents,
                jobs=jobs,
                tokens=tokens,
                operator_token=write_operator_token(operator_token_path(relay.data_dir.path)),
                consumers=consumers,
                claims=Claims(relay, tasks),
                replies=ReplyMailboxes(relay, consumers, tasks),
                stream=await stack.enter_async_context(StateStream(view)),
                tasks=tasks,
                socket=self.socket,
                started_at=self._clock.now_ms(),
                stop=self.stopping.set,
                connections=connections,
            )
            server = SocketServer(self.socket, Methods(self.context), connections)
            server.before_close = relay.stop_dispatch
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
        relay = self._relay
        if relay.config.prometheus.enabled:
            from relay_supervisor.observability.prometheus import PrometheusServer

            served = await stack.enter_async_context(PrometheusServer(relay, relay.config.prometheus.port))
            logger.info("metrics are served on http://127.0.0.1:%d/metrics", served.port)
        if relay.config.telemetry.enabled:
            from relay_supervisor.observability.telemetry import SpanExport

            export = await after.enter_async_context(SpanExport(relay.config.telemetry, self._clock))
            relay.on_delivery_ended(export.ended)
