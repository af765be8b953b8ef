"""The config of a NATS bridge.

1. Credentials are separate secrets, never part of a server's URL, which is shown in statuses and logs.
2. At most one way to authenticate. Incomplete ones (a user without a password) are refused.
3. Patterns must not name the bus's own subjects. Wider ones (``relay.>``) may cover them, but they do not cross.
4. A stream that the bridge creates accepts everything below the prefix or, without one, below the first token of every
   pattern, so that relays with other patterns can join it. That requires a first token without a wildcard.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from relay_core.adapters.secret import Secret
from relay_core.messages.base import Pattern
from relay_core.messages.subjects import is_subject
from relay_supervisor.adapters.platform import PlatformConfig

RESERVED = ("relay.adapter", "relay.system")
"""The bus's own subjects, which do not leave their machine."""

_NAME = r"^[A-Za-z0-9_-]{1,64}$"
_DAY_SECS = 86_400

Seconds = Annotated[float, Field(ge=0.05, le=25)]


class TlsConfig(PlatformConfig):
    """How the server and this relay prove who they are."""

    ca_file: str | None = None
    """PEM file of the authorities to trust instead of the system's."""
    cert_file: str | None = None
    """PEM file of our own certificate, if the server asks for one."""
    key_file: str | None = None
    """PEM file of its key; only its owner should be able to read it."""
    hostname: str | None = None
    """Name in the server's certificate, if it differs from the URL."""
    handshake_first: bool = False
    """Whether the server expects TLS from the first byte."""

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("keyFile needs the certFile that it belongs to")
        return self


