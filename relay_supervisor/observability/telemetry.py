"""Export of spans for OpenTelemetry: one for each delivery that has ended, sent to a collector over OTLP/HTTP.

1. `ended` makes a span and queues it in the SDK's batch processor, whose thread encodes and sends it: a slow or
   unreachable collector costs the bus nothing. Above 10,000 waiting spans new ones are dropped and counted. Spans that
   the collector does not accept within 5 s are dropped and counted too.
2. An outage is logged once when it begins and once when it ends; the SDK's own log is silenced (`logs`).
3. Closing waits 2 s for the queue, then drops the rest. It never takes longer than about 8 s.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Self
from urllib.parse import urlsplit

from relay_core.clock import Clock
from relay_core.config import TelemetryConfig
from relay_core.errors import ConfigError
from relay_core.messages.delivery import Delivery

MAX_WAITING = 10_000
BATCH = 512
LINGER_SECS = 1.0
EXPORT_SECS = 5.0
CLOSE_SECS = 2.0

_LOOPBACK = ("127.0.0.1", "::1", "localhost")

logger = logging.getLogger(__name__)


class SpanExport:
    """Export deliveries as spans, as an async context manager."""

    def __init__(self, config: TelemetryConfig, clock: Clock) -> None:
        self.exported = 0
        self._endpoint = config.endpoint
        self._clock = clock
        self._failing = False
        self._is_closing = False
        # The event loop counts these two, the processor's thread the others.
        self._queued = 0
        self._overflow = 0
        self._taken = 0
        self._lost = 0

    @property
    def dropped(self) -> int:
        """Return the number of lost spans: the queue was full, or the collector did not accept them."""
        return self._overflow + self._lost

    async def __aenter__(self) -> Self:
        """Start to export.

        Raises:
            ConfigError: if the extra is not installed, or the endpoint is not a URL.
        """
        url = urlsplit(self._endpoint)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"{self._endpoint!r} is not an http(s) URL of a collector", key="telemetry.endpoint")
        try:
            await asyncio.to_thread(self._open, url.hostname)
        except ImportError as error:
            raise ConfigError(
                "telemetry.enabled needs opentelemetry: pip install 'relay-bus[telemetry]'", key="telemetry.enabled"
            ) from error
        return self

    def _open(self, host: str) -> None:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from relay_supervisor.observability import spans

        self._make_span = spans.make_span
        # A proxy of the environment cannot reach this machine's loopback.
        use_proxy = host not in _LOOPBACK
        self._exporter = spans.Exporter(
            self._endpoint, EXPORT_SECS, use_proxy=use_proxy, taken=self._count_taken, done=self._count_done
        )
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=max(MAX_WAITING, BATCH),
            schedule_delay_millis=LINGER_SECS * 1000,
            max_export_batch_size=BATCH,
        )
        # A daemon thread: a collector that sends a byte per minute must not keep the process alive.
        self._closer = threading.Thread(target=self._processor.shutdown, name="relay-telemetry-close", daemon=True)

    async def __aexit__(self, *_: object) -> None:
        """Send the waiting spans, within the time of rule 3."""
        self._is_closing = True
        await asyncio.to_thread(self._close)

    def ended(self, delivery: Delivery) -> None:
        """Queue the span of a delivery that was handled or dead-lettered."""
        if self._queued - self._taken >= MAX_WAITING or self._is_closing:
            self._overflow += 1
            return
        try:
            span = self._make_span(delivery, self._clock.now_ms())
        except Exception:
            logger.exception("a span could not be made")
            self._overflow += 1
            return
        self._queued += 1
        self._processor.on_end(span)

    def _close(self) -> None:
        self._closer.start()
        self._closer.join(CLOSE_SECS)
        # Ends a wait for the next retry and refuses every further batch, but does not end a request in flight.
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        self._closer.join(EXPORT_SECS + 1)
        if self._closer.is_alive():
            logger.warning("the collector at %s keeps its connection open: abandoned", self._endpoint)

    def _count_taken(self, count: int) -> None:
        self._taken += count

    def _count_done(self, count: int, is_exported: bool) -> None:
        if is_exported:
            self.exported += count
        else:
            self._lost += count
        if not is_exported and not self._failing:
            logger.warning("spans cannot be exported to %s: they are dropped", self._endpoint)
        elif is_exported and self._failing:
            logger.info("spans are exported to %s again; %d were dropped", self._endpoint, self.dropped)
        self._failing = not is_exported
