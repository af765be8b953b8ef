"""Metrics for Prometheus: text on http://127.0.0.1:{port}/metrics, made anew for each scrape.

1. The bus is read on its event loop and nowhere else. What was read does not change any more, so the
   text is made in a thread: a thousand mailboxes hold up no message.
2. A scrape costs a bounded amount: a request of at most 8 KiB within 5 s, 16 connections at once, one
   text at a time. What is beyond that is closed.
3. The number of series is bounded. Counters are by code and status, of which there are few; the
   mailboxes with most to tell are shown by subject, up to 1,000, and how many there are is told;
   senders, of which anybody can make any number, are only counted.
4. It listens on the loopback alone, and answers only those who ask for it by a loopback name: a web
   page that had its own name point here would otherwise read along.

prometheus-client does the format. Its own server would collect in a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from relay_core.breaker import CircuitState
from relay_core.core import RelayCore
from relay_core.errors import Closed, ConfigError
from relay_core.metrics import MetricsSnapshot, Percentiles
from relay_core.operations import STATE_NAMES, AdapterState
from relay_core.ratelimit import SenderUsage
from relay_core.state import MailboxState, TargetBreaker
from relay_core.tasks import Tasks

if TYPE_CHECKING:
    from prometheus_client import Metric

HOST = "127.0.0.1"
MAX_MAILBOXES = 1_000
MAX_CONNECTIONS = 16
MAX_REQUEST = 8_192
REQUEST_SECS = 5.0

_BREAKER_STATES = {CircuitState.CLOSED: 0, CircuitState.HALF_OPEN: 1, CircuitState.OPEN: 2}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class PrometheusServer:
    """Serve a bus's metrics, as an async context manager."""

    def __init__(self, relay: RelayCore, port: int) -> None:
        self._relay = relay
        self._wanted = port
        self._server: asyncio.Server | None = None
        self._tasks = Tasks()
        self._turn = asyncio.Lock()

    @property
    def port(self) -> int:
        """Return the port it listens on, which the system chose if it was told 0."""
        if self._server is None:
            return self._wanted
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        """Begin to serve.

        Raises:
            ConfigError: if the extra is not installed, or the port cannot be had.
        """
        try:
            await asyncio.to_thread(_import)
        except ImportError as error:
            raise ConfigError(
                "prometheus.enabled needs prometheus-client: pip install 'relay-bus[prometheus]'",
                key="prometheus.enabled",
            ) from error
        try:
            self._server = await asyncio.start_server(self._accept, HOST, self._wanted, limit=MAX_REQUEST)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {HOST}:{self._wanted}: {error.strerror}", key="prometheus.port"
            ) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop serving, whoever is still reading."""
        if self._server is not None:
            self._server.close()
            await self._tasks.close()
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_full = len(self._tasks) >= MAX_CONNECTIONS
        if is_full or self._tasks.start(self._serve(reader, writer), name="prometheus scrape") is None:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
                async with asyncio.timeout(REQUEST_SECS):
                    head = await _read_head(reader)
                status, kind, body = await self._answer(head)
                async with asyncio.timeout(REQUEST_SECS):
                    writer.write(_response(status, kind, body, with_body=not head.startswith(b"HEAD ")))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()

    async def _answer(self, head: bytes) -> tuple[str, str, bytes]:
        method, path, host = _parse(head)
        plain = "text/plain; charset=utf-8"
        if not method:
            return "400 Bad Request", plain, b"this is no HTTP request that can be understood\n"
        if host not in _LOOPBACK:
            return "403 Forbidden", plain, b"ask for 127.0.0.1 or localhost\n"
        if path != "/metrics":
            return "404 Not Found", plain, b"the metrics are at /metrics\n"
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", plain, b"the metrics can only be read\n"
        async with self._turn:
            try:
                seen = _look(self._relay)
            except Closed:
                return "503 Service Unavailable", plain, b"the bus is closed\n"
            return "200 OK", *await asyncio.to_thread(_expose, seen)


# HTTP, as much of it as a scrape needs


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return b""


def _parse(head: bytes) -> tuple[str, str, str]:
    """Return method, path and host, or an empty method for what is no request."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", "", ""
    hosts = [line.partition(":")[2].strip().lower() for line in lines if line.lower().startswith("host:")]
    # HTTP/1.0 needs none, and no browser speaks it.
    host = hosts[0] if len(hosts) == 1 else "127.0.0.1" if words[2] == "HTTP/1.0" and not hosts else ""
    name, colon, port = host.rpartition(":")
    return words[0], words[1].partition("?")[0], name if colon and port.isdigit() else host


