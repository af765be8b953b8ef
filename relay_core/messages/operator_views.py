"""What operators see of the supervisor's own parts: its jobs, and the adapters it was told to run.

The models are here, and not with the parts themselves, because clients and the dashboard know
relay_core alone.
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
        raise ValueError(f"there is no day {text}") from None
    return text


DayName = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$"), AfterValidator(_on_the_calendar)]
"""A day, in UTC, as YYYY-MM-DD."""


class JobArguments(WireModel):
    """The days that the nightly job makes reports of; without any, all before today that have new events."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    date: DayName | None = None
    """One day, also if it has a report."""
    since: DayName | None = None
    """Every day from this one on, also those that have a report."""
    until: DayName | None = None
    """The last of them; without it, today."""
    backfill: bool = False
    """Every day that has events, also those that have a report."""
    today: bool = False
    """Today as well, as far as it has come."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if sum((self.date is not None, self.since is not None, self.backfill)) > 1:
            raise ValueError("date, since and backfill exclude each other")
        if self.until is not None and self.since is None:
            raise ValueError("until needs since")
        if self.since is not None and self.until is not None and self.since > self.until:
            raise ValueError(f"since ({self.since}) is after until ({self.until})")
        if self.today and (self.date is not None or self.until is not None):
            raise ValueError("today goes with neither date nor until: they say which day is the last")
        return self

    def options(self) -> list[str]:
        """Return them as the options of a command line."""
        named = [("--date", self.date), ("--since", self.since), ("--until", self.until)]
        flags = [("--backfill", self.backfill), ("--today", self.today)]
        return [part for name, day in named if day is not None for part in (name, day)] + [
            name for name, is_set in flags if is_set
        ]


class JobProgress(WireModel):
    """How far a run has come."""

    stage: Annotated[str, Field(min_length=1, max_length=60)]
    detail: Annotated[str, Field(max_length=200)] | None = None
    """What it is at within the stage."""
    done: Annotated[float, Field(ge=0, le=1)]
    """Share of the whole run."""


class JobRun(WireModel):
    """One run of a job."""

    started_at: int
    """Wall time in milliseconds."""
    ended_at: int | None = None
    """Wall time in milliseconds; None while it is under way."""
    outcome: Outcome | None = None
    """None while it is under way."""
    arguments: JobArguments | None = None
    """What it was asked for; None for what the job does by itself."""
    progress: JobProgress | None = None
    """How far it has come, while it is under way and if it says so."""
    counts: dict[str, int] = Field(default_factory=dict)
    """What it did, by name."""
    reports: list[str] | None = None
    """The days of which it has made reports, if it says so."""
    error: str | None = None
    """Why it did not end well."""
    output: str | None = None
    """The end of what a job in a process of its own has printed."""


class JobState(WireModel):
    """A job, when it runs next and how it went last."""

    name: str
    description: str
    schedule: str
    """In words, such as ``every 10 min`` or ``daily at 02:15 UTC``."""
    enabled: bool
    """Whether it runs by itself."""
    problem: str | None = None
    """Why it cannot run."""
    next_run: int | None = None
    """Wall time in milliseconds; None if it does not run by itself."""
    running: bool = False
    last: JobRun | None = None
    """The run under way, or else the last one since the supervisor started."""


class AdapterState(WireModel):
    """What an operator sees of one adapter."""

    id: str
    state: StateName
    """Its own word, or ``error`` while its health probe fails."""
    detail: str | None = None
    """More about the state, in its own words."""
    since: int
    """Wall time in milliseconds at which this state began."""
    healthy: bool | None = None
    """What the last probe found; None if it has none, or has said something newer since."""
    patterns: tuple[str, ...]
    """Subjects whose messages it takes."""
    priority: int = 0
    """Of several adapters the one with the highest gets a message first."""
    detached: bool = False
    """Whether a publish counts it once its copy is stored, without waiting for its answer."""
    delivered: int = 0
    """Since the supervisor started it; a reload does not begin anew."""
    failed: int = 0
    """Counted alike."""
    depth: int = 0
    """Messages that wait for it."""
    last_error: str | None = None
    """Why its last failed delivery failed."""


class ConfiguredAdapter(WireModel):
    """An entry of adapters.json, and how the adapter it describes is doing."""

    id: str
    type: str
    """As in adapters.json; a plugin's file is named by its path."""
    enabled: bool = True
    problem: str | None = None
    """What is wrong with the entry, or why the adapter does not start, in words an operator can act on."""
    warning: str | None = None
    """What works, and had better be changed, such as a secret in the file itself."""
    restarts: int = 0
    """Starts made because it was in error."""
    retry_at: int | None = None
    """Wall time in milliseconds at which a start is tried again."""
    state: AdapterState | None = None
    """None while it is not running."""


class AgentState(WireModel):
    """An agent, or another endpoint, as others see it."""

    subject: str
    description: str | None = None
    """What it can be asked for."""
    cwd: str | None = None
    """Where it works; for the operator alone."""
    connected: int = 0
    """How many sessions act for it right now."""
    last_seen: int | None = None
    """Wall time in milliseconds at which a session of it last came or went."""
    unread: int = 0
    """Messages that wait for it."""
    added: bool = False
    """Whether it was added as an agent; else it is just an endpoint."""


class TokenInfo(WireModel):
    """Whom a token is for; its secret is known to its holder alone."""

    id: str
    """For `tokens.remove`; it is no secret."""
    pattern: str
    """The subjects that its holder may publish as and read."""
    note: str | None = None
    created_at: str
    """An ISO 8601 instant."""
