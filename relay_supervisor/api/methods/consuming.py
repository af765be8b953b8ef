"""Push consumers (`subscribe`) and pull consumers (`inbox`)."""

from __future__ import annotations

import asyncio

from relay_core.protocol import consuming as wire
from relay_core.protocol.base import ListParams
from relay_supervisor.api.context import ApiContext
from relay_supervisor.api.methods.handlers import handles
from relay_supervisor.api.subscription_list import list_subscriptions
from relay_supervisor.server.connection import Connection


@handles("subscribe")
async def subscribe(context: ApiContext, connection: Connection, params: wire.SubscribeParams) -> wire.Subscribed:
    context.replies.check_reader(connection, params.pattern)
    context.check_subscriptions(connection)
    subscription_id = await context.consumers.subscribe(
        connection, params.pattern, params.max_in_flight, queue=params.queue, starts=params.starts
    )
    return wire.Subscribed(subscription_id=subscription_id)


@handles("unsubscribe")
async def unsubscribe(context: ApiContext, connection: Connection, params: wire.SubscriptionParams) -> None:
    await context.consumers.unsubscribe(connection, params.subscription_id)


@handles("subscriptions.list")
def subscriptions(context: ApiContext, connection: Connection, params: ListParams) -> wire.SubscriptionList:
    """List the subscriptions of all connections; a token's holder sees those of its token."""
    rows, cursor = list_subscriptions(context, connection, params.cursor, params.limit)
    return wire.SubscriptionList(subscriptions=rows, cursor=cursor)


@handles("start")
def start(context: ApiContext, connection: Connection, params: wire.DeliveryParams) -> None:
    context.consumers.start(connection, params.delivery_id)


@handles("ack")
def ack(context: ApiContext, connection: Connection, params: wire.DeliveryParams) -> None:
    context.consumers.ack(connection, params.delivery_id)


@handles("fail")
def fail(context: ApiContext, connection: Connection, params: wire.FailDeliveryParams) -> None:
    context.consumers.fail(connection, params.delivery_id, params.reason, put_back=params.put_back)


@handles("inbox.peek")
async def peek(context: ApiContext, connection: Connection, params: wire.PeekParams) -> wire.Messages:
    context.replies.check_reader(connection, params.subject, leftovers=True)
    return wire.Messages(messages=await context.claims.peek(connection, params.subject, params.limit, params.after))


@handles("inbox.claim")
async def claim(context: ApiContext, connection: Connection, params: wire.ClaimParams) -> wire.Messages:
    context.replies.check_reader(connection, params.subject, leftovers=True)
    limit = params.limit if params.ids is None else len(params.ids)
    claimed = await context.claims.claim(connection, params.subject, limit, params.lease_ms, params.ids)
    return wire.Messages(messages=claimed)


@handles("inbox.wait")
async def wait(context: ApiContext, connection: Connection, params: wire.WaitParams) -> wire.MessageIds:
    context.replies.check_reader(connection, params.subject, leftovers=True)
    waiting = context.relay.wait_inbox(params.subject, params.limit, after=params.after, answer_to=params.answer_to)
    try:
        async with asyncio.timeout(params.timeout_ms / 1000):
            return wire.MessageIds(ids=await waiting)
    except TimeoutError:
        return wire.MessageIds(ids=[])


@handles("inbox.complete")
async def complete(context: ApiContext, connection: Connection, params: wire.CompleteParams) -> wire.Completed:
    context.replies.check_reader(connection, params.subject, leftovers=True)
    late = await context.claims.complete(params.subject, params.id, late=params.late)
    return wire.Completed(late=True if late else None)


@handles("inbox.fail")
async def fail_claim(context: ApiContext, connection: Connection, params: wire.FailParams) -> None:
    context.replies.check_reader(connection, params.subject, leftovers=True)
    await context.claims.fail(params.subject, params.id, params.reason)
