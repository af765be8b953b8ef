"""The state stream: what a dashboard needs to know, as one full picture and then only what changed.

1. `StateUpdate` is both: `full` says that it is the whole picture. Otherwise it holds the rows that came or
   changed, and under `gone` the keys of those that went.
2. Every row has a key, and times are instants, never durations: a row that only grows older is no news.
3. An update with nothing but `at` says that nothing has changed until then; one comes every second or two at least.
4. `LiveState` puts updates together again; a client that applied every update since the last full one has what
   a fresh full one would say.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from relay_core.breaker import CircuitState, Transition
from relay_core.deadletters import DeadLetterGroup
from relay_core.events import RECENT, Event
from relay_core.metrics import Percentiles
from relay_core.model import WireModel
from relay_core.operations import ConfiguredAdapter, JobState
from relay_core.replay_plan import ReplayOutcome


class LiveThroughput(WireModel):
    """What has been counted since the start."""

    publishes: int
    bytes: int
    """Payload bytes that were published."""
    rate_10s: Annotated[float, Field(alias="rate10s")]
    """Publishes per second over the last 10 seconds."""
    rate_60s: Annotated[float, Field(alias="rate60s")]
    """Publishes per second over the last 60 seconds."""
    per_second: tuple[int, ...]
    """Publishes in each of the last whole seconds, oldest first."""
    deliveries: dict[str, int]
    """Deliveries by status."""
    refusals: dict[str, int]
    """Refused publishes and deliveries by code."""
    dead_letters: dict[str, int]
    """Dead letters by code."""
    queue_us: Percentiles
    """From stored until a handler began."""
    handle_us: Percentiles
    """From a handler's beginning to its end."""
    total_us: Percentiles
    """From publish, or from a replay's store, to a handler's end."""
    recent_us: Percentiles
    """From publish to a handler's end, over the last minute alone."""


class LiveMailbox(WireModel):
    """How a mailbox is doing."""

    subject: str
    kind: str
    """``endpoint``, ``adapter``, ``subscription`` (read without an endpoint) or ``none`` (has dead letters alone)."""
    registered: bool
    """Whether messages are routed to it; False if it only keeps its mail, as after its adapter was removed."""
    depth: int
    """Messages that wait in ``new/``."""
    claimed: int
    """Messages that somebody holds in ``cur/``."""
    failed: int
    """Files in ``failed/``: dead letters and kept copies of partial deliveries."""
    pressure: float
    """Share of `maxMailboxSize`, 0 to 1; 0 while backpressure is off."""
    oldest_at: int | None = None
    """Wall time in milliseconds at which the message that waits longest was made."""
    consumers: int
    """Subscriptions that match it, or the adapter."""
    degraded: str | None = None
    """Why the last store could not be made durable."""


class LiveSender(WireModel):
    """What a sender has used of its limit."""

    count: int
    """Publishes within the window that ends now."""
    limit: int
    """Publishes that the window may hold."""
    window_secs: int
    resets_at: int
    """Wall time in milliseconds at which there is room for one more."""


class LiveBreaker(WireModel):
    """Whether a target is left alone, and until when."""

    subject: str | None = None
    """The target's; None if its mailbox is gone."""
    state: CircuitState
    consecutive_failures: int
    half_open_successes: int
    """Probes that went well since it was last open."""
    forced: bool
    """Whether an operator holds it open."""
    opened_at: int | None = None
    """Wall time in milliseconds at which it last opened; None while CLOSED."""
    retry_at: int | None = None
    """Wall time in milliseconds from which a probe may pass."""
    transitions: tuple[Transition, ...] = ()
    """The ten most recent changes at most, oldest first."""


class StateUpdate(WireModel):
    """The whole picture, or what has changed in it."""

    full: bool = False
    """Whether this is the whole picture; else it is what has changed."""
    at: int
    """Wall time in milliseconds."""
    throughput: LiveThroughput | None = None
    """None if it has not changed."""
    mailboxes: dict[str, LiveMailbox] = Field(default_factory=dict)
    """By hash."""
    senders: dict[str, LiveSender] = Field(default_factory=dict)
    """By the sender's subject."""
    breakers: dict[str, LiveBreaker] = Field(default_factory=dict)
    """By the hash of the target."""
    adapters: dict[str, ConfiguredAdapter] = Field(default_factory=dict)
    """By id."""
    dead_letters: dict[str, DeadLetterGroup] = Field(default_factory=dict)
    """By ``code/hash``."""
    jobs: dict[str, JobState] = Field(default_factory=dict)
    """By name."""
    replays: dict[str, ReplayOutcome] = Field(default_factory=dict)
    """By the id of the plan."""
    events: tuple[Event, ...] = ()
    """The newest that are not about everyday traffic, oldest first."""
    problems: tuple[str, ...] | None = None
    """What is wrong with the operator's files; None if that has not changed."""
    gone: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Keys of rows that are no more, by section."""


SECTIONS = ("mailboxes", "senders", "breakers", "adapters", "dead_letters", "jobs", "replays")
ALIASES = {name: str(StateUpdate.model_fields[name].alias) for name in SECTIONS}
"""The sections' names on the wire."""


class LiveState:
    """The picture as it stands."""

    def __init__(self) -> None:
        self.at = 0
        self.throughput: LiveThroughput | None = None
        self.mailboxes: dict[str, LiveMailbox] = {}
        self.senders: dict[str, LiveSender] = {}
        self.breakers: dict[str, LiveBreaker] = {}
        self.adapters: dict[str, ConfiguredAdapter] = {}
        self.dead_letters: dict[str, DeadLetterGroup] = {}
        self.jobs: dict[str, JobState] = {}
        self.replays: dict[str, ReplayOutcome] = {}
        self.events: tuple[Event, ...] = ()
        self.problems: tuple[str, ...] = ()

    def apply(self, update: StateUpdate) -> None:
        """Take in an update."""
        self.at = update.at
        self.throughput = update.throughput or self.throughput
        for name in SECTIONS:
            rows: dict[str, Any] = getattr(self, name)
            if update.full:
                rows.clear()
            rows.update(getattr(update, name))
            for key in update.gone.get(ALIASES[name], ()):
                rows.pop(key, None)
        self.events = (update.events if update.full else self.events + update.events)[-RECENT:]
        if update.problems is not None:
            self.problems = update.problems
