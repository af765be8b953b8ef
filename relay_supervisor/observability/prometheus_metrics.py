"""The metrics of a scrape, from a snapshot of the bus.

The number of series is bounded. Counters have a label for the code or the status, of which there are few. Mailboxes are
labelled by subject: the 1,000 fullest, plus a count of all. Senders are only counted, since a client can invent any
number of them.

prometheus-client renders the format; it is an extra, and imported late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from relay_core.core import RelayCore
from relay_core.messages.operator_views import STATE_NAMES, AdapterState
from relay_core.protocol.state import JournalState, MailboxState, TargetBreaker
from relay_core.records.metrics import MetricsSnapshot, Percentiles
from relay_core.rules.breaker import CircuitState
from relay_core.rules.rate_limit import SenderUsage

if TYPE_CHECKING:
    from prometheus_client import Metric

MAX_MAILBOXES = 1_000

Samples: TypeAlias = float | Iterable[tuple[dict[str, str], float]]
"""The value of a metric, or its values by labels."""

_MAILBOX_GAUGES: tuple[tuple[str, str, Callable[[MailboxState], float]], ...] = (
    ("waiting_messages", "Messages waiting in a mailbox.", lambda mailbox: mailbox.depth),
    ("claimed_messages", "Messages claimed by a consumer.", lambda mailbox: mailbox.claimed),
    ("failed_messages", "Dead letters, and kept copies of partial deliveries.", lambda mailbox: mailbox.failed),
    ("pressure_ratio", "How full a mailbox is; 1 refuses mail.", lambda mailbox: mailbox.pressure),
    (
        "oldest_seconds",
        "Age of the oldest waiting message; 0 without any.",
        lambda mailbox: (mailbox.oldest_ms or 0) / 1e3,
    ),
    ("consumers", "Consumers of a mailbox.", lambda mailbox: mailbox.consumers),
    ("degraded", "1 if the last store could not be made durable.", lambda mailbox: mailbox.degraded is not None),
)
_BREAKER_STATES = {CircuitState.CLOSED: 0, CircuitState.HALF_OPEN: 1, CircuitState.OPEN: 2}


class BusSnapshot(NamedTuple):
    """The bus at the moment of a scrape."""

    metrics: MetricsSnapshot
    mailboxes: list[MailboxState]
    breakers: list[TargetBreaker]
    adapters: list[AdapterState]
    senders: list[SenderUsage]
    journal: JournalState


def read_bus(relay: RelayCore) -> BusSnapshot:
    """Read everything a scrape needs, on the event loop."""
    return BusSnapshot(
        relay.metrics(), relay.mailboxes(), relay.breakers(), relay.adapters(), relay.senders(), relay.journal()
    )


def render(snapshot: BusSnapshot) -> tuple[str, bytes]:
    """Return the content type and the text of a scrape; blocks."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

    class _Collector:
        def collect(self) -> Iterable[Metric]:
            return [
                *_bus(snapshot.metrics),
                *_mailboxes(snapshot.mailboxes),
                *_breakers(snapshot.breakers),
                *_adapters(snapshot.adapters),
                *_senders(snapshot.senders),
                *_journal(snapshot.journal),
            ]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector())
    return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)


def _gauge(name: str, about: str, samples: Samples) -> Metric:
    return _metric(name, about, "gauge", name, samples)


def _counter(name: str, about: str, samples: Samples) -> Metric:
    return _metric(name, about, "counter", f"{name}_total", samples)


def _metric(name: str, about: str, kind: str, sample: str, samples: Samples) -> Metric:
    from prometheus_client import Metric

    metric = Metric(name, about, kind)
    for labels, value in [({}, samples)] if isinstance(samples, int | float) else samples:
        metric.add_sample(sample, labels, value)
    return metric


def _by(label: str, counts: dict[str, int]) -> Samples:
    return [({label: key}, count) for key, count in sorted(counts.items())]


