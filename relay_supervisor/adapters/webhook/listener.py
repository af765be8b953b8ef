"""The HTTP endpoint that webhook adapters with the same host and port share.

1. ``POST /webhooks/{id}`` goes to the adapter of that id. Any other method is a 405, any other path a 404.
2. The handler of a request is chosen when its body has arrived. So a reload changes the handler between two requests,
   and no connection is refused, reset or answered by a stopped adapter. While an adapter and its replacement both run,
   the newer one gets the requests; if it stops, the older one gets them again.
3. A body is read up to its adapter's limit and no further (413, before any signature is checked).
4. A slow or silent sender loses its connection: headers must arrive within `IDLE_SECS`, a body within `BODY_SECS`. The
   number of connections is limited (`relay_supervisor.http.server`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Protocol

import orjson
from aiohttp import web

from relay_supervisor.adapters.webhook.inbound import Answer
from relay_supervisor.http.server import Limits, mark_complete, serve

PREFIX = "/webhooks/"
IDLE_SECS = 15.0
BODY_SECS = 15.0
MAX_CONNECTIONS = 256

_NOT_FOUND = Answer(404, {"error": "not found"})
_WRONG_METHOD = Answer(405, {"error": "method not allowed"})
_TOO_LARGE = Answer(413, {"error": "body too large"})
_TOO_SLOW = Answer(408, {"error": "too slow"})
_BROKEN = Answer(400, {"error": "bad request"})
_ERROR = Answer(500, {"error": "internal error"})


class Handler(Protocol):
    """Handles the requests of one id."""

    max_body_bytes: int

    async def handle(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Handle one request; the headers have lower-case names."""
        ...


class Listener:
    """Pass requests to the adapters."""

    def __init__(self) -> None:
        self.port = 0
        """The port it listens on."""
        self._handlers: dict[str, list[Handler]] = {}

    @contextmanager
    def serving(self, id: str, handler: Handler) -> Iterator[None]:
        """Pass the requests of an id to a handler for the duration of a block."""
        handlers = self._handlers.setdefault(id, [])
        handlers.append(handler)
        try:
            yield
        finally:
            handlers.remove(handler)
            if not handlers and self._handlers.get(id) is handlers:
                del self._handlers[id]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        answer = await self._answer(request)
        response = _respond(answer)
        if not request.content.is_eof():
            response.force_close()  # the rest of the body is not read
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
        except web.HTTPRequestEntityTooLarge:
            return _TOO_LARGE
        except Exception:  # aiohttp raises many types for a body that breaks off
            return _BROKEN
        mark_complete(request)
        handler = self._find(id)  # it may have changed while the body arrived
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
        OSError: if the port cannot be bound; the text says what to do.
    """
    listener = Listener()
    limits = Limits(max_connections=MAX_CONNECTIONS, idle_secs=IDLE_SECS)
    async with AsyncExitStack() as stack:
        try:
            listener.port = await stack.enter_async_context(serve(listener.answer, _refuse, host, port, limits))
        except OSError as error:
            why = error.strerror or "it is not an address of this machine"
            raise OSError(
                f"cannot listen on {host}:{port} ({why}): choose another inbound.port or inbound.host"
            ) from None
        yield listener


def _refuse(status: int) -> web.Response:
    return _respond(_ERROR if status >= 500 else _BROKEN)


async def _read_body(request: web.BaseRequest, limit: int) -> bytes:
    if (request.content_length or 0) > limit:
        raise web.HTTPRequestEntityTooLarge(limit)
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the response itself has not begun
    return await request.clone(client_max_size=limit).read()


def _plain(request: web.BaseRequest) -> dict[str, str]:
    """Return the headers with lower-case names; the values of a repeated header are joined, as HTTP defines it."""
    return {name.lower(): ", ".join(request.headers.getall(name)) for name in request.headers}


def _respond(answer: Answer) -> web.Response:
    headers: dict[str, str] = {}
    if answer.retry_after is not None:
        headers["Retry-After"] = str(answer.retry_after)
    if answer.status == 405:
        headers["Allow"] = "POST"
    return web.Response(
        status=answer.status, body=orjson.dumps(answer.body), headers=headers, content_type="application/json"
    )
