"""The live subscriptions: whose they are, and what they receive.

1. An operator sees the subscriptions of every connection, to messages and to signals, and the handlers within the
   supervisor. A token's holder sees those of all connections with its token: they count towards one limit.
2. The process id is the kernel's (`SO_PEERCRED`): of the process that opened the connection, which may have passed it
   on since. The client's name is what the client calls itself.
"""

from __future__ import annotations

import os
from typing import Any

from relay_core.dispatch.subscriptions import Subscription
from relay_core.messages.ids import ulid_ms
from relay_core.messages.signals import SignalSubscription
from relay_core.protocol.consuming import SubscriptionState
from relay_core.protocol.peer_credentials import peer_pid
from relay_supervisor.agents.registry import page_of
from relay_supervisor.api.context import ApiContext
from relay_supervisor.server.connection import Connection


def list_subscriptions(
    context: ApiContext, viewer: Connection, after: str | None, limit: int
) -> tuple[list[SubscriptionState], str | None]:
    """Return a page of the subscriptions that a connection may see, oldest first, and the next cursor."""
    found: dict[str, tuple[Connection | None, Subscription | SignalSubscription]] = {}
    for connection in _visible(context, viewer):
        found |= {own.id: (connection, own) for own in context.consumers.of_connection(connection)}
        found |= {id: (connection, own) for id, own in connection.signals.items()}
    if viewer.identity.operator:
        found |= {own.id: (None, own) for own in context.relay.subscriptions() if own.id not in found}
    ids = page_of(sorted(found), after, limit + 1)
    page = {id: found[id] for id in ids[:limit]}
    in_flight = context.consumers.in_flight({connection for connection, _ in page.values() if connection is not None})
    rows = [_describe(context, id, connection, own, in_flight[id]) for id, (connection, own) in page.items()]
    return rows, ids[limit - 1] if len(ids) > limit else None


def _visible(context: ApiContext, viewer: Connection) -> list[Connection]:
    if viewer.identity.operator:
        return list(context.connections)
    return [peer for peer in context.connections if peer.identity.token == viewer.identity.token]


def _describe(
    context: ApiContext,
    id: str,
    connection: Connection | None,
    own: Subscription | SignalSubscription,
    in_flight: int,
) -> SubscriptionState:
    messages = own if isinstance(own, Subscription) else None
    whose: dict[str, Any] = {"client": getattr(own, "name", None), "identity": "supervisor", "pid": os.getpid()}
    if connection is not None:
        whose = {
            "client": connection.name,
            "identity": connection.identity.reader,
            "agent": context.agents.acting_for(connection),
            "pid": _pid(connection),
            "in_flight": in_flight if messages is not None else None,
        }
    return SubscriptionState(
        id=id,
        kind="messages" if messages is not None else "signals",
        pattern=own.pattern,
        queue=messages.queue if messages is not None else None,
        since=ulid_ms(id),
        **whose,
    )


def _pid(connection: Connection) -> int | None:
    if connection.closed:
        return None
    try:
        return peer_pid(connection.transport.get_extra_info("socket"))
    except OSError:  # it has just ended
        return None
