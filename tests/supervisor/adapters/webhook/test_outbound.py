"""Messages on their way out: what the receiver gets, and what each of its answers comes to."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from standardwebhooks import Webhook

from relay_core.core import RelayCore
from relay_core.errors import RelayError
from relay_core.messages.dead_letter import Code
from relay_core.messages.operator_views import AdapterState
from relay_core.testing import FakeClock
from relay_supervisor.adapters.webhook.signing import Scheme, read_key, verify
from tests.kit.servers.webhook import (
    OLD_SECRET,
    SECRET,
    Receiver,
    a_receiver,
    a_relay,
    a_sender,
    a_webhook,
    respond,
)
from tests.kit.waiting import until

TO = "relay.out.orders"
FROM = "relay.agent.a"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with a_receiver() as receiver:
        yield receiver


@pytest.fixture
async def relay(data_dir: Path, clock: FakeClock) -> AsyncIterator[RelayCore]:
    async with a_relay(data_dir, clock) as relay:
        yield relay


async def publish(relay: RelayCore, payload: Any = None) -> AdapterState:
    """Publish to the adapter, and return its state once it has dealt with it."""
    await relay.publish(TO, {"content": "hello"} if payload is None else payload, sender=FROM)
    await relay.idle()
    return relay.adapters()[0]


async def test_the_receiver_gets_the_payload_signed_and_with_its_budget(data_dir: Path, receiver: Receiver) -> None:
    async with a_relay(data_dir) as relay:
        url, more = receiver.url + "?a=1", {"headers": {"Authorization": "Bearer t0k3n"}}
        await relay.add_adapter(a_webhook(None, {"url": url, "wait": True, **more}))
        result = await relay.publish(TO, {"content": "grüße", "n": [1, None]}, sender=FROM)
    (got,) = receiver.got
    assert orjson.loads(got.body) == {"content": "grüße", "n": [1, None]}
    assert Webhook(SECRET).verify(got.body, dict(got.headers)) == {"content": "grüße", "n": [1, None]}
    assert got.path == "/hook?a=1"
    expected = {
        "webhook-id": result.message_id,
        "relay-subject": TO,
        "relay-from": FROM,
        "relay-trace-id": result.message_id,
        "relay-hops": "1",
        "relay-max-hops": "5",
        "relay-calls-left": "9",
        "authorization": "Bearer t0k3n",
        "content-type": "application/json",
        "host": receiver.url.split("/")[2],
    }
    assert {name: got.headers[name] for name in expected} == expected
    assert "relay-ancestors" not in got.headers
    assert not any("python" in value.lower() or "aiohttp" in value.lower() for value in got.headers.values())
    assert result.adapter_results is not None
    assert result.adapter_results[0].status == "delivered"


@pytest.mark.parametrize("scheme", ["standard", "legacy"])
async def test_both_secrets_sign_during_a_rotation_and_one_after_it(
    relay: RelayCore, receiver: Receiver, clock: FakeClock, scheme: Scheme
) -> None:
    await relay.add_adapter(a_webhook(None, {"url": receiver.url, "previousSecret": OLD_SECRET, "scheme": scheme}))
    await publish(relay)
    clock.advance(24 * 3600)
    await publish(relay)
    during, after = receiver.got
    turned = {**during.headers, "x-signature": during.headers.get("x-signature-previous", "")}
    for secret, headers in ((SECRET, during.headers), (SECRET, after.headers), (OLD_SECRET, turned)):
        stamp = int(headers["webhook-timestamp" if scheme == "standard" else "x-timestamp"])
        verify(headers, during.body, [read_key(secret)], scheme, now_ms=stamp * 1000, tolerance=1)
    other = "x-" if scheme == "standard" else "webhook-"
    assert not any(name.startswith(other) for name in during.headers), "no message has two signatures that differ in id"
    assert "x-signature-previous" not in after.headers
    assert " " not in after.headers.get("webhook-signature", "")


async def test_the_operators_headers_go_before_ours_whatever_their_case(relay: RelayCore, receiver: Receiver) -> None:
    headers = {"User-Agent": "mine", "ACCEPT-encoding": "gzip", "X-Key": "k"}
    await relay.add_adapter(a_webhook(None, {"url": receiver.url, "headers": headers}))
    assert (await publish(relay)).delivered == 1, "a header that comes twice is refused by many"
    got = receiver.got[0].headers
    assert (got["user-agent"], got["accept-encoding"], got["x-key"]) == ("mine", "gzip", "k")


async def test_a_replay_has_the_same_id(relay: RelayCore, receiver: Receiver) -> None:
    await relay.add_adapter(a_webhook(None, {"url": receiver.url}))
    receiver.respond = respond(500)
    await publish(relay)
    receiver.respond = respond(200)
    plan = await relay.plan_replay()
    await relay.run_replay(plan.id)
    await relay.idle()
    first, second = receiver.got
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert relay.adapters()[0].delivered == 1


async def slow(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 10_000)
        await asyncio.sleep(0)


async def drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x")
        await asyncio.sleep(0.01)


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def raw(data: bytes) -> Callable[[web.Request], Any]:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(data)
        request.transport.close()
        await asyncio.sleep(0)
        return web.Response()

    return answer


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_every_2xx_is_delivered(relay: RelayCore, receiver: Receiver, status: int) -> None:
    receiver.respond = respond(status)
    await relay.add_adapter(a_webhook(None, {"url": receiver.url}))
    assert (await publish(relay)).delivered == 1


async def test_of_a_long_answer_only_the_beginning_is_read(relay: RelayCore, receiver: Receiver) -> None:
    receiver.respond = endless
    await relay.add_adapter(a_webhook(None, {"url": receiver.url, "maxResponseBytes": 50_000}))
    assert (await publish(relay)).delivered == 1


FAULTS: list[tuple[str, Any, str]] = [
    ("400", respond(400, body=b"canary-in-the-answer"), "answered 400"),
    ("404", respond(404), "answered 404"),
    ("500", respond(500), "answered 500"),
    ("502", respond(502), "answered 502"),
    ("301", respond(301, {"Location": "http://127.0.0.1:1/canary"}), "redirects are not followed"),
    ("307", respond(307, {"Location": "/canary"}), "redirects are not followed"),
    ("304", respond(304), "redirects are not followed"),
    ("slow", slow, "no response from 127.0.0.1 within 0.3 s"),
    ("drip", drip, "no response from 127.0.0.1 within 0.3 s"),
    ("cut", cut, "cut off"),
    ("cut-mid-body", raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"), "cut off"),
    ("no-http", raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "not HTTP"),
    ("long-headers", raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000), "not HTTP"),
]


@pytest.mark.parametrize(("answer", "problem"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
async def test_a_failed_delivery_is_one_dead_letter_and_one_count_of_the_breaker(
    relay: RelayCore, receiver: Receiver, answer: Any, problem: str
) -> None:
    receiver.respond = answer
    await relay.add_adapter(a_webhook(None, {"url": f"{receiver.url}/canary?key=canary", "timeoutSecs": 0.3}))
    state = await publish(relay)
    assert (state.delivered, state.failed, state.state) == (0, 1, "connected")
    (letter,) = await relay.dead_letters()
    assert letter.code == Code.ADAPTER_FAILED
    assert problem in letter.reason
    assert problem in (state.last_error or "")
    assert "canary" not in f"{letter.reason} {state}", "neither the URL's path nor the answer is shown"
    assert len(receiver.got) == 1, "nothing is followed, nothing is tried again"
    (breaker,) = [breaker for breaker in relay.breakers() if breaker.subject == "relay.adapter.hook"]
    assert breaker.consecutive_failures == 1


async def test_a_platform_that_is_down_opens_the_breaker(relay: RelayCore, clock: FakeClock) -> None:
    async with a_receiver() as receiver:
        url = receiver.url
    await relay.add_adapter(a_webhook(None, {"url": url}))
    for _ in range(5):
        await publish(relay)
    assert "cannot connect: Connection refused" in (relay.adapters()[0].last_error or "")
    refused = await relay.publish(TO, {}, sender=FROM)
    assert refused.rejected is not None
    assert refused.rejected[0].reason == "circuit_open"
    assert len(await relay.dead_letters()) == 5


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("said", "wait"),
    [("7", 7), ("0", 1), ("999999", 600), ("soon", 30), ("-5", 30), (None, 30), ("date", 90)],
    ids=["seconds", "none", "too-long", "nonsense", "negative", "not-said", "date"],
)
async def test_a_busy_receiver_is_asked_again_when_it_says(
    relay: RelayCore, receiver: Receiver, clock: FakeClock, status: int, said: str | None, wait: int
) -> None:
    if said == "date":
        said = formatdate(clock.now_ms() / 1000 + 90, usegmt=True)
    receiver.respond = respond(status, {"Retry-After": said} if said is not None else {})
    await relay.add_adapter(a_webhook(None, {"url": receiver.url, "maxRetryAfterSecs": 600}))
    publishing = asyncio.gather(relay.publish(TO, {"content": "hello"}, sender=FROM))
    await until(lambda: len(receiver.got) == 1)
    receiver.respond = respond(200)
    await until(lambda: relay.adapters()[0].depth == 1)
    clock.advance(wait - 0.1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(receiver.got) == 1
    clock.advance(0.2)
    await until(lambda: relay.adapters()[0].delivered == 1)
    await publishing
    assert relay.adapters()[0].failed == 0
    assert await relay.dead_letters() == []
    assert receiver.got[0].headers["webhook-id"] == receiver.got[1].headers["webhook-id"]


async def test_410_ends_the_way_out_but_not_the_way_in(relay: RelayCore, receiver: Receiver, clock: FakeClock) -> None:
    receiver.respond = respond(410)
    await relay.add_adapter(a_webhook({}, {"url": receiver.url}))
    state = await publish(relay)
    assert state.state == "disconnected"
    assert "run 'relay adapters reload hook'" in (state.detail or "")
    assert [letter.code for letter in await relay.dead_letters()] == [Code.ADAPTER_FAILED]
    receiver.respond = respond(200)
    state = await publish(relay)
    assert (state.depth, len(receiver.got)) == (1, 1), "later mail waits"
    await relay.replace_adapter(a_webhook({}, {"url": receiver.url}))
    await relay.idle()
    assert relay.adapters()[0].delivered == 1
    assert len(receiver.got) == 2


async def test_410_is_not_forgotten_by_a_restart_but_by_a_reload(data_dir: Path, receiver: Receiver) -> None:
    receiver.respond = respond(410)
    async with a_relay(data_dir) as relay:
        await relay.add_adapter(a_webhook({}, {"url": receiver.url}))
        await publish(relay)
    receiver.respond = respond(200)
    for _ in range(2):
        async with a_relay(data_dir) as relay:
            adapter = a_webhook({}, {"url": receiver.url})
            await relay.add_adapter(adapter)
            state = await publish(relay)
            assert (state.state, len(receiver.got)) == ("disconnected", 1)
            assert "run 'relay adapters reload hook'" in (state.detail or "")
            async with a_sender(adapter) as sender:
                assert (await sender.send())[0] in (202, 200), "the way in goes on"
    async with a_relay(data_dir) as relay:
        await relay.add_adapter(a_webhook({}, {"url": receiver.url}))
        with pytest.raises(RelayError):
            await relay.replace_adapter(a_webhook({}, {"url": receiver.url, "caFile": "/no/such/file"}))
        assert relay.adapters()[0].state == "disconnected", "a reload that failed changes nothing"
        await relay.replace_adapter(a_webhook({}, {"url": receiver.url}))
        await relay.idle()
        assert (relay.adapters()[0].state, len(receiver.got)) == ("connected", 3)
    async with a_relay(data_dir) as relay:
        await relay.add_adapter(a_webhook({}, {"url": receiver.url}))
        assert relay.adapters()[0].state == "connected", "and it stays mended"


async def test_410_is_about_one_url(data_dir: Path, receiver: Receiver) -> None:
    receiver.respond = respond(410)
    for path, state in (("a", "connected"), ("a", "disconnected"), ("b", "connected"), ("a", "connected")):
        async with a_relay(data_dir) as relay:
            await relay.add_adapter(a_webhook(None, {"url": f"{receiver.url}/{path}"}))
            assert relay.adapters()[0].state == state
            if path == "a":
                await publish(relay)
    assert b"hook" not in (data_dir / "adapters" / "hook" / "gone").read_bytes()


async def test_an_adapter_that_was_replaced_has_no_say_about_the_receiver(data_dir: Path, receiver: Receiver) -> None:
    """It is asked to post before the mending, and answered after the reload."""
    release = asyncio.Event()

    async def late(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response(status=410)

    receiver.respond = late
    async with a_relay(data_dir) as relay, asyncio.TaskGroup() as group:
        await relay.add_adapter(a_webhook(None, {"url": receiver.url, "wait": False}))
        await relay.publish(TO, {}, sender=FROM)
        await until(lambda: len(receiver.got) == 1)
        replacing = group.create_task(relay.replace_adapter(new := a_webhook(None, {"url": receiver.url})))
        await until(lambda: new.status.state == "connected")
        release.set()
        await replacing
        await relay.idle()
        assert relay.adapters()[0].failed == 1
        assert not (data_dir / "adapters" / "hook" / "gone").exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"])
async def test_a_host_that_is_not_public_is_not_even_connected_to(
    relay: RelayCore, receiver: Receiver, host: str
) -> None:
    url = receiver.url.replace("127.0.0.1", host)
    await relay.add_adapter(a_webhook(None, {"url": url, "allowHosts": ["10.0.0.0/8"]}))
    state = await publish(relay)
    assert "allowHosts" in (state.last_error or "")
    assert receiver.got == []


async def test_a_name_is_resolved_once_and_that_address_is_used(
    relay: RelayCore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that leads elsewhere when it is asked for again (DNS rebinding) is not asked for again."""
    asked: list[object] = []
    port = int(receiver.url.split(":")[2].split("/")[0])

    def answer(host: object, *args: object, **options: object) -> list[object]:
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "127.6.6.6"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    await relay.add_adapter(a_webhook(None, {"url": f"http://rebind.example:{port}/hook"}))
    assert (await publish(relay)).delivered == 1
    assert asked == ["rebind.example"]
    assert receiver.got[0].headers["host"] == f"rebind.example:{port}"


