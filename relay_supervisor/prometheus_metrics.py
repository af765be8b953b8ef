"""What Prometheus is told: the bus at the moment of a scrape, as metrics.

The number of series is bounded. Counters are by code and status, of which there are few; the mailboxes with most to
tell are shown by subject, up to 1,000, and how many there are is told; senders, of which anybody can make any number,
are only counted.

prometheus-client does the format; it is an extra, and imported late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from relay_core.breaker import CircuitState
from relay_core.core import RelayCore
from relay_core.metrics import MetricsSnapshot, Percentiles
from relay_core.operations import STATE_NAMES, AdapterState
from relay_core.ratelimit import SenderUsage
from relay_core.state import MailboxState, TargetBreaker

if TYPE_CHECKING:
    from prometheus_client import Metric

MAX_MAILBOXES = 1_000

_BREAKER_STATES = {CircuitState.CLOSED: 0, CircuitState.HALF_OPEN: 1, CircuitState.OPEN: 2}


class Seen(NamedTuple):
    """The bus at the moment of a scrape."""

    metrics: MetricsSnapshot
    mailboxes: list[MailboxState]
    breakers: list[TargetBreaker]
    adapters: list[AdapterState]
    senders: list[SenderUsage]


def look(relay: RelayCore) -> Seen:
    """Read all that a scrape needs of a bus, on its event loop."""
    return Seen(relay.metrics(), relay.mailboxes(), relay.breakers(), relay.adapters(), relay.senders())


def expose(seen: Seen) -> tuple[str, bytes]:
    """Return the type and the text of an answer to a scrape; blocks."""
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


def _mailboxes(seen: Seen) -> list[Metric]:
    # Beyond the limit, those that an alert could be about.
    shown = sorted(seen.mailboxes, key=lambda one: (-one.pressure, -one.depth, -one.failed, one.subject))
    shown = sorted(shown[:MAX_MAILBOXES], key=lambda one: one.subject)
    labels = [{"subject": one.subject, "kind": one.kind} for one in shown]
    columns: list[tuple[str, str, list[float]]] = [
        ("waiting_messages", "Messages that wait in a mailbox.", [one.depth for one in shown]),
        ("claimed_messages", "Messages that somebody holds.", [one.claimed for one in shown]),
        ("failed_messages", "Dead letters, and kept copies of partial deliveries.", [one.failed for one in shown]),
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


def _breakers(seen: Seen) -> list[Metric]:
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


def _adapters(seen: Seen) -> list[Metric]:
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


def _senders(seen: Seen) -> list[Metric]:
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
