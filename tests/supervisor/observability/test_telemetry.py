"""Telemetry: what a span tells, how spans are tied together, and that no collector can hurt the bus."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from ulid import ULID

from relay_core import RelayConfig, RelayCore
from relay_core.config import TelemetryConfig
from relay_core.errors import ConfigError
from relay_core.messages.delivery import Delivery
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import subject_hash
from relay_core.testing import FakeClock
from relay_supervisor.observability import telemetry
from relay_supervisor.observability.spans import span_number, trace_number
from relay_supervisor.observability.telemetry import SpanExport
from tests.kit.waiting import until

ROOT = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
CHILD = "01ARZ3NDEKTSV4RRFFQ69G5FAW"


class Collector:
    """A real HTTP server that keeps what it is sent."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[ExportTraceServiceRequest] = []
        self.answers = [200]
        """What the next requests are answered with; the last status repeats."""
        self.arrived = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            assert self.headers["Content-Type"] == "application/x-protobuf"
            collector.arrived.set()
            collector.may_answer.wait()
            status = collector.answers[0] if len(collector.answers) == 1 else collector.answers.pop(0)
            if status == 200:
                request = ExportTraceServiceRequest()
                request.ParseFromString(body)
                collector.requests.append(request)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that hung up

    with Server(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield collector
        finally:
            collector.may_answer.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "LINGER_SECS", 0.01)


def delivery(message_id: str = ROOT, target: str = "relay.agent.a", **changes: Any) -> Delivery:
    values: dict[str, Any] = {
        "message_id": message_id,
        "target": subject_hash(target),
        "kind": "endpoint",
        "target_subject": target,
        "subject": target,
        "sender": "relay.human.x",
        "trace_id": ROOT,
        "parent_id": None,
        "status": "done",
        "sent_ms": 1_700_000_000_000.0,
        "expires_ms": 0,
        "hops_before": 0,
        "calls_before": 10,
        "hops_after": 1,
        "calls_after": 9,
        "max_hops": 5,
        "ancestors": (target,),
        "size": 12,
        "stored_ms": 1_700_000_000_001.5,
        "claimed_ms": 1_700_000_000_002.0,
        "handled_ms": 1_700_000_000_005.0,
    }
    return Delivery(**values | changes)


def config(url: str) -> TelemetryConfig:
    return TelemetryConfig(enabled=True, endpoint=url)


async def exported(collector: Collector, *deliveries: Delivery) -> list[Span]:
    async with SpanExport(config(collector.url), FakeClock()) as export:
        for each in deliveries:
            export.ended(each)
    assert export.exported == len(deliveries)
    assert export.dropped == 0
    return collector.spans


def attributes(of: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in of.attributes}


# What a span tells


async def test_a_span_tells_of_a_delivery_by_the_messaging_conventions(collector: Collector) -> None:
    (span,) = await exported(collector, delivery())
    assert span.name == "process relay.agent.a"
    assert span.kind == Span.SPAN_KIND_CONSUMER
    assert span.start_time_unix_nano == 1_700_000_000_000_000_000
    assert span.end_time_unix_nano == 1_700_000_000_005_000_000
    assert [(event.name, event.time_unix_nano) for event in span.events] == [
        ("stored", 1_700_000_000_001_500_000),
        ("claimed", 1_700_000_000_002_000_000),
    ]
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert attributes(span) == {
        "messaging.system": "relay",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "relay.agent.a",
        "messaging.message.id": ROOT,
        "messaging.message.conversation_id": ROOT,
        "messaging.message.body.size": 12,
        "relay.sender": "relay.human.x",
        "relay.target": subject_hash("relay.agent.a"),
        "relay.target_kind": "endpoint",
        "relay.target_subject": "relay.agent.a",
        "relay.status": "done",
        "relay.hops": 1,
        "relay.calls_left": 9,
        "relay.replays": 0,
    }
    assert attributes(collector.requests[0].resource_spans[0].resource)["service.name"] == "relay"


@pytest.mark.parametrize("status", ["failed", "partial_failure", "partial"])
async def test_a_failure_is_an_error_with_its_reason_but_without_secrets(collector: Collector, status: str) -> None:
    reason = "no answer from https://me:hunter2@host/x " + "x" * 1_000
    (span,) = await exported(collector, delivery(status=status, code="timeout", reason=reason))
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert span.status.message.startswith("no answer from https://me:[redacted]@host/x xxx")
    assert len(span.status.message) == 500
    assert attributes(span)["error.type"] == "timeout"
    assert b"hunter2" not in collector.requests[0].SerializeToString()


