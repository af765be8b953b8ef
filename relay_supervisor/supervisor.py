"""The supervisor: the parts of the daemon, and the order in which they start and stop.

Start: the bus (which locks the data directory) → tokens and agents → adapters → jobs and schedules → metrics and
telemetry → the socket. Stop, in reverse: the socket accepts no more connections and drains, schedules end, jobs are
cancelled, adapters finish their current message, the bus writes everything to disk. A start that fails halfway undoes
its steps.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from pathlib import Path
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
from relay_supervisor.api.context import ApiContext
from relay_supervisor.api.methods import Methods
from relay_supervisor.api.reply_mailboxes import ReplyMailboxes, unregister_replies
from relay_supervisor.api.state_snapshot import StateSnapshot
from relay_supervisor.api.state_stream import StateStream
from relay_supervisor.jobs.runner import Jobs
from relay_supervisor.observability.secrets import SecretRedactor
from relay_supervisor.schedules.schedules import Schedules
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
        """Set to stop the supervisor."""
        self.redactor = redactor or SecretRedactor()
        """Knows the secrets of the adapters."""
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
            after_bus = await stack.enter_async_context(AsyncExitStack())
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
            schedules = await stack.enter_async_context(Schedules(relay, self._clock))

            def apply_config() -> None:
                jobs.apply(relay.config.jobs)
                schedules.apply(relay.config.schedules)

            relay.on_reload(apply_config)
            await self._start_observability(stack, after_bus)
            view = StateSnapshot(relay, adapters.states, jobs.states, lambda: self.context.problems())
            connections: set[Connection] = set()
            consumers = PushConsumers(relay, tasks)
            self.context = ApiContext(
                relay=relay,
                adapters=adapters,
                agents=agents,
                jobs=jobs,
                schedules=schedules,
                tokens=tokens,
                operator_token=write_operator_token(operator_token_path(relay.data_dir.path)),
                consumers=consumers,
                claims=Claims(relay, tasks),
                replies=ReplyMailboxes(relay, consumers, tasks),
                stream=await stack.enter_async_context(StateStream(view)),
                socket=self.socket,
                started_at=self._clock.now_ms(),
                stop=self.stopping.set,
                connections=connections,
            )
            server = SocketServer(self.socket, Methods(self.context), connections)
            server.before_close = relay.stop_dispatch
            relay.on_settled(server.output.flush)  # not in the next turn of the loop: clients wait for these answers
            await stack.enter_async_context(server)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop: messages in flight are finished or dead-lettered, waiting ones stay on disk."""
        await self._stack.aclose()

    async def _start_observability(self, stack: AsyncExitStack, after_bus: AsyncExitStack) -> None:
        """Start the metrics server and the span export if they are enabled; spans are accepted until the bus ends."""
        relay = self._relay
        if relay.config.prometheus.enabled:
            from relay_supervisor.observability.prometheus import serve_metrics

            port = await stack.enter_async_context(serve_metrics(relay, relay.config.prometheus.port))
            logger.info("metrics are served on http://127.0.0.1:%d/metrics", port)
        if relay.config.telemetry.enabled:
            from relay_supervisor.observability.telemetry import SpanExport

            export = await after_bus.enter_async_context(SpanExport(relay.config.telemetry, self._clock))
            relay.on_delivery_ended(export.ended)
