"""What operators see of the supervisor's own parts: its jobs, and the adapters it was told to run.

The models are here, and not with the parts themselves, because clients and the dashboard know
relay_core alone.
"""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from relay_core.model import WireModel

StateName = Literal["starting", "connected", "disconnected", "error", "stopping"]
STATE_NAMES: tuple[str, ...] = get_args(StateName)
"""The states of an adapter."""

Outcome = Literal["ok", "failed", "timed_out", "cancelled"]


class JobRun(WireModel):
    """One run of a job."""

    started_at: int
    """Wall time in milliseconds."""
    ended_at: int | None = None
    outcome: Outcome | None = None
    """None while it is under way."""
    counts: dict[str, int] = Field(default_factory=dict)
    """What it did, by name."""
    error: str | None = None
    output: str | None = None
    """The end of what a job in a process of its own has printed."""


class JobState(WireModel):
    """A job, when it runs next and how it went last."""

    name: str
    description: str
    schedule: str
    """In words, such as ``every 60 s`` or ``daily at 02:15 UTC``."""
    enabled: bool
    problem: str | None = None
    """Why it cannot run."""
    next_run: int | None = None
    """Wall time in milliseconds; None if it does not run by itself."""
    running: bool = False
    last: JobRun | None = None


class AdapterState(WireModel):
    """What an operator sees of one adapter."""

    id: str
    state: StateName
    """Its own word, or ``error`` while its health probe fails."""
    detail: str | None = None
    since: int
    """Wall time in milliseconds at which this state began."""
    healthy: bool | None = None
    """What the last probe found; None if it has none, or has said something newer since."""
    patterns: tuple[str, ...]
    priority: int = 0
    detached: bool = False
    delivered: int = 0
    failed: int = 0
    depth: int = 0
    """Messages that wait for it."""
    last_error: str | None = None
    """Why its last failed delivery failed."""


class ConfiguredAdapter(WireModel):
    """An entry of adapters.json, and how the adapter it describes is doing."""

    id: str
    type: str
    enabled: bool = True
    problem: str | None = None
    """What is wrong with the entry, or why the adapter does not start, in words an operator can act on."""
    warning: str | None = None
    """What works, and had better be changed, such as a secret in the file itself."""
    restarts: int = 0
    retry_at: int | None = None
    """Wall time in milliseconds at which a start is tried again."""
    state: AdapterState | None = None
    """None while it is not running."""


class TokenInfo(WireModel):
    """Whom a token is for; its secret is known to its holder alone."""

    id: str
    pattern: str
    """The subjects that its holder may publish as and read."""
    note: str | None = None
    created_at: str
