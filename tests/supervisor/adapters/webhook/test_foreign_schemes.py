"""Requests signed as GitHub and Svix sign them: published examples, and signatures made here with hmac alone."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict
from pydantic import ValidationError

from relay_core.core import RelayCore
from relay_core.testing import FakeClock
from relay_supervisor.adapters.webhook.config import WebhookConfig
from relay_supervisor.adapters.webhook.signing import Accepted, Signed, Unverified, read_key, verify
from tests.kit.servers.webhook import OLD_SECRET, SECRET, SUBJECT, a_relay, a_sender, a_webhook, stored

BODY = b'{"action":"opened","number":7}'
GITHUB_SECRET = "a secret of at least sixteen bytes"
DELIVERY = "72d3162e-cc78-11e3-81ab-4c9367dc0958"


def github(body: bytes = BODY, *, id: str = DELIVERY, secret: str = GITHUB_SECRET) -> dict[str, str]:
    mac = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {
        "X-GitHub-Delivery": id,
        "X-GitHub-Event": "issues",
        "X-Hub-Signature-256": f"sha256={mac}",
        "Content-Type": "application/json",
    }


def svix(body: bytes = BODY, *, now: int, id: str = "msg_1", secret: str = SECRET) -> dict[str, str]:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = hmac.new(key, f"{id}.{now}.".encode() + body, hashlib.sha256).digest()
    return {
        "svix-id": id,
        "svix-timestamp": str(now),
        "svix-signature": f"v1,{base64.b64encode(mac).decode()}",
        "content-type": "application/json",
    }


def check(headers: dict[str, str], body: bytes, secret: str, scheme: Accepted, now: int = 0) -> Signed:
    lower = {name.lower(): value for name, value in headers.items()}
    return verify(lower, body, [read_key(secret, scheme)], scheme, now_ms=now * 1000, tolerance=300)


# Published examples


def test_the_example_in_githubs_documentation_is_valid() -> None:
    """From docs.github.com, "Validating webhook deliveries"."""
    mac = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"X-Hub-Signature-256": f"sha256={mac}", "X-GitHub-Delivery": DELIVERY}
    signed = check(headers, b"Hello, World!", "It's a Secret to Everybody", "github")
    assert (signed.id, signed.timestamp, signed.twin) == (f"github {DELIVERY}", None, None)


def test_the_example_in_svixs_documentation_is_valid() -> None:
    """From docs.svix.com, "Verifying Webhooks Manually"."""
    headers = {
        "svix-id": "msg_loFOjxBNrRLzqYUf",
        "svix-timestamp": "1731705121",
        "svix-signature": "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
    }
    body = b'{"event_type":"ping","data":{"success":true}}'
    signed = check(headers, body, "whsec_plJ3nmyCDGBKInavdOK15jsl", "svix", now=1731705121)
    assert (signed.id, signed.timestamp) == ("msg_loFOjxBNrRLzqYUf", 1731705121)


# GitHub


async def test_a_github_delivery_is_published_once_also_after_a_restart(data_dir: Path, clock: FakeClock) -> None:
    config = {"scheme": "github", "secret": GITHUB_SECRET}
    answers = []
    for _ in range(2):
        async with a_relay(data_dir, clock) as relay:
            adapter = a_webhook(config)
            await relay.add_adapter(adapter)
            async with a_sender(adapter, clock) as sender:
                answers += [(await sender.send_raw(BODY, github()))[:2] for _ in range(2)]
            assert await stored(relay) == [{"action": "opened", "number": 7}]
    assert [status for status, _ in answers] == [202, 200, 200, 200]
    assert len({answer["messageId"] for _, answer in answers}) == 1


async def test_github_deliveries_of_other_ids_are_others_although_they_say_the_same(
    relay: RelayCore, clock: FakeClock
) -> None:
    await relay.register_endpoint(SUBJECT)
    adapter = a_webhook({"scheme": "github", "secret": GITHUB_SECRET})
    await relay.add_adapter(adapter)
    async with a_sender(adapter, clock) as sender:
        assert [(await sender.send_raw(BODY, github(id=f"id-{n}")))[0] for n in range(2)] == [202, 202]
    assert len(await stored(relay)) == 2


UNSIGNED: dict[str, Callable[[dict[str, str]], dict[str, str]]] = {
    "no signature": lambda good: {**good, "X-Hub-Signature-256": ""},
    "another secret": lambda good: github(secret="another secret of sixteen bytes"),
    "another body": lambda good: github(BODY + b" "),
    "no prefix": lambda good: {**good, "X-Hub-Signature-256": good["X-Hub-Signature-256"].removeprefix("sha256=")},
    "cut off": lambda good: {**good, "X-Hub-Signature-256": good["X-Hub-Signature-256"][:-2]},
    "two signatures": lambda good: {**good, "X-Hub-Signature-256": ", ".join([good["X-Hub-Signature-256"]] * 2)},
    "SHA-1 alone": lambda good: {
        "X-GitHub-Delivery": DELIVERY,
        "X-Hub-Signature": "sha1=" + hmac.new(GITHUB_SECRET.encode(), BODY, hashlib.sha1).hexdigest(),
    },
    "no id": lambda good: {**good, "X-GitHub-Delivery": ""},
    "two ids": lambda good: {**good, "X-GitHub-Delivery": "a, b"},
    "a long id": lambda good: {**good, "X-GitHub-Delivery": "a" * 129},
    "signed by the standard": lambda good: {
        name.replace("svix-", "webhook-"): value for name, value in svix(now=0, secret=SECRET).items()
    },
}


@pytest.mark.parametrize("spoil", UNSIGNED.values(), ids=UNSIGNED)
def test_a_request_that_github_did_not_sign_is_refused(spoil: Callable[[dict[str, str]], dict[str, str]]) -> None:
    check(github(), BODY, GITHUB_SECRET, "github")
    with pytest.raises(Unverified):
        check(spoil(github()), BODY, GITHUB_SECRET, "github")


async def test_a_repeated_header_is_refused(relay: RelayCore, clock: FakeClock) -> None:
    adapter = a_webhook({"scheme": "github", "secret": GITHUB_SECRET})
    await relay.add_adapter(adapter)
    twice = CIMultiDict(github())
    twice.add("X-Hub-Signature-256", twice["X-Hub-Signature-256"])
    async with a_sender(adapter, clock) as sender:
        assert (await sender.send_raw(BODY, twice))[0] == 401


def test_a_github_secret_is_its_own_bytes() -> None:
    check(github(secret=SECRET), BODY, SECRET, "github")
    assert read_key(SECRET, "github") == SECRET.encode() != read_key(SECRET)


def test_a_github_signature_has_no_time_to_tolerate() -> None:
    inbound = {"port": 0, "subject": SUBJECT, "secret": GITHUB_SECRET, "scheme": "github", "toleranceSecs": 60}
    with pytest.raises(ValidationError, match="toleranceSecs must be left out"):
        WebhookConfig.model_validate({"inbound": inbound})


@pytest.mark.parametrize("scheme", ["github", "svix"])
def test_we_do_not_sign_by_these_schemes(scheme: str) -> None:
    outbound = {"url": "https://example.com", "patterns": ["relay.out.>"], "secret": SECRET, "scheme": scheme}
    with pytest.raises(ValidationError, match=r"outbound\.scheme"):
        WebhookConfig.model_validate({"outbound": outbound})


# Svix


async def test_a_svix_message_is_published_once_and_only_while_it_is_fresh(relay: RelayCore, clock: FakeClock) -> None:
    await relay.register_endpoint(SUBJECT)
    adapter = a_webhook({"scheme": "svix", "previousSecret": OLD_SECRET})
    await relay.add_adapter(adapter)
    now = clock.now_ms() // 1000
    async with a_sender(adapter, clock) as sender:

        async def send(headers: dict[str, Any], body: bytes = BODY) -> int:
            return (await sender.send_raw(body, headers))[0]

        headers = svix(now=now)
        assert await send({**headers, "svix-signature": f"v1a,xxx {headers['svix-signature']}"}) == 202
        assert await send(headers) == 200
        assert await send(svix(now=now + 1)) == 200, "signed again, under its id"
        assert await send(headers, BODY + b" ") == 401
        assert await send(svix(now=now - 301, id="late")) == 401
        assert await send(svix(now=now + 302, id="early")) == 401
        assert await send(svix(now=now, id="by.two")) == 401, "an id has no full stop"
        assert await send(svix(now=now, id="old", secret=OLD_SECRET)) == 202
        assert await send({name.replace("svix-", "webhook-"): value for name, value in svix(now=now).items()}) == 401
        text = {**svix(b"hi", now=now, id="text"), "content-type": "text/plain"}
        assert await send(text, b"hi") == 202
    *_, last = await stored(relay)
    assert (last["content"], last["platformData"]["webhookId"]) == ("hi", "text")
    assert len(await stored(relay)) == 3


async def test_a_change_between_svix_and_the_standard_accepts_no_message_twice(
    relay: RelayCore, clock: FakeClock
) -> None:
    await relay.register_endpoint(SUBJECT)
    headers = svix(now=clock.now_ms() // 1000)
    await relay.add_adapter(adapter := a_webhook({"scheme": "svix"}))
    async with a_sender(adapter, clock) as sender:
        assert (await sender.send_raw(BODY, headers))[0] == 202
    await relay.replace_adapter(adapter := a_webhook({"scheme": "standard"}))
    async with a_sender(adapter, clock) as sender:
        renamed = {name.replace("svix-", "webhook-"): value for name, value in headers.items()}
        assert (await sender.send_raw(BODY, renamed))[0] == 200
    assert len(await stored(relay)) == 1
