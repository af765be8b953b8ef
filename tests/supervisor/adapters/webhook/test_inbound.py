"""Requests on their way in, over real HTTP: what each is answered, and what is published of it."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from relay_core.config import RelayConfig
from relay_core.core import RelayCore
from relay_core.errors import StorageError
from relay_core.messages.results import AdapterResult, PublishResult, Reason, Rejection
from relay_core.testing import FakeClock
from relay_supervisor.adapters.webhook import listener
from relay_supervisor.adapters.webhook.inbound import UNAUTHORIZED, _check_keys, find_refusal
from relay_supervisor.adapters.webhook.replays import Replays
from relay_supervisor.adapters.webhook.signing import read_key
from relay_supervisor.adapters.webhook.signing import sign as make_signature
from tests.kit.adapters import SampleAdapter
from tests.kit.daemon import OS
from tests.kit.servers.webhook import (
    OLD_SECRET,
    SECRET,
    SUBJECT,
    TEXT_SECRET,
    Sender,
    a_receiver,
    a_relay,
    a_sender,
    a_webhook,
    sign,
    stored,
)
from tests.kit.waiting import until

BODY = b'{"content":"hello"}'


@pytest.fixture
async def relay(data_dir: Path, clock: FakeClock) -> AsyncIterator[RelayCore]:
    async with a_relay(data_dir, clock) as relay:
        yield relay


@pytest.fixture
async def sender(relay: RelayCore, clock: FakeClock) -> AsyncIterator[Sender]:
    adapter = a_webhook({"maxBodyBytes": 1000})
    await relay.add_adapter(adapter)
    async with a_sender(adapter, clock) as sender:
        yield sender


class Telling(SampleAdapter):
    """Tells when a message for it is about to be stored, in a mailbox that has to be made first."""

    def __init__(self, *, patterns: Sequence[str]) -> None:
        super().__init__(patterns=patterns)
        self.reached = asyncio.Event()

    def lane(self, subject: str) -> str:
        self.reached.set()
        return "new"


def write_rules(data_dir: Path, *rules: Mapping[str, Any]) -> None:
    (data_dir / "access-rules.json").write_text(json.dumps(rules))


async def test_a_signed_message_is_published_and_its_id_returned(relay: RelayCore, sender: Sender) -> None:
    status, answer = await sender.send()
    assert status == 202
    (message,) = await relay.inbox(SUBJECT)
    assert answer == {"messageId": message.id}
    assert (message.payload, message.sender, message.origin) == ({"content": "hello"}, "relay.webhook.hook", "hook")


@pytest.mark.parametrize(
    "body",
    [b'{"a":1,"a":1}', b'[{"x":{"a":1,"b":2,"\\u0061":3}}]', b'{"a":{"b":1},"c":[{"d":1,"d":null}]}'],
    ids=["top", "escaped", "deep"],
)
async def test_a_body_with_a_key_twice_is_refused(relay: RelayCore, sender: Sender, body: bytes) -> None:
    answer = {"error": "invalid", "message": "an object in the body has a key twice"}
    assert await sender.send(body) == (400, answer)
    assert await stored(relay) == []
    good = b'[{"a":{"a":1}},{"a":":"}]'
    assert (await sender.send(good))[0] == 202


def test_a_body_that_is_nested_deeply_is_refused_and_not_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        _check_keys(b"[" * 100_000 + b'{"a":1,"b":2}' + b"]" * 100_000)


async def test_a_replay_is_answered_with_the_first_ones_id_and_not_published(
    relay: RelayCore, sender: Sender, clock: FakeClock
) -> None:
    _, first = await sender.send()
    assert await sender.send() == (200, {**first, "duplicate": True})
    clock.advance(250)  # a sender that lost the answer signs again when it retries
    assert await sender.send() == (200, {**first, "duplicate": True})
    assert len(await stored(relay)) == 1


async def test_a_replay_is_known_after_a_restart(data_dir: Path, clock: FakeClock) -> None:
    headers = sign(BODY, now_ms=clock.now_ms())
    answers = []
    waiting = []
    for _ in range(2):
        async with a_relay(data_dir, clock) as relay:
            adapter = a_webhook({})
            await relay.add_adapter(adapter)
            async with a_sender(adapter, clock) as sender:
                answers.append(await sender.send_raw(BODY, headers))
            waiting = await stored(relay)
    assert [status for status, _, _ in answers] == [202, 200]
    assert answers[0][1]["messageId"] == answers[1][1]["messageId"]
    assert len(waiting) == 1


async def test_a_kill_between_publishing_and_remembering_publishes_once(data_dir: Path, clock: FakeClock) -> None:
    answers = []
    waiting = []
    for _ in range(2):
        async with a_relay(data_dir, clock) as relay:
            adapter = a_webhook({})
            await relay.add_adapter(adapter)
            async with a_sender(adapter, clock) as sender:
                answers.append(await sender.send())
            waiting = await stored(relay)
        (data_dir / "adapters" / "hook" / "ids-young.log").unlink()
    assert answers[0] == answers[1]
    assert len(waiting) == 1


async def test_copies_that_come_at_the_same_time_are_one_message(relay: RelayCore, sender: Sender) -> None:
    answers = await asyncio.gather(*(sender.send() for _ in range(20)))
    assert {answer["messageId"] for _, answer in answers} == {answers[0][1]["messageId"]}
    assert {status for status, _ in answers} <= {200, 202}
    assert len(await stored(relay)) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"webhook-id": None},
        {"webhook-id": "other"},
        {"webhook-timestamp": None},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "1"},
        {"webhook-signature": None},
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": "\u00e9\u00e9"},
        {"webhook-id": "a" * 5000},
    ],
    ids=lambda headers: "-".join(f"{name}={value}"[:28] for name, value in headers.items()),
)
async def test_all_that_is_not_signed_gets_the_same_answer(
    relay: RelayCore, sender: Sender, headers: dict[str, str | None]
) -> None:
    assert await sender.send(headers=headers) == (401, UNAUTHORIZED.body)
    assert await stored(relay) == []


async def test_a_header_that_comes_twice_is_refused(relay: RelayCore, sender: Sender, clock: FakeClock) -> None:
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        for more in ("v1,garbage", None):
            headers = CIMultiDict(sign(BODY, now_ms=clock.now_ms()))
            good = headers.pop(name)
            headers.add(name, more or good)
            headers.add(name, good)
            status, answer, _ = await sender.send_raw(BODY, headers)
            assert (status, answer) == (401, UNAUTHORIZED.body)
    assert await stored(relay) == []


@pytest.mark.parametrize(("away", "status"), [(301, 401), (-301, 401), (299, 202), (-299, 202)])
async def test_an_expired_or_early_message_is_refused(sender: Sender, clock: FakeClock, away: int, status: int) -> None:
    headers = sign(BODY, now_ms=clock.now_ms() + away * 1000)
    assert (await sender.send_raw(BODY, headers))[0] == status


async def test_text_secrets_and_the_legacy_form_are_taken_when_configured(relay: RelayCore, clock: FakeClock) -> None:
    adapter = a_webhook({"secret": TEXT_SECRET, "scheme": "both"}, id="old")
    await relay.add_adapter(adapter)
    stamp = str(clock.now_ms() // 1000)
    mac = hmac.new(TEXT_SECRET.encode(), f"{stamp}.".encode() + BODY, hashlib.sha256).hexdigest()
    headers = {"X-Timestamp": stamp, "X-Signature": f"sha256={mac}", "content-type": "application/json"}
    async with a_sender(adapter, clock) as sender:
        assert (await sender.send_raw(BODY, headers))[0] == 202
        assert (await sender.send_raw(BODY, {**headers, "X-Signature": mac.upper()}))[0] == 200
        assert (await sender.send_raw(BODY + b" ", headers))[0] == 401
        assert (await sender.send(b'{"content":"another"}', secret=TEXT_SECRET))[0] == 202
    assert len(await stored(relay)) == 2


def sign_twice(clock: FakeClock, id: str = "msg_1") -> tuple[dict[str, str], dict[str, str]]:
    """Return the signatures of one message by either scheme."""
    return sign(BODY, id=id, now_ms=clock.now_ms()), make_signature(
        id, clock.now_ms() // 1000, BODY, [read_key(SECRET)], "legacy"
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)], ids=str)
async def test_a_message_with_both_signatures_is_one_whichever_of_them_is_left_away(
    data_dir: Path, clock: FakeClock, order: tuple[int, int, int]
) -> None:
    """Also across restarts: each copy meets a new process."""
    standard, legacy = sign_twice(clock)
    copies = ({**standard, **legacy}, standard, legacy)
    answers = []
    for turn in order:
        async with a_relay(data_dir, clock) as relay:
            adapter = a_webhook({"scheme": "both"})
            await relay.add_adapter(adapter)
            async with a_sender(adapter, clock) as sender:
                answers.append(await sender.send_raw(BODY, copies[turn]))
            assert len(await stored(relay)) == 1
    assert [status for status, _, _ in answers] == [202, 200, 200]
    assert len({answer["messageId"] for _, answer, _ in answers}) == 1


async def test_copies_by_either_scheme_that_come_at_the_same_time_are_one_message(
    relay: RelayCore, clock: FakeClock
) -> None:
    adapter, other = a_webhook({"scheme": "both", "subject": "relay.slow"}), a_webhook({}, id="other")
    target = Telling(patterns=["relay.slow"])
    for webhook in (adapter, other, target):
        await relay.add_adapter(webhook)
    copies = sign_twice(clock)
    async with a_sender(adapter, clock) as sender, a_sender(other, clock) as to_other:
        async with (
            asyncio.TaskGroup() as group,
            relay.bus.lifecycle.lock,
        ):  # a publish has to make a mailbox, and cannot
            sending = [group.create_task(sender.send_raw(BODY, copies[turn % 2])) for turn in range(20)]
            await target.reached.wait()
            for number in range(20):  # by now the others are here, too
                assert (await to_other.send(id=str(number)))[0] == 202
        assert Counter(task.result()[0] for task in sending) == {202: 1, 200: 19}
    assert len({task.result()[1]["messageId"] for task in sending}) == 1
    await relay.idle()
    assert [state.delivered for state in relay.adapters() if state.id == target.id] == [1]


async def test_with_both_schemes_messages_of_other_ids_are_others_although_they_say_the_same(
    relay: RelayCore, clock: FakeClock
) -> None:
    adapter = a_webhook({"scheme": "both"})
    await relay.add_adapter(adapter)
    async with a_sender(adapter, clock) as sender:
        assert [(await sender.send(id=id))[0] for id in ("a", "b", "a")] == [202, 202, 200]
    assert len(await stored(relay)) == 2


async def test_what_was_known_by_its_twin_is_known_when_it_is_signed_again(relay: RelayCore, clock: FakeClock) -> None:
    adapter = a_webhook({"scheme": "both"})
    await relay.add_adapter(adapter)
    standard, legacy = sign_twice(clock)
    async with a_sender(adapter, clock) as sender:
        assert (await sender.send_raw(BODY, legacy))[0] == 202
        assert (await sender.send_raw(BODY, standard))[0] == 200
        clock.advance(10)
        assert (await sender.send_raw(BODY, sign_twice(clock)[0]))[0] == 200


@pytest.mark.parametrize(("before", "after"), [("legacy", "standard"), ("standard", "legacy"), ("standard", "both")])
async def test_a_change_of_the_scheme_takes_no_message_twice(
    relay: RelayCore, clock: FakeClock, before: str, after: str
) -> None:
    adapter = a_webhook({"scheme": before})
    await relay.add_adapter(adapter)
    standard, legacy = sign_twice(clock)
    async with a_sender(adapter, clock) as sender:
        assert (await sender.send_raw(BODY, {**standard, **legacy}))[0] == 202
        await relay.replace_adapter(a_webhook({"scheme": after}))
        assert (await sender.send_raw(BODY, standard if after == "standard" else legacy))[0] == 200


async def test_the_legacy_form_is_not_taken_unless_configured(sender: Sender, clock: FakeClock) -> None:
    stamp = str(clock.now_ms() // 1000)
    mac = hmac.new(read_key(SECRET), f"{stamp}.".encode() + BODY, hashlib.sha256).hexdigest()
    assert (await sender.send_raw(BODY, {"X-Timestamp": stamp, "X-Signature": mac}))[0] == 401


async def test_the_previous_secret_works_for_a_day(relay: RelayCore, clock: FakeClock) -> None:
    await relay.add_adapter(a_webhook({"secret": OLD_SECRET}))
    clock.advance(1_000_000)
    adapter = a_webhook({"previousSecret": OLD_SECRET})
    await relay.replace_adapter(adapter)
    async with a_sender(adapter, clock) as sender:
        assert (await sender.send(id="a", secret=OLD_SECRET))[0] == 202
        clock.advance(24 * 3600 - 1)
        assert (await sender.send(id="b", secret=OLD_SECRET))[0] == 202
        clock.advance(1)
        assert (await sender.send(id="c", secret=OLD_SECRET))[0] == 401
        assert (await sender.send(id="c"))[0] == 202


async def test_a_refused_message_can_be_sent_again_under_its_id(data_dir: Path, clock: FakeClock) -> None:
    one_a_minute = {**OS, "reliability": {"rateLimit": {"maxPerWindow": 1}}}
    async with a_relay(data_dir, clock, one_a_minute) as relay:
        adapter = a_webhook({})
        await relay.add_adapter(adapter)
        async with a_sender(adapter, clock) as sender:
            assert (await sender.send(id="a"))[0] == 202
            status, answer, headers = await sender.send_in_full(id="b")
            assert (status, answer["error"], headers["Retry-After"]) == (429, "rate_limited", "30")
            assert (await sender.send(id="a"))[0] == 200, "a replay costs nothing"
            clock.advance(61)
            assert (await sender.send(id="b"))[0] == 202
        assert len(await stored(relay)) == 2


async def test_a_full_mailbox_is_a_503_and_may_be_tried_again(data_dir: Path, clock: FakeClock) -> None:
    small = {**OS, "reliability": {"backpressure": {"maxMailboxSize": 1}}}
    async with a_relay(data_dir, clock, small) as relay:
        adapter = a_webhook({})
        await relay.add_adapter(adapter)
        async with a_sender(adapter, clock) as sender:
            assert (await sender.send(id="a"))[0] == 202
            status, answer, headers = await sender.send_in_full(id="b")
            assert (status, answer["error"], headers["Retry-After"]) == (503, "backpressure", "10")
            (message,) = await relay.claim(SUBJECT)
            await relay.complete(SUBJECT, message.id)
            assert (await sender.send(id="b"))[0] == 202


async def test_an_access_rule_that_denies_is_a_403(data_dir: Path, clock: FakeClock) -> None:
    write_rules(data_dir, {"from": "relay.webhook.>", "to": ">", "action": "deny", "priority": 1})
    async with a_relay(data_dir, clock) as relay:
        adapter = a_webhook({})
        await relay.add_adapter(adapter)
        async with a_sender(adapter, clock) as sender:
            assert await sender.send() == (403, {"error": "denied"})
        assert await stored(relay) == []


async def test_access_rules_that_are_broken_are_a_503_until_they_are_mended(data_dir: Path, clock: FakeClock) -> None:
    (data_dir / "access-rules.json").write_text("{broken")
    async with a_relay(data_dir, clock) as relay:
        adapter = a_webhook({})
        await relay.add_adapter(adapter)
        async with a_sender(adapter, clock) as sender:
            status, answer, headers = await sender.send_in_full()
            assert (status, answer, headers["Retry-After"]) == (503, {"error": "rules_broken"}, "10")
            write_rules(data_dir)
            await until(lambda: relay.access_problem is None)
            assert (await sender.send())[0] == 202
        assert len(await stored(relay)) == 1


RATE, FULL, OPEN, BUDGET = Reason.RATE_LIMITED, Reason.BACKPRESSURE, Reason.CIRCUIT_OPEN, Reason.BUDGET_EXCEEDED


@pytest.mark.parametrize(
    ("delivered", "reasons", "failed", "status"),
    [
        (1, [FULL], False, None),
        (0, [], False, None),
        (0, [FULL], True, None),
        (0, [FULL], False, 503),
        (0, [OPEN, FULL], False, 503),
        (0, [RATE], False, 429),
        (0, [BUDGET], False, 422),
        (0, [BUDGET, FULL], False, 422),
        (0, [BUDGET], True, None),
    ],
)
def test_what_the_bus_has_not_taken_is_put_off_only_if_that_can_help(
    delivered: int, reasons: list[str], failed: bool, status: int | None
) -> None:
    rejected = tuple(Rejection(endpoint_hash="x", reason=reason) for reason in reasons)
    adapters = (AdapterResult(adapter_id="a", status="failed"),) if failed else ()
    answer = find_refusal(
        PublishResult(message_id="m", delivered_to=delivered, rejected=rejected or None, adapter_results=adapters)
    )
    assert (answer.status if answer is not None else None) == status
    assert answer is None or (answer.retry_after is not None) == (status != 422)


async def test_a_message_without_a_consumer_is_kept_as_a_dead_letter(relay: RelayCore, clock: FakeClock) -> None:
    adapter = a_webhook({"subject": "relay.nobody"})
    await relay.add_adapter(adapter)
    async with a_sender(adapter, clock) as sender:
        status, answer = await sender.send()
    assert status == 202
    assert [letter.message_id for letter in await relay.dead_letters()] == [answer["messageId"]]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"relay-hops": "4"}, 202),
        ({"relay-hops": "5"}, 422),
        ({"relay-hops": "1", "relay-max-hops": "1"}, 422),
        ({"relay-calls-left": "0"}, 422),
        ({"relay-expires-at": "1"}, 422),
        ({"relay-hops": "many"}, 400),
        ({"relay-hops": "-1"}, 400),
        ({"relay-max-hops": "0"}, 400),
    ],
    ids=str,
)
async def test_the_budget_in_the_headers_counts(
    relay: RelayCore, sender: Sender, headers: dict[str, str | None], status: int
) -> None:
    assert (await sender.send(headers=headers))[0] == status
    if status == 422:
        assert (await sender.send(headers=headers))[0] == 422, "and is not forgotten by trying again"
        assert len(await relay.dead_letters()) == 1


async def test_a_budget_that_asks_for_more_gets_what_the_operator_allows(relay: RelayCore, sender: Sender) -> None:
    more = {"relay-max-hops": "999", "relay-calls-left": "999", "relay-expires-at": "99999999999999", "relay-hops": "2"}
    assert (await sender.send(headers=more))[0] == 202
    (message,) = await relay.inbox(SUBJECT)
    ceilings = RelayConfig().budget
    assert message.budget.hop_count == 3
    assert message.budget.max_hops == ceilings.max_hops
    assert message.budget.call_budget_remaining == ceilings.call_budget - 1
    assert message.budget.ttl == relay.clock.now_ms() + ceilings.ttl_ms


@pytest.mark.parametrize(
    ("body", "content_type", "payload"),
    [
        (
            b'{"content":"hi","performative":"request"}',
            "application/json",
            {"content": "hi", "performative": "request"},
        ),
        (b"[1,null]", "application/json; charset=utf-8", [1, None]),
        (b"{}", "application/cloudevents+json", {}),
        (b"{}", None, {}),
        (
            b"gr\xc3\xbc\xc3\x9fe",
            "text/plain",
            {"content": "grüße", "platformData": {"contentType": "text/plain", "webhookId": "msg_1"}},
        ),
    ],
    ids=["standard", "json", "plus-json", "no-type", "text"],
)
async def test_json_is_the_payload_and_text_becomes_one(
    relay: RelayCore, sender: Sender, body: bytes, content_type: str | None, payload: object
) -> None:
    if content_type is None:
        async with sender.session.post(
            sender.url,
            data=body,
            headers=sign(body, now_ms=relay.clock.now_ms()),
            skip_auto_headers=["Content-Type"],
        ) as response:
            assert response.status == 202
    else:
        assert (await sender.send(body, headers={"content-type": content_type}))[0] == 202
    assert await stored(relay) == [payload]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{", {}),
        (b"", {}),
        (b'{"a": NaN}', {}),
        (b"[" * 400 + b"]" * 400, {}),
        (b"{}", {"content-encoding": "gzip"}),
    ],
    ids=["truncated", "empty", "nan", "deep", "compressed"],
)
async def test_a_body_that_cannot_be_read_is_a_400(
    relay: RelayCore, sender: Sender, body: bytes, headers: dict[str, str | None]
) -> None:
    status, answer = await sender.send(body, headers=headers)
    assert status == 400
    assert "NaN" not in str(answer)
    assert await stored(relay) == []


async def test_a_body_that_is_too_large_is_a_413_before_anything_is_verified(relay: RelayCore, sender: Sender) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    for data in (b"x" * 1001, chunks()):
        async with sender.session.post(sender.url, data=data) as response:
            assert response.status == 413
    endless = b"POST /webhooks/hook HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\nand no more"
    assert b"413" in await talk(sender, endless), "the rest is not waited for"
    body = orjson.dumps("x" * 998)
    assert (await sender.send(body))[0] == 202, "1000 bytes are not too large"


async def test_a_payload_beyond_the_buss_own_limit_is_a_413(data_dir: Path, clock: FakeClock) -> None:
    async with a_relay(data_dir, clock, {**OS, "limits": {"maxPayloadBytes": 100}}) as relay:
        adapter = a_webhook({})
        await relay.add_adapter(adapter)
        async with a_sender(adapter, clock) as sender:
            assert await sender.send(orjson.dumps("x" * 200)) == (413, {"error": "payload_too_large"})


async def test_other_methods_and_paths_are_told_so(sender: Sender) -> None:
    for method in ("GET", "PUT", "DELETE"):
        status, _, headers = await sender.send_raw(b"", {}, method=method)
        assert (status, headers["Allow"]) == (405, "POST")
    base = sender.url.removesuffix("/webhooks/hook")
    for path in ("/", "/webhooks/", "/webhooks/other", "/webhooks/hook/more", "/webhooks/ho%6fk2", "/webhooks"):
        assert (await sender.send_raw(b"", {}, url=base + path))[0] == 404


async def test_no_answer_tells_what_software_we_are(sender: Sender) -> None:
    for url in (sender.url, sender.url + "x"):
        _, _, headers = await sender.send_raw(b"", {}, url=url)
        assert headers["Server"] == "relay"
    reply = await talk(sender, b"NONSENSE\r\n\r\n")
    assert reply.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert b"aiohttp" not in reply
    assert b"Python" not in reply


async def talk(sender: Sender, data: bytes) -> bytes:
    """Send bytes and return all that comes back until the other side closes."""
    host, port = sender.url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (b"", b""),
        (b"POST /webhooks/hook HTTP/1.1\r\nHost: x\r\nX-Slow: ", b""),
        (b"POST /webhooks/hook HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc", b"HTTP/1.1 408"),
        (b"POST /webhooks/other HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc", b"HTTP/1.1 404"),
        (b"POST /webhooks/hook HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 20_000 + b"\r\n\r\n", b"HTTP/1.0 400"),
        (b"POST /webhooks/hook HTTP/1.1\r\nHost: x\r\n" + b"X-More: x\r\n" * 200 + b"\r\n", b"HTTP/1.0 400"),
    ],
    ids=["silent", "slow-headers", "slow-body", "slow-body-of-nobody", "long-header", "many-headers"],
)
async def test_a_slow_or_bloated_sender_loses_its_connection(
    relay: RelayCore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, sent: bytes, reply: bytes
) -> None:
    monkeypatch.setattr(listener, "IDLE_SECS", 0.1)
    monkeypatch.setattr(listener, "BODY_SECS", 0.1)
    adapter = a_webhook({})
    await relay.add_adapter(adapter)
    async with a_sender(adapter, clock) as sender:
        got = await talk(sender, sent)
        assert got[: len(reply)] == reply
        assert bool(got) == bool(reply)
        assert (await sender.send())[0] == 202


async def test_a_body_that_breaks_off_is_not_published(relay: RelayCore, sender: Sender, clock: FakeClock) -> None:
    headers = "".join(f"{name}: {value}\r\n" for name, value in sign(BODY, now_ms=clock.now_ms()).items())
    host, port = sender.url.split("/")[2].split(":")
    for sent in (len(BODY) - 1, 0):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /webhooks/hook HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(BODY)}\r\n\r\n".encode()
        )
        writer.write(BODY[:sent])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert (await sender.send(id="other"))[0] == 202
    assert len(await stored(relay)) == 1


async def test_a_sender_that_asks_first_is_told_to_go_on(sender: Sender, clock: FakeClock) -> None:
    headers = sign(BODY, now_ms=clock.now_ms())
    async with sender.session.post(sender.url, data=BODY, headers=headers, expect100=True) as response:
        assert response.status == 202


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Return whether the other side closes within half the time that it allows anybody to be idle."""
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(listener.IDLE_SECS / 2):
            return await reader.read() == b""
    return reader.exception() is not None


