"""Publishing through the socket, as a sender that the connection may use."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from relay_core.errors import RelayError
from relay_core.messages.results import PublishResult
from relay_core.messages.subjects import is_pattern
from relay_core.pipeline.pending_publish import PendingPublish
from relay_core.pipeline.publisher import BegunPublish
from relay_core.protocol.frames import error_to_wire
from relay_core.protocol.publishing import BatchParams, PublishParams
from relay_supervisor.api.context import ApiContext
from relay_supervisor.api.methods.handlers import handles
from relay_supervisor.server.connection import Connection

_YIELD_EVERY = 32
_FEW = 16
"""Targets of a broadcast that is published like any other message."""


@handles("publish")
def publish(
    context: ApiContext, connection: Connection, params: PublishParams
) -> BegunPublish | Coroutine[Any, Any, PublishResult]:
    """Publish a message; the result is immediate if storing it needs no await."""
    connection.identity.check_sender(params.sender, context.relay.owner_of_sender)
    context.replies.check_reply_to(connection, params)
    if is_pattern(params.subject):
        connection.hold()  # so that consumers keep up, and the copies need no files
        if context.relay.count_matching(params.subject) > _FEW:
            return _broadcast(context, connection, params)
    return _begin(context, connection, params)


def _begin(context: ApiContext, connection: Connection, params: PublishParams) -> BegunPublish:
    return context.relay.begin_publish(
        params.subject,
        params.payload,
        sender=params.sender,
        reply_to=params.reply_to,
        budget=params.budget,
        parent_id=params.parent_id,
        dedupe_id=params.dedupe_id,
        reader=connection.identity.reader,
    )


async def _broadcast(context: ApiContext, connection: Connection, params: PublishParams) -> PublishResult:
    """Publish to many endpoints, one at a time over all connections: each publish may make thousands of copies."""
    async with context.broadcasting:
        begun = _begin(context, connection, params)
        if not isinstance(begun, PublishResult):
            return await begun
        await asyncio.sleep(0)  # at most one per turn of the loop
        return begun


@handles("publish.batch")
async def publish_batch(context: ApiContext, connection: Connection, params: BatchParams) -> Any:
    """Publish many independent messages; those that wait for the disk wait together."""
    begun: list[BegunPublish | RelayError] = []
    for number, message in enumerate(params.messages, 1):
        try:
            started = publish(context, connection, message)
            begun.append(await started if isinstance(started, Coroutine) else started)
        except RelayError as error:
            begun.append(error)
        if number % _YIELD_EVERY == 0:
            await asyncio.sleep(0)
    return {"results": [await _outcome(started) for started in begun]}


async def _outcome(begun: BegunPublish | RelayError) -> dict[str, Any]:
    try:
        if isinstance(begun, PendingPublish):
            begun = await begun
    except Exception as error:
        return {"error": error_to_wire(error)}
    return {"result": begun} if isinstance(begun, PublishResult) else {"error": error_to_wire(begun)}
