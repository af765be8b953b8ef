"""Publishing through the socket: the same pipeline, as a sender that the connection may be."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from relay_core.dedupe import dedupe_key
from relay_core.errors import RelayError
from relay_core.frames import error_to_wire
from relay_core.protocol import BatchParams, PublishParams
from relay_core.publication import Publication
from relay_core.results import PublishResult
from relay_core.subjects import is_pattern
from relay_supervisor.connection import Connection
from relay_supervisor.services import Services

_YIELD_EVERY = 32

_Begun = PublishResult | Coroutine[Any, Any, PublishResult]


def publish(services: Services, connection: Connection, params: PublishParams) -> _Begun:
    """Publish one message; answered at once if storing it needs no waiting."""
    bus = services.relay.bus
    connection.identity.check_sender(params.sender, bus.adapters.owner_of_sender)
    publication = Publication(params.subject, params.payload, params.sender)
    publication.reply_to = params.reply_to
    publication.overrides = params.budget
    publication.parent_id = params.parent_id
    publication.reader = connection.identity.reader
    services.replies.check_reply_to(connection, publication)
    if params.dedupe_id is not None:
        publication.dedupe = dedupe_key(params.sender, params.dedupe_id)
    if is_pattern(params.subject):
        connection.hold()  # what it publishes next comes after it
        return _broadcast(services, publication)
    return bus.begin(publication)


async def _broadcast(services: Services, publication: Publication) -> PublishResult:
    """Publish to a pattern, one after the other over all connections: each may make thousands of copies."""
    async with services.broadcasting:
        begun = services.relay.bus.begin(publication)
        if asyncio.iscoroutine(begun):
            return await begun
        await asyncio.sleep(0)  # one in a turn of the loop, also if it needed no waiting
        return begun


async def publish_batch(services: Services, connection: Connection, params: BatchParams) -> Any:
    """Publish many; each stands for itself, and those that wait for the disk wait together."""
    begun: list[_Begun | RelayError] = []
    for number, message in enumerate(params.messages, 1):
        try:
            one = publish(services, connection, message)
            begun.append(await one if asyncio.iscoroutine(one) and is_pattern(message.subject) else one)
        except RelayError as error:
            begun.append(error)
        if number % _YIELD_EVERY == 0:
            await asyncio.sleep(0)
    waiting = [one for one in begun if asyncio.iscoroutine(one)]
    ended = iter(await asyncio.gather(*waiting, return_exceptions=True))
    return {"results": [_outcome(next(ended) if asyncio.iscoroutine(one) else one) for one in begun]}


def _outcome(ended: Any) -> dict[str, Any]:
    if isinstance(ended, PublishResult):
        return {"result": ended}
    return {"error": error_to_wire(ended)}
