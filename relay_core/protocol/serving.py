"""Models of the supervisor itself: the handshake, its status, its configuration and the state stream."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from relay_core.messages.dead_letter import DeadLetterGroup
from relay_core.messages.operator_views import ConfiguredAdapter, JobState
from relay_core.protocol.base import PROTOCOL_VERSION, Params, Result
from relay_core.protocol.live_state import StateUpdate
from relay_core.protocol.state import JournalState, MailboxState, TargetBreaker
from relay_core.records.metrics import MetricsSnapshot


class HelloParams(Params):
    """The client's identity and protocol version."""

    protocol: int = PROTOCOL_VERSION
    """The newest version that the client supports."""
    token: str | None = None
    """From `relay token add`, or the operator's own."""
    client: Annotated[str, Field(max_length=200)] | None = None
    """A name for logs and listings."""
    agent: str | None = None
    """The endpoint that this connection acts for; it is listed as connected until the connection ends."""


class Hello(Result):
    """The server's version, and the rights of the connection."""

    protocol: int
    """The version that the server speaks."""
    version: str
    """Of the server."""
    pid: int
    data_dir: str
    operator: bool
    """Whether every method may be called."""
    pattern: str | None = None
    """The subjects that the token's holder may publish as and read."""


class ServerInfo(Result):
    """The identity of the supervisor."""

    version: str
    protocol: int
    """The protocol version."""
    pid: int
    durability: str
    """`fsync` or `os`."""
    promise: str
    """What an acknowledged publish survives, in words."""
    data_dir: str
    socket: str
    started_at: int
    """Epoch milliseconds."""
    uptime_secs: float


class Promise:
    """What an acknowledged publish survives."""

    FSYNC = "an acknowledged publish survives power loss"
    OS = "an acknowledged publish survives kill -9, not power loss"


class ServerStatus(Result):
    """The state of the whole supervisor."""

    server: ServerInfo
    endpoints: int
    subscriptions: int
    """To messages, not to signals."""
    connections: int
    """Open on the socket."""
    waiting: int
    """Messages in all mailboxes."""
    journal: JournalState
    pressure: list[MailboxState]
    """Mailboxes at or above the pressure warning, fullest first."""
    breakers: list[TargetBreaker]
    """Those that are not closed."""
    rates: MetricsSnapshot
    dead_letters: list[DeadLetterGroup]
    """Largest group first."""
    adapters: list[ConfiguredAdapter]
    jobs: list[JobState]
    problems: list[str]
    """Errors in the operator's files."""


class Reloaded(Result):
    """The outcome of reloading the operator's files."""

    problems: list[str]
    """Errors in the files; empty if there are none."""


class ConfigState(Result):
    """The configuration in force."""

    path: str
    """Of config.json, which need not exist."""
    config: dict[str, Any]
    """Every key, defaults included."""
    problem: str | None = None
    """Why the current file is not in force."""


class Watching(Result):
    """A stream of `state` notifications, which ends with its connection."""

    watch_id: str
    """Used by notifications and to end the stream."""


class WatchParams(Params):
    """A state stream of this connection."""

    watch_id: str
    """From `state.watch`."""


class StateNote(StateUpdate):
    """The whole state, or the changes since the previous notification."""

    watch_id: str
    """From `state.watch`."""


class ClosingNote(Result):
    """The server is about to close the connection."""

    reason: str
