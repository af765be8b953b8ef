"""Who a connection is decides what it may do: as whom it publishes, whose mail it reads, what it may call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from relay_core.adapters.interface import AdapterContext, AdapterStatus, DeliveryResult
from relay_core.client.client import RelayClient
from relay_core.config import AuthConfig, RateLimitConfig, RelayConfig, ReliabilityConfig
from relay_core.core import RelayCore
from relay_core.errors import AccessDenied
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import is_subject
from relay_core.paths import operator_token_path
from relay_core.protocol.methods import AGENTS, METHODS
from relay_supervisor.supervisor import Supervisor
from tests.kit.bus import A, B
from tests.kit.raw_client import Raw, authenticate, kind, request
from tests.kit.supervisor import a_supervisor

FREE = RelayConfig(durability="os", reliability=ReliabilityConfig(rate_limit=RateLimitConfig(enabled=False)))
DENIED = ("AccessDenied", "subject_not_yours")

pytestmark = pytest.mark.bus(FREE, endpoints=[A, B])


def message(sender: str, to: str = B, **more: Any) -> dict[str, Any]:
    return {"subject": to, "from": sender, "payload": {"content": "hi"}, **more}


# As whom it publishes


async def test_a_token_publishes_as_its_subject_and_no_other(agent: Raw, relay: RelayCore) -> None:
    sent = await agent.call("publish", **message(A))
    assert await agent.refusal("publish", **message(B)) == ("AccessDenied", "sender_not_yours")
    batch = await agent.call("publish.batch", messages=[message(B), message(A), message("relay.agent.c")])
    assert [result.get("error", {}).get("data", {}).get("code") for result in batch["results"]] == [
        "sender_not_yours",
        None,
        "sender_not_yours",
    ]
    stored = await relay.inbox(B)
    assert [envelope.sender for envelope in stored] == [A, A]
    assert stored[0].id == sent["messageId"]


async def test_a_retry_of_another_senders_dedupe_id_tells_nothing(agent: Raw, operator: Raw) -> None:
    await operator.call("publish", **message(B, dedupeId="once"))
    refused = await agent.refusal("publish", **message(B, dedupeId="once"))
    assert refused == ("AccessDenied", "sender_not_yours")


class Bridge:
    """An adapter that speaks for people on its platform."""

    id = "bridge"
    patterns = ("relay.out.bridge.>",)
    senders = ("relay.human.bridge.>",)
    status = AdapterStatus("connected")

    async def start(self, context: AdapterContext) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def deliver(self, envelope: Envelope, context: Any) -> DeliveryResult:
        return DeliveryResult(ok=True)


@pytest.mark.parametrize("sender", ["relay.system", "relay.system.jobs", "relay.adapter.x", "relay.human.bridge.ann"])
@pytest.mark.parametrize("who", ["operator", "a token for people"])
async def test_no_client_publishes_as_the_bus_or_for_an_adapter(
    supervisor: Supervisor, operator: Raw, relay: RelayCore, who: str, sender: str
) -> None:
    async with Raw(supervisor.socket) as raw:
        if who != "operator":
            await authenticate(raw, operator, "relay.human.>")
        await relay.add_adapter(Bridge())
        for client in (raw, operator):
            assert (await client.refusal("publish", **message(sender)))[1] == "sender_reserved"
            batch = await client.call("publish.batch", messages=[message(sender)])
            assert batch["results"][0]["error"]["data"]["code"] == "sender_reserved"
    assert await relay.inbox(B) == []


@pytest.mark.parametrize(("token", "spoofs"), [(A, 10_000), ("relay.agent.*", 1_000), ("relay.agent.>", 1_000)])
async def test_10000_spoofed_senders_are_refused_and_none_is_stored(
    supervisor: Supervisor, operator: Raw, data_dir: Path, token: str, spoofs: int
) -> None:
    def prepare() -> tuple[list[str], bytes]:
        names = list(islice(spoofed(Random(7), strict=token == A), spoofs))
        return names, b"".join(request("publish", message(name), id) for id, name in enumerate(names[::2]))

    async with Raw(supervisor.socket) as raw:
        await authenticate(raw, operator, token)
        names, requests = await asyncio.to_thread(prepare)  # half a second of computing, which would hold the loop
        raw.send(requests)
        answers = [await raw.frame() or {} for _ in names[::2]]
        outcomes = [answer.get("error") for answer in answers]
        others = names[1::2]
        for at in range(0, len(others), 100):
            batch = await raw.call("publish.batch", messages=[message(name) for name in others[at : at + 100]])
            outcomes += [result.get("error") for result in batch["results"]]
        assert len(outcomes) == spoofs
        assert {(error or {}).get("data", {}).get("error") for error in outcomes} <= {"AccessDenied", "InvalidSubject"}
        assert (await raw.call("publish", **message(A)))["deliveredTo"] == 1
    await supervisor.context.relay.idle()
    files = files_in_mailboxes(data_dir)
    assert [json.loads(path.read_bytes())["from"] for path in files if path.parent.name in ("new", "cur")] == [A]
    assert [path for path in files if path.parent.name in ("failed", "tmp")] == []


def files_in_mailboxes(data_dir: Path) -> list[Path]:
    found = [path for path in data_dir.glob("mailboxes/*/*/*") if path.is_file()]
    assert found
    return found


def spoofed(random: Random, *, strict: bool) -> Iterator[str]:
    """Return names that look like `A` and are not; unless strict, only those that no client may have."""
    fixed = [
        *("", ".", "..", "*", ">", "relay", "relay.", ".relay", "relay.agent", "relay.agent.", "relay.agent..a"),
        *("relay.agent.*", "relay.agent.>", "relay.*.a", "*.agent.a", "relay.>", "relay.agent.a*", "relay.agent.a>"),
        *("Relay.agent.a", "RELAY.AGENT.A", "relay.agent.A", "relay.agent.aa", "relay.agent.a.a", "a", "relay/agent/a"),
        *("relay.system", "relay.system.a", "relay.system.agent.a", "relay.adapter.a", "relay.adapter.a.relay.agent.a"),
        *(
            "relay.agent.a ",
            " relay.agent.a",
            "relay.agent.a\n",
            "relay.agent.a\x00",
            "relay.agent.a\r\n",
            "\ufeff" + A,
        ),
        *(
            "relay.agent.\u0430",
            "relay.agent.\uff41",
            "relay.agent.a\u0301",
            "relay.agent.a\u200b",
            "\u202erelay.agent.a",
        ),
        *(
            "relay\u3002agent\u3002a",
            "relay\uff0eagent\uff0ea",
            "relay.agent.%61",
            "../relay.agent.a",
            "relay.agent.a;b",
        ),
        *("x" * 300, ".".join("a" * 17), f"{A}.{'x' * 300}", '{"$ne": ""}', "null", "relay.agent.a,x", B),
    ]
    yield from (name for name in fixed if strict or not _is_ordinary(name))
    strange = "\u0430\u0435\u043e\u0440\u0455\u200b\u200d\u0301\uff41\u2024\u00ad*>.\x00 \t/\\%ABZaeglnrty019_-"
    while True:
        name = list(A)
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(len(name))
            match random.randrange(4):
                case 0:
                    name[at] = random.choice(strange)
                case 1:
                    name.insert(at, random.choice(strange))
                case 2 if len(name) > 1:
                    del name[at]
                case _:
                    name[at] = name[at].swapcase()
        made = "".join(name)
        if made != A and (strict or not _is_ordinary(made)):
            yield made


def _is_ordinary(name: str) -> bool:
    return is_subject(name) and not name.startswith(("relay.system", "relay.adapter"))


# What it may call


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if AGENTS not in method.traits])
async def test_a_token_has_no_operator_method(agent: Raw, method: str) -> None:
    assert await agent.refusal(method) == ("AccessDenied", "operator_only")


async def test_a_connection_has_one_token_for_good(agent: Raw, operator: Raw) -> None:
    other = (await operator.call("tokens.add", pattern=B))["token"]
    assert await agent.refusal("server.hello", token=other) == ("AccessDenied", "bad_token")
    for hello in ({}, {"token": None}, {"client": "operator"}):
        assert (await agent.call("server.hello", **hello))["operator"] is False
    assert await agent.refusal("server.hello", token="") == ("AccessDenied", "bad_token")
    assert await agent.refusal("publish", **message(B)) == ("AccessDenied", "sender_not_yours")
    await agent.call("publish", **message(A))


# Whose mail it reads

READS: list[tuple[str, str, dict[str, Any]]] = [
    ("inbox.peek", "subject", {}),
    ("inbox.claim", "subject", {}),
    ("inbox.wait", "subject", {"timeoutMs": 1}),
    ("inbox.complete", "subject", {"id": "x"}),
    ("inbox.fail", "subject", {"id": "x", "reason": "x"}),
    ("endpoints.register", "subject", {}),
    ("endpoints.unregister", "subject", {}),
    ("agents.people", "subject", {}),
    ("subscribe", "pattern", {}),
    ("signal.subscribe", "pattern", {}),
]


@pytest.mark.parametrize(("method", "key", "more"), READS, ids=[method for method, *_ in READS])
async def test_a_token_reads_its_own_mail_alone(
    agent: Raw, relay: RelayCore, method: str, key: str, more: dict[str, Any]
) -> None:
    await relay.publish(B, {"content": "private"}, sender="relay.agent.s")
    wider = [
        B,
        "relay.agent.*",
        "relay.agent.>",
        "relay.>",
        ">",
        "*",
        "relay.agent",
        "relay.agent.a.b",
        "relay.agent.A",
    ]
    for subject in [*wider, "", "relay.agent.a.>", "relay.reply.>", "relay.reply.x", "relay.adapter.x"]:
        if method == "endpoints.register" and not is_subject(subject):
            continue
        assert await agent.refusal(method, **{key: subject}, **more) == DENIED
    assert len(await relay.inbox(B)) == 1
    answer = await agent.answer(agent.ask(method, **{key: A}, **more))
    assert "result" in answer or kind(answer)[0] == "NotFound"


@pytest.mark.parametrize(
    ("token", "pattern", "allowed"),
    [
        ("relay.team.*", "relay.team.x", True),
        ("relay.team.*", "relay.team.*", True),
        ("relay.team.*", "relay.team.>", False),
        ("relay.team.*", "relay.*.x", False),
        ("relay.team.*", "relay.team.x.y", False),
        ("relay.team.*", "relay.team", False),
        ("relay.team.>", "relay.team.>", True),
        ("relay.team.>", "relay.team.*", True),
        ("relay.team.>", "relay.team.x.*", True),
        ("relay.team.>", "relay.team.x.>", True),
        ("relay.team.>", "relay.team", False),
        ("relay.team.>", "relay.>", False),
        ("relay.team.>", "relay.*.>", False),
    ],
)
async def test_a_token_subscribes_to_no_more_than_its_pattern(
    supervisor: Supervisor, operator: Raw, token: str, pattern: str, allowed: bool
) -> None:
    async with Raw(supervisor.socket) as raw:
        await authenticate(raw, operator, token)
        for method in ("subscribe", "signal.subscribe"):
            if allowed:
                assert (await raw.call(method, pattern=pattern))["subscriptionId"]
            else:
                assert await raw.refusal(method, pattern=pattern) == DENIED


async def test_a_token_sends_signals_about_itself_alone(agent: Raw, operator: Raw) -> None:
    signal = {"type": "typing", "state": "active", "timestamp": "2026-01-01T00:00:00Z"}
    await operator.call("signal.subscribe", pattern=">")
    await agent.call("signal.send", subject=B, signal={**signal, "endpointSubject": A})
    refused = await agent.refusal("signal.send", subject=B, signal={**signal, "endpointSubject": B})
    assert refused == ("AccessDenied", "sender_not_yours")
    assert (await operator.note("signal"))["signal"]["endpointSubject"] == A
    await operator.call("server.ping")
    assert not operator.notes


# Tokens that come and go


async def test_a_removed_tokens_connections_are_closed_and_begin_nothing_more(
    supervisor: Supervisor, operator: Raw, relay: RelayCore
) -> None:
    async with Raw(supervisor.socket) as raw, Raw(supervisor.socket) as again, Raw(supervisor.socket) as other:
        made = await operator.call("tokens.add", pattern=A)
        await raw.call("server.hello", token=made["token"])
        await authenticate(other, operator, B)
        for number in range(20_000):
            raw.send(request("publish", message(A, payload={"n": number}), number))
        assert (await raw.frame() or {})["id"] == 0  # under way
        await operator.call("tokens.remove", id=made["info"]["id"])
        published = relay.metrics().publishes
        await raw.over()
        for _ in range(50):
            await operator.call("server.ping")
        assert relay.metrics().publishes == published < 20_000
        assert await again.refusal("server.hello", token=made["token"]) == ("AccessDenied", "bad_token")
        await other.call("publish", **message(B))


# Where every client needs a token


async def test_without_a_token_nothing_but_hello_is_answered_where_tokens_are_required(data_dir: Path) -> None:
    config = FREE.model_copy(update={"auth": AuthConfig(require_tokens=True)})
    async with a_supervisor(data_dir, config) as supervisor, Raw(supervisor.socket) as raw:
        for method in METHODS:
            if method != "server.hello":
                assert await raw.refusal(method) == ("AccessDenied", "token_required")
        assert await raw.refusal("no.such.method") == ("ProtocolError", "unknown_method")
        hello = await raw.call("server.hello")
        assert (hello["operator"], hello.get("pattern")) == (False, None)
        assert await raw.refusal("server.hello", token="relay_guess") == ("AccessDenied", "bad_token")
        assert await raw.refusal("server.ping") == ("AccessDenied", "token_required")
        assert supervisor.context.relay.endpoints() == []

        path = operator_token_path(data_dir)
        assert path.stat().st_mode & 0o777 == 0o600
        assert (await raw.call("server.hello", token=path.read_text().strip()))["operator"] is True
        await raw.call("endpoints.register", subject=A)
        async with Raw(supervisor.socket) as agent:
            await authenticate(agent, raw, A)
            assert (await agent.call("publish", **message(A, to=A)))["deliveredTo"] == 1


async def test_the_client_finds_the_operators_token_by_itself_where_tokens_are_required(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # a process with only the socket finds nothing there
    config = FREE.model_copy(update={"auth": AuthConfig(require_tokens=True)})
    async with a_supervisor(data_dir, config) as supervisor:
        async with RelayClient(supervisor.socket, data_dir=data_dir) as client:
            made = await client.add_token(A)
        async with RelayClient(supervisor.socket) as stranger:
            with pytest.raises(AccessDenied):
                await stranger.publish(A, {}, sender=A)
        async with RelayClient(supervisor.socket, token=made.token) as agent:
            await agent.publish(A, {"content": "hi"}, sender=A)
            with pytest.raises(AccessDenied):
                await agent.publish(A, {"content": "hi"}, sender=B)
