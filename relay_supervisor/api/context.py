"""The context of the protocol's methods: the parts of a running supervisor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from relay_core import __version__
from relay_core.core import RelayCore
from relay_core.errors import AccessDenied
from relay_core.protocol.base import PROTOCOL_VERSION
from relay_core.protocol.serving import Promise, ServerInfo
from relay_supervisor.adapters.configured import ConfiguredAdapters
from relay_supervisor.agents.registry import Agents
from relay_supervisor.api.claims import Claims
from relay_supervisor.api.consumers import PushConsumers
from relay_supervisor.api.reply_mailboxes import ReplyMailboxes
from relay_supervisor.api.state_stream import StateStream
from relay_supervisor.jobs.runner import Jobs
from relay_supervisor.schedules.schedules import Schedules
from relay_supervisor.server.connection import Connection
from relay_supervisor.server.tokens import Tokens


@dataclass(slots=True)
class ApiContext:
    """The parts of a running supervisor."""

    relay: RelayCore
    adapters: ConfiguredAdapters
    agents: Agents
    jobs: Jobs
    schedules: Schedules
    tokens: Tokens
    operator_token: str
    consumers: PushConsumers
    claims: Claims
    replies: ReplyMailboxes
    stream: StateStream
    socket: Path
    started_at: int
    stop: Callable[[], None]
    """Begin to shut down the supervisor."""
    connections: set[Connection]
    broadcasting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a publish to a pattern."""

    def info(self) -> ServerInfo:
        """Return the supervisor's identity."""
        durability = self.relay.durability
        return ServerInfo(
            version=__version__,
            protocol=PROTOCOL_VERSION,
            pid=os.getpid(),
            durability=durability,
            promise=Promise.FSYNC if durability == "fsync" else Promise.OS,
            data_dir=str(self.relay.data_dir.path),
            socket=str(self.socket),
            started_at=self.started_at,
            uptime_secs=self.relay.metrics().uptime_secs,
        )

    def check_subscriptions(self, connection: Connection) -> None:
        """Check that a token's holder may have one more subscription, to messages or signals.

        Raises:
            AccessDenied: with code `too_many`, if its connections have reached the limit.
        """
        token = connection.identity.token
        if token is None:
            return
        most = self.relay.config.limits.max_subscriptions_per_token
        own = [peer for peer in self.connections if peer.identity.token == token]
        if sum(len(peer.signals) + self.consumers.subscriptions_of(peer) for peer in own) >= most:
            raise AccessDenied(
                f"this token already has {most} subscriptions (limits.maxSubscriptionsPerToken): "
                "end some, or subscribe to a pattern",
                code="too_many",
            )

    def problems(self) -> list[str]:
        """Return errors in the operator's files."""
        relay = self.relay
        found = (
            relay.config_problem,
            relay.access_problem,
            self.adapters.problem,
            self.tokens.broken,
            self.agents.broken,
            self.schedules.broken,
        )
        return [problem for problem in found if problem is not None]

    async def reload(self) -> list[str]:
        """Reload the operator's files; return errors in them."""
        self.relay.reload()
        await asyncio.to_thread(self.tokens.load)
        self.drop_revoked()
        await self.adapters.reload()
        return self.problems()

    def drop_revoked(self) -> None:
        """Close the connections whose token was revoked."""
        for connection in list(self.connections):
            token = connection.identity.token
            if token is not None and not self.tokens.is_valid(token):
                connection.end()
