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

Each error has a stable ``code`` (the same word on the wire), a sentence that says what to do,
and typed fields. A subclass may narrow its code, e.g. ``StorageError(code="storage_full")``.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RelayError(Exception):
    """Root of every error that Relay raises on purpose."""

    default_code: ClassVar[str] = "relay_error"
    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code

    @property
    def data(self) -> dict[str, Any]:
        """Return the typed fields as plain data, for the wire and for logs."""
        found = {name: getattr(self, name) for name in self.fields}
        return {name: value for name, value in found.items() if value is not None}


class InvalidSubject(RelayError):
    """A subject, sender or pattern breaks the naming rules."""

    default_code = "invalid_subject"
    fields = ("subject",)

    def __init__(self, message: str, *, subject: str | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.subject = subject


class InvalidPayload(RelayError):
    """A payload is not JSON, is too large or is nested too deeply."""

    default_code = "invalid_payload"
    fields = ("size", "limit")

    def __init__(
        self,
        message: str,
        *,
        size: int | None = None,
        limit: int | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.size = size
        self.limit = limit


class AccessDenied(RelayError):
    """An access rule, or the want of a binding, forbids this sender to reach this subject.

    With the code `rules_broken` it is the rules' file that is broken: once it is repaired, the same may be allowed.
    """

    default_code = "access_denied"
    fields = ("sender", "subject", "rule", "message_id")

    def __init__(
        self,
        message: str,
        *,
        sender: str | None = None,
        subject: str | None = None,
        rule: Any = None,
        message_id: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.sender = sender
        self.subject = subject
        self.rule = rule
        self.message_id = message_id


class NotFound(RelayError):
    """The named message, endpoint, plan or adapter does not exist."""

    default_code = "not_found"
    fields = ("what",)

    def __init__(self, message: str, *, what: str | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.what = what


class StorageError(RelayError):
    """The disk refused: nothing was acknowledged and nothing half-written remains."""

    default_code = "storage_error"
    fields = ("path", "retryable", "pid")

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        retryable: bool = False,
        pid: int | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.path = path
        self.retryable = retryable
        self.pid = pid
        """The process that holds what was asked for."""


class ConfigError(RelayError):
    """A configuration file or value cannot be used."""

    default_code = "config_error"
    fields = ("path", "key")

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        key: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.path = path
        self.key = key


class ProtocolError(RelayError):
    """A frame on the socket breaks the protocol."""

    default_code = "protocol_error"


class SupervisorUnavailable(RelayError):
    """No supervisor answers on the socket."""

    default_code = "unavailable"
    fields = ("socket",)

    def __init__(self, message: str, *, socket: str | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.socket = socket


class Closed(RelayError):
    """The bus, client or subscription has been closed."""

    default_code = "closed"
