"""Every error Relay raises, as one small tree.

::

    RelayError                  code        fields
    ├── InvalidSubject          invalid_subject     subject
    ├── InvalidPayload          invalid_payload     size, limit
    ├── AccessDenied            access_denied       sender, subject, rule, message_id
    ├── NotFound                not_found           what
    ├── StorageError            storage_error       path, retryable, pid
    ├── ConfigError             config_error        path, key
    ├── ProtocolError           protocol_error
    ├── SupervisorUnavailable   unavailable         socket
    └── Closed                  closed

Each error has a stable ``code`` (the same word on the wire), a message that says what to do, and typed fields. A raise
may narrow the code, e.g. ``StorageError(code="storage_full")``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar


@dataclass(eq=False, repr=False)
class RelayError(Exception):
    """Root of every error that Relay raises on purpose."""

    default_code: ClassVar[str] = "relay_error"

    message: str
    _: KW_ONLY
    code: str = ""

    def __post_init__(self) -> None:
        self.code = self.code or self.default_code

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the names of the typed fields."""
        return tuple(field.name for field in fields(cls) if field.name not in ("message", "code"))

    @property
    def data(self) -> dict[str, Any]:
        """Return the typed fields as plain data, for the wire and for logs."""
        values = {name: getattr(self, name) for name in self.field_names()}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(eq=False, repr=False)
class InvalidSubject(RelayError):
    """A subject, sender or pattern breaks the naming rules."""

    default_code = "invalid_subject"

    subject: str | None = None


@dataclass(eq=False, repr=False)
class InvalidPayload(RelayError):
    """A payload is not JSON, is too large or is nested too deeply."""

    default_code = "invalid_payload"

    size: int | None = None
    limit: int | None = None


@dataclass(eq=False, repr=False)
class AccessDenied(RelayError):
    """An access rule, or a missing binding, forbids this sender to reach this subject.

    The code `rules_broken` means that the file of rules is broken: once it is repaired, the publish may be allowed.
    """

    default_code = "access_denied"

    sender: str | None = None
    subject: str | None = None
    rule: Any = None
    message_id: str | None = None


@dataclass(eq=False, repr=False)
class NotFound(RelayError):
    """The named message, endpoint, plan or adapter does not exist."""

    default_code = "not_found"

    what: str | None = None


@dataclass(eq=False, repr=False)
class StorageError(RelayError):
    """A disk operation failed: nothing was acknowledged and nothing half-written remains."""

    default_code = "storage_error"

    path: str | None = None
    retryable: bool = False
    pid: int | None = None
    """The process that holds the resource."""


@dataclass(eq=False, repr=False)
class ConfigError(RelayError):
    """A configuration file or value cannot be used."""

    default_code = "config_error"

    path: str | None = None
    key: str | None = None


class ProtocolError(RelayError):
    """A frame on the socket breaks the protocol."""

    default_code = "protocol_error"


@dataclass(eq=False, repr=False)
class SupervisorUnavailable(RelayError):
    """No supervisor answers on the socket."""

    default_code = "unavailable"

    socket: str | None = None


class Closed(RelayError):
    """The bus, client or subscription has been closed."""

    default_code = "closed"
