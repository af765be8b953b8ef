"""Spans for OpenTelemetry: one for each delivery that has ended, sent to a collector over OTLP/HTTP.

1. `ended` appends a tuple to a queue. A thread makes the spans and sends them, so a collector that is
   slow, down or gone costs the bus nothing. Beyond 10,000 waiting spans the newest are dropped and
   counted; what a collector does not take within 5 s is dropped and counted too.
2. Nothing is remembered to tie spans together. A conversation is one trace: its id is that of its
   first message, whose ULID has 128 bits as a trace id has. A span's id is a hash of its message
   and its target, so that any delivery's can be told from its parent's name.
3. A delivery is *linked* to the delivery whose handling published it, and is no child of it: a handler
   may publish long after it has returned, and to many. Which of the parent's deliveries that was is
   the last ancestor in the budget before this one. Where the bus knew no such ancestor (the parent's
   trace was forgotten) there is no link; ``relay.parent_id`` always has the parent message.
4. Payloads are never sent, and the reasons of failures are sent without secrets.
5. Closing sends what waits for 2 s, then gives up on the rest; it never takes longer than about 8 s.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from functools import cache
from hashlib import sha256
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

from ulid import ULID

from relay_core.clock import Clock
from relay_core.config import TelemetryConfig
from relay_core.delivery import Delivery, Status
from relay_core.errors import ConfigError
from relay_core.ids import is_ulid
from relay_core.subjects import subject_hash
from relay_supervisor.redaction import redact_text

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

MAX_WAITING = 10_000
BATCH = 512
LINGER_SECS = 1.0
EXPORT_SECS = 5.0
CLOSE_SECS = 2.0

_FAILED = {Status.FAILED, Status.PARTIAL_FAILURE, Status.PARTIAL}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_MAX_REASON = 500

logger = logging.getLogger(__name__)


class _Ended(NamedTuple):
    """What a span needs of a delivery, at the moment it ended; the delivery itself may yet change."""

    message_id: str
    target: str
    kind: str
    target_subject: str
    subject: str
    sender: str
    trace_id: str
    parent_id: str | None
    status: str
    sent_ms: float
    hops_before: int
    hops_after: int
    calls_after: int
    ancestors: tuple[str, ...]
    size: int
    code: str | None
    reason: str | None
    stored_ms: float | None
    claimed_ms: float | None
    handled_ms: float | None
    replays: int


_row = attrgetter(*_Ended._fields)


class SpanExport:
    """Export deliveries as spans, as an async context manager."""

    def __init__(self, config: TelemetryConfig, clock: Clock) -> None:
        self.exported = 0
        self._endpoint = config.endpoint
        self._clock = clock
        self._waiting: deque[_Ended] = deque()
        self._due = threading.Event()
        self._closing = threading.Event()
        self._failing = False
        self._overflow = 0  # counted by the event loop
        self._lost = 0  # counted by the thread
        # A daemon: a collector that answers a byte a minute must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="relay-telemetry", daemon=True)

    @property
    def dropped(self) -> int:
        """Return how many were lost: too many were waiting, or the collector did not take them."""
        return self._overflow + self._lost

    async def __aenter__(self) -> Self:
        """Begin to export.

        Raises:
            ConfigError: if the extra is not installed, or the endpoint is no URL.
        """
        url = urlsplit(self._endpoint)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"{self._endpoint!r} is no http(s) URL of a collector", key="telemetry.endpoint")
        try:
            self._exporter = await asyncio.to_thread(_make_exporter, self._endpoint, url.hostname in _LOOPBACK)
        except ImportError as error:
            raise ConfigError(
                "telemetry.enabled needs opentelemetry: pip install 'relay-bus[telemetry]'", key="telemetry.enabled"
            ) from error
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what waits, as far as that is quickly done."""
        await asyncio.to_thread(self._close)

    def ended(self, delivery: Delivery) -> None:
        """Export a delivery that was handled or parked; costs an append."""
        if len(self._waiting) >= MAX_WAITING or self._closing.is_set():
            self._overflow += 1
            return
        ended = _Ended._make(_row(delivery))
        if ended.handled_ms is None:
            ended = ended._replace(handled_ms=float(self._clock.now_ms()))
        self._waiting.append(ended)
        if not self._due.is_set():
            self._due.set()

    def _close(self) -> None:
        self._closing.set()
        self._due.set()
        self._thread.join(CLOSE_SECS)
        # This ends a wait for the next try and refuses all that follows, but not a request that is under way.
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        self._thread.join(EXPORT_SECS + 1)
        if self._thread.is_alive():
            logger.warning("the collector at %s holds its connection: left behind", self._endpoint)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._due.wait()
            self._closing.wait(LINGER_SECS)  # one request for what comes at the same time
            self._due.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            if self._export(batch):
                self.exported += len(batch)
            else:
                self._lost += len(batch)

    def _export(self, batch: list[_Ended]) -> bool:
        try:
            done = _send(self._exporter, [_span(ended) for ended in batch])
        except Exception:
            logger.exception("spans could not be made or sent")
            done = False
        if not done and not self._failing:
            logger.warning("spans cannot be exported to %s: they are dropped", self._endpoint)
        elif done and self._failing:
            logger.info("spans are exported to %s again; %d were dropped", self._endpoint, self.dropped)
        self._failing = not done
        return done


