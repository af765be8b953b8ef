"""The state of the supervisor's jobs, adapters, agents and tokens, as operators see it.

The models are here because clients and the dashboard import only relay_core.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from relay_core.messages.base import WireModel

StateName = Literal["starting", "connected", "disconnected", "error", "stopping"]
STATE_NAMES: tuple[str, ...] = get_args(StateName)
"""The states of an adapter."""

Outcome = Literal["ok", "failed", "timed_out", "cancelled"]


def _on_the_calendar(text: str) -> str:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text} is not a date") from None
    return text


DayName = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$"), AfterValidator(_on_the_calendar)]
"""A day in UTC, as YYYY-MM-DD."""


class JobArguments(WireModel):
    """The days to report on; by default, all before today that have new events."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    date: DayName | None = None
    """This day, even if it has a report."""
    since: DayName | None = None
    """Every day from this one on, even those that have a report."""
    until: DayName | None = None
    """The last day of the range; by default, today."""
    backfill: bool = False
    """Every day that has events, even those that have a report."""
    today: bool = False
    """Include today, which is not over."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if sum((self.date is not None, self.since is not None, self.backfill)) > 1:
            raise ValueError("date, since and backfill exclude each other")
        if self.until is not None and self.since is None:
            raise ValueError("until needs since")
        if self.since is not None and self.until is not None and self.since > self.until:
            raise ValueError(f"since ({self.since}) is after until ({self.until})")
        if self.today and (self.date is not None or self.until is not None):
            raise ValueError("today excludes date and until, which name the last day")
        return self

    def options(self) -> list[str]:
        """Return the arguments as command-line options."""
        named = [("--date", self.date), ("--since", self.since), ("--until", self.until)]
        flags = [("--backfill", self.backfill), ("--today", self.today)]
        return [part for name, day in named if day is not None for part in (name, day)] + [
            name for name, is_set in flags if is_set
        ]


class JobProgress(WireModel):
    """The progress of a run."""

    stage: Annotated[str, Field(min_length=1, max_length=60)]
    detail: Annotated[str, Field(max_length=200)] | None = None
    """The current step of the stage."""
    done: Annotated[float, Field(ge=0, le=1)]
    """Share of the whole run."""

    @property
    def percent(self) -> int:
        """Return the share in percent, rounded down: 100 means done."""
        return int(round(self.done * 100, 6))

    @property
    def step(self) -> str:
        """Return the stage and its current step."""
        return f"{self.stage}: {self.detail}" if self.detail else self.stage


class JobRun(WireModel):
    """One run of a job."""

    started_at: int
    """Wall time in milliseconds."""
    ended_at: int | None = None
    """Wall time in milliseconds; None while it is running."""
    outcome: Outcome | None = None
    """None while it is running."""
    arguments: JobArguments | None = None
    """The arguments it was started with; None for a scheduled run."""
    progress: JobProgress | None = None
    """While it is running, if it reports progress."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Counters, by name."""
    reports: list[str] | None = None
    """The days it has reported on, if it says so."""
    error: str | None = None
    """Why it failed."""
    output: str | None = None
    """The end of the output, if the job runs in a separate process."""

    @property
    def took_secs(self) -> float | None:
        """Return how long it took; None while it is running."""
        return (self.ended_at - self.started_at) / 1000 if self.ended_at is not None else None


class JobState(WireModel):
    """A job, its next run and its last."""

    name: str
    description: str
    schedule: str
    """In words, such as ``every 10 min`` or ``daily at 02:15 UTC``."""
    enabled: bool
    """Whether it is scheduled."""
    problem: str | None = None
    """Why it cannot run."""
    next_run: int | None = None
    """Wall time in milliseconds; None if it is not scheduled."""
    running: bool = False
    last: JobRun | None = None
    """The current run, or else the last since the supervisor started."""


class AdapterState(WireModel):
    """The state of an adapter."""

    id: str
    state: StateName
    """As reported by the adapter, or ``error`` while its health probe fails."""
    detail: str | None = None
    """Details, as reported by the adapter."""
    since: int
    """Wall time in milliseconds at which this state began."""
    healthy: bool | None = None
    """The result of the last probe; None without one, or if the adapter has reported a newer status."""
    patterns: tuple[str, ...]
    """Subjects whose messages it delivers."""
    priority: int = 0
    """If several adapters match, the highest priority goes first."""
    rate: float | None = None
    """Messages per second that it is given at most; None without a limit."""
    drain_secs: float = 10
    """Time to finish messages in flight when a reload replaces it."""
    detached: bool = False
    """Whether a publish does not wait for its answer and counts it as soon as its copy is stored."""
    delivered: int = 0
    """Since the supervisor started; a reload does not reset it."""
    failed: int = 0
    """Counted likewise."""
    published: int = 0
    """Messages that it published, which the bus accepted; repetitions with a known dedupe id count again."""
    refused: int = 0
    """Messages that it published, which the bus refused."""
    depth: int = 0
    """Messages waiting for it."""
    last_error: str | None = None
    """Why its last failed delivery failed."""


class ConfiguredAdapter(WireModel):
    """An entry of adapters.json, and the state of its adapter."""

    id: str
    type: str
    """As in adapters.json; a plugin's file is named by its path."""
    enabled: bool = True
    problem: str | None = None
    """The error in the entry, or why the adapter does not start."""
    warning: str | None = None
    """Something that works but should be changed, such as a secret in the file itself."""
    probe_secs: float = 30
    """Time between two health probes."""
    restarts: int = 0
    """Restarts after an error."""
    retry_at: int | None = None
    """When it is started again, as wall time in milliseconds."""
    state: AdapterState | None = None
    """None while it is not running."""


class AgentState(WireModel):
    """An agent or another endpoint."""

    subject: str
    description: str | None = None
    """What it can do."""
    cwd: str | None = None
    """Its working directory; shown only to the operator."""
    connected: int = 0
    """The number of sessions that act for it now."""
    last_seen: int | None = None
    """When a session last connected or disconnected, as wall time in milliseconds."""
    unread: int = 0
    """Messages waiting for it."""
    added: bool = False
    """Whether it was added as an agent; otherwise it is only an endpoint."""


class TokenInfo(WireModel):
    """A token, without its secret."""

    id: str
    """For `tokens.remove`; not secret."""
    pattern: str
    """The subjects that its holder may publish as and read."""
    note: str | None = None
    created_at: str
    """An ISO 8601 instant."""
