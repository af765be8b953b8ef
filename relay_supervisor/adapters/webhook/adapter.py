"""The webhook adapter: its parts put together, started and stopped.

1. It starts with what can fail for reasons outside (certificates, the port) and notes a changed secret after that, so
   that a start that failed leaves no trace. Its place in the listener comes last: all behind it is ready then.
2. It stops the other way round: no new request, those under way are finished, then the rest goes.
3. A receiver that answers 410 wants nothing more: the adapter is ``disconnected``, mail waits on disk, and the way in
   goes on. It stays so, restarts included, until an operator reloads it (`gone`); ``error`` would have the supervisor
   try again by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import ClassVar, NamedTuple

from relay_core.adapters.interface import (
    DEFAULT_TIMEOUT_SECS,
    AdapterContext,
    AdapterStatus,
    DeliveryContext,
    DeliveryResult,
)
from relay_core.errors import StorageError
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import adapter_subject
from relay_core.tasks import Tasks
from relay_supervisor.adapters.webhook.config import InboundConfig, OutboundConfig, WebhookConfig
from relay_supervisor.adapters.webhook.gone import Gone
from relay_supervisor.adapters.webhook.inbound import Inbound
from relay_supervisor.adapters.webhook.listener import PREFIX, Listener, listening
from relay_supervisor.adapters.webhook.outbound import Outbound
from relay_supervisor.adapters.webhook.replays import Replays
from relay_supervisor.adapters.webhook.rotation import Rotation
from relay_supervisor.adapters.webhook.signing import read_key

_GONE = "410"
_MARGIN_SECS = 5.0
_FINISH_SECS = 3.0


class WebhookAdapter:
    """Take signed messages in over HTTP, and post messages to a URL."""

    config_model: ClassVar = WebhookConfig

    def __init__(self, id: str, config: WebhookConfig) -> None:
        self.id = id
        self._config = config
        self._sender = (config.inbound and config.inbound.sender) or f"relay.webhook.{id}"
        self._status = AdapterStatus("disconnected", "not started")
        self._context: AdapterContext | None = None
        self._way_out: tuple[Outbound, Rotation] | None = None
        self._gone: Gone | None = None
        self._stack = AsyncExitStack()
        self._port: int | None = None

    @property
    def patterns(self) -> Sequence[str]:
        """Return the outbound patterns; without them its own subject, where nobody else can be."""
        return self._config.outbound.patterns if self._config.outbound is not None else (adapter_subject(self.id),)

    @property
    def senders(self) -> Sequence[str]:
        """Return whom it publishes as."""
        return (self._sender,) if self._config.inbound is not None else ()

    @property
    def timeout(self) -> float:
        """Return what the bus waits for a delivery: longer than the adapter itself, which can say for what."""
        outbound = self._config.outbound
        return outbound.timeout_secs + _MARGIN_SECS if outbound is not None else DEFAULT_TIMEOUT_SECS

    @property
    def detached(self) -> bool:
        """Tell whether a publish counts once it is stored."""
        return self._config.outbound is not None and not self._config.outbound.wait

    @property
    def rate(self) -> float | None:
        """Return how many messages go out per second at most."""
        return self._config.outbound.rate if self._config.outbound is not None else None

    @property
    def status(self) -> AdapterStatus:
        """Return how it is doing."""
        return self._status

    @property
    def port(self) -> int | None:
        """Return the port that it listens on, while it does."""
        return self._port

    async def start(self, context: AdapterContext) -> None:
        """Listen, and make ready to post."""
        self._status = AdapterStatus("starting")
        config = self._config
        async with AsyncExitStack() as stack:
            tasks = Tasks()
            stack.push_async_callback(tasks.close)
            outbound = await _open_outbound(config.outbound, context, stack) if config.outbound is not None else None
            of_all = ("webhook-gone", context.adapter_id)
            gone = await stack.enter_async_context(context.share(of_all, lambda: Gone(context.data_dir)))
            way_in = await _open_way_in(config.inbound, context, stack) if config.inbound is not None else None
            if outbound is not None:
                rotation = await self._open_rotation("outbound", outbound.config, context, stack, tasks)
                self._way_out = outbound, rotation
            if way_in is not None:
                rotation = await self._open_rotation("inbound", way_in.config, context, stack, tasks)
                inbound = Inbound(way_in.config, context, self._sender, rotation, way_in.replays)
                stack.push_async_callback(inbound.finish, _FINISH_SECS)
                stack.enter_context(way_in.listener.serving(self.id, inbound))
                self._port = way_in.listener.port
            is_gone = await gone.begin(self, config.outbound.url if config.outbound is not None else None)
            self._gone = gone
            self._stack = stack.pop_all()
        self._context = context
        self._set_status(self._unwanted() if is_gone else AdapterStatus("connected", self._describe()))

    async def stop(self) -> None:
        """Let go of everything; stopping again does nothing."""
        stack, self._stack = self._stack, AsyncExitStack()
        if self._status.state != "disconnected":
            self._status = AdapterStatus("stopping")
        try:
            await stack.aclose()
        finally:
            self._way_out = self._port = self._context = self._gone = None
            self._status = AdapterStatus("disconnected", "stopped")

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Post one message."""
        if self._way_out is None:
            return DeliveryResult(ok=False, error=f"the webhook {self.id} has no outbound part, so it sends nothing")
        outbound, rotation = self._way_out
        result = await outbound.deliver(envelope, context, rotation.keys())
        if not result.ok and result.code == _GONE and self._status.state == "connected":
            self._set_status(self._unwanted())
            await self._keep_gone(outbound.config.url)
        return result

    async def _keep_gone(self, url: str) -> None:
        gone, context = self._gone, self._context
        if gone is None or context is None:
            return
        try:
            await gone.mark(self, url)
        except StorageError as error:
            context.logger.warning("that the receiver answered 410 is known until a restart only: %s", error.message)

    def _unwanted(self) -> AdapterStatus:
        host = self._way_out[0].host if self._way_out is not None else "the receiver"
        return AdapterStatus(
            "disconnected",
            f"{host} answered 410: it wants no more messages, and they wait here; "
            f"run 'relay adapters reload {self.id}' after you have mended it",
        )

    async def _open_rotation(
        self,
        part: str,
        config: InboundConfig | OutboundConfig,
        context: AdapterContext,
        stack: AsyncExitStack,
        tasks: Tasks,
    ) -> Rotation:
        current = read_key(config.secret.reveal())
        previous = read_key(config.previous_secret.reveal()) if config.previous_secret is not None else None
        rotation = await Rotation.open(context.data_dir / f"secret-{part}.json", current, previous, context.clock)
        if previous is not None:
            stack.push_async_callback(rotation.save)
            tasks.start(rotation.keep(context.logger, part), name=f"webhook {self.id}: previous {part} secret")
        return rotation

    def _describe(self) -> str:
        parts = []
        if self._config.inbound is not None:
            parts.append(f"listens on {self._config.inbound.host}:{self._port}{PREFIX}{self.id}")
        if self._way_out is not None:
            parts.append(f"posts to {self._way_out[0].host}")
        return ", ".join(parts)

    def _set_status(self, status: AdapterStatus) -> None:
        self._status = status
        if self._context is not None:
            self._context.status_changed()


class _WayIn(NamedTuple):
    """What the way in shares with others."""

    config: InboundConfig
    listener: Listener
    replays: Replays


async def _open_outbound(config: OutboundConfig, context: AdapterContext, stack: AsyncExitStack) -> Outbound:
    outbound = Outbound(config, context.clock)
    await outbound.open()
    stack.push_async_callback(outbound.close)
    return outbound


async def _open_way_in(config: InboundConfig, context: AdapterContext, stack: AsyncExitStack) -> _WayIn:
    at = ("webhook", config.host, config.port)
    listener = await stack.enter_async_context(context.share(at, lambda: listening(config.host, config.port)))
    # Shared with the adapter that this one replaces: what either has taken, neither takes again.
    ids = ("webhook-ids", context.adapter_id)
    replays = await stack.enter_async_context(context.share(ids, lambda: Replays(context.data_dir, context.clock)))
    return _WayIn(config, listener, replays)
