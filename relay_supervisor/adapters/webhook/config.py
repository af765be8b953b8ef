"""The config of a webhook: inbound, outbound, or both."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from relay_core.adapters.secret import Secret
from relay_core.messages.base import Pattern, Subject
from relay_supervisor.adapters.platform import AbsolutePath, PlatformConfig
from relay_supervisor.adapters.webhook.signing import Accepted, Scheme, read_key

LONGEST_TOLERANCE_SECS = 300

_MIB = 1024 * 1024
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]{0,4096}")
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_OUR_HEADERS = frozenset({"connection", "content-length", "content-type", "expect", "host", "te", "transfer-encoding"})
_OUR_PREFIXES = ("webhook-", "relay-", "x-signature", "x-timestamp")


class _Direction(PlatformConfig):
    secret: Secret
    """Signs every message: ``env:NAME``, ``file:PATH``, or the secret itself (``whsec_`` and base64, or any text)."""
    previous_secret: Secret | None = None
    """The secret before this one; it is valid until 24 hours after the change."""

    @field_validator("secret", "previous_secret")
    @classmethod
    def _check_key(cls, secret: Secret | None) -> Secret | None:
        if secret is not None:
            read_key(secret.reveal())
        return secret

    @model_validator(mode="after")
    def _check_previous(self) -> Self:
        if self.previous_secret is not None and self.previous_secret == self.secret:
            raise ValueError("previousSecret is the same as secret and must be left out")
        return self


class InboundConfig(_Direction):
    """Inbound messages."""

    scheme: Accepted = "standard"
    """``standard`` (Standard Webhooks), ``legacy`` (X-Signature and X-Timestamp), or ``both`` to accept either of them;
    ``svix`` (svix-id, svix-timestamp, svix-signature) or ``github`` (X-Hub-Signature-256, X-GitHub-Delivery)."""
    host: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    """The address to listen on. Other than loopback addresses belong behind a proxy that speaks https."""
    port: Annotated[int, Field(ge=0, le=65535)]
    """The port to listen on; adapters with the same host and port share it. 0 selects a free one."""
    subject: Subject
    """The subject that messages are published to."""
    sender: Subject | None = None
    """The sender that they are published as: ``relay.webhook.{id}`` by default."""
    reply_to: Subject | None = None
    """The subject for replies."""
    tolerance_secs: Annotated[int, Field(ge=1, le=LONGEST_TOLERANCE_SECS)] = LONGEST_TOLERANCE_SECS
    """The largest difference between the time of a signature and ours."""
    max_body_bytes: Annotated[int, Field(ge=1, le=64 * _MIB)] = _MIB
    """Longer bodies are refused before anything else is checked."""

    @model_validator(mode="after")
    def _check_tolerance(self) -> Self:
        if self.scheme == "github" and "tolerance_secs" in self.model_fields_set:
            raise ValueError("toleranceSecs must be left out: a github signature has no time")
        return self


class OutboundConfig(_Direction):
    """Outbound messages."""

    scheme: Scheme = "standard"
    """``standard`` or ``legacy``. Not both: a message with two signatures could be presented as two messages."""
    url: Annotated[str, Field(min_length=1, max_length=2048)]
    """The URL that messages are posted to."""
    patterns: Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=256)]
    """Patterns of the subjects whose messages are posted."""
    allow_http: bool = False
    """Allow an http URL, which anyone on the network path can read."""
    allow_hosts: Annotated[tuple[str, ...], Field(max_length=256)] = ()
    """Hosts (by name) and networks (``127.0.0.0/8``) that may be reached although they are not public."""
    ca_file: AbsolutePath | None = None
    """A file of certificates (PEM) that are trusted instead of the public ones."""
    headers: Annotated[dict[str, Secret], Field(max_length=64, default_factory=dict)]
    """Additional headers; values may be ``env:NAME`` or ``file:PATH``."""
    connect_timeout_secs: Annotated[float, Field(ge=0.1, le=60)] = 5
    """Time limit for connecting."""
    timeout_secs: Annotated[float, Field(ge=0.1, le=300)] = 20
    """Time limit for a delivery as a whole."""
    max_response_bytes: Annotated[int, Field(ge=0, le=_MIB)] = 65_536
    """Bytes of a response that are read; the rest is cut off."""
    retry_after_secs: Annotated[float, Field(ge=1, le=86_400)] = 30
    """Seconds until the retry after a 429 or 503 without Retry-After."""
    max_retry_after_secs: Annotated[float, Field(ge=1, le=86_400)] = 3600
    """The longest Retry-After that is obeyed."""
    wait: bool = True
    """Whether a publish waits for the receiver's response and includes it in its result."""
    rate: Annotated[float, Field(gt=0, le=10_000)] | None = None
    """Messages per second; more than that wait."""

    @property
    def allowed_names(self) -> frozenset[str]:
        """Return the host names that need not be public, in lower case."""
        return frozenset(host.rstrip(".").lower() for host in self.allow_hosts if _read_network(host) is None)

    @property
    def allowed_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Return the networks that need not be public."""
        return tuple(network for host in self.allow_hosts if (network := _read_network(host)) is not None)

    @field_validator("allow_hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for position, host in enumerate(hosts, 1):
            if _read_network(host) is None and not _HOST_NAME.fullmatch(host):
                raise ValueError(f"#{position} is neither a host name nor a network such as 127.0.0.0/8")
        return hosts

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, Secret]) -> dict[str, Secret]:
        seen: set[str] = set()
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError("a header's name must be letters, digits and '-'")
            if name.lower() in _OUR_HEADERS or name.lower().startswith(_OUR_PREFIXES):
                raise ValueError(f"the header {name} is set by the adapter itself: leave it out")
            if name.lower() in seen:
                raise ValueError(f"the header {name} is there twice, in upper or lower case: leave one out")
            seen.add(name.lower())
            if not _HEADER_VALUE.fullmatch(value.reveal()):
                raise ValueError(f"the value of the header {name} must be one line of ASCII text")
        return headers

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        try:
            parts = urlsplit(self.url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise ValueError("url is not a URL") from None
        if parts.scheme not in ("https", "http") or not host or not self.url.isprintable() or " " in self.url:
            raise ValueError("url must be like https://example.com/hook")
        if parts.scheme == "http" and not self.allow_http:
            raise ValueError("url must be https; if that is impossible, set allowHttp to true")
        if parts.username is not None or parts.password is not None:
            raise ValueError("url must not have a user or password: put an Authorization header into headers")
        if parts.fragment:
            raise ValueError("url must not have a fragment (a part after '#')")
        return self


class WebhookConfig(PlatformConfig):
    """A webhook: inbound, outbound, or both."""

    inbound: InboundConfig | None = None
    """Accept signed messages at ``/webhooks/{id}``."""
    outbound: OutboundConfig | None = None
    """Post messages to a URL."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.inbound is None and self.outbound is None:
            raise ValueError("a webhook needs inbound, outbound, or both")
        return self


def _read_network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None
