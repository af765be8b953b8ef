"""OpenTelemetry spans from deliveries. Imports the SDK, which is an extra: `telemetry` imports this module late.

1. Spans are tied together without any state. A conversation is one trace: its id is that of its first message, whose
   ULID has 128 bits as a trace id has. A span's id is a hash of its message and its target, so it can be computed from
   their names alone.
2. A delivery is *linked* to the delivery whose handling published it, and is not a child of it: a handler may publish
   long after it has returned, and to many. Which of the parent's deliveries that was is the last ancestor in the budget
   before this one. Without such an ancestor (the parent's trace was forgotten) there is no link; ``relay.parent_id``
   always has the parent message.
3. Payloads are never part of a span, and reasons of failures are redacted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags
from opentelemetry.trace.status import Status as SpanStatus
from ulid import ULID

from relay_core.messages.delivery import Delivery, Status
from relay_core.messages.ids import is_ulid
from relay_core.messages.subjects import subject_hash
from relay_supervisor.observability.redaction import redact_text

_FAILED = {Status.FAILED, Status.PARTIAL_FAILURE, Status.PARTIAL}
_MAX_REASON = 500
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("relay")


class Exporter(OTLPSpanExporter):
    """Send spans over OTLP/HTTP, and report each batch before (`taken`) and after (`done`) it is sent."""

    def __init__(
        self,
        endpoint: str,
        timeout: float,
        *,
        use_proxy: bool,
        taken: Callable[[int], None],
        done: Callable[[int, bool], None],
    ) -> None:
        session = requests.Session()
        session.trust_env = use_proxy
        super().__init__(endpoint=endpoint, timeout=timeout, session=session)
        self._taken = taken
        self._done = done

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch."""
        self._taken(len(spans))
        result = SpanExportResult.FAILURE
        try:
            result = super().export(spans)
        finally:
            self._done(len(spans), result is SpanExportResult.SUCCESS)
        return result


def trace_number(trace_id: str) -> int:
    """Return the 128 bits of a trace, which are those of its first message's ULID."""
    if is_ulid(trace_id):
        return int(ULID.from_str(trace_id)) or 1  # 0 is not allowed
    return int.from_bytes(sha256(trace_id.encode()).digest()[:16], "big")


def span_number(message_id: str, target: str) -> int:
    """Return the 64 bits of the span of one message at one target (a mailbox's hash)."""
    return int.from_bytes(sha256((message_id + target).encode()).digest()[:8], "big") or 1


def make_span(delivery: Delivery, now_ms: int) -> ReadableSpan:
    """Return the span of a delivery that has ended."""
    trace = trace_number(delivery.trace_id)

    def context(message_id: str, target: str) -> SpanContext:
        return SpanContext(trace, span_number(message_id, target), is_remote=False, trace_flags=_SAMPLED)

    links = []
    origin = _origin(delivery)
    if delivery.parent_id is not None and origin is not None:
        attributes = {"messaging.message.id": delivery.parent_id, "relay.target_subject": origin}
        links.append(Link(context(delivery.parent_id, subject_hash(origin)), attributes))
    times = {"stored": delivery.stored_ms, "claimed": delivery.claimed_ms}
    status = SpanStatus()
    if delivery.status in _FAILED:
        status = SpanStatus(StatusCode.ERROR, redact_text(delivery.reason or "")[:_MAX_REASON])
    ended_ms = delivery.handled_ms if delivery.handled_ms is not None else float(now_ms)
    return ReadableSpan(
        name=f"process {delivery.subject}",
        context=context(delivery.message_id, delivery.target),
        resource=_resource(),
        attributes=_attributes(delivery),
        events=[Event(name, timestamp=_ns(at)) for name, at in times.items() if at is not None],
        links=links,
        kind=SpanKind.CONSUMER,
        status=status,
        start_time=_ns(delivery.sent_ms),
        end_time=_ns(max(ended_ms, delivery.sent_ms)),
        instrumentation_scope=_SCOPE,
    )


@cache
def _resource() -> Resource:
    return Resource.create({"service.name": "relay"})


def _origin(delivery: Delivery) -> str | None:
    """Return the subject of the mailbox where the parent was handled."""
    # A stored copy has paid for its own delivery, so the last ancestor is its own target.
    has_paid = delivery.hops_after > delivery.hops_before
    chain = delivery.ancestors[:-1] if has_paid else delivery.ancestors
    return chain[-1] if chain else None


def _attributes(delivery: Delivery) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.system": "relay",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": delivery.subject,
        "messaging.message.id": delivery.message_id,
        "messaging.message.conversation_id": delivery.trace_id,
        "messaging.message.body.size": delivery.size,
        "relay.sender": delivery.sender,
        "relay.target": delivery.target,
        "relay.target_kind": delivery.kind,
        "relay.target_subject": delivery.target_subject,
        "relay.status": delivery.status,
        "relay.hops": delivery.hops_after,
        "relay.calls_left": delivery.calls_after,
        "relay.replays": delivery.replays,
        "relay.parent_id": delivery.parent_id,
        "error.type": delivery.code if delivery.status in _FAILED else None,
    }
    return {key: value for key, value in attributes.items() if value is not None}


def _ns(ms: float) -> int:
    return round(ms * 1000) * 1000  # a float with the time of day is exact to a microsecond only