async def test_clients_that_hold_connections_open_do_not_lock_others_out(
    relay: RelayCore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of too many, the one that has been waited for longest is closed: idle, in a head, or in a body."""
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 4)
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, problem: problems.append(problem))
    adapter = a_webhook({})
    await relay.add_adapter(adapter)
    head = b"POST /webhooks/hook HTTP/1.1\r\nHost: x\r\n"
    strangers = []
    async with a_sender(adapter, clock) as sender:
        assert (await sender.send(id="first"))[0] == 202
        for said in (b"", head, head + b"Content-Length: 10\r\n\r\nabc"):
            strangers.append(await asyncio.open_connection("127.0.0.1", adapter.port))
            strangers[-1][1].write(said)
        assert (await sender.send(id="second"))[0] == 202, "its connection is the newest to be waited for now"
        for number, (reader, _) in enumerate(strangers[:]):
            newer = await asyncio.open_connection("127.0.0.1", adapter.port)
            strangers.append(newer)
            assert await is_closed(reader)
            assert not newer[0].at_eof(), f"{number}: the newer one stays"
        assert (await sender.send(id="third"))[0] == 202
    for _ in range(200):
        strangers.append(await asyncio.open_connection("127.0.0.1", adapter.port))
    async with a_sender(adapter, clock) as sender:
        assert (await sender.send(id="last"))[0] == 202
    for _, writer in strangers:
        writer.close()
    gc.collect()  # a task with an unretrieved error is reported when it is collected
    assert problems == []


async def test_a_request_that_is_here_whole_is_answered_however_many_connect(
    relay: RelayCore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 1)
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, problem: problems.append(problem))
    adapter, target = a_webhook({"subject": "relay.slow"}), Telling(patterns=["relay.slow"])
    await relay.add_adapter(adapter)
    await relay.add_adapter(target)
    async with a_sender(adapter, clock) as sender, asyncio.TaskGroup() as group:
        async with relay.bus.lifecycle.lock:  # the publish has to make a mailbox, and cannot
            sending = group.create_task(sender.send())
            await target.reached.wait()
            reader, writer = await asyncio.open_connection("127.0.0.1", adapter.port)
            assert await is_closed(reader), "all the others are at work: the newest goes"
            writer.close()
        assert (await sending)[0] == 202
        async with a_sender(adapter, clock) as newer:
            assert (await newer.send(id="b"))[0] == 202, "what was answered is one that is waited for again"
    gc.collect()  # a task with an unretrieved error is reported when it is collected
    assert problems == []


async def test_adapters_with_the_same_port_share_it(relay: RelayCore, clock: FakeClock) -> None:
    first, other = a_webhook({}, id="one"), a_webhook({"secret": OLD_SECRET}, id="other")
    await relay.add_adapter(first)
    await relay.add_adapter(other)
    assert first.port == other.port
    async with a_sender(first, clock) as to_one, a_sender(other, clock) as to_other:
        assert (await to_one.send())[0] == 202
        assert (await to_other.send())[0] == 401
        assert (await to_other.send(secret=OLD_SECRET))[0] == 202, "ids are each adapter's own"
        await relay.remove_adapter("one")
        assert (await to_one.send())[0] == 404
        assert (await to_other.send(secret=OLD_SECRET, id="b"))[0] == 202


async def test_more_ids_than_can_be_kept_put_messages_off(
    relay: RelayCore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replays.__init__, "__kwdefaults__", {"limit": 1})
    adapter = a_webhook({})
    await relay.add_adapter(adapter)
    async with a_sender(adapter, clock) as sender:
        assert (await sender.send(id="a"))[0] == 202
        assert (await sender.send(id="b"))[0] == 503
        assert (await sender.send(id="a"))[0] == 200


async def test_a_disk_that_refuses_is_a_503(relay: RelayCore, sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise StorageError("disk full", code="storage_full", retryable=True)

    monkeypatch.setattr(relay.bus.publisher, "begin", refuse)
    status, answer, headers = await sender.send_in_full()
    assert (status, answer, headers["Retry-After"]) == (503, {"error": "storage_full"}, "10")
    monkeypatch.undo()
    assert (await sender.send())[0] == 202


async def test_refusals_are_counted_in_the_log_but_not_each_is_told(
    sender: Sender, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        await sender.send(secret=OLD_SECRET)
    clock.advance(60)
    await sender.send(secret=OLD_SECRET)
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 2
    assert lines[1].startswith("a webhook was refused with 401: ")
    assert lines[1].endswith("(49 more like it since the last such line)")
    assert SECRET not in caplog.text


async def test_what_comes_in_is_never_posted_to_our_own_url(data_dir: Path) -> None:
    async with a_receiver() as receiver, a_relay(data_dir) as relay:
        adapter = a_webhook({"subject": "relay.out.echo", "replyTo": "relay.out.answers"}, {"url": receiver.url})
        await relay.add_adapter(adapter)
        await relay.register_endpoint("relay.out.echo")
        async with a_sender(adapter) as sender:
            assert (await sender.send())[0] == 202
        (message,) = await relay.claim("relay.out.echo")
        assert receiver.got == []
        assert message.reply_to is not None
        await relay.publish(message.reply_to, {"content": "answer"}, sender="relay.agent.a", parent_id=message.id)
        await until(lambda: len(receiver.got) == 1)
        assert orjson.loads(receiver.got[0].body) == {"content": "answer"}
        assert receiver.got[0].headers["relay-hops"] == "2", "an answer goes out, and counts on"


NAMES = [
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "content-type",
    "relay-hops",
    "content-encoding",
    "x-a",
]


def test_no_header_or_body_is_an_error_of_ours(data_dir: Path) -> None:
    """Whatever the headers say, and with a good signature over whatever the body is."""

    @settings(max_examples=150)
    @given(
        headers=st.dictionaries(st.sampled_from(NAMES), st.text(max_size=30)),
        body=st.binary(max_size=50),
        good=st.booleans(),
    )
    def check(headers: dict[str, str], body: bytes, good: bool) -> None:
        stamp = clock.now_ms() // 1000
        signed = make_signature("msg_1", stamp, body, [read_key(SECRET)], "standard") if good else {}
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **signed}.items()).encode()
        head = b"POST /webhooks/hook HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n" % len(body)
        answer = runner.run(talk(sender, head + lines + b"\r\n" + body))
        assert int(answer.split(b" ")[1]) in ({200, 202, 400, 401} if good else {400, 401})

    clock = FakeClock()
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            relay = runner.run(stack.enter_async_context(a_relay(data_dir, clock)))
            adapter = a_webhook({})
            runner.run(relay.add_adapter(adapter))
            sender = runner.run(stack.enter_async_context(a_sender(adapter, clock)))
            check()
        finally:
            runner.run(stack.aclose())