def _response(status: str, kind: str, body: bytes, *, with_body: bool) -> bytes:
    allow = "Allow: GET, HEAD\r\n" if status.startswith("405") else ""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{allow}"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + (body if with_body else b"")


# What is told


class _Seen(NamedTuple):
    """The bus at the moment of a scrape."""

    metrics: MetricsSnapshot
    mailboxes: list[MailboxState]
    breakers: list[TargetBreaker]
    adapters: list[AdapterState]
    senders: list[SenderUsage]


def _look(relay: RelayCore) -> _Seen:
    return _Seen(relay.metrics(), relay.mailboxes(), relay.breakers(), relay.adapters(), relay.senders())


def _import() -> None:
    import prometheus_client  # noqa: F401


def _expose(seen: _Seen) -> tuple[str, bytes]:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

    class _Collector:
        def collect(self) -> Iterable[Metric]:
            return [*_bus(seen.metrics), *_mailboxes(seen), *_breakers(seen), *_adapters(seen), *_senders(seen)]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector())
    return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)


def _gauge(name: str, about: str, samples: Iterable[tuple[dict[str, str], float]]) -> Metric:
    return _metric(name, about, "gauge", name, samples)


def _counter(name: str, about: str, samples: Iterable[tuple[dict[str, str], float]]) -> Metric:
    return _metric(name, about, "counter", f"{name}_total", samples)


def _metric(name: str, about: str, kind: str, sample: str, samples: Iterable[tuple[dict[str, str], float]]) -> Metric:
    from prometheus_client import Metric

    metric = Metric(name, about, kind)
    for labels, value in samples:
        metric.add_sample(sample, labels, value)
    return metric


def _one(value: float) -> list[tuple[dict[str, str], float]]:
    return [({}, value)]


def _by(label: str, counts: dict[str, int]) -> list[tuple[dict[str, str], float]]:
    return [({label: key}, count) for key, count in sorted(counts.items())]


def _bus(metrics: MetricsSnapshot) -> list[Metric]:
    return [
        _gauge("relay_uptime_seconds", "Time since the bus was started.", _one(metrics.uptime_secs)),
        _counter("relay_publishes", "Messages that passed the gates.", _one(metrics.publishes)),
        _counter("relay_published_bytes", "Payload bytes of those messages.", _one(metrics.bytes)),
        _counter("relay_deliveries", "Deliveries by the status they reached.", _by("status", metrics.deliveries)),
        _counter("relay_no_subscriber", "Messages that nobody was listening for.", _one(metrics.no_subscriber)),
        _counter("relay_refusals", "Refused publishes and deliveries.", _by("code", metrics.refusals)),
        _counter(
            "relay_budget_rejections", "Messages stopped by their budget.", _by("code", metrics.budget_rejections)
        ),
        _counter("relay_dead_letters", "Dead letters since the start.", _by("code", metrics.dead_letters)),
        _latencies(metrics),
    ]


def _latencies(metrics: MetricsSnapshot) -> Metric:
    name = "relay_delivery_latency_seconds"
    about = "Time in the queue, in the handler, and from publish to the handler's end, since the start."
    metric = _metric(name, about, "summary", name, [])
    steps: dict[str, Percentiles] = {"queue": metrics.queue_us, "handle": metrics.handle_us, "total": metrics.total_us}
    for step, found in steps.items():
        for quantile, value in (("0.5", found.p50), ("0.95", found.p95), ("0.99", found.p99)):
            if value is not None:
                metric.add_sample(name, {"step": step, "quantile": quantile}, value / 1e6)
        metric.add_sample(f"{name}_count", {"step": step}, found.count)
    return metric


