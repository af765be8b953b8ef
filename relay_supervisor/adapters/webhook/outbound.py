"""Outbound messages: one signed POST each.

1. The body is the payload as JSON. ``webhook-id`` is the message's id and stays the same when the message is sent
   again, so a receiver that keeps ids accepts it once. Subject, sender, trace and budget are sent as headers. The
   ancestors are not: they are names of this bus.
2. The request goes to an address that was checked (`addresses`), with the host's name in ``Host`` and for the
   certificate, over a new connection: no proxy, no cookie, no redirect, no idle connection that is being closed.
3. The time, and the bytes that are read of a response, are limited. Only the status counts.
4. 2xx is delivered. 429 and 503 are retried after the time they ask for. Everything else is a failure.
5. No error text contains the URL's path or the response's body, which may be secret.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from io import BytesIO
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit

import orjson
from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ConnectionTimeoutError,
    ServerDisconnectedError,
)
from yarl import URL

from relay_core.adapters.interface import DeliveryContext, DeliveryResult
from relay_core.clock import Clock
from relay_core.messages.envelope import Envelope
from relay_supervisor.adapters.budget_headers import FROM, TRACE, write_budget
from relay_supervisor.adapters.webhook.addresses import Address, Unreachable, resolve
from relay_supervisor.adapters.webhook.config import OutboundConfig
from relay_supervisor.adapters.webhook.signing import sign
from relay_supervisor.http.client import NOT_SENT, connect_within, open_session, trust

SUBJECT = "relay-subject"

_MAX_ADDRESSES = 3
_DEFAULT_HEADERS = {"accept-encoding": "identity", "user-agent": "relay"}
"""The operator's headers override these."""
_UNQUOTED = "%/?:@!$&'()*+,;=[]^|\\"
"""Characters of the configured URL that are sent as they are; a receiver may sign its path."""


class Outbound:
    """Post messages to a URL."""

    def __init__(self, config: OutboundConfig, clock: Clock) -> None:
        self.config = config
        self.host = URL(config.url).raw_host or ""
        """The only part of the URL that is shown."""
        self._clock = clock
        url, parts = URL(config.url), urlsplit(config.url)
        self._authority = url.host_port_subcomponent or ""
        self._port = url.port or 0
        self._path = quote(parts.path or "/", safe=_UNQUOTED)
        self._query = quote(parts.query, safe=_UNQUOTED)
        self._scheme = url.scheme
        self._names = config.allowed_names
        self._networks = config.allowed_networks
        operator_headers = {name.lower(): value.reveal() for name, value in config.headers.items()}
        self._fixed_headers = {**_DEFAULT_HEADERS, **operator_headers}
        self._session: ClientSession

    async def __aenter__(self) -> Self:
        """Open the session; raises ValueError if the certificates in caFile cannot be used."""
        self._session = open_session(await asyncio.to_thread(_trust, self.config.ca_file))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def deliver(self, envelope: Envelope, context: DeliveryContext, keys: Sequence[bytes]) -> DeliveryResult:
        """Post one message, signed with every key."""
        limit = asyncio.timeout(self.config.timeout_secs)
        try:
            async with limit:
                return await self._deliver(envelope, context, keys)
        except Unreachable as error:
            return _failed(str(error), "unreachable")
        except ConnectionTimeoutError:
            return _failed(f"{self.host} took too long to connect", "timeout")
        except TimeoutError:
            if not limit.expired():
                raise
            return _failed(f"no response from {self.host} within {self.config.timeout_secs:g} s", "timeout")
        except ClientError as error:
            return _failed(f"{self.host}: {_explain(error)}", "connection")

    async def _deliver(self, envelope: Envelope, context: DeliveryContext, keys: Sequence[bytes]) -> DeliveryResult:
        addresses = await resolve(self.host, self._port, names=self._names, networks=self._networks)
        body = orjson.dumps(envelope.payload)
        headers = [*self._headers(envelope, context), *self._sign(envelope, body, keys)]
        addresses = addresses[:_MAX_ADDRESSES]
        for address in addresses[:-1]:
            with suppress(*NOT_SENT):
                return await self._post(address, headers, body)
        return await self._post(addresses[-1], headers, body)

    def _headers(self, envelope: Envelope, context: DeliveryContext) -> list[tuple[str, str]]:
        return [
            ("host", self._authority),
            *self._fixed_headers.items(),
            ("content-type", "application/json"),
            (SUBJECT, envelope.subject),
            (FROM, envelope.sender),
            (TRACE, context.trace_id),
            *write_budget(envelope.budget).items(),
        ]

    def _sign(self, envelope: Envelope, body: bytes, keys: Sequence[bytes]) -> Iterable[tuple[str, str]]:
        return sign(envelope.id, self._clock.now_ms() // 1000, body, keys, self.config.scheme).items()

    async def _post(self, address: Address, headers: list[tuple[str, str]], body: bytes) -> DeliveryResult:
        url = URL.build(
            scheme=self._scheme,
            host=str(address),
            port=self._port,
            path=self._path,
            query_string=self._query,
            encoded=True,
        )
        async with self._session.post(
            url,
            data=BytesIO(body),
            headers=headers,
            allow_redirects=False,
            auto_decompress=False,
            server_hostname=self.host,
            timeout=connect_within(self.config.connect_timeout_secs),
        ) as response:
            await self._read(response)
            return self._judge(response)

    async def _read(self, response: ClientResponse) -> None:
        """Read a response up to the limit, so that a receiver that sends a body is not cut off."""
        remaining = self.config.max_response_bytes
        if remaining > 0:
            async for chunk in response.content.iter_any():
                remaining -= len(chunk)
                if remaining <= 0:
                    return

    def _judge(self, response: ClientResponse) -> DeliveryResult:
        status = response.status
        if 200 <= status < 300:
            return DeliveryResult(ok=True, detail=f"HTTP {status}")
        code = str(status)
        if status in (429, 503):
            wait = self._read_retry_after(response.headers.get("retry-after"))
            return DeliveryResult(ok=False, error=f"{self.host} answered", code=code, retry_after=wait)
        if 300 <= status < 400:
            return _failed(f"{self.host} answered {status}: redirects are not followed, correct outbound.url", code)
        return _failed(f"{self.host} answered {status}", code)

    def _read_retry_after(self, text: str | None) -> float:
        wait = self.config.retry_after_secs
        if text is not None:
            text = text.strip()
            if text.isascii() and text.isdigit():
                wait = float(text[:12])
            else:
                with suppress(ValueError, TypeError, OverflowError):
                    date = parsedate_to_datetime(text)
                    date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
                    wait = date.timestamp() - self._clock.now_ms() / 1000
        return min(max(wait, 1.0), self.config.max_retry_after_secs)


def _failed(error: str, code: str) -> DeliveryResult:
    return DeliveryResult(ok=False, error=error, code=code)


def _explain(error: ClientError) -> str:
    """Return the cause as the system or TLS reports it, without any path."""
    if isinstance(error, ClientConnectorError):
        return f"cannot connect: {_root_cause(error)}"
    if isinstance(error, ClientResponseError | ClientPayloadError | ServerDisconnectedError):
        return "its response is not HTTP, or was cut off"
    return f"the connection broke ({type(error).__name__})"


def _root_cause(error: BaseException) -> str:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        return os.strerror(error.errno)
    return str(error)


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return trust(ca_file)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ValueError(f"the certificates in outbound.caFile cannot be used: {why}") from None
