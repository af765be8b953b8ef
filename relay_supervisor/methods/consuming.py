"""Reading messages through the socket: pushed, or pulled."""

from __future__ import annotations

import asyncio

from relay_core.protocol import (
    ClaimParams,
    Completed,
    CompleteParams,
    DeliveryParams,
    Done,
    FailDeliveryParams,
    FailParams,
    MessageIds,
    Messages,
    PeekParams,
    Subscribed,
    SubscribeParams,
    SubscriptionParams,
    WaitParams,
)
from relay_supervisor.connection import Connection
from relay_supervisor.services import Services


async def subscribe(services: Services, connection: Connection, params: SubscribeParams) -> Subscribed:
    """Push the messages of a pattern."""
    services.replies.check_reader(connection, params.pattern)
    services.check_subscriptions(connection)
    subscription_id = await services.deliveries.subscribe(
        connection, params.pattern, params.max_in_flight, queue=params.queue, starts=params.starts
    )
    return Subscribed(subscription_id=subscription_id)


async def unsubscribe(services: Services, connection: Connection, params: SubscriptionParams) -> Done:
    """Push no more of them."""
    await services.deliveries.unsubscribe(connection, params.subscription_id)
    return Done()


def start(services: Services, connection: Connection, params: DeliveryParams) -> Done:
    """Take the client's word that it begins a message."""
    services.deliveries.start(connection, params.delivery_id)
    return Done()


def ack(services: Services, connection: Connection, params: DeliveryParams) -> Done:
    """Take the client's word that a message was handled."""
    services.deliveries.ack(connection, params.delivery_id)
    return Done()


def fail(services: Services, connection: Connection, params: FailDeliveryParams) -> Done:
    """Take the client's word that a message could not be handled."""
    services.deliveries.fail(connection, params.delivery_id, params.reason, put_back=params.put_back)
    return Done()


async def peek(services: Services, connection: Connection, params: PeekParams) -> Messages:
    """Look at waiting messages."""
    services.replies.check_reader(connection, params.subject, leftovers=True)
    return Messages(messages=await services.deliveries.peek(connection, params.subject, params.limit, params.after))


async def claim(services: Services, connection: Connection, params: ClaimParams) -> Messages:
    """Take waiting messages."""
    services.replies.check_reader(connection, params.subject, leftovers=True)
    limit = params.limit if params.ids is None else len(params.ids)
    taken = await services.deliveries.claim(connection, params.subject, limit, params.lease_ms, params.ids)
    return Messages(messages=taken)


async def wait(services: Services, connection: Connection, params: WaitParams) -> MessageIds:
    """Answer when messages wait."""
    services.replies.check_reader(connection, params.subject, leftovers=True)
    waiting = services.relay.wait_inbox(params.subject, params.limit, after=params.after, answer_to=params.answer_to)
    try:
        async with asyncio.timeout(params.timeout_ms / 1000):
            return MessageIds(ids=await waiting)
    except TimeoutError:
        return MessageIds(ids=[])


async def complete(services: Services, connection: Connection, params: CompleteParams) -> Completed:
    """Finish a claimed message."""
    services.replies.check_reader(connection, params.subject, leftovers=True)
    late = await services.deliveries.complete(params.subject, params.id, late=params.late)
    return Completed(late=True if late else None)


async def fail_claim(services: Services, connection: Connection, params: FailParams) -> Done:
    """Make a dead letter of a claimed message."""
    services.replies.check_reader(connection, params.subject, leftovers=True)
    await services.deliveries.fail_claim(params.subject, params.id, params.reason)
    return Done()
