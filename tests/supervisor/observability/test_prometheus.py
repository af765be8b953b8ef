"""Prometheus: what a scrape shows, how much it may cost, and to whom it is shown."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from relay_core import BackpressureConfig, CircuitBreakerConfig, RelayConfig, RelayCore, ReliabilityConfig
from relay_core.errors import ConfigError
from relay_core.rules.breaker import CircuitState
from relay_supervisor.observability import prometheus, prometheus_metrics
from relay_supervisor.observability.prometheus import LIMITS, serve_metrics
from tests.kit.adapters import SampleAdapter

CONFIG = RelayConfig(
    durability="os",
    reliability=ReliabilityConfig(
        backpressure=BackpressureConfig(max_mailbox_size=4), circuit_breaker=CircuitBreakerConfig(failure_threshold=1)
    ),
)
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
async def relay(data_dir: Path) -> AsyncIterator[RelayCore]:
    async with RelayCore(data_dir, config=CONFIG) as relay:
        yield relay


@pytest.fixture
async def port(relay: RelayCore) -> AsyncIterator[int]:
    async with serve_metrics(relay, 0) as port:
        yield port


async def exchange(port: int, request: bytes) -> tuple[str, bytes]:
    """Return head and body of what is answered until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return head.decode(), body
    finally:
        writer.transport.abort()


async def until_closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(30):
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)


def request(path: str = "/metrics", method: str = "GET", host: str = "127.0.0.1:9464") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n".encode()


async def scrape(port: int) -> Series:
    head, body = await exchange(port, request())
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    samples = [sample for family in text_string_to_metric_families(body.decode()) for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples), "a series is there twice"
    return found