def _mailboxes(seen: _Seen) -> list[Metric]:
    # Beyond the limit, those that an alert could be about.
    shown = sorted(seen.mailboxes, key=lambda one: (-one.pressure, -one.depth, -one.failed, one.subject))
    shown = sorted(shown[:MAX_MAILBOXES], key=lambda one: one.subject)
    labels = [{"subject": one.subject, "kind": one.kind} for one in shown]
    columns: list[tuple[str, str, list[float]]] = [
        ("waiting_messages", "Messages that wait in a mailbox.", [one.depth for one in shown]),
        ("claimed_messages", "Messages that somebody holds.", [one.claimed for one in shown]),
        ("failed_messages", "Dead letters, and copies kept aside.", [one.failed for one in shown]),
        ("pressure_ratio", "How full a mailbox is; 1 refuses mail.", [one.pressure for one in shown]),
        (
            "oldest_seconds",
            "Age of what waits longest; 0 if nothing does.",
            [(one.oldest_ms or 0) / 1e3 for one in shown],
        ),
        ("consumers", "Handlers that take a mailbox's messages.", [one.consumers for one in shown]),
        ("degraded", "1 if the last store could not be made durable.", [one.degraded is not None for one in shown]),
    ]
    return [
        _gauge("relay_mailboxes", "Mailboxes there are.", _one(len(seen.mailboxes))),
        _gauge(
            "relay_mailboxes_hidden",
            f"Mailboxes not shown one by one, because only the fullest {MAX_MAILBOXES} are.",
            _one(len(seen.mailboxes) - len(shown)),
        ),
        *(_gauge(f"relay_mailbox_{name}", about, zip(labels, values, strict=True)) for name, about, values in columns),
    ]


def _breakers(seen: _Seen) -> list[Metric]:
    counts = Counter(one.state for one in seen.breakers)
    # Closed ones, the many, are shown by their absence.
    tripped = sorted(
        (one for one in seen.breakers if one.state is not CircuitState.CLOSED),
        key=lambda one: (-_BREAKER_STATES[one.state], one.subject or "", one.key),
    )[:MAX_MAILBOXES]
    return [
        _gauge(
            "relay_breakers", "Circuit breakers by state.", [({"state": s.lower()}, counts[s]) for s in CircuitState]
        ),
        _gauge(
            "relay_breaker_state",
            f"Breakers that are not closed: 1 is half open, 2 is open; the first {MAX_MAILBOXES}.",
            [({"subject": one.subject or "", "target": one.key}, _BREAKER_STATES[one.state]) for one in tripped],
        ),
    ]


def _adapters(seen: _Seen) -> list[Metric]:
    states = [
        ({"adapter": one.id, "state": state}, float(one.state == state))
        for one in seen.adapters
        for state in STATE_NAMES
    ]
    return [
        _gauge("relay_adapter_state", "1 for the state that an adapter is in.", states),
        _counter(
            "relay_adapter_delivered", "Messages taken out.", [({"adapter": a.id}, a.delivered) for a in seen.adapters]
        ),
        _counter(
            "relay_adapter_failed", "Messages that failed.", [({"adapter": a.id}, a.failed) for a in seen.adapters]
        ),
    ]


def _senders(seen: _Seen) -> list[Metric]:
    used = [one.count / one.limit for one in seen.senders if one.limit]
    return [
        _gauge("relay_senders", "Senders that published within the window.", _one(len(seen.senders))),
        _gauge("relay_senders_limited", "Senders that have used up their limit.", _one(sum(u >= 1 for u in used))),
        _gauge(
            "relay_sender_usage_max_ratio",
            "Share of its limit that the busiest sender has used.",
            _one(max(used, default=0)),
        ),
    ]
