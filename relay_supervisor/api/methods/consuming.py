"""Push consumers (`subscribe`) and pull consumers (`inbox`)."""

from __future__ import annotations

import asyncio

from relay_core.protocol.base import Done
from relay_core.protocol.consuming import (
    ClaimParams,
    Completed,
    CompleteParams,
    DeliveryParams,
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
from relay_supervisor.api.context import ApiContext
from relay_supervisor.api.methods.handlers import handles
from relay_supervisor.server.connection import Connection


@handles("subscribe")
async def subscribe(context: ApiContext, connection: Connection, params: SubscribeParams) -> Subscribed:
    """Push the messages of a pattern."""
    context.replies.check_reader(connection, params.pattern)
    context.check_subscriptions(connection)
    subscription_id = await context.consumers.subscribe(
        connection, params.pattern, params.max_in_flight, queue=params.queue, starts=params.starts
    )
    return Subscribed(subscription_id=subscription_id)


@handles("unsubscribe")
async def unsubscribe(context: ApiContext, connection: Connection, params: SubscriptionParams) -> Done:
    """End a subscription."""
    await context.consumers.unsubscribe(connection, params.subscription_id)
    return Done()


@handles("start")
def start(context: ApiContext, connection: Connection, params: DeliveryParams) -> Done:
    """Record that a client begins to handle a message."""
    context.consumers.start(connection, params.delivery_id)
    return Done()


@handles("ack")
def ack(context: ApiContext, connection: Connection, params: DeliveryParams) -> Done:
    """Finish a message that a client has handled."""
    context.consumers.ack(connection, params.delivery_id)
    return Done()


@handles("fail")
def fail(context: ApiContext, connection: Connection, params: FailDeliveryParams) -> Done:
    """Dead-letter or requeue a message that a client did not handle."""
    context.consumers.fail(connection, params.delivery_id, params.reason, put_back=params.put_back)
    return Done()


@handles("inbox.peek")
async def peek(context: ApiContext, connection: Connection, params: PeekParams) -> Messages:
    """Return waiting messages."""
    context.replies.check_reader(connection, params.subject, leftovers=True)
    return Messages(messages=await context.claims.peek(connection, params.subject, params.limit, params.after))


@handles("inbox.claim")
async def claim(context: ApiContext, connection: Connection, params: ClaimParams) -> Messages:
    """Claim waiting messages."""
    context.replies.check_reader(connection, params.subject, leftovers=True)
    limit = params.limit if params.ids is None else len(params.ids)
    claimed = await context.claims.claim(connection, params.subject, limit, params.lease_ms, params.ids)
    return Messages(messages=claimed)


@handles("inbox.wait")
async def wait(context: ApiContext, connection: Connection, params: WaitParams) -> MessageIds:
    """Answer once messages are waiting."""
    context.replies.check_reader(connection, params.subject, leftovers=True)
    waiting = context.relay.wait_inbox(params.subject, params.limit, after=params.after, answer_to=params.answer_to)
    try:
        async with asyncio.timeout(params.timeout_ms / 1000):
            return MessageIds(ids=await waiting)
    except TimeoutError:
        return MessageIds(ids=[])


@handles("inbox.complete")
async def complete(context: ApiContext, connection: Connection, params: CompleteParams) -> Completed:
    """Finish a claimed message."""
    context.replies.check_reader(connection, params.subject, leftovers=True)
    late = await context.claims.complete(params.subject, params.id, late=params.late)
    return Completed(late=True if late else None)


@handles("inbox.fail")
async def fail_claim(context: ApiContext, connection: Connection, params: FailParams) -> Done:
    """Dead-letter a claimed message."""
    context.replies.check_reader(connection, params.subject, leftovers=True)
    await context.claims.fail(params.subject, params.id, params.reason)
    return Done()