def trace_number(trace_id: str) -> int:
    """Return the 128 bits of a trace, which are those of its first message's ULID."""
    if is_ulid(trace_id):
        return int(ULID.from_str(trace_id)) or 1  # 0 is not allowed
    return int.from_bytes(sha256(trace_id.encode()).digest()[:16], "big")


def span_number(message_id: str, target: str) -> int:
    """Return the 64 bits of the span of one message at one target (a mailbox's hash)."""
    return int.from_bytes(sha256((message_id + target).encode()).digest()[:8], "big") or 1


def _make_exporter(endpoint: str, loopback: bool) -> OTLPSpanExporter:
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    session = requests.Session()
    session.trust_env = not loopback  # no proxy leads to this machine itself
    return OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECS, session=session)


def _send(exporter: OTLPSpanExporter, spans: list[ReadableSpan]) -> bool:
    from opentelemetry.sdk.trace.export import SpanExportResult

    return exporter.export(spans) is SpanExportResult.SUCCESS


@cache
def _resource() -> Resource:
    from opentelemetry.sdk.resources import Resource

    return Resource.create({"service.name": "relay"})


def _span(ended: _Ended) -> ReadableSpan:
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags
    from opentelemetry.trace.status import Status as SpanStatus

    trace = trace_number(ended.trace_id)
    sampled = TraceFlags(TraceFlags.SAMPLED)

    def context(message_id: str, target: str) -> SpanContext:
        return SpanContext(trace, span_number(message_id, target), is_remote=False, trace_flags=sampled)

    links = []
    origin = _origin(ended)
    if ended.parent_id is not None and origin is not None:
        about = {"messaging.message.id": ended.parent_id, "relay.target_subject": origin}
        links.append(Link(context(ended.parent_id, subject_hash(origin)), about))
    times = {"stored": ended.stored_ms, "claimed": ended.claimed_ms}
    reason = redact_text(ended.reason or "")[:_MAX_REASON]
    return ReadableSpan(
        name=f"process {ended.subject}",
        context=context(ended.message_id, ended.target),
        resource=_resource(),
        attributes=_attributes(ended),
        events=[Event(name, timestamp=_ns(at)) for name, at in times.items() if at is not None],
        links=links,
        kind=SpanKind.CONSUMER,
        status=SpanStatus(StatusCode.ERROR, reason) if ended.status in _FAILED else SpanStatus(),
        start_time=_ns(ended.sent_ms),
        end_time=_ns(max(ended.handled_ms or 0.0, ended.sent_ms)),
        instrumentation_scope=InstrumentationScope("relay"),
    )


def _origin(ended: _Ended) -> str | None:
    """Return the subject of the mailbox where the parent was handled."""
    # A copy that was stored has paid for its own delivery, and its own target is the last ancestor then.
    chain = ended.ancestors[:-1] if ended.hops_after > ended.hops_before else ended.ancestors
    return chain[-1] if chain else None


def _attributes(ended: _Ended) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.system": "relay",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": ended.subject,
        "messaging.message.id": ended.message_id,
        "messaging.message.conversation_id": ended.trace_id,
        "messaging.message.body.size": ended.size,
        "relay.sender": ended.sender,
        "relay.target": ended.target,
        "relay.target_kind": ended.kind,
        "relay.target_subject": ended.target_subject,
        "relay.status": ended.status,
        "relay.hops": ended.hops_after,
        "relay.calls_left": ended.calls_after,
        "relay.replays": ended.replays,
        "relay.parent_id": ended.parent_id,
        "error.type": ended.code if ended.status in _FAILED else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _ns(ms: float) -> int:
    return round(ms * 1000) * 1000  # a float that holds the time of day is good for a microsecond, not more