async def test_proxies_of_the_environment_are_not_used(
    relay: RelayCore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    await relay.add_adapter(a_webhook(None, {"url": receiver.url}))
    assert (await publish(relay)).delivered == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a certificate for hook.example, with its key."""
    directory = tmp_path_factory.mktemp("tls")
    key, cert = directory / "key.pem", directory / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(cert), "-days", "7300", "-subj", "/CN=hook.example"),
            *("-addext", "subjectAltName=DNS:hook.example"),
        ],
        check=True,
        capture_output=True,
    )
    both = directory / "both.pem"
    both.write_bytes(key.read_bytes() + cert.read_bytes())
    return both


@asynccontextmanager
async def a_tls_receiver(certificate: Path) -> AsyncIterator[tuple[Receiver, int]]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with a_receiver(context) as receiver:
        yield receiver, int(receiver.url.split(":")[2].split("/")[0])


@pytest.mark.parametrize(
    ("host", "trusted", "problem"),
    [
        ("hook.example", True, None),
        ("hook.example", False, "certificate verify failed"),
        ("other.example", True, "certificate verify failed"),
    ],
    ids=["good", "unknown-authority", "another-name"],
)
async def test_tls_is_checked_against_the_name_although_the_address_is_fixed(
    relay: RelayCore,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    trusted: bool,
    problem: str | None,
) -> None:
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *args, **options: real("127.0.0.1", *args, **options))
    async with a_tls_receiver(certificate) as (receiver, port):
        extra = {"caFile": str(certificate)} if trusted else {}
        url = f"https://{host}:{port}/hook"
        await relay.add_adapter(a_webhook(None, {"url": url, "allowHttp": False, **extra}))
        state = await publish(relay)
        if problem is None:
            assert state.delivered == 1, state.last_error
            assert receiver.got[0].headers["host"] == f"{host}:{port}"
        else:
            assert problem in (state.last_error or "")
            assert receiver.got == []


async def test_a_second_address_is_tried_when_the_first_cannot_be_connected_to(
    relay: RelayCore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(receiver.url.split(":")[2].split("/")[0])

    def answer(*args: object, **options: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.6.6.6", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    await relay.add_adapter(a_webhook(None, {"url": f"http://two.example:{port}/hook"}))
    assert (await publish(relay)).delivered == 1


async def test_certificates_that_cannot_be_read_fail_the_start_with_the_key(relay: RelayCore, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("nothing")
    for name in ("no.pem", "missing.pem"):
        with pytest.raises(Exception, match=r"outbound\.caFile"):
            await relay.add_adapter(a_webhook(None, {"url": "https://x.example", "caFile": str(tmp_path / name)}))


async def test_an_adapter_without_a_way_out_says_so(relay: RelayCore) -> None:
    await relay.add_adapter(a_webhook({}))
    await relay.publish("relay.adapter.hook", {}, sender=FROM)
    await relay.idle()
    assert "no outbound part" in (relay.adapters()[0].last_error or "")
