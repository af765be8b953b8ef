"""Messages on their way out: one signed POST each.

1. The body is the payload as JSON. ``webhook-id`` is the message's id, the same when it is sent again, so that a
   receiver that keeps ids takes it once. Subject, sender, trace and budget go along in headers; the ancestors, names
   that mean nothing over there, stay here.
2. It goes to an address that was judged (`addresses`), with the host's name for ``Host`` and the certificate, over a
   connection of its own: no proxy, no cookie, no redirect, and no idle connection that the other side is closing.
3. Time, and what is read of the answer, are limited. Only the status counts.
4. 2xx is delivered. 429 and 503 are asked again when they say. Everything else is a failure.
5. No text that leaves here has the URL's path or the answer's words, which may be secret.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
import orjson

from relay_core.adapter import DeliveryContext, DeliveryResult
from relay_core.clock import Clock
from relay_core.envelope import Envelope
from relay_supervisor.adapters.passport import FROM, TRACE, write_passport
from relay_supervisor.adapters.webhook.addresses import Address, Unreachable, resolve
from relay_supervisor.adapters.webhook.config import OutboundConfig
from relay_supervisor.adapters.webhook.signing import sign

SUBJECT = "relay-subject"

_MOST_ADDRESSES = 3
_DEFAULT_HEADERS = {"accept-encoding": "identity", "user-agent": "relay"}
"""The operator's headers go before these."""
_PORTS = {"https": 443, "http": 80}


class Outbound:
    """Post messages to a URL."""

    def __init__(self, config: OutboundConfig, clock: Clock) -> None:
        self.config = config
        self._clock = clock
        self._url = httpx.URL(config.url)
        self._host = self._url.raw_host.decode("ascii")
        self._names = config.allowed_names
        self._networks = config.allowed_networks
        more = {name.lower(): value.reveal() for name, value in config.headers.items()}
        self._more_headers = {**_DEFAULT_HEADERS, **more}
        self._transport: httpx.AsyncHTTPTransport

    @property
    def host(self) -> str:
        """Return the host, all that is shown of the URL."""
        return self._host

    async def open(self) -> None:
        """Make ready to connect.

        Raises:
            ValueError: if the certificates in caFile cannot be used.
        """
        context = await asyncio.to_thread(_trust, self.config.ca_file)
        limits = httpx.Limits(max_keepalive_connections=0)
        self._transport = httpx.AsyncHTTPTransport(verify=context, trust_env=False, http2=False, limits=limits)

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.aclose()

    async def deliver(self, envelope: Envelope, context: DeliveryContext, keys: Sequence[bytes]) -> DeliveryResult:
        """Post one message, signed with every key."""
        limit = asyncio.timeout(self.config.timeout_secs)
        try:
            async with limit:
                return await self._deliver(envelope, context, keys)
        except TimeoutError:
            if not limit.expired():
                raise
            return _failed(f"no answer from {self._host} within {self.config.timeout_secs:g} s", "timeout")
        except Unreachable as error:
            return _failed(str(error), "unreachable")
        except httpx.TimeoutException:
            return _failed(f"{self._host} took too long to connect", "timeout")
        except httpx.HTTPError as error:
            return _failed(f"{self._host}: {_explain(error)}", "connection")

    async def _deliver(self, envelope: Envelope, context: DeliveryContext, keys: Sequence[bytes]) -> DeliveryResult:
        port = self._url.port or _PORTS[self._url.scheme]
        addresses = await resolve(self._host, port, names=self._names, networks=self._networks)
        body = orjson.dumps(envelope.payload)
        headers = [*self._headers(envelope, context), *self._sign(envelope, body, keys)]
        addresses = addresses[:_MOST_ADDRESSES]
        for address in addresses[:-1]:
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):  # nothing has been sent: the next may have it
                return await self._post(address, headers, body)
        return await self._post(addresses[-1], headers, body)

    def _headers(self, envelope: Envelope, context: DeliveryContext) -> list[tuple[str, str]]:
        return [
            ("host", self._url.netloc.decode("ascii")),
            *self._more_headers.items(),
            ("content-type", "application/json"),
            (SUBJECT, envelope.subject),
            (FROM, envelope.sender),
            (TRACE, context.trace_id),
            *write_passport(envelope.budget).items(),
        ]

    def _sign(self, envelope: Envelope, body: bytes, keys: Sequence[bytes]) -> Iterable[tuple[str, str]]:
        return sign(envelope.id, self._clock.now_ms() // 1000, body, keys, self.config.scheme).items()

    async def _post(self, address: Address, headers: list[tuple[str, str]], body: bytes) -> DeliveryResult:
        config = self.config
        request = httpx.Request(
            "POST",
            self._url.copy_with(host=str(address)),
            headers=headers,
            content=body,
            extensions={
                "sni_hostname": self._host,
                "timeout": {
                    "connect": config.connect_timeout_secs,
                    "read": config.timeout_secs,
                    "write": config.timeout_secs,
                    "pool": config.timeout_secs,
                },
            },
        )
        response = await self._transport.handle_async_request(request)
        try:
            await self._read(response)
        finally:
            await response.aclose()
        return self._judge(response)

    async def _read(self, response: httpx.Response) -> None:
        """Read as much of an answer as is allowed, so that a receiver that writes it all is not cut off."""
        left = self.config.max_response_bytes
        if left > 0:
            async for chunk in response.aiter_raw():
                left -= len(chunk)
                if left <= 0:
                    return

    def _judge(self, response: httpx.Response) -> DeliveryResult:
        status = response.status_code
        if 200 <= status < 300:
            return DeliveryResult(ok=True, detail=f"HTTP {status}")
        code = str(status)
        if status in (429, 503):
            wait = self._read_retry_after(response.headers.get("retry-after"))
            return DeliveryResult(ok=False, error=f"{self._host} answered", code=code, retry_after=wait)
        if 300 <= status < 400:
            return _failed(f"{self._host} answered {status}: redirects are not followed, mend outbound.url", code)
        return _failed(f"{self._host} answered {status}", code)

    def _read_retry_after(self, text: str | None) -> float:
        wait = self.config.retry_after_secs
        if text is not None:
            text = text.strip()
            if text.isascii() and text.isdigit():
                wait = float(text[:12])
            else:
                with suppress(ValueError, TypeError, OverflowError):
                    then = parsedate_to_datetime(text)
                    then = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
                    wait = then.timestamp() - self._clock.now_ms() / 1000
        return min(max(wait, 1.0), self.config.max_retry_after_secs)


def _failed(error: str, code: str) -> DeliveryResult:
    return DeliveryResult(ok=False, error=error, code=code)


def _explain(error: httpx.HTTPError) -> str:
    """Return what went wrong in the words of the system or of TLS, which know no paths."""
    if isinstance(error, httpx.ConnectError):
        return f"cannot connect: {_root(error)}"
    if isinstance(error, httpx.RemoteProtocolError):
        return "its answer is no HTTP, or was cut off"
    return f"the connection broke ({type(error).__name__})"


def _root(error: BaseException) -> str:
    """Return what the system said: the libraries in between only say that it failed."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        return os.strerror(error.errno)
    return str(error)


def _trust(ca_file: str | None) -> ssl.SSLContext:
    if ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=Path(ca_file).expanduser())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ValueError(f"the certificates in outbound.caFile cannot be used: {why}") from None
