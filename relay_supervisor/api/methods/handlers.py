"""The registry of handlers: `@handles` registers each under its method's name; a test compares them with METHODS.

A handler takes the context, the connection and the method's parameters. It returns the result (None for `Done`),
or a coroutine that does. An exception becomes the error of the answer. The method's row in METHODS describes it; a
docstring adds only what the row does not say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from relay_supervisor.api.context import ApiContext
from relay_supervisor.server.connection import Connection

Handler = Callable[[ApiContext, Connection, Any], Any]
H = TypeVar("H", bound=Handler)

HANDLERS: dict[str, Handler] = {}


def handles(method: str) -> Callable[[H], H]:
    """Register the decorated function as the handler of a method."""

    def register(handler: H) -> H:
        assert method not in HANDLERS, f"{method} has two handlers"
        HANDLERS[method] = handler
        return handler

    return register
