"""A server for short HTTP requests from untrusted clients: aiohttp's, with limits.

1. A request's headers must arrive within `Limits.idle_secs`, which is also how long an idle connection is kept.
2. Above `Limits.max_connections`, the connection that has waited longest for a request, or for the rest of one, is
   closed: clients that hold connections open lock no other client out. A request that has arrived in full is
   answered. Only if every other connection has such a request, the newest connection is closed.
3. A client that does not read its response loses its connection after `Limits.response_secs`.
4. No response names the software behind it, or its version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

logger = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Refuse = Callable[[int], web.StreamResponse]
"""Return the response for a status: 400 to anything but HTTP, 500 after an exception."""


class Limits(NamedTuple):
    """What clients may use."""

    max_connections: int
    idle_secs: float
    response_secs: float = 15.0
    shutdown_secs: float = 3.0


@asynccontextmanager
async def serve(handler: Handler, refuse: Refuse, host: str, port: int, limits: Limits) -> AsyncIterator[int]:
    """Serve until the block ends, and return the port.

    Raises:
        OSError: if the port cannot be bound.
    """
    server = _Server(handler, refuse, limits)
    sockets = await asyncio.get_running_loop().create_server(server, host, port, backlog=512)
    try:
        yield sockets.sockets[0].getsockname()[1]
    finally:
        sockets.close()
        server.pre_shutdown()
        await server.shutdown(limits.shutdown_secs)
        await sockets.wait_closed()


def mark_complete(request: web.BaseRequest) -> None:
    """Note that a request has arrived in full, so its connection is not closed before it is answered."""
    if isinstance(request.protocol, _Connection):
        request.protocol.server.mark_complete(request.protocol)


class _Server(web.Server):
    def __init__(self, handler: Handler, refuse: Refuse, limits: Limits) -> None:
        super().__init__(handler)
        self.refuse = refuse
        self.limits = limits
        self._waiting: dict[web.RequestHandler, asyncio.Transport] = {}
        """Connections without a complete request, the longest-waiting first."""
        self._answering: dict[web.RequestHandler, asyncio.Transport] = {}

    def __call__(self) -> web.RequestHandler:
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self.limits.idle_secs,  # counts from the accept, since aiohttp 3.14
            lingering_time=0,
            max_headers=64,
            auto_decompress=False,  # a signature covers the bytes that were sent
            access_log=None,
            logger=logger,
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._waiting[handler] = transport
        if len(self._waiting) + len(self._answering) > self.limits.max_connections:
            oldest = next(iter(self._waiting))
            # In the loop's next turn: aiohttp is still setting up the newest connection.
            asyncio.get_running_loop().call_soon(self._waiting.pop(oldest).abort)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._waiting.pop(handler, None)
        self._answering.pop(handler, None)
        super().connection_lost(handler, exc)

    def mark_complete(self, connection: web.RequestHandler) -> None:
        transport = self._waiting.pop(connection, None)
        if transport is not None:  # otherwise it is being closed
            self._answering[connection] = transport

    def mark_answered(self, connection: web.RequestHandler) -> None:
        transport = self._answering.pop(connection, None)
        if transport is not None:
            self._waiting[connection] = transport


class _Connection(web.RequestHandler):
    __slots__ = ("server",)

    def __init__(self, server: _Server, **options: Any) -> None:
        super().__init__(server, **options)
        self.server = server

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response."""
        resp.headers["Server"] = "relay"
        try:
            async with asyncio.timeout(self.server.limits.response_secs):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            if self.transport is not None:
                self.transport.abort()
            return resp, True
        finally:
            self.server.mark_answered(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that is not HTTP, or whose handler failed."""
        if status >= 500:
            logger.error("an HTTP request could not be handled", exc_info=exc)
        response = self.server.refuse(500 if status >= 500 else 400)
        response.force_close()
        return response