async def test_a_message_without_subscribers_is_no_error(collector: Collector) -> None:
    (span,) = await exported(collector, delivery(status="no_subscriber", code="no_subscriber", reason="nobody"))
    assert span.status.code == Status.STATUS_CODE_UNSET


async def test_a_delivery_that_was_never_handled_ends_now(collector: Collector) -> None:
    (span,) = await exported(collector, delivery(status="failed", claimed_ms=None, handled_ms=None))
    assert span.end_time_unix_nano == FakeClock().now_ms() * 1_000_000


async def test_what_changes_after_the_end_is_not_told(collector: Collector) -> None:
    async with SpanExport(config(collector.url), FakeClock()) as export:
        changed = delivery()
        export.ended(changed)
        changed.status, changed.reason = "new", "replayed"
    assert attributes(collector.spans[0])["relay.status"] == "done"


# How spans are tied together


def test_ids_follow_from_names_alone() -> None:
    assert trace_number(ROOT) == int.from_bytes(bytes(ULID.from_str(ROOT)), "big")
    assert trace_number("0" * 26) == 1
    assert 0 < trace_number("no ulid") < 1 << 128
    assert span_number(ROOT, "abc") == int.from_bytes(sha256(f"{ROOT}abc".encode()).digest()[:8], "big")


async def test_a_delivery_is_linked_to_the_delivery_that_led_to_it(collector: Collector) -> None:
    parent, other, child = await exported(
        collector,
        delivery(),
        delivery(target="relay.agent.z"),
        delivery(
            CHILD,
            "relay.agent.b",
            sender="somebody.else",
            parent_id=ROOT,
            hops_before=1,
            hops_after=2,
            ancestors=("relay.agent.a", "relay.agent.b"),
        ),
    )
    assert parent.trace_id == other.trace_id == child.trace_id == trace_number(ROOT).to_bytes(16, "big")
    assert len({parent.span_id, other.span_id, child.span_id}) == 3
    (link,) = child.links
    assert (link.trace_id, link.span_id) == (parent.trace_id, parent.span_id)
    assert attributes(link) == {"messaging.message.id": ROOT, "relay.target_subject": "relay.agent.a"}
    assert attributes(child)["relay.parent_id"] == ROOT
    assert not child.parent_span_id
    assert not parent.links


async def test_a_message_that_was_stopped_before_it_paid_is_linked_too(collector: Collector) -> None:
    stopped = delivery(
        CHILD,
        "relay.agent.a",
        parent_id=ROOT,
        status="failed",
        hops_before=1,
        hops_after=1,
        ancestors=("relay.agent.a",),
    )
    parent, child = await exported(collector, delivery(), stopped)
    assert [link.span_id for link in child.links] == [parent.span_id]


async def test_a_parent_of_whom_no_ancestor_is_known_is_only_named(collector: Collector) -> None:
    (span,) = await exported(collector, delivery(CHILD, parent_id=ROOT, trace_id=CHILD))
    assert not span.links
    assert attributes(span)["relay.parent_id"] == ROOT


async def test_links_fit_what_a_real_bus_does(data_dir: Path, collector: Collector) -> None:
    async with (
        RelayCore(data_dir, config=RelayConfig(durability="os")) as relay,
        SpanExport(config(collector.url), FakeClock()) as export,
    ):
        relay.on_delivery_ended(export.ended)

        async def forward(envelope: Envelope) -> None:
            await relay.publish("relay.agent.b", {}, sender="relay.agent.a", parent_id=envelope.id)

        await relay.subscribe("relay.agent.a", forward)
        await relay.subscribe("relay.agent.b", lambda envelope: None)
        first = await relay.publish("relay.agent.a", {}, sender="relay.human.x")
        await relay.idle()
    by_name = {span.name: span for span in collector.spans}
    parent, child = by_name["process relay.agent.a"], by_name["process relay.agent.b"]
    assert attributes(parent)["messaging.message.id"] == first.message_id
    assert [link.span_id for link in child.links] == [parent.span_id]
    assert child.trace_id == parent.trace_id


# Collectors in trouble


