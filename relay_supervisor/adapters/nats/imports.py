"""Messages from the stream, stored in the local bus before they are acknowledged.

1. A durable pull consumer: the server sends what we ask for, as many as we may have in hand, and sends again what we
   have not settled in time. What takes long is extended, so only a relay that died is waited for.
2. Messages of one subject are published one after another in the order of the stream; different subjects go side by
   side, so that they share the store's commits.
3. Settled how:

   =========================================  ========================================================
   the bus has it, or a dead letter of it     ack
   denied by a rule or for want of a binding  ack; the bus has traced it
   rate, pressure, breaker, disk full,        nak: it comes again after `refusedDelaySecs`, and the status
   a broken file of access rules              says how many do
   the adapter is being stopped               nak: it comes again at once
   our own, or come round                     ack; it is not published
   it can never be let in                     a copy is kept, term: it does not come again
   =========================================  ========================================================

4. A message that comes again has the same dedupe id: the bus answers with the first outcome. If that one was a
   refusal that left something on disk, the answer has the same message id as before, and it is acknowledged.
5. No word from the server for three heartbeats ends the link. What anybody else sends to the consumer's inbox counts
   for nothing.
6. How far the server knows everything to be settled is written down before anything is asked for, and now and then
   (see `position`): also a relay that was there only for a moment goes on from there.
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
from relay_supervisor.adapters.nats.crossing import RELAY, Incoming, Poison, has_come_round, unpack
from relay_supervisor.adapters.nats.faults import Fault, describe
from relay_supervisor.adapters.nats.position import Position, write_position
from relay_supervisor.adapters.nats.put_off import PutOff
from relay_supervisor.adapters.nats.refused import keep_copy
from relay_supervisor.adapters.nats.stream import find_settled

_HEARTBEAT_SECS = 5.0
_EXPIRES_SECS = 30.0
_GIVE_BACK_SECS = 3.0
_WORKERS = 16
_PAUSE_SECS = 1.0
_POSITION_SECS = 10.0
_NEXT_PLEASE = frozenset({"404", "408"})
"""Statuses that end a request for messages in the normal way: none there, or time is up."""


class Imports:
    """The messages of one link's consumer."""

    def __init__(
        self,
        link: NatsConnection,
        context: AdapterContext,
        config: NatsConfig,
        relay: str,
        position: Position,
        put_off: PutOff,
        on_refused: Callable[[str], None],
        on_put_off: Callable[[], None],
    ) -> None:
        self._link = link
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
        self._lines: list[asyncio.Queue[Msg]] = [asyncio.Queue() for _ in range(_WORKERS)]
        self._room = asyncio.Semaphore(config.max_in_flight)
        self._in_hand: dict[str, Msg] = {}
        """By reply subject, which is different for every time a message is sent."""

    async def write_down(self) -> None:
        """Keep the position; a disk that refuses is logged."""
        try:
            await asyncio.to_thread(write_position, self._context.data_dir, self._position)
        except StorageError as error:
            self._context.logger.warning("the position in the stream could not be kept: %s", error.message)

    async def run(self) -> None:
        """Let messages in until the link is lost or this is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for line in self._lines:
                    group.create_task(self._work(line))
                group.create_task(self._extend())
                group.create_task(self._remember())
                await self._pull()
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            if not isinstance(first, Error | OSError):
                self._context.logger.error("the import failed", exc_info=first)
            self._link.lose(f"the import ended: {describe(first)}")
        finally:
            if not self._link.lost.is_set():
                await self._give_back()

    async def _pull(self) -> None:
        client = self._link.client
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
                why = self._link.denial or "the server sends neither messages nor heartbeats"
                raise Error(why) from None
            if self._is_message(msg):
                due -= 1
                self._in_hand[msg.reply] = msg
                await self._room.acquire()
                self._lines[crc32(msg.subject.encode()) % _WORKERS].put_nowait(msg)
            else:
                due = await self._hear(msg, due)

    def _is_message(self, msg: Msg) -> bool:
        """Tell whether it is our consumer's, by its reply subject: anybody can send one with a header called Status."""
        try:
            about = msg.metadata
        except (Error, ValueError, OverflowError):
            return False
        return (about.stream, about.consumer) == (self._config.stream, self._position.durable)

    async def _hear(self, msg: Msg, due: int) -> int:
        """Take notice of what the server says about a request; return how many messages of it are still to come."""
        status = (msg.headers or {}).get("Status")
        if status in _NEXT_PLEASE:
            return 0
        if status == "409" and not _is_gone(msg):
            await sleep(self._context.clock, _PAUSE_SECS)  # it will not like the next request any better
            return 0
        if status in ("409", "503"):
            raise Error(f"the consumer is not there any more ({status})")
        return due

    async def _give_back(self) -> None:
        """Have the server send what we have not settled to the next one who asks, at once."""
        with suppress(Error, OSError, TimeoutError):
            async with asyncio.timeout(_GIVE_BACK_SECS):
                if self._inbox is not None:
                    await self._inbox.drain()  # type: ignore[no-untyped-call]  # what is on its way arrives
                while not self._arrived.empty():
                    msg = self._arrived.get_nowait()
                    if self._is_message(msg):
                        self._in_hand[msg.reply] = msg
                for msg in self._in_hand.values():
                    with suppress(Error):  # of one that was settled in this very moment
                        await msg.nak()
                await self._link.client.flush()

    async def _work(self, line: asyncio.Queue[Msg]) -> None:
        while True:
            msg = await line.get()
            try:
                settle = await self._let_in(msg)
                await settle()
                self._in_hand.pop(msg.reply, None)
            finally:
                self._room.release()

    async def _extend(self) -> None:
        """Tell the server of what is in hand for long that it is."""
        while True:
            await sleep(self._context.clock, self._config.ack_wait_secs / 3)
            for msg in list(self._in_hand.values()):
                await msg.in_progress()
            self._put_off.forget_old()
            self._on_put_off()

    async def _remember(self) -> None:
        """Write down how far everything is settled, whenever it is further."""
        while True:
            settled = self._position.settled
            while settled <= self._position.settled:
                await sleep(self._context.clock, _POSITION_SECS)
                with suppress(Fault):  # the others find out what is the matter
                    settled = await find_settled(self._link, self._position.durable)
            self._position = self._position.model_copy(update={"settled": settled})
            await self.write_down()

    async def _let_in(self, msg: Msg) -> Callable[[], Awaitable[None]]:
        """Publish a message and return how to settle it."""
        headers = {name.lower(): str(value) for name, value in (msg.headers or {}).items()}
        if headers.get(RELAY) == self._relay:
            return msg.ack
        about = msg.metadata
        place = f"{about.stream}-{about.sequence.stream}-{int(about.timestamp.timestamp() * 1000)}"
        try:
            incoming = unpack(msg.subject, msg.data, headers, self._config, self._context.adapter_id, place)
            if has_come_round(incoming.budget.ancestor_chain or (), self._relay):
                return msg.ack
            return await self._publish(msg, incoming)
        except Poison as poison:
            return await self._refuse(msg, place, headers, str(poison))

    async def _publish(self, msg: Msg, incoming: Incoming) -> Callable[[], Awaitable[None]]:
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
            self._context.logger.warning("an imported message was not taken: %s", error.message)
            return self._later(msg, error.code)
        except Exception:
            self._context.logger.exception("an imported message was not taken")
            return self._later(msg, "internal_error")
        number = msg.metadata.sequence.stream
        if result.put_off and not self._put_off.is_remembered(number, result.message_id):
            return self._later(msg, ", ".join(sorted(result.put_off)), result.message_id)
        return self._settled(msg)

    async def _refuse(self, msg: Msg, place: str, headers: dict[str, str], why: str) -> Callable[[], Awaitable[None]]:
        try:
            is_new = await asyncio.to_thread(
                keep_copy, self._context.data_dir, place, msg.subject, headers, msg.data, why
            )
        except (OSError, StorageError) as error:
            self._context.logger.warning("the copy of a refused message could not be kept: %s", error)
            return self._later(msg, "refused, its copy could not be kept")
        if is_new:
            self._context.logger.warning("message %s was refused: %s", place, why)
            self._on_refused(why)
        self._put_off.settle(msg.metadata.sequence.stream)
        return msg.term

    def _later(self, msg: Msg, why: str, message_id: str | None = None) -> Callable[[], Awaitable[None]]:
        self._put_off.note(msg.metadata.sequence.stream, why, message_id)
        self._on_put_off()
        return lambda: msg.nak(delay=self._config.refused_delay_secs)

    def _settled(self, msg: Msg) -> Callable[[], Awaitable[None]]:
        self._put_off.settle(msg.metadata.sequence.stream)
        self._on_put_off()
        return msg.ack


def _is_gone(msg: Msg) -> bool:
    return "deleted" in (msg.headers or {}).get("Description", "").lower()
