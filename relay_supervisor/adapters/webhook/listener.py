"""The HTTP server that webhook adapters with the same host and port share.

1. ``POST /webhooks/{id}`` goes to the adapter of that id. Any other method is a 405, any other path a 404.
2. Who handles a request is decided when its body is here. So a reload changes the handler between two requests, and
   no connection is refused, reset or answered by an adapter that has gone. While an adapter and its replacement are
   both there the newer one has the requests; if it goes, the older one has them again.
3. A body is read up to its adapter's limit and no further (413, before any signature is looked at).
4. A sender that is slow or silent loses its connection: headers must be here within `IDLE_SECS`, a body within
   `BODY_SECS`. Of more than `MOST_CONNECTIONS` the one is closed that has been waited for longest, for a request or the
   rest of one: strangers who hold connections open lock nobody out. A request that is here whole is answered;
   only if all of them are at that, the newest connection is closed.
5. No answer tells what software, or which version, we are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import orjson
from aiohttp import web

from relay_supervisor.adapters.webhook.inbound import Answer

logger = logging.getLogger(__name__)

PREFIX = "/webhooks/"
IDLE_SECS = 15.0
BODY_SECS = 15.0
MOST_CONNECTIONS = 256
SHUTDOWN_SECS = 3.0

_NOT_FOUND = Answer(404, {"error": "not found"})
_WRONG_METHOD = Answer(405, {"error": "method not allowed"})
_TOO_LARGE = Answer(413, {"error": "body too large"})
_TOO_SLOW = Answer(408, {"error": "too slow"})
_BROKEN = Answer(400, {"error": "bad request"})
_ERROR = Answer(500, {"error": "internal error"})


class Handler(Protocol):
    """Who takes the requests of one id."""

    max_body_bytes: int

    async def handle(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Take one request (headers with lower-case names)."""
        ...


class Listener:
    """Hand requests to the adapters."""

    def __init__(self) -> None:
        self.port = 0
        """The port that it listens on."""
        self._handlers: dict[str, list[Handler]] = {}

    @contextmanager
    def serving(self, id: str, handler: Handler) -> Iterator[None]:
        """Hand the requests of an id to a handler."""
        handlers = self._handlers.setdefault(id, [])
        handlers.append(handler)
        try:
            yield
        finally:
            handlers.remove(handler)
            if not handlers and self._handlers.get(id) is handlers:
                del self._handlers[id]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, whatever it is."""
        answer = await self._answer(request)
        response = _respond(answer)
        if not request.content.is_eof():
            response.force_close()  # what is left of the body is not worth reading
        return response

    async def _answer(self, request: web.BaseRequest) -> Answer:
        path = request.rel_url.raw_path
        id = path.removeprefix(PREFIX)
        handler = self._find(id) if path.startswith(PREFIX) else None
        if handler is None:
            return _NOT_FOUND
        if request.method != "POST":
            return _WRONG_METHOD
        try:
            async with asyncio.timeout(BODY_SECS):
                body = await _read_body(request, handler.max_body_bytes)
        except TimeoutError:
            return _TOO_SLOW
        except Exception:  # aiohttp has many names for a body that breaks off
            return _BROKEN
        if body is None:
            return _TOO_LARGE
        if isinstance(request.protocol, _Connection):
            request.protocol.begin_work()
        handler = self._find(id)  # it may have changed while the body came in
        if handler is None:
            return _NOT_FOUND
        return await handler.handle(_plain(request), body)

    def _find(self, id: str) -> Handler | None:
        handlers = self._handlers.get(id)
        return handlers[-1] if handlers else None


@asynccontextmanager
async def listening(host: str, port: int) -> AsyncIterator[Listener]:
    """Listen on a port.

    Raises:
        OSError: if it cannot be had; the text says what to do.
    """
    listener = Listener()
    server = _Server(listener)
    loop = asyncio.get_running_loop()
    try:
        sockets = await loop.create_server(server, host, port, backlog=512)
    except OSError as error:
        why = error.strerror or "it is no address of this machine"
        raise OSError(f"cannot listen on {host}:{port} ({why}): choose another inbound.port or inbound.host") from None
    listener.port = sockets.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        sockets.close()
        server.pre_shutdown()
        await server.shutdown(SHUTDOWN_SECS)
        await sockets.wait_closed()


class _Server(web.Server):
    """aiohttp's server with a limit to its connections."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener.answer)
        self._waited_for: dict[web.RequestHandler, asyncio.Transport] = {}
        """Connections without a whole request, the one that has been waited for longest first."""
        self._at_work: dict[web.RequestHandler, asyncio.Transport] = {}

    def __call__(self) -> web.RequestHandler:
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=IDLE_SECS,  # since aiohttp 3.14 from the connection's first instant
            lingering_time=0,
            max_headers=64,
            auto_decompress=False,  # what was signed is what was sent
            access_log=None,
            logger=logger,
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._waited_for[handler] = transport
        if len(self._waited_for) + len(self._at_work) > MOST_CONNECTIONS:
            oldest = next(iter(self._waited_for))
            # Not at once: aiohttp has not finished making the newest one.
            asyncio.get_running_loop().call_soon(self._waited_for.pop(oldest).abort)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._waited_for.pop(handler, None)
        self._at_work.pop(handler, None)
        super().connection_lost(handler, exc)

    def begin_work(self, connection: web.RequestHandler) -> None:
        """Note that a connection has a whole request."""
        transport = self._waited_for.pop(connection, None)
        if transport is not None:  # else it is being closed
            self._at_work[connection] = transport

    def end_work(self, connection: web.RequestHandler) -> None:
        """Note that a connection's request has been answered."""
        transport = self._at_work.pop(connection, None)
        if transport is not None:
            self._waited_for[connection] = transport


class _Connection(web.RequestHandler):
    """aiohttp's connection, less talkative, and known to be at work or not."""

    __slots__ = ("_server",)

    def __init__(self, server: _Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server

    def begin_work(self) -> None:
        """Note that a request is here whole."""
        self._server.begin_work(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; then the next request is waited for."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._server.end_work(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP, and what should not have been raised."""
        if status >= 500:
            logger.error("a webhook could not be handled", exc_info=exc)
        response = _respond(_ERROR if status >= 500 else _BROKEN)
        response.force_close()
        return response


async def _read_body(request: web.BaseRequest, limit: int) -> bytes | None:
    """Return the body, or None if it is longer than allowed."""
    length = request.content_length
    if length is not None and length > limit:
        return None
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun
    content = request.content
    chunks: list[bytes] = []
    size = 0
    while not content.at_eof():
        chunk = await content.readany()
        size += len(chunk)
        if size > limit:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _plain(request: web.BaseRequest) -> dict[str, str]:
    """Return the headers with lower-case names; one that comes twice is a list, as HTTP has it."""
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _respond(answer: Answer) -> web.Response:
    headers: dict[str, Any] = {"Server": "relay"}
    if answer.retry_after is not None:
        headers["Retry-After"] = str(answer.retry_after)
    if answer.status == 405:
        headers["Allow"] = "POST"
    return web.Response(
        status=answer.status, body=orjson.dumps(answer.body), headers=headers, content_type="application/json"
    )