def series(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


# What is shown


async def test_a_scrape_shows_what_the_bus_has_counted(relay: RelayCore, port: int) -> None:
    await relay.register_endpoint("relay.agent.a")
    await relay.publish("relay.agent.a", {"content": "x"}, sender="relay.agent.b")
    await relay.publish("relay.agent.a", {"content": "x"}, sender="relay.agent.b")
    await relay.publish("relay.nobody", {}, sender="relay.agent.b")
    found = await scrape(port)
    metrics = relay.metrics()
    assert found[series("relay_publishes_total")] == metrics.publishes == 3
    assert found[series("relay_published_bytes_total")] == metrics.bytes > 0
    assert found[series("relay_deliveries_total", status="new")] == 2
    assert found[series("relay_no_subscriber_total")] == 1
    (code,) = metrics.dead_letters
    assert found[series("relay_dead_letters_total", code=code)] == 1
    assert found[series("relay_budget_rejections_total", code="max_hops")] == 0
    assert found[series("relay_uptime_seconds")] >= 0
    journal = relay.journal()
    assert found[series("relay_journal_bytes")] == journal.bytes > 0
    assert found[series("relay_journal_pending_messages")] in (0, 2)
    assert found[series("relay_journal_oldest_pending_seconds")] >= 0
    assert found[series("relay_journal_checkpoint_timestamp_seconds")] == (journal.checkpointed_at or 0) / 1000
    assert found[series("relay_senders")] == 1
    assert found[series("relay_sender_usage_max_ratio")] == pytest.approx(0.03)


async def test_a_scrape_shows_every_mailbox(relay: RelayCore, port: int) -> None:
    await relay.register_endpoint("relay.agent.a")
    for _ in range(3):
        await relay.publish("relay.agent.a", {}, sender="relay.agent.b")
    await relay.claim("relay.agent.a")
    labels = {"subject": "relay.agent.a", "kind": "endpoint"}
    found = await scrape(port)
    assert found[series("relay_mailboxes")] == 1
    assert found[series("relay_mailboxes_hidden")] == 0
    assert found[series("relay_mailbox_waiting_messages", **labels)] == 2
    assert found[series("relay_mailbox_claimed_messages", **labels)] == 1
    assert found[series("relay_mailbox_failed_messages", **labels)] == 0
    assert found[series("relay_mailbox_pressure_ratio", **labels)] == relay.mailboxes()[0].pressure > 0
    assert found[series("relay_mailbox_oldest_seconds", **labels)] >= 0
    assert found[series("relay_mailbox_degraded", **labels)] == 0


async def test_a_scrape_shows_what_adapters_delivered_and_published(relay: RelayCore, port: int) -> None:
    adapter = SampleAdapter("chat")
    await relay.add_adapter(adapter)
    await relay.publish("relay.out.x", {}, sender="relay.agent.b")
    await relay.register_endpoint("relay.agent.a")
    for _ in range(5):  # the last is refused: the mailbox holds 4
        await adapter.context.publish("relay.agent.a", {}, sender="relay.human.x")
    found = await scrape(port)
    assert found[series("relay_adapter_state", adapter="chat", state="connected")] == 1
    assert found[series("relay_adapter_delivered_total", adapter="chat")] == 1
    assert found[series("relay_adapter_failed_total", adapter="chat")] == 0
    assert found[series("relay_adapter_published_total", adapter="chat")] == 4
    assert found[series("relay_adapter_refused_total", adapter="chat")] == 1


async def test_latencies_are_in_seconds(relay: RelayCore, port: int) -> None:
    await relay.subscribe("relay.agent.a", lambda envelope: None)
    await relay.publish("relay.agent.a", {}, sender="relay.agent.b")
    await relay.idle()
    found = await scrape(port)
    total = relay.metrics().total_us
    assert total.p50 is not None
    assert found[series("relay_delivery_latency_seconds_count", step="total")] == 1
    assert found[series("relay_delivery_latency_seconds", step="total", quantile="0.5")] == pytest.approx(
        total.p50 / 1e6
    )


async def test_breakers_are_counted_and_those_that_are_not_closed_are_named(relay: RelayCore, port: int) -> None:
    for name in ("a", "b"):
        await relay.register_endpoint(f"relay.agent.{name}")
        await relay.publish(f"relay.agent.{name}", {}, sender="x")
    relay.force_breaker("relay.agent.b", CircuitState.OPEN, "test")
    found = await scrape(port)
    assert found[series("relay_breakers", state="open")] == 1
    assert found[series("relay_breakers", state="closed")] == 1
    named = {key: value for key, value in found.items() if key[0] == "relay_breaker_state"}
    target = next(breaker.key for breaker in relay.breakers() if breaker.subject == "relay.agent.b")
    assert named == {series("relay_breaker_state", subject="relay.agent.b", target=target): 2}


async def test_only_the_fullest_mailboxes_are_named_beyond_the_limit(
    relay: RelayCore, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus_metrics, "MAX_MAILBOXES", 2)
    for name in "abcd":
        await relay.register_endpoint(f"relay.agent.{name}")
    for subject in ("relay.agent.b", "relay.agent.d", "relay.agent.d"):
        await relay.publish(subject, {}, sender="x")
    found = await scrape(port)
    assert found[series("relay_mailboxes")] == 4
    assert found[series("relay_mailboxes_hidden")] == 2
    named = {dict(labels)["subject"] for name, labels in found if name == "relay_mailbox_waiting_messages"}
    assert named == {"relay.agent.b", "relay.agent.d"}


async def test_senders_are_never_named(relay: RelayCore, port: int) -> None:
    await relay.publish("relay.nobody", {}, sender="relay.agent.secretive")
    _, body = await exchange(port, request())
    assert b"secretive" not in body


async def test_every_name_has_our_prefix_and_counters_end_in_total(port: int) -> None:
    _, body = await exchange(port, request())
    kinds = {}
    for line in body.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
    assert all(name.startswith("relay_") for name in kinds)
    assert {name for name, kind in kinds.items() if name.endswith("_total")} == {
        name for name, kind in kinds.items() if kind == "counter"
    }


async def test_the_bus_is_read_on_its_own_thread_only(relay: RelayCore, port: int) -> None:
    threads: set[int] = set()

    def note(frame: Any, event: str, arg: object) -> None:
        if frame.f_code.co_filename.endswith(("relay_core/operator_state.py", "relay_core/records/metrics.py")):
            threads.add(threading.get_ident())

    threading.setprofile(note)  # for threads that start from now on: the one that makes the text
    sys.setprofile(note)
    try:
        await scrape(port)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert threads == {threading.get_ident()}


# HTTP


async def test_the_answer_is_prometheus_text(port: int) -> None:
    head, body = await exchange(port, request())
    assert "Content-Type: text/plain; version=0.0.4; charset=utf-8" in head
    assert f"Content-Length: {len(body)}" in head
    assert "Connection: close" in head
    head, body = await exchange(port, request(method="HEAD"))
    assert head.startswith("HTTP/1.1 200")
    assert body == b""


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request("/metrics?x=1"), 200),
        (request("/"), 404),
        (request("/metrics/"), 404),
        (request("/../metrics"), 404),
        (request(method="POST"), 405),
        (request(method="DELETE"), 405),
        (request(host="localhost"), 200),
        (request(host="LOCALHOST:1"), 200),
        (request(host="[::1]:1"), 200),
        (request(host="evil.example"), 403),
        (request(host="evil.example:9464"), 403),
        (request(host="127.0.0.1.evil.example"), 403),
        (request(host="127.0.0.1\r\nHost: evil.example"), 400),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET /metrics\r\n\r\n", 403),
        (b"\x16\x03\x01\xff\x00\r\n\r\n", 400),
        (b"GET /metrics HTTP/2\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 400),
    ],
    ids=lambda value: value[:60].decode("latin-1") if isinstance(value, bytes) else str(value),
)
async def test_what_is_answered_to_what(port: int, asked: bytes, status: int) -> None:
    head, _ = await exchange(port, asked)
    assert head.split(" ")[1] == str(status)