async def test_many_spans_go_in_batches(collector: Collector) -> None:
    spans = await exported(collector, *(delivery(target=f"relay.agent.{number}") for number in range(1_200)))
    assert len({span.span_id for span in spans}) == 1_200
    assert len(collector.requests) >= 3


async def test_spans_leave_without_waiting_for_the_end(collector: Collector) -> None:
    async with SpanExport(config(collector.url), FakeClock()) as export:
        export.ended(delivery())
        assert await asyncio.to_thread(collector.arrived.wait, 30)


async def test_beyond_the_limit_spans_are_dropped_and_counted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "MAX_WAITING", 5)
    collector.may_answer.clear()
    async with SpanExport(config(collector.url), FakeClock()) as export:
        export.ended(delivery())
        assert await asyncio.to_thread(collector.arrived.wait, 30)
        for _ in range(8):
            export.ended(delivery())
        assert export.dropped == 3
        collector.may_answer.set()
    assert export.exported == 6
    export.ended(delivery())
    assert export.dropped == 4


async def test_a_collector_that_is_down_costs_only_its_spans(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "EXPORT_SECS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with SpanExport(config(f"http://127.0.0.1:{port}/v1/traces"), FakeClock()) as export:
        for _ in range(2_000):
            export.ended(delivery())
    assert export.exported == 0
    assert export.dropped == 2_000
    told = [record for record in caplog.records if record.name == "relay_supervisor.observability.telemetry"]
    assert [record.levelno for record in told] == [logging.WARNING]


async def test_a_collector_that_comes_back_is_used_again(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    collector.answers = [400, 200]
    async with SpanExport(config(collector.url), FakeClock()) as export:
        export.ended(delivery())
        await until(lambda: export.dropped > 0)
        export.ended(delivery())
    assert (export.exported, export.dropped) == (1, 1)
    told = [
        record.getMessage() for record in caplog.records if record.name == "relay_supervisor.observability.telemetry"
    ]
    assert ["cannot be exported" in told[0], "again; 1 were dropped" in told[1]] == [True, True]


async def test_a_busy_collector_is_tried_again(collector: Collector) -> None:
    collector.answers = [503, 200]
    async with SpanExport(config(collector.url), FakeClock()) as export:
        export.ended(delivery())
        await until(lambda: export.exported > 0)
    assert len(collector.spans) == 1


async def test_closing_gives_up_on_a_collector_that_never_answers(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "EXPORT_SECS", 0.2)
    monkeypatch.setattr(telemetry, "CLOSE_SECS", 0.05)
    collector.may_answer.clear()
    async with SpanExport(config(collector.url), FakeClock()) as export:
        for _ in range(1_500):
            export.ended(delivery())
    assert export.dropped == 1_500


async def test_closing_abandons_a_collector_whose_response_never_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "EXPORT_SECS", 0.2)
    monkeypatch.setattr(telemetry, "CLOSE_SECS", 0.05)
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not stop.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=[listener])
        thread.start()
        try:
            async with SpanExport(config(f"http://127.0.0.1:{listener.getsockname()[1]}/"), FakeClock()) as export:
                export.ended(delivery())
            assert "abandoned" in caplog.text
            assert export._closer.daemon
        finally:
            stop.set()
            await asyncio.to_thread(thread.join)
            listener.close()
            await asyncio.to_thread(export._closer.join)


async def test_a_delivery_that_makes_no_span_costs_only_its_own(collector: Collector) -> None:
    async with SpanExport(config(collector.url), FakeClock()) as export:
        export.ended(delivery(ancestors=None, parent_id=ROOT))
        export.ended(delivery())
    assert (export.exported, export.dropped, len(collector.spans)) == (1, 1, 1)


# Configuration


async def test_a_proxy_is_not_asked_the_way_to_this_machine(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert len(await exported(collector, delivery())) == 1


@pytest.mark.parametrize("url", ["", "127.0.0.1:4318", "ftp://h/x", "http://", "file:///etc/passwd"])
async def test_an_endpoint_must_be_a_url(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        async with SpanExport(config(url), FakeClock()):
            pass
    assert caught.value.key == "telemetry.endpoint"


async def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "relay_supervisor.observability.spans", raising=False)
    monkeypatch.delattr("relay_supervisor.observability.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"relay-bus\[telemetry\]"):
        async with SpanExport(TelemetryConfig(enabled=True), FakeClock()):
            pass