class NatsConfig(PlatformConfig):
    """A bridge to a NATS server or cluster with JetStream."""

    servers: Annotated[tuple[str, ...], Field(min_length=1, max_length=32)]
    """URLs such as ``nats://host:4222`` or ``tls://host:4222``, tried in turn."""
    stream: Annotated[str, Field(pattern=_NAME)] = "RELAY"
    """The JetStream stream that all bridged relays share."""
    create_stream: bool = False
    """Create the stream if it is missing."""
    stream_max_age_secs: Annotated[float, Field(ge=60, le=366 * _DAY_SECS)] = 7 * _DAY_SECS
    """How long a stream that the bridge creates keeps messages."""
    stream_replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Servers of the cluster that keep each message of a stream that the bridge creates."""
    dedupe_window_secs: Annotated[float, Field(ge=1, le=7 * _DAY_SECS)] = 3600
    """How long a stream that the bridge creates recognises a message that is sent again."""
    prefix: str | None = None
    """Tokens put before every subject on the NATS side, so that several teams can share a cluster."""
    domain: Annotated[str, Field(pattern=_NAME)] | None = None
    """JetStream domain, where the server is a leaf node."""
    export: tuple[Pattern, ...] = ()
    """Patterns of the subjects whose messages are exported."""
    import_: Annotated[tuple[Pattern, ...], Field(alias="import")] = ()
    """Patterns of the subjects whose messages are imported."""
    import_senders: tuple[Pattern, ...] = ("relay.agent.>",)
    """Patterns of the senders that keep their name when imported; others become ``relay.nats.{id}``."""
    import_from: Literal["new", "all"] = "new"
    """Where a relay that joins starts: with new messages, or with all that the stream still has."""
    durable: Annotated[str, Field(pattern=_NAME)] | None = None
    """Name of this relay's consumer; each relay needs a different one. Derived from the relay's id by default."""
    token: Secret | None = None
    """Token to authenticate with."""
    user: str | None = None
    """User to authenticate as, with `password`."""
    password: Secret | None = None
    """The user's password."""
    credentials: Secret | None = None
    """Contents of a .creds file: ``file:/path/to/user.creds``. Needs the package nkeys."""
    nkey_seed: Secret | None = None
    """Seed of an nkey: ``file:/path/to/user.nk``. Needs the package nkeys."""
    tls: TlsConfig | None = None
    """TLS options; with them, or with a tls:// URL, a server that does not speak TLS is refused."""
    inbox_prefix: str = "_INBOX"
    """Prefix of the subjects for responses, for accounts that may not subscribe to ``_INBOX.>``."""
    connect_timeout_secs: Seconds = 5.0
    """Time limit for connecting and for each JetStream request."""
    publish_timeout_secs: Seconds = 5.0
    """Time limit for JetStream to acknowledge a message; then the connection is closed."""
    ping_interval_secs: Annotated[float, Field(ge=1, le=300)] = 10.0
    """Seconds between two pings; after two without a response the connection is closed."""
    ack_wait_secs: Annotated[float, Field(ge=1, le=600)] = 10.0
    """Time after which JetStream sends the messages in flight of a relay that died again."""
    max_in_flight: Annotated[int, Field(ge=1, le=1000)] = 64
    """Imported messages in flight at a time."""
    refused_delay_secs: Annotated[float, Field(ge=0.05, le=600)] = 5.0
    """Time until a message that the bus could not accept for now (rate, pressure, breaker, disk) is sent again."""
    lanes: Annotated[int, Field(ge=1, le=64)] = 8
    """Messages that are exported concurrently. Each subject's messages stay in order; with 1, all messages do."""

    @field_validator("servers")
    @classmethod
    def _check_servers(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for position, server in enumerate(servers, 1):
            _check_server(server, position)
        return servers

    @field_validator("export", "import_", "import_senders")
    @classmethod
    def _check_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if is_reserved(pattern):
                raise ValueError(f"{pattern} belongs to the bus and cannot be bridged")
        return patterns

    @field_validator("prefix", "inbox_prefix")
    @classmethod
    def _check_prefix(cls, prefix: str | None) -> str | None:
        if prefix is not None and not is_subject(prefix):
            raise ValueError("must be one or more subject tokens separated by dots, such as team.blue")
        return prefix

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if (problem := next(self._problems(), None)) is not None:
            raise ValueError(problem)
        return self

    @property
    def wants_tls(self) -> bool:
        """Return True if a connection without TLS must be refused."""
        return self.tls is not None or any(server.startswith("tls:") for server in self.servers)

    @property
    def api(self) -> str:
        """Return the prefix of JetStream's API subjects."""
        return f"$JS.{self.domain}.API" if self.domain is not None else "$JS.API"

    def outside(self, subject: str) -> str:
        """Return a subject or pattern as it is called on the NATS side."""
        return subject if self.prefix is None else f"{self.prefix}.{subject}"

    def stream_subjects(self) -> list[str]:
        """Return the subjects of a stream that the bridge creates."""
        if self.prefix is not None:
            return [f"{self.prefix}.>"]
        return sorted({f"{pattern.split('.')[0]}.>" for pattern in (*self.export, *self.import_)})

    def _problems(self) -> Iterator[str]:
        if not self.export and not self.import_:
            yield "a bridge must import or export something: set export, import, or both"
        if (self.user is None) != (self.password is None):
            yield "user and password go together: give both, or neither"
        ways: list[Any] = [self.token, self.user, self.credentials, self.nkey_seed]
        if sum(way is not None for way in ways) > 1:
            yield "use one of token, user and password, credentials, nkeySeed"
        if self.dedupe_window_secs > self.stream_max_age_secs:
            yield "dedupeWindowSecs must not be longer than streamMaxAgeSecs"
        if self.create_stream and self.prefix is None:
            if any(pattern[0] in "*>" for pattern in (*self.export, *self.import_)):
                yield "createStream with a pattern that begins with a wildcard needs a prefix"


def is_reserved(subject: str) -> bool:
    """Return True if a subject or pattern belongs to the bus itself."""
    return any(subject == own or subject.startswith(f"{own}.") for own in RESERVED)


def _check_server(server: str, position: int) -> None:
    # The URL is not quoted in the error: it may contain a password.
    which = f"server #{position}"
    try:
        url = urlsplit(server)
        host, has_port = url.hostname, url.port != 0
    except ValueError:
        raise ValueError(f"{which} is not a URL: write nats://HOST:PORT") from None
    if url.username is not None or url.password is not None:
        raise ValueError(
            f"{which} has credentials in its URL: remove them and use user and password, or token, "
            "as env:NAME or file:PATH"
        )
    if url.scheme not in ("nats", "tls") or not host or not has_port or url.path.strip("/") or url.query:
        raise ValueError(f"{which} must be nats://HOST:PORT or tls://HOST:PORT, and nothing else")
