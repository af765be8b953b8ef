"""The webhook adapter: starts and stops its parts.

1. It starts with the parts that can fail for external reasons (certificates, the port), and records a changed secret
   after that, so a failed start leaves no trace. It joins the listener last, when everything behind it is ready.
2. It stops in reverse order: no new requests, then the running ones finish, then the rest closes.
3. A receiver that answers 410 wants no more messages: the adapter is ``disconnected``, its mail waits on disk, and
   inbound messages still work. That survives restarts and ends when an operator reloads the adapter (`gone`);
   with ``error`` the supervisor would restart it by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from typing import ClassVar

from relay_core.adapters.interface import (
    DEFAULT_TIMEOUT_SECS,
    AdapterContext,
    DeliveryContext,
    DeliveryResult,
)
from relay_core.errors import StorageError
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import adapter_subject
from relay_core.tasks import Tasks
from relay_supervisor.adapters.platform import PlatformAdapter
from relay_supervisor.adapters.webhook.config import InboundConfig, OutboundConfig, WebhookConfig
from relay_supervisor.adapters.webhook.gone import Gone
from relay_supervisor.adapters.webhook.inbound import Inbound
from relay_supervisor.adapters.webhook.listener import PREFIX, listening
from relay_supervisor.adapters.webhook.outbound import Outbound
from relay_supervisor.adapters.webhook.replays import Replays
from relay_supervisor.adapters.webhook.rotation import Rotation
from relay_supervisor.adapters.webhook.signing import read_key

_GONE = "410"
_MARGIN_SECS = 5.0
_FINISH_SECS = 3.0


class WebhookAdapter(PlatformAdapter):
    """Accept signed messages over HTTP, and post messages to a URL."""

    config_model: ClassVar = WebhookConfig

    def __init__(self, id: str, config: WebhookConfig) -> None:
        super().__init__(id)
        inbound, outbound = config.inbound, config.outbound
        self.senders: Sequence[str] = ((inbound.sender or f"relay.webhook.{id}"),) if inbound is not None else ()
        # An adapter needs a pattern: without an outbound part, its own subject, which no publisher can use.
        self.patterns: Sequence[str] = outbound.patterns if outbound is not None else (adapter_subject(id),)
        # The bus waits longer than the adapter itself, whose error says what took too long.
        self.timeout = outbound.timeout_secs + _MARGIN_SECS if outbound is not None else DEFAULT_TIMEOUT_SECS
        self.detached = outbound is not None and not outbound.wait
        self.rate = outbound.rate if outbound is not None else None
        self.port: int | None = None
        """The port that it listens on."""
        self._config = config
        self._sending: tuple[Outbound, Rotation] | None = None
        self._gone: Gone | None = None

    async def stop(self) -> None:
        """Close everything; stopping again does nothing."""
        try:
            await super().stop()
        finally:
            self._sending = self.port = self._gone = None

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Post one message."""
        if self._sending is None:
            return DeliveryResult(ok=False, error=f"the webhook {self.id} has no outbound part, so it sends nothing")
        outbound, rotation = self._sending
        result = await outbound.deliver(envelope, context, rotation.keys())
        if not result.ok and result.code == _GONE and self.status.state == "connected":
            self._report_gone(outbound)
            await self._record_gone(outbound.config.url)
        return result

    async def _open(self, context: AdapterContext, stack: AsyncExitStack) -> None:
        config, data_dir = self._config, context.data_dir
        enter = stack.enter_async_context
        tasks = Tasks()
        stack.push_async_callback(tasks.close)
        outbound = await enter(Outbound(config.outbound, context.clock)) if config.outbound is not None else None
        # Gone and Replays are shared with the adapter that this one replaces.
        gone = await enter(context.share(("webhook-gone", self.id), lambda: nullcontext(Gone(data_dir))))
        receiving = None
        if config.inbound is not None:
            host, port = config.inbound.host, config.inbound.port
            listener = await enter(context.share(("webhook", host, port), lambda: listening(host, port)))
            replays = await enter(context.share(("webhook-ids", self.id), lambda: Replays(data_dir, context.clock)))
            receiving = config.inbound, listener, replays
        if outbound is not None:
            self._sending = outbound, await self._open_rotation("outbound", outbound.config, context, stack, tasks)
        if receiving is not None:
            inbound, listener, replays = receiving
            rotation = await self._open_rotation("inbound", inbound, context, stack, tasks)
            handler = Inbound(inbound, context, self.senders[0], rotation, replays)
            stack.push_async_callback(handler.finish, _FINISH_SECS)
            stack.enter_context(listener.serving(self.id, handler))
            self.port = listener.port
        is_gone = await gone.begin(self, outbound.config.url if outbound is not None else None)
        self._gone = gone
        if is_gone and outbound is not None:
            self._report_gone(outbound)
        else:
            self._set_status("connected", self._describe())

    async def _record_gone(self, url: str) -> None:
        gone, context = self._gone, self._context
        if gone is None or context is None:
            return
        try:
            await gone.mark(self, url)
        except StorageError as error:
            context.logger.warning("the receiver's 410 is remembered only until a restart: %s", error.message)

    def _report_gone(self, outbound: Outbound) -> None:
        self._set_status(
            "disconnected",
            f"{outbound.host} answered 410: it wants no more messages, so they wait here; "
            f"run 'relay adapters reload {self.id}' when the receiver works again",
        )

    async def _open_rotation(
        self,
        part: str,
        config: InboundConfig | OutboundConfig,
        context: AdapterContext,
        stack: AsyncExitStack,
        tasks: Tasks,
    ) -> Rotation:
        current = read_key(config.secret.reveal(), config.scheme)
        before = config.previous_secret
        previous = read_key(before.reveal(), config.scheme) if before is not None else None
        rotation = await Rotation.open(context.data_dir / f"secret-{part}.json", current, previous, context.clock)
        if previous is not None:
            stack.push_async_callback(rotation.save)
            tasks.start(rotation.keep(context.logger, part), name=f"webhook {self.id}: previous {part} secret")
        return rotation

    def _describe(self) -> str:
        parts = []
        if self._config.inbound is not None:
            parts.append(f"listens on {self._config.inbound.host}:{self.port}{PREFIX}{self.id}")
        if self._sending is not None:
            parts.append(f"posts to {self._sending[0].host}")
        return ", ".join(parts)
