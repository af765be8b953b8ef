"""Relay's bus as an embeddable asyncio library.

Every module opens with its rules. With twenty minutes, read them in this order:

1. What it is for. `core.py` has the verbs, a few lines each; `envelope.py` says what a message is, `errors.py` what can
   go wrong.
2. A publish. `pipeline.py` is the specification: eight stages, in one list. `publication.py` is what they hand on,
   `match.py` finds the targets (each is a mailbox), `deliver.py` stores a copy with each. What they ask are rules
   without any I/O: `subjects.py`, `trie.py`, `budget.py`, `ratelimit.py`, `backpressure.py`, `breaker.py`.
3. How it lasts. `maildir.py` is one mailbox on disk, and the moves of a message: new/, cur/, then gone or failed/.
   `journal.py` has the line that is written before the files are, `commit.py` makes many lines last by one sync, and
   `recovery.py` is the next start after a crash. The promises are kept here: read these slowly.
4. How it is handled. `mailbox.py` is what waits, in memory; `dispatch.py` says which message is begun when,
   `handling.py` takes one to its end, `parking.py` keeps what failed. For those who come for their mail: `pull.py`.
5. After a failure. `deadletters.py` is what is kept of it; `replay_plan.py`, `replay_judge.py` and `replay.py` put it
   back on its way, never lost and never doubled.
6. How it is seen. `recorder.py` is told of every step, for `index.py` (SQLite, derived from the files),
   `event_log.py` (for Spark) and `metrics.py`.
7. The edges. `adapter.py` is the seam to other platforms; `protocol.py` says every method of the socket once, for the
   supervisor and for `client.py`. `access.py` and `config.py` read the operator's files.
8. The whole. `bus.py` puts the parts together, and starts and stops them in order.

docs/architecture.md is the map of all modules. Nothing here knows the supervisor, the dashboard or Spark.

Names are imported when they are first asked for: a command that only talks to the supervisor has no need of the bus.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # a type checker goes by the name; `typing` would cost the programs that need none of this 9 ms
if TYPE_CHECKING:
    from relay_core.access import AccessRule
    from relay_core.adapter import Adapter, AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult
    from relay_core.backpressure import check_backpressure
    from relay_core.bindings import Binding
    from relay_core.breaker import CircuitBreakers, CircuitState
    from relay_core.budget import create_default_budget, enforce_budget
    from relay_core.client import RelayClient
    from relay_core.clock import Clock, SystemClock
    from relay_core.config import (
        BackpressureConfig,
        BudgetConfig,
        CircuitBreakerConfig,
        DispatchConfig,
        EventsConfig,
        LimitsConfig,
        RateLimitConfig,
        RelayConfig,
        ReliabilityConfig,
        RetentionConfig,
    )
    from relay_core.core import RelayCore
    from relay_core.deadletters import DeadLetter, DeadLetterFilter, DeadLetterGroup
    from relay_core.delivery import Span
    from relay_core.endpoints import Endpoint
    from relay_core.envelope import Budget, BudgetOverrides, Envelope
    from relay_core.errors import (
        AccessDenied,
        Closed,
        ConfigError,
        InvalidPayload,
        InvalidSubject,
        NotFound,
        ProtocolError,
        RelayError,
        StorageError,
        SupervisorUnavailable,
    )
    from relay_core.operations import AdapterState
    from relay_core.payload import Attachment, ChannelType, Performative, ResponseContext, StandardPayload
    from relay_core.ratelimit import check_rate_limit, resolve_limit
    from relay_core.replay_plan import ReplayOutcome, ReplayPlan
    from relay_core.results import AdapterResult, PublishResult, Rejection
    from relay_core.secret import Secret
    from relay_core.signals import Signal, SignalType
    from relay_core.subjects import matches_pattern, validate_subject
    from relay_core.subscriptions import Subscription
    from relay_core.trie import SubjectTrie

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "AccessRule",
    "Adapter",
    "AdapterContext",
    "AdapterResult",
    "AdapterState",
    "AdapterStatus",
    "Attachment",
    "BackpressureConfig",
    "Binding",
    "Budget",
    "BudgetConfig",
    "BudgetOverrides",
    "ChannelType",
    "CircuitBreakerConfig",
    "CircuitBreakers",
    "CircuitState",
    "Clock",
    "Closed",
    "ConfigError",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterGroup",
    "DeliveryContext",
    "DeliveryResult",
    "DispatchConfig",
    "Endpoint",
    "Envelope",
    "EventsConfig",
    "InvalidPayload",
    "InvalidSubject",
    "LimitsConfig",
    "NotFound",
    "Performative",
    "ProtocolError",
    "PublishResult",
    "RateLimitConfig",
    "Rejection",
    "RelayClient",
    "RelayConfig",
    "RelayCore",
    "RelayError",
    "ReliabilityConfig",
    "ReplayOutcome",
    "ReplayPlan",
    "ResponseContext",
    "RetentionConfig",
    "Secret",
    "Signal",
    "SignalType",
    "Span",
    "StandardPayload",
    "StorageError",
    "SubjectTrie",
    "Subscription",
    "SupervisorUnavailable",
    "SystemClock",
    "check_backpressure",
    "check_rate_limit",
    "create_default_budget",
    "enforce_budget",
    "matches_pattern",
    "resolve_limit",
    "validate_subject",
]

_HOME = {
    "AccessDenied": "errors",
    "AccessRule": "access",
    "Adapter": "adapter",
    "AdapterContext": "adapter",
    "AdapterResult": "results",
    "AdapterState": "operations",
    "AdapterStatus": "adapter",
    "Attachment": "payload",
    "BackpressureConfig": "config",
    "Binding": "bindings",
    "Budget": "envelope",
    "BudgetConfig": "config",
    "BudgetOverrides": "envelope",
    "ChannelType": "payload",
    "CircuitBreakerConfig": "config",
    "CircuitBreakers": "breaker",
    "CircuitState": "breaker",
    "Clock": "clock",
    "Closed": "errors",
    "ConfigError": "errors",
    "DeadLetter": "deadletters",
    "DeadLetterFilter": "deadletters",
    "DeadLetterGroup": "deadletters",
    "DeliveryContext": "adapter",
    "DeliveryResult": "adapter",
    "DispatchConfig": "config",
    "Endpoint": "endpoints",
    "Envelope": "envelope",
    "EventsConfig": "config",
    "InvalidPayload": "errors",
    "InvalidSubject": "errors",
    "LimitsConfig": "config",
    "NotFound": "errors",
    "Performative": "payload",
    "ProtocolError": "errors",
    "PublishResult": "results",
    "RateLimitConfig": "config",
    "Rejection": "results",
    "RelayClient": "client",
    "RelayConfig": "config",
    "RelayCore": "core",
    "RelayError": "errors",
    "ReliabilityConfig": "config",
    "ReplayOutcome": "replay_plan",
    "ReplayPlan": "replay_plan",
    "ResponseContext": "payload",
    "RetentionConfig": "config",
    "Secret": "secret",
    "Signal": "signals",
    "SignalType": "signals",
    "Span": "delivery",
    "StandardPayload": "payload",
    "StorageError": "errors",
    "SubjectTrie": "trie",
    "Subscription": "subscriptions",
    "SupervisorUnavailable": "errors",
    "SystemClock": "clock",
    "check_backpressure": "backpressure",
    "check_rate_limit": "ratelimit",
    "create_default_budget": "budget",
    "enforce_budget": "budget",
    "matches_pattern": "subjects",
    "resolve_limit": "ratelimit",
    "validate_subject": "subjects",
}
"""Which module each name comes from; a test holds it to `__all__` and to the imports above."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"relay_core.{_HOME[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
