"""The HTTP client of the adapters: an aiohttp session that takes nothing from its environment.

No proxy, no cookie, no credentials from a netrc file. Callers disable redirects with each request and limit its time as
a whole with `asyncio.timeout`; aiohttp limits only the connecting, so a connection that failed is told apart from a
response that did not come.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import certifi
from aiohttp import (
    ClientConnectorError,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    TCPConnector,
)

NOT_SENT = (ClientConnectorError, ConnectionTimeoutError)
"""Failures of DNS, TCP and TLS: the request had not been sent yet."""


def trust(ca_file: str | Path | None = None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates of a file, or else the public ones; blocks.

    Raises:
        OSError, ValueError: if the file cannot be used.
    """
    return ssl.create_default_context(cafile=ca_file or certifi.where())


def open_session(tls: ssl.SSLContext, *, keep_alive_secs: float = 0, max_connections: int = 0) -> ClientSession:
    """Open a session; without `keep_alive_secs` every request has a new connection, and 0 connections mean no limit."""
    reuse = {"keepalive_timeout": keep_alive_secs} if keep_alive_secs else {"force_close": True}
    return ClientSession(
        connector=TCPConnector(ssl=tls, limit=max_connections, **reuse),
        cookie_jar=DummyCookieJar(),
        headers={"User-Agent": "relay"},
    )


def connect_within(seconds: float) -> ClientTimeout:
    """Return the limits of a request whose total time the caller limits."""
    return ClientTimeout(total=None, connect=seconds)