def _bus(metrics: MetricsSnapshot) -> list[Metric]:
    return [
        _gauge("relay_uptime_seconds", "Time since the bus was started.", metrics.uptime_secs),
        _counter("relay_publishes", "Messages that passed the gates.", metrics.publishes),
        _counter("relay_published_bytes", "Payload bytes of those messages.", metrics.bytes),
        _counter("relay_deliveries", "Deliveries by the status they reached.", _by("status", metrics.deliveries)),
        _counter("relay_no_subscriber", "Messages without any consumer.", metrics.no_subscriber),
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
    for step, percentiles in steps.items():
        for quantile, value in (("0.5", percentiles.p50), ("0.95", percentiles.p95), ("0.99", percentiles.p99)):
            if value is not None:
                metric.add_sample(name, {"step": step, "quantile": quantile}, value / 1e6)
        metric.add_sample(f"{name}_count", {"step": step}, percentiles.count)
    return metric


def _mailboxes(mailboxes: list[MailboxState]) -> list[Metric]:
    # Above the limit, the mailboxes that an alert could be about.
    shown = sorted(mailboxes, key=lambda mailbox: (-mailbox.pressure, -mailbox.depth, -mailbox.failed, mailbox.subject))
    shown = sorted(shown[:MAX_MAILBOXES], key=lambda mailbox: mailbox.subject)
    labelled = [({"subject": mailbox.subject, "kind": mailbox.kind}, mailbox) for mailbox in shown]
    return [
        _gauge("relay_mailboxes", "Number of mailboxes.", len(mailboxes)),
        _gauge(
            "relay_mailboxes_hidden",
            f"Mailboxes beyond the fullest {MAX_MAILBOXES}, which have no series.",
            len(mailboxes) - len(shown),
        ),
        *(
            _gauge(f"relay_mailbox_{name}", about, [(label, value(mailbox)) for label, mailbox in labelled])
            for name, about, value in _MAILBOX_GAUGES
        ),
    ]


def _breakers(breakers: list[TargetBreaker]) -> list[Metric]:
    counts = Counter(breaker.state for breaker in breakers)
    # Closed breakers, the usual case, have no series.
    tripped = sorted(
        (breaker for breaker in breakers if breaker.state is not CircuitState.CLOSED),
        key=lambda breaker: (-_BREAKER_STATES[breaker.state], breaker.subject or "", breaker.key),
    )[:MAX_MAILBOXES]
    return [
        _gauge(
            "relay_breakers",
            "Circuit breakers by state.",
            [({"state": state.lower()}, counts[state]) for state in CircuitState],
        ),
        _gauge(
            "relay_breaker_state",
            f"Breakers that are not closed: 1 is half open, 2 is open; the first {MAX_MAILBOXES}.",
            [
                ({"subject": breaker.subject or "", "target": breaker.key}, _BREAKER_STATES[breaker.state])
                for breaker in tripped
            ],
        ),
    ]


def _adapters(adapters: list[AdapterState]) -> list[Metric]:
    states = [
        ({"adapter": adapter.id, "state": state}, float(adapter.state == state))
        for adapter in adapters
        for state in STATE_NAMES
    ]
    return [
        _gauge("relay_adapter_state", "1 for the state that an adapter is in.", states),
        _counter(
            "relay_adapter_delivered",
            "Messages delivered to the platform.",
            [({"adapter": adapter.id}, adapter.delivered) for adapter in adapters],
        ),
        _counter(
            "relay_adapter_failed",
            "Messages that failed.",
            [({"adapter": adapter.id}, adapter.failed) for adapter in adapters],
        ),
        _counter(
            "relay_adapter_published",
            "Messages published by an adapter.",
            [({"adapter": adapter.id}, adapter.published) for adapter in adapters],
        ),
        _counter(
            "relay_adapter_refused",
            "Messages published by an adapter that the bus refused.",
            [({"adapter": adapter.id}, adapter.refused) for adapter in adapters],
        ),
    ]


def _senders(senders: list[SenderUsage]) -> list[Metric]:
    used = [sender.count / sender.limit for sender in senders if sender.limit]
    return [
        _gauge("relay_senders", "Senders that published within the window.", len(senders)),
        _gauge("relay_senders_limited", "Senders that have used up their limit.", sum(share >= 1 for share in used)),
        _gauge(
            "relay_sender_usage_max_ratio",
            "Share of its limit that the busiest sender has used.",
            max(used, default=0),
        ),
    ]


def _journal(journal: JournalState) -> list[Metric]:
    return [
        _gauge("relay_journal_bytes", "Size of the journal without its closed segments.", journal.bytes),
        _gauge("relay_journal_pending_messages", "Messages that are not files yet.", journal.pending),
        _gauge(
            "relay_journal_oldest_pending_seconds",
            "Age of the oldest of them; 0 without any.",
            (journal.oldest_pending_ms or 0) / 1e3,
        ),
        _gauge(
            "relay_journal_checkpoint_timestamp_seconds",
            "When the journal was last checkpointed; 0 if never.",
            (journal.checkpointed_at or 0) / 1e3,
        ),
    ]
