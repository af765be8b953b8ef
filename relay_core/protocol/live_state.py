"""The state stream: one full snapshot of the supervisor's state, then only the changes.

1. A `StateUpdate` is either. With `full` it is the whole state; otherwise it holds the rows that are new or changed,
   and under `gone` the keys of the rows that were removed.
2. Every row has a key, and times are instants, never ages: a row that only grows older has not changed.
3. An update with nothing but `at` means that nothing has changed. One arrives at least every second or two.
4. `LiveState` applies updates. A client that applied every update since the last full one has the state that a new
   full one would hold.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from relay_core.messages.base import WireModel
from relay_core.messages.dead_letter import DeadLetterGroup
from relay_core.messages.operator_views import ConfiguredAdapter, JobState
from relay_core.messages.replay_plan import ReplayOutcome
from relay_core.protocol.state import MailboxLoad
from relay_core.records.events import RECENT, Event
from relay_core.records.metrics import Percentiles, TrafficCounts
from relay_core.rules.breaker import CircuitStatus
from relay_core.rules.rate_limit import SenderWindow


class LiveThroughput(TrafficCounts):
    """Traffic since the start, and its rate over the last minute."""

    per_second: tuple[int, ...]
    """Publishes in each of the last whole seconds, oldest first."""
    recent_us: Percentiles
    """From publish to the end of handling, over the last minute."""


class LiveMailbox(MailboxLoad):
    """A mailbox in the state stream, keyed by its hash."""

    oldest_at: int | None = None
    """When the oldest waiting message was created, in epoch milliseconds."""


class LiveSender(SenderWindow):
    """A sender in the state stream, keyed by its subject."""

    resets_at: int
    """When the window has room for one more, in epoch milliseconds."""


class LiveBreaker(CircuitStatus):
    """A breaker in the state stream, keyed by its target's hash."""

    subject: str | None = None
    """The target's; None if its mailbox was removed."""
    retry_at: int | None = None
    """When a probe may pass, in epoch milliseconds."""


class StateUpdate(WireModel):
    """The whole state, or the changes."""

    full: bool = False
    """The whole state; otherwise only changes."""
    at: int
    """Epoch milliseconds."""
    throughput: LiveThroughput | None = None
    """None if unchanged."""
    mailboxes: dict[str, LiveMailbox] = Field(default_factory=dict)
    """By hash."""
    senders: dict[str, LiveSender] = Field(default_factory=dict)
    """By the sender's subject."""
    breakers: dict[str, LiveBreaker] = Field(default_factory=dict)
    """By the target's hash."""
    adapters: dict[str, ConfiguredAdapter] = Field(default_factory=dict)
    """By id."""
    dead_letters: dict[str, DeadLetterGroup] = Field(default_factory=dict)
    """By `code/hash`."""
    jobs: dict[str, JobState] = Field(default_factory=dict)
    """By name."""
    replays: dict[str, ReplayOutcome] = Field(default_factory=dict)
    """By plan id."""
    events: tuple[Event, ...] = ()
    """The newest events other than ordinary traffic, oldest first."""
    problems: tuple[str, ...] | None = None
    """Errors in the operator's files; None if unchanged."""
    gone: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Keys of removed rows, by section."""


SECTIONS = ("mailboxes", "senders", "breakers", "adapters", "dead_letters", "jobs", "replays")
ALIASES = {name: str(StateUpdate.model_fields[name].alias) for name in SECTIONS}
"""The sections' names on the wire."""


class LiveState:
    """The current state, built from updates."""

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
        """Apply an update."""
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
