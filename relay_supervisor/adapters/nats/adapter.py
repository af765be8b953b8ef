"""The adapter: one link after another, what it exports, and how it says it is doing.

1. Starting fails if every server refuses us (credentials, stream, permission): that needs a person. With one that
   cannot be reached the adapter runs, its mail waits on disk, and it connects when it can (0.5 s, 1 s … 30 s).
2. ``connected`` means that the stream has been checked in this connection. Losing it, or a refusal later on, is said
   at once; the next link is tried all the same.
3. A message whose acknowledgement did not come is sent again under the same id, for as long as the stream knows ids
   again (its duplicate window). After that it fails: the stream may have it or not, and a person decides.
4. A message that another relay would not let in is not sent: it fails here, where its sender learns of it.
5. The bus's own subjects, which a pattern such as ``relay.>`` covers, are taken and not sent. To fail them would be
   wrong: whoever else takes them here has them, and the pattern, not the message, would be at fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, ClassVar
from zlib import crc32

from relay_core.adapters.interface import AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult
from relay_core.clock import sleep
from relay_core.errors import ConfigError
from relay_core.messages.envelope import Envelope
from relay_core.messages.operator_views import StateName
from relay_core.tasks import Tasks
from relay_supervisor.adapters.nats.config import NatsConfig, is_reserved
from relay_supervisor.adapters.nats.crossing import Poison, own_sender, pack
from relay_supervisor.adapters.nats.faults import Fault, Lost, NotSent, Refusal, Unsure
from relay_supervisor.adapters.nats.identity import relay_id
from relay_supervisor.adapters.nats.position import read_position
from relay_supervisor.adapters.nats.put_off import PutOff
from relay_supervisor.adapters.nats.refused import DIRECTORY

if TYPE_CHECKING:
    from relay_supervisor.adapters.nats.connection import NatsConnection

FIRST_WAIT_SECS = 0.5
LAST_WAIT_SECS = 30.0
RETRY_SECS = 1.0
_MOST_UNSURE = 1024


class NatsAdapter:
    """A bridge to a NATS cluster."""

    config_model: ClassVar = NatsConfig

    def __init__(self, id: str, config: NatsConfig) -> None:
        self.id = id
        # An adapter must take something: a bridge that exports nothing takes, and refuses, what is sent to itself.
        self.patterns: Sequence[str] = config.export or (own_sender(id),)
        self.senders = (own_sender(id),)
        self.max_in_flight = config.lanes
        self.status = AdapterStatus("disconnected", "not started")
        self._config = config
        self._context: AdapterContext | None = None
        self._tasks = Tasks()
        self._link: NatsConnection | None = None
        self._relay = ""
        self._was_linked = False
        self._refused = 0
        self._refused_why = ""
        self._put_off: PutOff | None = None
        self._told: object = None
        """What was said last of those that were put off."""
        self._full: str | None = None
        """Why the stream takes nothing more, while it does not."""
        self._unsure: dict[str, float] = {}
        """When a message was first sent without an acknowledgement."""

    def lane(self, subject: str) -> str | None:
        """Return the line of a subject: one of a few, always the same."""
        return None if self._config.lanes == 1 else f"lane{crc32(subject.encode()) % self._config.lanes}"

    async def start(self, context: AdapterContext) -> None:
        """Connect, or begin to try.

        Raises:
            ConfigError: if nats-py is not installed.
            Refusal: if the server will not have us.
        """
        try:
            from relay_supervisor.adapters.nats import connection, imports  # noqa: F401
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "nats":
                raise
            raise ConfigError("the NATS bridge needs nats-py: run \"pip install 'relay-bus[nats]'\"") from None
        self._relay = await asyncio.to_thread(relay_id, context.data_dir.parent)
        self._context = context
        self._tasks = Tasks()
        self._say("starting", None)
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.start(self._keep_linked(context, first), name=f"nats {self.id}")
        await first

    async def stop(self) -> None:
        """Let go of the connection."""
        await self._tasks.close()
        self._link = None
        self._context = None
        self.status = AdapterStatus("disconnected", "stopped")

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Give a message to JetStream; it is delivered once JetStream has it."""
        if not self._config.export:
            return DeliveryResult(ok=False, error=f"{envelope.subject} has nobody behind it", code="import_only")
        if is_reserved(envelope.subject):
            return DeliveryResult(ok=True, detail=f"not exported: {envelope.subject} is the bus's own")
        try:
            message = pack(envelope, self._config, self.id, self._relay, context.trace_id)
        except Poison as poison:
            return DeliveryResult(ok=False, error=f"no other relay would let it in: {poison}", code="not_for_export")
        link = self._link
        if link is None or self._context is None:
            return DeliveryResult(ok=False, error="no connection to NATS", retry_after=RETRY_SECS)
        now = self._context.clock.monotonic()
        sent_at = self._unsure.get(envelope.id)
        if sent_at is not None and now - sent_at > link.window - self._config.publish_timeout_secs:
            del self._unsure[envelope.id]
            return DeliveryResult(
                ok=False,
                error=f"no acknowledgement within the duplicate window of {link.window:g} s: the stream may have it; "
                "relays do not take it twice if it is replayed, other consumers may see it twice",
                code="unsure",
            )
        try:
            result = await link.publish(message)
        except NotSent as fault:
            return DeliveryResult(ok=False, error=str(fault), retry_after=RETRY_SECS)
        except Unsure as fault:
            self._unsure.setdefault(envelope.id, now)
            if len(self._unsure) > _MOST_UNSURE:
                del self._unsure[next(iter(self._unsure))]
            return DeliveryResult(ok=False, error=str(fault), code="unsure", retry_after=RETRY_SECS)
        if result.retry_after is None:
            self._unsure.pop(envelope.id, None)
        self._note_full(result.error if result.retry_after is not None else None)
        return result

    async def _keep_linked(self, context: AdapterContext, first: asyncio.Future[None]) -> None:
        wait = FIRST_WAIT_SECS
        refusals: list[str] = []
        for position, server in cycle(enumerate(self._config.servers, 1)):
            is_last = position == len(self._config.servers)
            fault = await self._use(context, server, first)
            if isinstance(fault, Refusal):
                self._say("error", str(fault))
                if not first.done():
                    refusals.append(str(fault))
                    if is_last:
                        first.set_exception(Refusal("; ".join(dict.fromkeys(refusals))))
                        return
            else:
                self._say("disconnected", f"{fault}; it is tried again")
                if not first.done():
                    first.set_result(None)
            if self._was_linked:
                wait = FIRST_WAIT_SECS
            elif not is_last:
                continue  # the next one may be well
            await sleep(context.clock, wait)
            wait = min(2 * wait, LAST_WAIT_SECS)

    async def _use(self, context: AdapterContext, server: str, first: asyncio.Future[None]) -> Fault:
        """Have a link for as long as it lasts, and return what ended it."""
        from relay_supervisor.adapters.nats.connection import open_link
        from relay_supervisor.adapters.nats.imports import Imports
        from relay_supervisor.adapters.nats.stream import prepare_consumer, prepare_stream

        self._was_linked = False
        durable = self._config.durable or f"relay-{self._relay}-{self.id}"
        self._put_off = PutOff(context.clock, self._config.refused_delay_secs)
        self._told = self._put_off.level
        try:
            async with open_link(self._config, server, f"relay {self.id} {self._relay}") as link:
                await prepare_stream(link)
                imports = None
                if self._config.import_:
                    known = await asyncio.to_thread(read_position, context.data_dir)
                    position = await prepare_consumer(link, durable, known)
                    imports = Imports(
                        link, context, self._config, self._relay, position, self._put_off,
                        on_refused=self._note_refused, on_put_off=self._note_put_off,
                    )  # fmt: skip
                    await imports.write_down()
                self._link = link
                self._was_linked = True
                self._note_connected()
                if not first.done():
                    first.set_result(None)
                try:
                    async with asyncio.TaskGroup() as group:
                        work = group.create_task(imports.run()) if imports is not None else None
                        await link.lost.wait()
                        if work is not None:
                            work.cancel()
                finally:
                    self._link = None
                    self._say("disconnected", link.why or "stopping")
                return Lost(link.why)
        except Fault as fault:
            return fault
        except Exception as error:  # of the library: no reason to stand still
            context.logger.exception("the link to NATS failed")
            return Lost(f"the link failed: {type(error).__name__}")

    def _note_connected(self, *, aloud: bool = True) -> None:
        if self._link is None:
            return
        parts = [f"stream {self._config.stream} at {self._link.where}"]
        if self._full is not None:
            parts.append(self._full)
        if self._refused and self._context is not None:
            kept = self._context.data_dir / DIRECTORY
            parts.append(f"{self._refused} incoming refused, the last one: {self._refused_why} (copies in {kept})")
        if self._put_off is not None and (text := self._put_off.describe()) is not None:
            parts.append(text)
        self._say("connected", "; ".join(parts), aloud=aloud)

    def _note_refused(self, why: str) -> None:
        self._refused += 1
        self._refused_why = why
        self._note_connected()

    def _note_put_off(self) -> None:
        # Whoever looks sees the exact number; announced is what is worth an event.
        if self._put_off is not None:
            level = self._put_off.level
            self._note_connected(aloud=level != self._told)
            self._told = level

    def _note_full(self, why: str | None) -> None:
        if why != self._full:
            self._full = why
            self._note_connected()

    def _say(self, state: StateName, detail: str | None, *, aloud: bool = True) -> None:
        self.status = AdapterStatus(state, detail)
        if aloud and self._context is not None:
            self._context.status_changed()
