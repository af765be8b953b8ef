"""The adapter: keeps a connection, exports messages, and reports its status.

1. A start fails if every server refuses us (credentials, stream, permission): an operator must act. If a server cannot
   be reached, the adapter runs, its mail waits on disk, and it reconnects (after 0.5 s, 1 s … 30 s).
2. ``connected`` means that the stream has been checked on this connection. A lost connection, or a later refusal, is
   reported at once, and the next server is tried.
3. A message without an acknowledgement is sent again under the same id, as long as the stream recognises ids (its
   duplicate window). After that it fails: the stream may have it or not, and an operator decides.
4. A message that another relay would refuse is not sent: it fails here, where its sender is notified.
5. The bus's own subjects, which a pattern such as ``relay.>`` covers, are accepted but not sent. Failing them would be
   wrong: their local consumers get them, and the fault would be the pattern's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from typing import TYPE_CHECKING, ClassVar
from zlib import crc32

from relay_core.adapters.interface import AdapterContext, DeliveryContext, DeliveryResult
from relay_core.clock import sleep
from relay_core.errors import ConfigError
from relay_core.messages.envelope import Envelope
from relay_core.tasks import Tasks
from relay_supervisor.adapters.nats.config import NatsConfig, is_reserved
from relay_supervisor.adapters.nats.crossing import Poison, bridge_subject, pack
from relay_supervisor.adapters.nats.faults import Fault, Lost, NotSent, OutcomeUnknown, Refusal
from relay_supervisor.adapters.nats.files import REFUSED, read_position, relay_id
from relay_supervisor.adapters.nats.put_off import PutOff
from relay_supervisor.adapters.platform import PlatformAdapter

if TYPE_CHECKING:
    from relay_supervisor.adapters.nats.connection import NatsConnection

FIRST_WAIT_SECS = 0.5
LAST_WAIT_SECS = 30.0
RETRY_SECS = 1.0
_MOST_UNCONFIRMED = 1024


class NatsAdapter(PlatformAdapter):
    """A bridge to a NATS cluster."""

    config_model: ClassVar = NatsConfig

    def __init__(self, id: str, config: NatsConfig) -> None:
        super().__init__(id)
        # An adapter needs a pattern: a bridge that exports nothing accepts, and fails, messages to itself.
        self.patterns: Sequence[str] = config.export or (bridge_subject(id),)
        self.senders = (bridge_subject(id),)
        self.max_in_flight = config.lanes
        self._config = config
        self._connection: NatsConnection | None = None
        self._relay = ""
        self._was_connected = False
        self._refused = 0
        self._refused_why = ""
        self._put_off: PutOff | None = None
        self._announced: object = None
        """The level of `_put_off` that was announced last."""
        self._full: str | None = None
        """The reason why the stream accepts no messages, while it does not."""
        self._unconfirmed: dict[str, float] = {}
        """When a message without an acknowledgement was first sent."""

    def lane(self, subject: str) -> str | None:
        """Return one of a few lanes, the same for all messages of a subject."""
        return None if self._config.lanes == 1 else f"lane{crc32(subject.encode()) % self._config.lanes}"

    async def _open(self, context: AdapterContext, stack: AsyncExitStack) -> None:
        try:
            from relay_supervisor.adapters.nats import connection, imports  # noqa: F401
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "nats":
                raise
            raise ConfigError("the NATS bridge needs nats-py: run \"pip install 'relay-bus[nats]'\"") from None
        self._relay = await asyncio.to_thread(relay_id, context.data_dir.parent)
        tasks = Tasks()
        stack.push_async_callback(tasks.close)
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tasks.start(self._keep_connected(context, first), name=f"nats {self.id}")
        await first

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Publish a message to JetStream and wait for the acknowledgement."""
        if not self._config.export:
            return DeliveryResult(ok=False, error=f"no consumer for {envelope.subject}", code="import_only")
        if is_reserved(envelope.subject):
            return DeliveryResult(ok=True, detail=f"not exported: {envelope.subject} belongs to the bus")
        try:
            message = pack(envelope, self._config, self.id, self._relay, context.trace_id)
        except Poison as poison:
            return DeliveryResult(ok=False, error=f"other relays would refuse it: {poison}", code="not_for_export")
        connection = self._connection
        if connection is None or self._context is None:
            return DeliveryResult(ok=False, error="no connection to NATS", retry_after=RETRY_SECS)
        now = self._context.clock.monotonic()
        sent_at = self._unconfirmed.get(envelope.id)
        if sent_at is not None and now - sent_at > connection.window - self._config.publish_timeout_secs:
            del self._unconfirmed[envelope.id]
            return DeliveryResult(
                ok=False,
                error=f"no acknowledgement within the duplicate window of {connection.window:g} s: the stream may have "
                "it; relays accept it only once if it is replayed, other consumers may see it twice",
                code="unsure",
            )
        try:
            result = await connection.publish(message)
        except NotSent as fault:
            return DeliveryResult(ok=False, error=str(fault), retry_after=RETRY_SECS)
        except OutcomeUnknown as fault:
            self._unconfirmed.setdefault(envelope.id, now)
            if len(self._unconfirmed) > _MOST_UNCONFIRMED:
                del self._unconfirmed[next(iter(self._unconfirmed))]
            return DeliveryResult(ok=False, error=str(fault), code="unsure", retry_after=RETRY_SECS)
        if result.retry_after is None:
            self._unconfirmed.pop(envelope.id, None)
        self._note_full(result.error if result.retry_after is not None else None)
        return result

    async def _keep_connected(self, context: AdapterContext, first: asyncio.Future[None]) -> None:
        wait = FIRST_WAIT_SECS
        refusals: list[str] = []
        for position, server in cycle(enumerate(self._config.servers, 1)):
            is_last = position == len(self._config.servers)
            fault = await self._use(context, server, first)
            if isinstance(fault, Refusal):
                self._set_status("error", str(fault))
                if not first.done():
                    refusals.append(str(fault))
                    if is_last:
                        first.set_exception(Refusal("; ".join(dict.fromkeys(refusals))))
                        return
            else:
                self._set_status("disconnected", f"{fault}; retrying")
                if not first.done():
                    first.set_result(None)
            if self._was_connected:
                wait = FIRST_WAIT_SECS
            elif not is_last:
                continue  # the next server may work
            await sleep(context.clock, wait)
            wait = min(2 * wait, LAST_WAIT_SECS)

    async def _use(self, context: AdapterContext, server: str, first: asyncio.Future[None]) -> Fault:
        """Use one connection until it ends, and return the reason."""
        from relay_supervisor.adapters.nats.connection import connect
        from relay_supervisor.adapters.nats.imports import Imports
        from relay_supervisor.adapters.nats.stream import prepare_consumer, prepare_stream

        self._was_connected = False
        durable = self._config.durable or f"relay-{self._relay}-{self.id}"
        self._put_off = PutOff(context.clock, self._config.refused_delay_secs)
        self._announced = self._put_off.level
        try:
            async with connect(self._config, server, f"relay {self.id} {self._relay}") as connection:
                await prepare_stream(connection)
                imports = None
                if self._config.import_:
                    known = await asyncio.to_thread(read_position, context.data_dir)
                    position = await prepare_consumer(connection, durable, known)
                    imports = Imports(
                        connection, context, self._config, self._relay, position, self._put_off,
                        on_refused=self._note_refused, on_put_off=self._note_put_off,
                    )  # fmt: skip
                    await imports.save_position()
                self._connection = connection
                self._was_connected = True
                self._note_connected()
                if not first.done():
                    first.set_result(None)
                try:
                    async with asyncio.TaskGroup() as group:
                        work = group.create_task(imports.run()) if imports is not None else None
                        await connection.lost.wait()
                        if work is not None:
                            work.cancel()
                finally:
                    self._connection = None
                    self._set_status("disconnected", connection.why or "stopping")
                return Lost(connection.why)
        except Fault as fault:
            return fault
        except Exception as error:  # nats-py's: try the next connection
            context.logger.exception("the connection to NATS failed")
            return Lost(f"the connection failed: {type(error).__name__}")

    def _note_connected(self, *, announce: bool = True) -> None:
        if self._connection is None:
            return
        parts = [f"stream {self._config.stream} at {self._connection.where}"]
        if self._full is not None:
            parts.append(self._full)
        if self._refused and self._context is not None:
            copies = self._context.data_dir / REFUSED
            parts.append(f"{self._refused} incoming refused, the last one: {self._refused_why} (copies in {copies})")
        if self._put_off is not None and (text := self._put_off.describe()) is not None:
            parts.append(text)
        self._set_status("connected", "; ".join(parts), announce=announce)

    def _note_refused(self, why: str) -> None:
        self._refused += 1
        self._refused_why = why
        self._note_connected()

    def _note_put_off(self) -> None:
        # The status always has the exact number; only a new level is worth an event.
        if self._put_off is not None:
            level = self._put_off.level
            self._note_connected(announce=level != self._announced)
            self._announced = level

    def _note_full(self, why: str | None) -> None:
        if why != self._full:
            self._full = why
            self._note_connected()
