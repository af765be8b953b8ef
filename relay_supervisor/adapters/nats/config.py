"""What adapters.json may say about a NATS bridge.

1. Credentials are secrets of their own, never part of a server's URL: a URL is shown in statuses and logs.
2. One way of authenticating at most. What is half said (a user without a password) is refused.
3. Patterns must not name the bus's own subjects. Wider ones (``relay.>``) may cover them: they do not cross all the
   same.
4. A stream that the bridge makes takes everything below the prefix, or, without one, below the first token of every
   pattern, so that relays with other patterns can join it. That needs a first token that is no wildcard.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from relay_core.adapters.secret import Secret
from relay_core.errors import InvalidSubject
from relay_core.messages.base import WireModel
from relay_core.messages.subjects import is_subject, validate_subject

RESERVED = ("relay.adapter", "relay.system")
"""Subjects of the bus itself, which stay on their own machine."""

_NAME = r"^[A-Za-z0-9_-]{1,64}$"
_DAY_SECS = 86_400

Seconds = Annotated[float, Field(ge=0.05, le=25)]


class _Strict(WireModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class TlsConfig(_Strict):
    """How the server is known, and how we are."""

    ca_file: str | None = None
    """PEM file of the authorities to trust instead of the system's."""
    cert_file: str | None = None
    """PEM file of our own certificate, where the server asks for one."""
    key_file: str | None = None
    """PEM file of its key; only its owner should be able to read it."""
    hostname: str | None = None
    """Name in the server's certificate, if it is not the one in the URL."""
    handshake_first: bool = False
    """Whether the server expects TLS from the first byte."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("keyFile needs the certFile that it belongs to")
        return self


class NatsConfig(_Strict):
    """A bridge to a NATS server or cluster with JetStream."""

    servers: Annotated[tuple[str, ...], Field(min_length=1, max_length=32)]
    """URLs such as ``nats://host:4222`` or ``tls://host:4222``, tried in turn."""
    stream: Annotated[str, Field(pattern=_NAME)] = "RELAY"
    """The JetStream stream that all bridged relays share."""
    create_stream: bool = False
    """Whether to make the stream if it is missing."""
    stream_max_age_secs: Annotated[float, Field(ge=60, le=366 * _DAY_SECS)] = 7 * _DAY_SECS
    """How long a stream that we make keeps messages."""
    stream_replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Servers of the cluster that keep each message of a stream that we make."""
    dedupe_window_secs: Annotated[float, Field(ge=1, le=7 * _DAY_SECS)] = 3600
    """How long a stream that we make knows a message again."""
    prefix: str | None = None
    """Tokens put before every subject on the NATS side, so that several teams can share a cluster."""
    domain: Annotated[str, Field(pattern=_NAME)] | None = None
    """JetStream domain, where the server is a leaf node."""
    export: tuple[str, ...] = ()
    """Patterns of the subjects whose messages go out."""
    import_: Annotated[tuple[str, ...], Field(alias="import")] = ()
    """Patterns of the subjects whose messages come in."""
    import_senders: tuple[str, ...] = ("relay.agent.>",)
    """Patterns of the senders that keep their name when they come in; others come in as ``relay.nats.{id}``."""
    import_from: Literal["new", "all"] = "new"
    """Where a relay that joins begins: with what comes from now on, or with all that the stream still has."""
    durable: Annotated[str, Field(pattern=_NAME)] | None = None
    """Name of this relay's consumer; each relay needs its own. Made of the relay's id if not given."""
    token: Secret | None = None
    """Token to authenticate with."""
    user: str | None = None
    """User to authenticate as, with `password`."""
    password: Secret | None = None
    """The user's password."""
    credentials: Secret | None = None
    """What a .creds file holds: ``file:/path/to/user.creds``. Needs the package nkeys."""
    nkey_seed: Secret | None = None
    """Seed of an nkey: ``file:/path/to/user.nk``. Needs the package nkeys."""
    tls: TlsConfig | None = None
    """TLS options; with them, or with a tls:// URL, a server that does not speak TLS is refused."""
    inbox_prefix: str = "_INBOX"
    """Where the server's answers come in, for accounts that may not subscribe to ``_INBOX.>``."""
    connect_timeout_secs: Seconds = 5.0
    """Time that connecting and each question to JetStream may take."""
    publish_timeout_secs: Seconds = 5.0
    """Time that JetStream has to acknowledge a message; then the connection is given up."""
    ping_interval_secs: Annotated[float, Field(ge=1, le=300)] = 10.0
    """Seconds between two signs of life; after two that get no answer the connection is given up."""
    ack_wait_secs: Annotated[float, Field(ge=1, le=600)] = 10.0
    """Time after which JetStream sends again what a relay that died had in hand."""
    max_in_flight: Annotated[int, Field(ge=1, le=1000)] = 64
    """Imported messages in hand at a time."""
    refused_delay_secs: Annotated[float, Field(ge=0.05, le=600)] = 5.0
    """Time until a message that the bus could not take for now (rate, pressure, breaker, disk) is sent again."""
    lanes: Annotated[int, Field(ge=1, le=64)] = 8
    """Messages that are exported at a time. One subject's messages stay in order; with 1, all of them do."""

    @field_validator("servers")
    @classmethod
    def _servers_are_plain(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for position, server in enumerate(servers, 1):
            _check_server(server, position)
        return servers

    @field_validator("export", "import_", "import_senders")
    @classmethod
    def _patterns_are_valid(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                validate_subject(pattern, allow_wildcards=True)
            except InvalidSubject as error:
                raise ValueError(error.message) from None
            if is_reserved(pattern):
                raise ValueError(f"{pattern} is the bus's own and cannot be bridged")
        return patterns

    @field_validator("prefix", "inbox_prefix")
    @classmethod
    def _prefix_is_subject(cls, prefix: str | None) -> str | None:
        if prefix is not None and not is_subject(prefix):
            raise ValueError("must be one or more subject tokens with dots between them, such as team.blue")
        return prefix

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    @property
    def wants_tls(self) -> bool:
        """Tell whether a connection without TLS must be refused."""
        return self.tls is not None or any(server.startswith("tls:") for server in self.servers)

    @property
    def api(self) -> str:
        """Return what JetStream's subjects for questions begin with."""
        return f"$JS.{self.domain}.API" if self.domain is not None else "$JS.API"

    def outside(self, subject: str) -> str:
        """Return what a subject or pattern is called on the NATS side."""
        return subject if self.prefix is None else f"{self.prefix}.{subject}"

    def stream_subjects(self) -> list[str]:
        """Return what a stream that we make takes."""
        if self.prefix is not None:
            return [f"{self.prefix}.>"]
        return sorted({f"{pattern.split('.')[0]}.>" for pattern in (*self.export, *self.import_)})

    def _problems(self) -> Iterator[str]:
        if not self.export and not self.import_:
            yield "a bridge needs something to do: name patterns in export, in import, or in both"
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
    """Tell whether a subject or pattern belongs to the bus itself."""
    return any(subject == own or subject.startswith(f"{own}.") for own in RESERVED)


def _check_server(server: str, position: int) -> None:
    # The URL is not quoted in what is raised: it may be the one that has a password in it.
    which = f"server #{position}"
    try:
        url = urlsplit(server)
        host, has_port = url.hostname, url.port != 0
    except ValueError:
        raise ValueError(f"{which} is no URL: write nats://HOST:PORT") from None
    if url.username is not None or url.password is not None:
        raise ValueError(
            f"{which} has credentials in its URL: take them out and use user and password, or token, "
            "as env:NAME or file:PATH"
        )
    if url.scheme not in ("nats", "tls") or not host or not has_port or url.path.strip("/") or url.query:
        raise ValueError(f"{which} must be nats://HOST:PORT or tls://HOST:PORT, and nothing else")
