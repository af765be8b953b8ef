"""Relay's bus as an embeddable asyncio library.

Start at `core.py` (the verbs), then `pipeline.py` (what a publish goes through), `dispatch.py` (how
messages reach handlers) and `maildir.py`, `journal.py` and `commit.py` (how they last).
"""

from relay_core.access import AccessRule
from relay_core.adapter import Adapter, AdapterContext, AdapterState, AdapterStatus, DeliveryContext, DeliveryResult
from relay_core.backpressure import check_backpressure
from relay_core.breaker import CircuitBreakers, CircuitState
from relay_core.budget import create_default_budget, enforce_budget
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
from relay_core.payload import Attachment, ChannelType, Performative, ResponseContext, StandardPayload
from relay_core.ratelimit import check_rate_limit, resolve_limit
from relay_core.replay_plan import ReplayOutcome, ReplayPlan
from relay_core.results import AdapterResult, PublishResult, Rejection
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
    "RelayConfig",
    "RelayCore",
    "RelayError",
    "ReliabilityConfig",
    "ReplayOutcome",
    "ReplayPlan",
    "ResponseContext",
    "RetentionConfig",
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