@pytest.mark.parametrize("sent", [b"", b"GET /met"], ids=["nothing", "half a request"])
async def test_a_slow_request_is_closed(relay: RelayCore, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(prometheus, "LIMITS", LIMITS._replace(idle_secs=0.05))
    async with serve_metrics(relay, 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await until_closed(reader)
        writer.transport.abort()


async def test_idle_connections_do_not_lock_a_scrape_out(port: int) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(LIMITS.max_connections)]
    await scrape(port)
    await until_closed(held[0][0])
    held[1][1].write(request())
    assert (await held[1][0].read()).startswith(b"HTTP/1.1 200")
    for _, each in held:
        each.transport.abort()


async def test_many_scrapes_at_once_are_all_answered(port: int) -> None:
    found = await asyncio.gather(*(scrape(port) for _ in range(8)))
    assert len(found) == 8


async def test_it_listens_on_the_loopback_alone(port: int) -> None:
    for host in ("127.0.0.2", "::1"):
        with pytest.raises(OSError):  # noqa: PT011
            await asyncio.open_connection(host, port)


# Lifecycle


async def test_closing_does_not_wait_for_idle_readers(relay: RelayCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "LIMITS", LIMITS._replace(idle_secs=600))
    async with serve_metrics(relay, 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await scrape(port)
    await until_closed(reader)
    writer.transport.abort()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_closed_bus_is_reported(data_dir: Path) -> None:
    relay = RelayCore(data_dir, config=CONFIG)
    async with relay:
        pass
    async with serve_metrics(relay, 0) as port:
        head, _ = await exchange(port, request())
        assert head.startswith("HTTP/1.1 503 ")


async def test_a_port_that_is_taken_is_named(relay: RelayCore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}") as caught:
            async with serve_metrics(relay, port):
                pass
    assert caught.value.key == "prometheus.port"


async def test_a_missing_package_names_the_extra(relay: RelayCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"relay-bus\[prometheus\]"):
        async with serve_metrics(relay, 0):
            pass
