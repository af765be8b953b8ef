"""Metrics for Prometheus: text on http://127.0.0.1:{port}/metrics, rendered for each scrape.

1. The bus is read on its event loop only. The text is rendered from that snapshot in a thread, so a thousand mailboxes
   delay no message.
2. A scrape costs a bounded amount: 16 connections, 5 s for a request's headers and for reading the response, one
   rendering at a time.
3. It listens on the loopback only, and answers only requests for a loopback name. Otherwise a web page whose own name
   resolves to this machine could read the metrics.

The server of prometheus-client would read the bus in a thread.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import HttpVersion10, web

from relay_core.core import RelayCore
from relay_core.errors import Closed, ConfigError
from relay_supervisor.http.server import Limits, mark_complete, serve
from relay_supervisor.observability.prometheus_metrics import read_bus, render

HOST = "127.0.0.1"
LIMITS = Limits(max_connections=16, idle_secs=5.0, response_secs=5.0, shutdown_secs=0.0)

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


@asynccontextmanager
async def serve_metrics(relay: RelayCore, port: int) -> AsyncIterator[int]:
    """Serve a bus's metrics until the block ends, without waiting for readers; return the port (chosen for 0).

    Raises:
        ConfigError: if the extra is not installed, or the port cannot be bound.
    """
    try:
        await asyncio.to_thread(importlib.import_module, "prometheus_client")
    except ImportError as error:
        raise ConfigError(
            "prometheus.enabled needs prometheus-client: pip install 'relay-bus[prometheus]'", key="prometheus.enabled"
        ) from error
    rendering = asyncio.Lock()

    async def handle(request: web.BaseRequest) -> web.Response:
        mark_complete(request)
        response = await _respond(request, relay, rendering)
        response.force_close()
        return response

    async with AsyncExitStack() as stack:
        try:
            bound = await stack.enter_async_context(serve(handle, _refuse, HOST, port, LIMITS))
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {HOST}:{port}: {error.strerror}", key="prometheus.port"
            ) from error
        yield bound


async def _respond(request: web.BaseRequest, relay: RelayCore, rendering: asyncio.Lock) -> web.Response:
    if not _is_loopback(request):
        return _plain(403, "ask for 127.0.0.1 or localhost")
    if request.rel_url.raw_path != "/metrics":
        return _plain(404, "the metrics are at /metrics")
    if request.method not in ("GET", "HEAD"):
        return _plain(405, "the metrics can only be read", Allow="GET, HEAD")
    async with rendering:
        try:
            snapshot = read_bus(relay)
        except Closed:
            return _plain(503, "the bus is closed")
        kind, body = await asyncio.to_thread(render, snapshot)
    return web.Response(body=body, headers={**_HEADERS, "Content-Type": kind})


def _is_loopback(request: web.BaseRequest) -> bool:
    host = request.headers.get("Host", "").lower()
    if not host:
        return request.version == HttpVersion10  # needs no Host, and no browser speaks it
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host) in _LOOPBACK


def _plain(status: int, text: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers={**_HEADERS, **headers})


def _refuse(status: int) -> web.Response:
    return _plain(status, "internal error" if status >= 500 else "not an HTTP request")
