"""Both ends of a webhook for tests: a receiver and a sender that speak real HTTP on loopback, and a bus in between."""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from standardwebhooks import Webhook

from relay_core.clock import Clock, SystemClock
from relay_core.config import RelayConfig, merge_config
from relay_core.core import RelayCore
from relay_supervisor.adapters.webhook.adapter import WebhookAdapter
from relay_supervisor.adapters.webhook.config import WebhookConfig
from tests.kit.daemon import UNLIMITED

SECRET = "whsec_" + base64.b64encode(b"the current secret of the tests!").decode()
OLD_SECRET = "whsec_" + base64.b64encode(b"the secret before, of the tests!").decode()
TEXT_SECRET = "a secret that is plain text"
SUBJECT = "relay.inbox.orders"

Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Got:
    """One request as it arrived."""

    headers: Mapping[str, str]
    body: bytes
    path: str


class Receiver:
    """An HTTP server that records requests and responds as the test says."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.respond: Respond = respond(200)
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.got.append(Got(headers, body, request.path_qs))
        return await self.respond(request)


def respond(status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Respond:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers=headers, body=body)

    return answer


@asynccontextmanager
async def a_receiver(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", receiver.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        receiver.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/hook"
        yield receiver
    finally:
        await runner.cleanup()


def sign(body: bytes, *, id: str = "msg_1", now_ms: int, secret: str = SECRET) -> dict[str, str]:
    """Return the headers of the reference implementation."""
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    when = datetime.fromtimestamp(now_ms // 1000, UTC)
    return {
        "webhook-id": id,
        "webhook-timestamp": str(now_ms // 1000),
        "webhook-signature": Webhook(key).sign(id, when, body.decode()),
        "content-type": "application/json",
    }


class Sender:
    """A client that sends signed requests to an adapter."""

    def __init__(self, session: aiohttp.ClientSession, port: int, id: str, clock: Clock) -> None:
        self.url = f"http://127.0.0.1:{port}/webhooks/{id}"
        self.session = session
        self._clock = clock

    async def send(
        self,
        body: bytes = b'{"content":"hello"}',
        *,
        id: str = "msg_1",
        secret: str = SECRET,
        headers: Mapping[str, str | None] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Send a signed request, with headers added, changed or (None) left out; return the response."""
        status, answer, _ = await self.send_in_full(body, id=id, secret=secret, headers=headers)
        return status, answer

    async def send_in_full(
        self,
        body: bytes = b'{"content":"hello"}',
        *,
        id: str = "msg_1",
        secret: str = SECRET,
        headers: Mapping[str, str | None] | None = None,
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        wanted = {**sign(body, id=id, now_ms=self._clock.now_ms(), secret=secret), **(headers or {})}
        return await self.send_raw(body, {name: value for name, value in wanted.items() if value is not None})

    async def send_raw(
        self, body: bytes, headers: Mapping[str, str], *, method: str = "POST", url: str | None = None
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        async with self.session.request(method, url or self.url, data=body, headers=headers) as response:
            return response.status, await response.json(), dict(response.headers)


@asynccontextmanager
async def a_sender(adapter: WebhookAdapter, clock: Clock | None = None) -> AsyncIterator[Sender]:
    assert adapter.port is not None
    async with aiohttp.ClientSession() as session:
        yield Sender(session, adapter.port, adapter.id, clock or SystemClock())


@asynccontextmanager
async def a_relay(
    data_dir: Path, clock: Clock | None = None, config: Mapping[str, Any] = UNLIMITED
) -> AsyncIterator[RelayCore]:
    """Run a bus with an endpoint for inbound messages."""
    os.makedirs(data_dir, mode=0o700, exist_ok=True)
    async with RelayCore(data_dir, merge_config(RelayConfig(), dict(config)), clock) as relay:
        await relay.register_endpoint(SUBJECT)
        yield relay


def a_webhook(
    inbound: Mapping[str, Any] | None = None, outbound: Mapping[str, Any] | None = None, id: str = "hook"
) -> WebhookAdapter:
    """Return an adapter, with defaults for missing keys."""
    config: dict[str, Any] = {}
    if inbound is not None:
        config["inbound"] = {"port": 0, "subject": SUBJECT, "secret": SECRET, **inbound}
    if outbound is not None:
        loopback = {"allowHttp": True, "allowHosts": ["127.0.0.0/8"]}
        config["outbound"] = {"patterns": ["relay.out.>"], "secret": SECRET, **loopback, **outbound}
    return WebhookAdapter(id, WebhookConfig.model_validate(config))


async def stored(relay: RelayCore, subject: str = SUBJECT) -> list[Any]:
    """Return the waiting payloads of a subject, oldest first."""
    return [envelope.payload for envelope in await relay.inbox(subject, limit=1_000_000)]
