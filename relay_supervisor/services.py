"""What the methods of the protocol work on: the parts of a running supervisor, in one place."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from relay_core import __version__
from relay_core.core import RelayCore
from relay_core.errors import AccessDenied
from relay_core.protocol import PROTOCOL_VERSION, Promise, ServerInfo
from relay_core.tasks import Tasks
from relay_supervisor.adapters.configured import ConfiguredAdapters
from relay_supervisor.agents import Agents
from relay_supervisor.connection import Connection
from relay_supervisor.deliveries import Deliveries
from relay_supervisor.jobs import Jobs
from relay_supervisor.reply_mailboxes import ReplyMailboxes
from relay_supervisor.state_stream import StateStream
from relay_supervisor.tokens import Tokens


@dataclass(slots=True)
class Services:
    """The parts of a running supervisor."""

    relay: RelayCore
    adapters: ConfiguredAdapters
    agents: Agents
    jobs: Jobs
    tokens: Tokens
    operator_token: str
    deliveries: Deliveries
    replies: ReplyMailboxes
    stream: StateStream
    tasks: Tasks
    """Small work that connections leave behind."""
    socket: Path
    started_at: int
    stop: Callable[[], None]
    """Begin to stop the supervisor."""
    connections: set[Connection]
    broadcasting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the publish to a pattern that is under way."""

    def info(self) -> ServerInfo:
        """Return which supervisor this is."""
        bus = self.relay.bus
        return ServerInfo(
            version=__version__,
            protocol=PROTOCOL_VERSION,
            pid=os.getpid(),
            durability=bus.durability,
            promise=Promise.FSYNC if bus.durability == "fsync" else Promise.OS,
            data_dir=str(bus.data_dir.path),
            socket=str(self.socket),
            started_at=self.started_at,
            uptime_secs=self.relay.metrics().uptime_secs,
        )

    def check_subscriptions(self, connection: Connection) -> None:
        """Check that a token's holder may have one more subscription, to messages or signals.

        Raises:
            AccessDenied: with code `too_many`, if its connections have too many.
        """
        token = connection.identity.token
        if token is None:
            return
        most = self.relay.bus.config.limits.max_subscriptions_per_token
        own = [one for one in self.connections if one.identity.token == token]
        if sum(len(one.signals) + self.deliveries.subscriptions_of(one) for one in own) >= most:
            raise AccessDenied(
                f"this token has {most} subscriptions already (limits.maxSubscriptionsPerToken): "
                "end some, or subscribe to a pattern",
                code="too_many",
            )

    def problems(self) -> list[str]:
        """Return what is wrong with the operator's files."""
        return find_problems(self.relay, self.adapters, self.tokens, self.agents)

    async def reload(self) -> list[str]:
        """Read the operator's files again; return what is wrong with them."""
        self.relay.bus.reload()
        await asyncio.to_thread(self.tokens.load)
        self.disown()
        await self.adapters.reload()
        return self.problems()

    def disown(self) -> None:
        """Close the connections whose token is no longer good."""
        for connection in list(self.connections):
            token = connection.identity.token
            if token is not None and not self.tokens.is_good(token):
                connection.end()


def find_problems(relay: RelayCore, adapters: ConfiguredAdapters, tokens: Tokens, agents: Agents) -> list[str]:
    """Return what is wrong with the operator's files."""
    found = (relay.bus.config_problem, relay.bus.access.broken, adapters.problem, tokens.broken, agents.broken)
    return [problem for problem in found if problem is not None]
