"""The protocol's methods: modules of handlers, and `Methods`, which passes each request to its handler.

Importing a module of this package registers its handlers (`handlers`). Imports are as in `api`.
"""

from __future__ import annotations

from typing import Any

from relay_core import __version__
from relay_core.errors import ProtocolError
from relay_core.journal.commit import PublishBatch
from relay_core.protocol.base import PROTOCOL_VERSION
from relay_core.protocol.frames import Request
from relay_core.protocol.methods import METHODS, parse_params
from relay_supervisor.api.context import ApiContext
from relay_supervisor.api.methods import (  # noqa: F401 - registers the handlers
    agents,
    consuming,
    deadletters,
    endpoints,
    operating,
    publishing,
    schedules,
    serving,
)
from relay_supervisor.api.methods.handlers import HANDLERS
from relay_supervisor.server.connection import Connection
from relay_supervisor.server.identity import Identity

__all__ = ["HANDLERS", "Methods"]


class Methods:
    """Answer requests by the handlers of their methods."""

    def __init__(self, context: ApiContext) -> None:
        self.greeting = {"version": __version__, "protocol": PROTOCOL_VERSION}
        self._context = context

    def batch(self) -> PublishBatch:
        """Store the publishes that begin in a `with` statement together."""
        return self._context.relay.batch()

    def answer(self, connection: Connection, request: Request) -> Any:
        """Return the result of a request, or an awaitable of it.

        Raises:
            ProtocolError: if the method is unknown, or its parameters are invalid.
            AccessDenied: if the connection may not call it.
        """
        method = METHODS.get(request.method)
        if method is None:
            shown = request.method[:80]
            raise ProtocolError(f"no method {shown!r}: docs/protocol.md lists them", code="unknown_method")
        connection.identity.check_method(method)
        return HANDLERS[method.name](self._context, connection, parse_params(method, request.params))

    def identity(self) -> Identity:
        """Return the identity of a connection of the socket's user before any `server.hello`."""
        return Identity(operator=not self._context.relay.config.auth.require_tokens)

    def in_flight(self) -> list[Any]:
        """Return futures that end as consumers finish their in-flight messages."""
        return self._context.consumers.pending() + self._context.claims.pending()
