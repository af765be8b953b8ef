"""Messages from the stream, stored in the local bus before they are acknowledged.

1. A durable pull consumer: the server sends as many messages as we may have in flight, and sends those again that we
   have not settled in time. A slow message is extended, so the server waits only for a relay that died.
2. Messages of one subject are published one after another in stream order; different subjects are published
   concurrently, so that they share the store's commits.
3. Settling:

   =========================================  ========================================================
   stored in the bus, or dead-lettered        ack
   denied by a rule or a missing binding      ack; the bus has traced it
   rate, pressure, breaker, disk full,        nak: it is sent again after `refusedDelaySecs`, and the
   a broken file of access rules              status has the count
   the adapter is stopping                    nak: it is sent again at once
   our own, or looped                         ack; it is not published
   invalid                                    term after a copy is stored: it is not sent again
   =========================================  ========================================================

4. A message that is sent again has the same dedupe id: the bus returns the first outcome. If that was a refusal that
   left something on disk, the result has the same message id as before, and the message is acknowledged.
5. Silence for three heartbeats ends the connection. Messages of other clients to the consumer's inbox are ignored.
6. The position up to which the server has settled everything is saved before the first request and regularly after
   it (see `files`): even a relay that was connected only briefly resumes there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from zlib import crc32

import orjson
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error

from relay_core.adapters.interface import AdapterContext
from relay_core.clock import sleep
from relay_core.errors import AccessDenied, Closed, InvalidPayload, InvalidSubject, RelayError, StorageError
from relay_supervisor.adapters.nats.config import NatsConfig
from relay_supervisor.adapters.nats.connection import NatsConnection
from relay_supervisor.adapters.nats.crossing import RELAY, Incoming, Poison, has_looped, unpack
from relay_supervisor.adapters.nats.faults import Fault, describe
from relay_supervisor.adapters.nats.files import Position, keep_copy, write_position
from relay_supervisor.adapters.nats.put_off import PutOff
from relay_supervisor.adapters.nats.stream import find_settled

_HEARTBEAT_SECS = 5.0
_EXPIRES_SECS = 30.0
_RETURN_SECS = 3.0
_WORKERS = 16
_PAUSE_SECS = 1.0
_POSITION_SECS = 10.0
_REQUEST_OVER = frozenset({"404", "408"})
"""Statuses that end a request for messages normally: none available, or expired."""

Settle = Callable[[], Awaitable[None]]


class Imports:
    """The messages of one connection's consumer."""

    def __init__(
        self,
        connection: NatsConnection,
        context: AdapterContext,
        config: NatsConfig,
        relay: str,
        position: Position,
        put_off: PutOff,
        on_refused: Callable[[str], None],
        on_put_off: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._context = context
        self._config = config
        self._relay = relay
        self._position = position
        self._put_off = put_off
        self._on_refused = on_refused
        self._on_put_off = on_put_off
        self._next = f"{config.api}.CONSUMER.MSG.NEXT.{config.stream}.{position.durable}"
        self._inbox: Subscription | None = None
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()
        self._queues: list[asyncio.Queue[Msg]] = [asyncio.Queue() for _ in range(_WORKERS)]
        self._slots = asyncio.Semaphore(config.max_in_flight)
        self._in_flight: dict[str, Msg] = {}
        """By reply subject, which differs each time a message is sent."""

    async def save_position(self) -> None:
        """Save the position; a failure is logged."""
        try:
            await asyncio.to_thread(write_position, self._context.data_dir, self._position)
        except StorageError as error:
            self._context.logger.warning("the position in the stream could not be saved: %s", error.message)

    async def run(self) -> None:
        """Import messages until the connection is lost or this is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for queue in self._queues:
                    group.create_task(self._process(queue))
                group.create_task(self._extend())
                group.create_task(self._track_position())
                await self._pull()
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            if not isinstance(first, Error | OSError):
                self._context.logger.error("the import failed", exc_info=first)
            self._connection.lose(f"the import ended: {describe(first)}")
        finally:
            if not self._connection.lost.is_set():
                await self._return_messages()

    async def _pull(self) -> None:
        client = self._connection.client
        inbox = client.new_inbox()
        self._inbox = await client.subscribe(inbox, cb=self._arrived.put, pending_bytes_limit=0)
        batch = self._config.max_in_flight
        request = {
            "batch": batch,
            "expires": int(_EXPIRES_SECS * 1e9),
            "idle_heartbeat": int(_HEARTBEAT_SECS * 1e9),
        }
        due = 0
        while True:
            if due <= 0:
                await client.publish(self._next, orjson.dumps(request), reply=inbox)
                due = batch
            try:
                async with asyncio.timeout(3 * _HEARTBEAT_SECS):
                    msg = await self._arrived.get()
            except TimeoutError:
                why = self._connection.denial or "the server sends neither messages nor heartbeats"
                raise Error(why) from None
            if self._is_message(msg):
                due -= 1
                self._in_flight[msg.reply] = msg
                await self._slots.acquire()
                self._queues[crc32(msg.subject.encode()) % _WORKERS].put_nowait(msg)
            else:
                due = await self._handle_status(msg, due)

    def _is_message(self, msg: Msg) -> bool:
        """Return True if it is our consumer's, by its reply subject: any client can send a Status header."""
        try:
            about = msg.metadata
        except (Error, ValueError, OverflowError):
            return False
        return (about.stream, about.consumer) == (self._config.stream, self._position.durable)

    async def _handle_status(self, msg: Msg, due: int) -> int:
        """Handle the status of a request; return how many of its messages are still due."""
        status = (msg.headers or {}).get("Status")
        if status in _REQUEST_OVER:
            return 0
        if status == "409" and "deleted" not in (msg.headers or {}).get("Description", "").lower():
            await sleep(self._context.clock, _PAUSE_SECS)  # the next request would get the same response
            return 0
        if status in ("409", "503"):
            raise Error(f"the consumer no longer exists ({status})")
        return due

    async def _return_messages(self) -> None:
        """Have the server send unsettled messages to the next client at once."""
        with suppress(Error, OSError, TimeoutError):
            async with asyncio.timeout(_RETURN_SECS):
                if self._inbox is not None:
                    await self._inbox.drain()  # type: ignore[no-untyped-call]  # messages on their way arrive
                while not self._arrived.empty():
                    msg = self._arrived.get_nowait()
                    if self._is_message(msg):
                        self._in_flight[msg.reply] = msg
                for msg in self._in_flight.values():
                    with suppress(Error):  # it was settled at this moment
                        await msg.nak()
                await self._connection.client.flush()

    async def _process(self, queue: asyncio.Queue[Msg]) -> None:
        while True:
            msg = await queue.get()
            try:
                settle = await self._accept(msg)
                await settle()
                self._in_flight.pop(msg.reply, None)
            finally:
                self._slots.release()

    async def _extend(self) -> None:
        """Keep the server from sending slow messages again."""
        while True:
            await sleep(self._context.clock, self._config.ack_wait_secs / 3)
            for msg in list(self._in_flight.values()):
                await msg.in_progress()
            self._put_off.forget_old()
            self._on_put_off()

    async def _track_position(self) -> None:
        """Save the position whenever it has advanced."""
        while True:
            settled = self._position.settled
            while settled <= self._position.settled:
                await sleep(self._context.clock, _POSITION_SECS)
                with suppress(Fault):  # the other tasks notice a lost connection
                    settled = await find_settled(self._connection, self._position.durable)
            self._position = self._position.model_copy(update={"settled": settled})
            await self.save_position()

    async def _accept(self, msg: Msg) -> Settle:
        """Publish a message and return how to settle it."""
        headers = {name.lower(): str(value) for name, value in (msg.headers or {}).items()}
        if headers.get(RELAY) == self._relay:
            return msg.ack
        about = msg.metadata
        place = f"{about.stream}-{about.sequence.stream}-{int(about.timestamp.timestamp() * 1000)}"
        try:
            incoming = unpack(msg.subject, msg.data, headers, self._config, self._context.adapter_id, place)
            if has_looped(incoming.budget.ancestor_chain or (), self._relay):
                return msg.ack
            return await self._publish(msg, incoming)
        except Poison as poison:
            return await self._refuse(msg, place, headers, str(poison))

    async def _publish(self, msg: Msg, incoming: Incoming) -> Settle:
        try:
            result = await self._context.publish(
                incoming.subject,
                incoming.payload,
                sender=incoming.sender,
                reply_to=incoming.reply_to,
                budget=incoming.budget,
                dedupe_id=incoming.dedupe_id,
            )
        except (InvalidSubject, InvalidPayload) as error:
            raise Poison(error.message if error.code != "payload_not_json" else "the body is not JSON") from None
        except AccessDenied as error:
            return self._later(msg, error.code) if error.code == "rules_broken" else self._settled(msg)
        except Closed:
            return msg.nak
        except RelayError as error:
            self._context.logger.warning("an imported message was not accepted: %s", error.message)
            return self._later(msg, error.code)
        except Exception:
            self._context.logger.exception("an imported message was not accepted")
            return self._later(msg, "internal_error")
        number = msg.metadata.sequence.stream
        if result.put_off and not self._put_off.is_remembered(number, result.message_id):
            return self._later(msg, ", ".join(sorted(result.put_off)), result.message_id)
        return self._settled(msg)

    async def _refuse(self, msg: Msg, place: str, headers: dict[str, str], why: str) -> Settle:
        try:
            is_new = await asyncio.to_thread(
                keep_copy, self._context.data_dir, place, msg.subject, headers, msg.data, why
            )
        except (OSError, StorageError) as error:
            self._context.logger.warning("the copy of a refused message could not be stored: %s", error)
            return self._later(msg, "refused, its copy could not be stored")
        if is_new:
            self._context.logger.warning("message %s was refused: %s", place, why)
            self._on_refused(why)
        self._put_off.settle(msg.metadata.sequence.stream)
        return msg.term

    def _later(self, msg: Msg, why: str, message_id: str | None = None) -> Settle:
        self._put_off.note(msg.metadata.sequence.stream, why, message_id)
        self._on_put_off()
        return lambda: msg.nak(delay=self._config.refused_delay_secs)

    def _settled(self, msg: Msg) -> Settle:
        self._put_off.settle(msg.metadata.sequence.stream)
        self._on_put_off()
        return msg.ack
