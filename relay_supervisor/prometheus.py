"""Metrics for Prometheus: text on http://127.0.0.1:{port}/metrics, made anew for each scrape.

1. The bus is read on its event loop and nowhere else. What was read does not change any more, so the
   text is made in a thread: a thousand mailboxes hold up no message.
2. A scrape costs a bounded amount: a request of at most 8 KiB within 5 s, 16 connections at once, one
   text at a time. What is beyond that is closed.
3. It listens on the loopback alone, and answers only those who ask for it by a loopback name: a web
   page that had its own name point here would otherwise read along.

What it says is in prometheus_metrics.py. The server of prometheus-client would collect in a thread of its own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

from relay_core.core import RelayCore
from relay_core.errors import Closed, ConfigError
from relay_core.tasks import Tasks
from relay_supervisor.prometheus_metrics import expose, look

HOST = "127.0.0.1"
MAX_CONNECTIONS = 16
MAX_REQUEST = 8_192
REQUEST_SECS = 5.0

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class PrometheusServer:
    """Serve a bus's metrics, as an async context manager."""

    def __init__(self, relay: RelayCore, port: int) -> None:
        self._relay = relay
        self._wanted = port
        self._server: asyncio.Server | None = None
        self._tasks = Tasks()
        self._turn = asyncio.Lock()

    @property
    def port(self) -> int:
        """Return the port it listens on, which the system chose if it was told 0."""
        if self._server is None:
            return self._wanted
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        """Begin to serve.

        Raises:
            ConfigError: if the extra is not installed, or the port cannot be had.
        """
        try:
            await asyncio.to_thread(_import)
        except ImportError as error:
            raise ConfigError(
                "prometheus.enabled needs prometheus-client: pip install 'relay-bus[prometheus]'",
                key="prometheus.enabled",
            ) from error
        try:
            self._server = await asyncio.start_server(self._accept, HOST, self._wanted, limit=MAX_REQUEST)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {HOST}:{self._wanted}: {error.strerror}", key="prometheus.port"
            ) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop serving, whoever is still reading."""
        if self._server is not None:
            self._server.close()
            await self._tasks.close()
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_full = len(self._tasks) >= MAX_CONNECTIONS
        if is_full or self._tasks.start(self._serve(reader, writer), name="prometheus scrape") is None:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
                async with asyncio.timeout(REQUEST_SECS):
                    head = await _read_head(reader)
                status, kind, body = await self._answer(head)
                async with asyncio.timeout(REQUEST_SECS):
                    writer.write(_response(status, kind, body, with_body=not head.startswith(b"HEAD ")))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()

    async def _answer(self, head: bytes) -> tuple[str, str, bytes]:
        method, path, host = _parse(head)
        plain = "text/plain; charset=utf-8"
        if not method:
            return "400 Bad Request", plain, b"this is no HTTP request that can be understood\n"
        if host not in _LOOPBACK:
            return "403 Forbidden", plain, b"ask for 127.0.0.1 or localhost\n"
        if path != "/metrics":
            return "404 Not Found", plain, b"the metrics are at /metrics\n"
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", plain, b"the metrics can only be read\n"
        async with self._turn:
            try:
                seen = look(self._relay)
            except Closed:
                return "503 Service Unavailable", plain, b"the bus is closed\n"
            return "200 OK", *await asyncio.to_thread(expose, seen)


# HTTP, as much of it as a scrape needs


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return b""


def _parse(head: bytes) -> tuple[str, str, str]:
    """Return method, path and host, or an empty method for what is no request."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", "", ""
    hosts = [line.partition(":")[2].strip().lower() for line in lines if line.lower().startswith("host:")]
    # HTTP/1.0 needs none, and no browser speaks it.
    host = hosts[0] if len(hosts) == 1 else "127.0.0.1" if words[2] == "HTTP/1.0" and not hosts else ""
    name, colon, port = host.rpartition(":")
    return words[0], words[1].partition("?")[0], name if colon and port.isdigit() else host


def _response(status: str, kind: str, body: bytes, *, with_body: bool) -> bytes:
    allow = "Allow: GET, HEAD\r\n" if status.startswith("405") else ""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{allow}"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + (body if with_body else b"")


def _import() -> None:
    import prometheus_client  # noqa: F401
