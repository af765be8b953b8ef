"""Messages claimed by pull consumers, held until they are completed or failed.

1. A claim ends with its connection: the message is dead-lettered as `disconnected`, since how far the client came is
   unknown.
2. A claim with a lease survives its connection: the message is dead-lettered as `timeout` when the lease runs out.
3. An answer holds as many messages as fit into a frame.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import orjson

from relay_core.clock import Timer, call_later
from relay_core.core import RelayCore
from relay_core.errors import Closed, NotFound
from relay_core.messages.dead_letter import Code
from relay_core.messages.envelope import Envelope
from relay_core.protocol.frames import MAX_FRAME
from relay_core.tasks import Tasks
from relay_supervisor.server.connection import Connection

_ROOM = MAX_FRAME // 2
"""Bytes of messages in one answer, so that it fits into a frame."""
_GONE = "the consumer has disconnected"
_YIELD_EVERY = 16


class Claims:
    """The messages that pull consumers have claimed."""

    def __init__(self, relay: RelayCore, tasks: Tasks) -> None:
        self._relay = relay
        self._tasks = tasks
        self._claims: dict[tuple[str, str], _Claim] = {}
        self._claimed_by: dict[Connection, set[tuple[str, str]]] = {}
        """Claims that end with their connection."""

    def pending(self) -> list[asyncio.Future[None]]:
        """Return futures that end with the claims, leases left out."""
        return [claim.ended for claim in self._claims.values() if claim.timer is None]

    async def peek(self, connection: Connection, subject: str, limit: int, after: str | None) -> list[Envelope]:
        """Return waiting messages, as many as fit into an answer."""
        messages = await self._relay.inbox(subject, limit, room=_ROOM, after=after)
        for envelope in messages:
            self._relay.note_reader(envelope, connection.identity.reader)
        return messages

    async def claim(
        self, connection: Connection, subject: str, limit: int, lease_ms: int | None, ids: list[str] | None = None
    ) -> list[Envelope]:
        """Claim waiting messages, as many as fit into an answer, for a connection or with a lease."""
        taken: list[Envelope] = []
        size = 0
        wanted = iter(ids) if ids is not None else None
        while len(taken) < limit and size < _ROOM:
            if len(taken) % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
            if connection.closed:  # earlier claims are dead-lettered, or wait for their lease
                raise Closed("the connection is closed")
            found = await self._relay.claim(subject, 1, ids=wanted)
            if not found:
                break
            size += _size(found[0])
            taken += found
            self._relay.note_reader(found[0], connection.identity.reader)
            self._hold(connection, subject, found[0].id, lease_ms)
        return taken

    async def complete(self, subject: str, message_id: str, *, late: bool) -> bool:
        """Finish a claimed message; return True if it was late."""
        was_late = await self._relay.complete(subject, message_id, late=late)
        self._release((subject, message_id))
        return was_late

    async def fail(self, subject: str, message_id: str, reason: str) -> None:
        """Dead-letter a claimed message."""
        await self._relay.fail(subject, message_id, reason)
        self._release((subject, message_id))

    def _hold(self, connection: Connection, subject: str, message_id: str, lease_ms: int | None) -> None:
        key = (subject, message_id)
        if lease_ms is not None:
            reason = f"not completed within {lease_ms / 1000:g} s"
            clock = self._relay.clock
            timer = call_later(clock, lease_ms / 1000, lambda: self._abandon(key, Code.TIMEOUT, reason))
            self._claims[key] = _Claim(None, timer)
            return
        self._claims[key] = _Claim(connection, None)
        if connection.closed:
            self._abandon(key, Code.DISCONNECTED, _GONE)
            return
        if connection not in self._claimed_by:
            self._claimed_by[connection] = set()
            connection.on_closed(lambda: self._abandon_all(connection))
        self._claimed_by[connection].add(key)

    def _release(self, key: tuple[str, str]) -> bool:
        """End a claim; return False if it has already ended."""
        claim = self._claims.pop(key, None)
        if claim is None:
            return False
        if claim.timer is not None:
            claim.timer.cancel()
        if claim.connection in self._claimed_by:
            self._claimed_by[claim.connection].discard(key)
        claim.ended.set_result(None)
        return True

    def _abandon_all(self, connection: Connection) -> None:
        for key in self._claimed_by.pop(connection):
            self._abandon(key, Code.DISCONNECTED, _GONE)

    def _abandon(self, key: tuple[str, str], code: str, reason: str) -> None:
        if self._release(key):
            self._tasks.start(self._dead_letter(*key, code, reason), name="abandon a claim")

    async def _dead_letter(self, subject: str, message_id: str, code: str, reason: str) -> None:
        with suppress(NotFound):  # the mailbox was removed
            await self._relay.abandon(subject, message_id, reason, code=code)


class _Claim:
    """A message that a pull consumer holds while it is connected, or until its lease ends."""

    def __init__(self, connection: Connection | None, timer: Timer | None) -> None:
        self.connection = connection
        self.timer = timer
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()


def _size(envelope: Envelope) -> int:
    return len(orjson.dumps(envelope.payload)) + 1024
