"""Every method of the protocol, called over the socket of a real supervisor: well, and badly where it can be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from relay_core import __version__
from relay_core.messages.subjects import subject_hash
from relay_core.protocol.base import PROTOCOL_VERSION
from relay_core.protocol.methods import AGENTS, METHODS
from relay_supervisor.api.methods import HANDLERS
from tests.kit.adapters import DIARY_PLUGIN
from tests.kit.bus import SENDER, UNHEARD, A, B
from tests.kit.daemon import a_daemon
from tests.kit.raw_client import Raw
from tests.kit.supervisor import a_supervisor
from tests.kit.waiting import until

UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
PUBLISH: dict[str, Any] = {"subject": A, "from": SENDER, "payload": {"content": "hi"}}
NOT_FOUND = ("NotFound", "not_found")

COVERED: dict[str, set[str]] = {
    "server": {"server.hello", "server.info", "server.ping", "server.status", "metrics"},
    "stop": {"server.stop"},
    "publishing": {"publish", "publish.batch"},
    "subscriptions": {"subscribe", "unsubscribe", "start", "ack", "fail"},
    "listed": {"subscriptions.list"},
    "inbox": {"inbox.peek", "inbox.claim", "inbox.wait", "inbox.complete", "inbox.fail"},
    "signals": {"signal.send", "signal.subscribe", "signal.unsubscribe"},
    "endpoints": {"endpoints.register", "endpoints.unregister", "endpoints.list", "mailboxes.list", "replies.open"},
    "agents": {"agents.add", "agents.remove", "agents.list", "agents.people"},
    "deadletters": {
        f"deadletters.{word}" for word in ("list", "summaries", "groups", "get", "edit", "purge", "export")
    },
    "replay": {f"deadletters.{word}" for word in ("plan", "items", "run", "wait", "runs", "pause", "resume", "cancel")},
    "breakers": {"breakers.list", "breakers.reset", "breakers.force", "senders.list"},
    "adapters": {f"adapters.{word}" for word in ("list", "enable", "disable", "test", "reload")},
    "access": {"access.list", "access.add", "access.remove"},
    "tokens": {"tokens.list", "tokens.add", "tokens.remove"},
    "traces": {"traces.search", "traces.get", "traces.conversation"},
    "state": {"state.watch", "state.unwatch"},
    "jobs": {"jobs.list", "jobs.run", "jobs.cancel", "reports.list", "reports.get"},
    "schedules": {f"schedules.{word}" for word in ("list", "run", "pause", "resume")},
    "config": {"config.get", "config.reload"},
}
"""What each test below calls well; it says so itself with `covers`."""


class Bench:
    """A supervisor with one endpoint, and a connection on which every result is held to the protocol."""

    def __init__(self, data_dir: Path, raw: Raw) -> None:
        self.data_dir = data_dir
        self.socket = raw.path
        self.raw = raw
        self.note = raw.note
        self.refusal = raw.refusal
        self._good: set[str] = set()

    async def call(self, method: str, params: Mapping[str, Any] | None = None, /, **more: Any) -> Any:
        """Ask, and return the result, which must be what the protocol says it is, and no more."""
        result = await self.raw.call(method, **(params or {}), **more)
        assert METHODS[method].result.model_validate(result).to_wire() == result
        self._good.add(method)
        return result

    async def lose(self, subject: str = UNHEARD, payload: Any = "lost") -> str:
        """Publish what becomes a dead letter; return its id."""
        sent = await self.call("publish", {"subject": subject, "from": SENDER, "payload": payload})
        return str(sent["messageId"])

    async def has_dead_letters(self) -> bool:
        return bool((await self.call("deadletters.list"))["total"])

    async def last_run_is(self, state: str) -> bool:
        return bool((await self.call("deadletters.runs"))["replays"][-1]["outcome"]["state"] == state)

    def write_config(self, config: Mapping[str, Any]) -> None:
        (self.data_dir / "config.json").write_text(json.dumps(config))

    def covers(self, group: str) -> None:
        """Check that everything a test is there for was called, and went well."""
        assert COVERED[group] <= self._good


@pytest.fixture
async def bench(data_dir: Path) -> AsyncIterator[Bench]:
    (data_dir / "config.json").write_text('{"durability": "os"}')
    async with a_supervisor(data_dir, None) as supervisor, Raw(supervisor.socket) as raw:
        bench = Bench(data_dir, raw)
        await bench.call("endpoints.register", subject=A)
        yield bench


def test_there_is_a_handler_for_every_method_and_none_besides() -> None:
    assert HANDLERS.keys() == METHODS.keys()


def test_every_method_is_called_below() -> None:
    assert set().union(*COVERED.values()) == METHODS.keys()


# CONTRACT.md's names, as they stand there.
RELIED_ON: list[tuple[str, dict[str, Any], set[str]]] = [
    ("publish", {"subject": A, "from": SENDER, "payload": 1}, {"messageId", "deliveredTo", "mailboxPressure"}),
    ("endpoints.register", {"subject": B}, {"subject", "hash", "maildirPath", "registeredAt"}),
    ("endpoints.list", {}, {"endpoints"}),
    ("inbox.peek", {"subject": A}, {"messages"}),
    ("inbox.peek", {"subject": A, "limit": 5}, {"messages"}),
    ("inbox.claim", {"subject": A, "limit": 5}, {"messages"}),
    ("subscribe", {"pattern": "relay.agent.*"}, {"subscriptionId"}),
    ("deadletters.list", {}, {"deadLetters", "total"}),
    ("deadletters.list", {"filter": {"code": "timeout"}, "limit": 5}, {"deadLetters", "total"}),
]


async def test_the_names_that_others_rely_on(bench: Bench) -> None:
    for method, params, keys in RELIED_ON:
        assert (await bench.call(method, params)).keys() == keys, method
    assert (await bench.call("server.info")).keys() >= {"version", "pid", "durability", "dataDir"}


async def test_an_unknown_method_or_key_is_named(bench: Bench) -> None:
    assert await bench.refusal("publsh") == ("ProtocolError", "unknown_method")
    answer = await bench.raw.answer(bench.raw.ask("inbox.peek", subjet=A))
    assert answer["error"]["code"] == -32602
    assert "did you mean 'subject'" in answer["error"]["message"]


async def test_server(bench: Bench) -> None:
    async with Raw(bench.socket) as fresh:
        first = await fresh.answer(fresh.ask("server.ping"))
        assert first["relay"] == {"version": __version__, "protocol": PROTOCOL_VERSION}
        assert "relay" not in await fresh.answer(fresh.ask("server.ping"))
        # An error greets as well.
        async with Raw(bench.socket) as lost:
            assert "relay" in await lost.answer(lost.ask("nonsense"))
            assert "relay" not in await lost.answer(lost.ask("nonsense"))
    assert await bench.call("server.ping") == {}
    hello = await bench.call("server.hello", protocol=PROTOCOL_VERSION + 1, client="test")
    assert hello == {
        "protocol": PROTOCOL_VERSION,
        "version": __version__,
        "pid": os.getpid(),
        "dataDir": str(bench.data_dir),
        "operator": True,
    }
    assert await bench.refusal("server.hello", protocol=0) == ("ProtocolError", "unsupported_protocol")
    async with Raw(bench.socket) as spoilt:
        assert await spoilt.refusal("server.hello", token="nonsense") == ("AccessDenied", "bad_token")
        assert await spoilt.refusal("server.info") == ("AccessDenied", "token_required")
    info = await bench.call("server.info")
    assert (info["pid"], info["durability"]) == (os.getpid(), "os")
    assert (info["dataDir"], info["socket"]) == (str(bench.data_dir), str(bench.socket))
    await bench.call("publish", PUBLISH)
    await bench.lose()
    status = await bench.call("server.status")
    assert status["server"]["pid"] == os.getpid()
    assert (status["endpoints"], status["connections"], status["waiting"]) == (1, 1, 1)
    assert (status["breakers"], status["problems"]) == ([], [])
    assert status["journal"]["bytes"] > 0
    assert {"keptBytes", "pending", "checkpointedAt"} <= status["journal"].keys()
    assert [group["code"] for group in status["deadLetters"]] == ["no_match"]
    assert (await bench.call("metrics"))["publishes"] == 2
    assert await bench.refusal("metrics", since=0) == ("ProtocolError", "invalid_params")
    bench.covers("server")


async def test_stop(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, Raw(daemon.socket) as raw:
        bench = Bench(daemon.data_dir, raw)
        assert await bench.call("server.stop") == {}
        assert (await bench.note("closing")).keys() == {"reason"}
        assert await bench.raw.over() == []
        assert await daemon.process.wait() == 0
        assert not daemon.socket.exists()
        bench.covers("stop")


async def test_publishing(bench: Bench) -> None:
    sent = await bench.call("publish", PUBLISH, dedupeId="once", replyTo=SENDER, budget={"maxHops": 2})
    assert sent["deliveredTo"] == 1
    assert await bench.call("publish", PUBLISH, dedupeId="once", replyTo=SENDER) == sent
    (message,) = (await bench.call("inbox.peek", subject=A))["messages"]
    assert (message["id"], message["from"], message["replyTo"]) == (sent["messageId"], SENDER, SENDER)
    assert message["budget"]["maxHops"] == 2
    assert (await bench.call("publish", {**PUBLISH, "subject": UNHEARD}))["deliveredTo"] == 0
    misspelt = {**PUBLISH, "budget": {"maxHop": 2}}
    assert await bench.refusal("publish", **misspelt) == ("ProtocolError", "invalid_params")
    reserved = {**PUBLISH, "from": "relay.system.bus"}
    assert await bench.refusal("publish", **reserved) == ("AccessDenied", "sender_reserved")
    assert await bench.refusal("publish", **{**PUBLISH, "subject": "a b"}) == ("InvalidSubject", "invalid_subject")

    batch = [PUBLISH, {**PUBLISH, "subject": "a b"}, reserved, {**PUBLISH, "payload": None}]
    outcomes = (await bench.call("publish.batch", messages=batch))["results"]
    assert [list(outcome) for outcome in outcomes] == [["result"], ["error"], ["error"], ["result"]]
    codes = [outcome["error"]["data"]["code"] for outcome in outcomes[1:3]]
    assert codes == ["invalid_subject", "sender_reserved"]
    assert (await bench.call("publish.batch", messages=[]))["results"] == []
    too_many = await bench.refusal("publish.batch", messages=[PUBLISH] * 1001)
    assert too_many == ("ProtocolError", "invalid_params")
    bench.covers("publishing")


async def test_subscriptions(bench: Bench) -> None:
    subscription = await bench.call("subscribe", pattern="relay.agent.*", maxInFlight=5)
    sent = await bench.call("publish", PUBLISH)
    note = await bench.note()
    assert note.keys() == {"subscriptionId", "deliveryId", "envelope"}
    assert (note["subscriptionId"], note["envelope"]["id"]) == (subscription["subscriptionId"], sent["messageId"])
    assert note["envelope"]["payload"] == PUBLISH["payload"]
    assert await bench.call("start", deliveryId=note["deliveryId"]) == {}
    assert await bench.call("ack", deliveryId=note["deliveryId"]) == {}
    assert await bench.refusal("start", deliveryId=note["deliveryId"]) == NOT_FOUND
    assert await bench.refusal("ack", deliveryId=note["deliveryId"]) == NOT_FOUND
    await bench.call("publish", PUBLISH)
    note = await bench.note()
    assert await bench.call("fail", deliveryId=note["deliveryId"], reason="no ink") == {}
    assert await bench.refusal("fail", deliveryId=note["deliveryId"], reason="no ink") == NOT_FOUND
    await until(bench.has_dead_letters)
    (letter,) = (await bench.call("deadletters.list"))["deadLetters"]
    assert letter["code"] == "consumer_failed"
    assert letter["reason"].endswith("no ink")
    assert await bench.call("unsubscribe", subscription) == {}
    assert await bench.refusal("unsubscribe", **subscription) == NOT_FOUND
    assert await bench.refusal("subscribe", pattern="a b") == ("InvalidSubject", "invalid_subject")
    bench.covers("subscriptions")


async def test_inbox(bench: Bench) -> None:
    ids = [(await bench.call("publish", {**PUBLISH, "payload": number}))["messageId"] for number in range(3)]
    peeked = (await bench.call("inbox.peek", subject=A, limit=2))["messages"]
    assert [message["id"] for message in peeked] == ids[:2]
    later = (await bench.call("inbox.peek", subject=A, after=ids[0]))["messages"]
    assert [message["id"] for message in later] == ids[1:]
    assert await bench.call("inbox.wait", subject=A, after=ids[1]) == {"ids": ids[2:]}
    assert await bench.call("inbox.wait", subject=A, after=ids[2], timeoutMs=1) == {"ids": []}
    (claimed,) = (await bench.call("inbox.claim", subject=A))["messages"]
    assert claimed == peeked[0]
    (leased,) = (await bench.call("inbox.claim", subject=A, leaseMs=60_000))["messages"]
    assert await bench.call("inbox.complete", subject=A, id=claimed["id"]) == {}
    assert await bench.refusal("inbox.complete", subject=A, id=claimed["id"]) == NOT_FOUND
    assert await bench.call("inbox.fail", subject=A, id=leased["id"], reason="torn") == {}
    assert await bench.refusal("inbox.fail", subject=A, id=leased["id"], reason="torn") == NOT_FOUND
    letter = await bench.call("deadletters.get", id=leased["id"])
    assert (letter["code"], letter["reason"]) == ("consumer_failed", "torn")
    (chosen,) = (await bench.call("inbox.claim", subject=A, ids=[ids[2], claimed["id"]]))["messages"]
    assert chosen["id"] == ids[2]
    assert await bench.call("inbox.complete", subject=A, id=ids[2], late=True) == {}
    for method in ("inbox.peek", "inbox.claim", "inbox.wait"):
        assert await bench.refusal(method, subject=UNHEARD) == NOT_FOUND
        assert await bench.refusal(method, subject=A, limit=0) == ("ProtocolError", "invalid_params")
    bench.covers("inbox")


async def test_signals(bench: Bench) -> None:
    subscription = await bench.call("signal.subscribe", pattern="relay.>")
    signal = {"type": "typing", "state": "on", "endpointSubject": SENDER, "timestamp": "2026-01-01T00:00:00Z"}
    assert await bench.call("signal.send", subject=A, signal=signal) == {}
    assert await bench.note("signal") == {**subscription, "subject": A, "signal": signal}
    assert await bench.call("signal.unsubscribe", subscription) == {}
    assert await bench.refusal("signal.unsubscribe", **subscription) == NOT_FOUND
    wrong = {**signal, "endpointSubject": "relay.system.bus"}
    assert await bench.refusal("signal.send", subject=A, signal=wrong) == ("AccessDenied", "sender_reserved")
    assert await bench.refusal("signal.subscribe", pattern="") == ("InvalidSubject", "invalid_subject")
    bench.covers("signals")


async def test_subscriptions_are_listed_with_their_owners(bench: Bench) -> None:
    token = (await bench.call("tokens.add", pattern="relay.agent.>"))["token"]
    operators = (await bench.call("subscribe", pattern="relay.job.>", queue="workers"))["subscriptionId"]
    await bench.call("publish", {**PUBLISH, "subject": "relay.job.a"})
    await bench.note("message")
    async with Raw(bench.socket) as agent, Raw(bench.socket) as second:
        for raw in (agent, second):
            await raw.call("server.hello", token=token, client="a worker", agent=A)
        agents = (await agent.call("subscribe", pattern=A))["subscriptionId"]
        signals = (await agent.call("signal.subscribe", pattern="relay.agent.*"))["subscriptionId"]
        rows = (await bench.call("subscriptions.list"))["subscriptions"]
        assert [row.pop("id") for row in rows] == [operators, agents, signals]
        times = [row.pop("since") for row in rows]
        assert times == sorted(times)
        pid = os.getpid()  # the clients are in this process, and so is the supervisor
        own = {"client": "a worker", "identity": rows[1]["identity"], "agent": A, "pid": pid}
        assert rows == [
            {
                "kind": "messages",
                "pattern": "relay.job.>",
                "queue": "workers",
                "identity": "operator",
                "pid": pid,
                "inFlight": 1,
            },
            {"kind": "messages", "pattern": A, "inFlight": 0} | own,
            {"kind": "signals", "pattern": "relay.agent.*"} | own,
        ]
        assert rows[1]["identity"].startswith("token ")

        # Another connection of the token sees the same two, page by page.
        page = await second.call("subscriptions.list", limit=1)
        assert ([row["id"] for row in page["subscriptions"]], page["cursor"]) == ([agents], agents)
        rest = await second.call("subscriptions.list", limit=1, cursor=page["cursor"])
        assert ([row["id"] for row in rest["subscriptions"]], "cursor" in rest) == ([signals], False)
        await agent.call("unsubscribe", subscriptionId=agents)
        assert [row["id"] for row in (await second.call("subscriptions.list"))["subscriptions"]] == [signals]
    bench.covers("listed")


async def test_endpoints(bench: Bench) -> None:
    endpoint = await bench.call("endpoints.register", subject=B)
    assert (endpoint["subject"], endpoint["hash"]) == (B, subject_hash(B))
    assert endpoint["maildirPath"] in map(str, (bench.data_dir / "mailboxes").iterdir())
    assert await bench.call("endpoints.register", subject=B) == endpoint
    assert await bench.refusal("endpoints.register", subject="relay.*") == ("InvalidSubject", "invalid_subject")
    assert [endpoint["subject"] for endpoint in (await bench.call("endpoints.list"))["endpoints"]] == [A, B]
    page = await bench.call("endpoints.list", limit=1)
    assert ([endpoint["subject"] for endpoint in page["endpoints"]], page["cursor"]) == ([A], A)
    rest = await bench.call("endpoints.list", limit=1, cursor=page["cursor"])
    assert ([endpoint["subject"] for endpoint in rest["endpoints"]], "cursor" in rest) == ([B], False)
    reply = await bench.call("replies.open")
    assert await bench.call("replies.open", key=reply["key"]) == reply
    assert await bench.call("endpoints.unregister", subject=reply["subject"]) == {}
    await bench.call("replies.open", key=reply["key"])
    await bench.call("publish", {**PUBLISH, "subject": B})
    rows = (await bench.call("mailboxes.list"))["mailboxes"]
    assert [(row["subject"], row["depth"]) for row in rows] == [(A, 0), (B, 1), (reply["subject"], 0)]
    assert await bench.call("endpoints.unregister", subject=B) == {}
    assert await bench.refusal("endpoints.unregister", subject=B) == NOT_FOUND
    assert [endpoint["subject"] for endpoint in (await bench.call("endpoints.list"))["endpoints"]] == [A]
    bench.covers("endpoints")


async def test_agents(bench: Bench) -> None:
    added = await bench.call("agents.add", subject=B, description="sums", cwd="/home/me/sums")
    assert (added["agent"]["subject"], added["agent"]["added"]) == (B, True)
    assert added["tokenFile"] == str(bench.data_dir / "agents" / f"{B}.token")
    rows = (await bench.call("agents.list"))["agents"]
    assert [(row["subject"], row["added"], row.get("description")) for row in rows] == [
        (A, False, None),
        (B, True, "sums"),
    ]
    assert await bench.call("agents.people", subject=B) == {"people": []}
    assert await bench.call("agents.remove", subject=B) == {}
    assert await bench.refusal("agents.remove", subject=B) == NOT_FOUND
    assert await bench.refusal("agents.add", subject="relay.*") == ("InvalidSubject", "invalid_subject")
    assert await bench.refusal("agents.add", subject=B, description="two\nlines") == ("ProtocolError", "invalid_params")
    bench.covers("agents")


async def test_deadletters(bench: Bench) -> None:
    ids = [await bench.lose(payload=number) for number in range(3)]
    page = await bench.call("deadletters.list", limit=2)
    assert ([letter["messageId"] for letter in page["deadLetters"]], page["total"]) == (ids[:0:-1], 3)
    rest = await bench.call("deadletters.list", limit=2, cursor=page["cursor"])
    assert ([letter["messageId"] for letter in rest["deadLetters"]], "cursor" in rest) == (ids[:1], False)
    assert (await bench.call("deadletters.list", filter={"code": "timeout"}))["total"] == 0
    for method in ("deadletters.list", "deadletters.purge"):  # what is misspelt must not mean all of them
        assert await bench.refusal(method, filter={"taget": UNHEARD}) == ("ProtocolError", "invalid_params")
    rows = await bench.call("deadletters.summaries", limit=2, filter={"where": "to~NOBODY !code=timeout"})
    assert ([row["messageId"] for row in rows["rows"]], rows["total"]) == (ids[:0:-1], 3)
    rest = await bench.call("deadletters.summaries", limit=2, cursor=rows["cursor"])
    assert ([row["messageId"] for row in rest["rows"]], "cursor" in rest) == (ids[:1], False)
    bodies = await bench.call("deadletters.summaries", filter={"where": "1"})
    assert ([row["messageId"] for row in bodies["rows"]], "total" in bodies) == (ids[1:2], False)
    wrong = await bench.raw.answer(bench.raw.ask("deadletters.list", filter={"where": "code>x"}))
    assert "'code' does not accept '>': write code= or code~ (at character 5)" in wrong["error"]["message"]
    (group,) = (await bench.call("deadletters.groups"))["groups"]
    assert (group["code"], group["endpointSubject"], group["count"]) == ("no_match", UNHEARD, 3)
    letter = await bench.call("deadletters.get", id=ids[0], endpoint=UNHEARD)
    assert (letter["envelope"]["payload"], letter["stage"]) == (0, "gate")
    assert await bench.refusal("deadletters.get", id=UNKNOWN) == NOT_FOUND
    part = await bench.call("deadletters.export", limit=2)
    assert [json.loads(line)["messageId"] for line in part["lines"]] == ids[:2]
    rest = await bench.call("deadletters.export", limit=2, cursor=part["cursor"])
    assert [json.loads(line)["messageId"] for line in rest["lines"]] == ids[2:]

    plan = await bench.call("deadletters.plan", ids=ids[1:])
    part = await bench.call("deadletters.export", planId=plan["id"])
    assert [json.loads(line)["messageId"] for line in part["lines"]] == ids[1:]
    for method in ("deadletters.export", "deadletters.purge"):
        assert await bench.refusal(method, planId="nonsense") == NOT_FOUND

    await bench.call("endpoints.register", subject=UNHEARD)
    assert (await bench.call("deadletters.edit", id=ids[0], payload="mended"))["deliveredTo"] == 1
    (message,) = (await bench.call("inbox.peek", subject=UNHEARD))["messages"]
    assert (message["payload"], message["replayOf"]) == ("mended", ids[0])
    assert await bench.refusal("deadletters.edit", id=ids[0], payload="again") == NOT_FOUND
    assert await bench.call("deadletters.purge", ids=[ids[1]]) == {"purged": 1}
    assert await bench.call("deadletters.purge", olderThan=0) == {"purged": 0}
    assert await bench.call("deadletters.purge", planId=plan["id"]) == {"purged": 1}
    assert await bench.call("deadletters.purge") == {"purged": 0}
    bench.covers("deadletters")


async def test_replay(bench: Bench) -> None:
    ids = [await bench.lose() for _ in range(3)]
    await bench.call("endpoints.register", subject=UNHEARD)
    plan = await bench.call("deadletters.plan", ids=ids[:1])
    assert (plan["total"], plan["counts"]) == (1, {"will_deliver": 1})
    listed = await bench.call("deadletters.items", planId=plan["id"])
    assert [(item["messageId"], item["verdict"]) for item in listed["items"]] == [(ids[0], "will_deliver")]
    assert await bench.refusal("deadletters.items", planId=plan["id"], cursor="x") == (
        "ProtocolError",
        "invalid_params",
    )
    started = await bench.call("deadletters.run", planId=plan["id"], canary=True)
    assert started["planId"] == plan["id"]
    ended = (await bench.call("deadletters.wait", planId=plan["id"]))["outcome"]
    assert (ended["state"], ended["delivered"], ended["failed"]) == ("finished", 1, 0)

    # One that takes an hour, and so can be paused.
    slow = await bench.call("deadletters.plan", filter={"code": "no_match"}, freshBudget=True)
    await bench.call("deadletters.run", planId=slow["id"], rate=1 / 3600)
    await bench.call("deadletters.pause", planId=slow["id"])
    await until(lambda: bench.last_run_is("paused"))
    await bench.call("deadletters.resume", planId=slow["id"])
    await until(lambda: bench.last_run_is("running"))
    await bench.call("deadletters.cancel", planId=slow["id"])
    ended = (await bench.call("deadletters.wait", planId=slow["id"]))["outcome"]
    assert ended["state"] == "cancelled"
    runs = (await bench.call("deadletters.runs"))["replays"]
    assert [run["planId"] for run in runs] == [plan["id"], slow["id"]]
    first = await bench.call("deadletters.items", planId=slow["id"], limit=1)
    rest = await bench.call("deadletters.items", planId=slow["id"], cursor=first["cursor"])
    assert [item["messageId"] for item in first["items"] + rest["items"]] == ids[1:]
    assert "cursor" not in rest
    for word in ("items", "run", "wait", "pause", "resume", "cancel"):
        assert await bench.refusal(f"deadletters.{word}", planId="nonsense") == NOT_FOUND
    bench.covers("replay")


async def test_breakers(bench: Bench) -> None:
    await bench.call("breakers.force", target=A, state="OPEN", reason="repairs")
    (row,) = (await bench.call("breakers.list"))["breakers"]
    assert (row["subject"], row["state"], row["forced"]) == (A, "OPEN", True)
    assert row["transitions"][-1][1:] == ["OPEN", "repairs"]
    assert (await bench.call("publish", PUBLISH))["rejected"][0]["reason"] == "circuit_open"
    await bench.call("breakers.reset", target=subject_hash(A))
    (row,) = (await bench.call("breakers.list"))["breakers"]
    assert (row["state"], row["forced"]) == ("CLOSED", False)
    for method, more in (("breakers.force", {"state": "OPEN", "reason": "r"}), ("breakers.reset", {})):
        assert await bench.refusal(method, target=UNHEARD, **more) == NOT_FOUND
    (usage,) = (await bench.call("senders.list"))["senders"]
    assert (usage["sender"], usage["count"], usage["limit"]) == (SENDER, 1, 100)
    bench.covers("breakers")


async def test_adapters(bench: Bench) -> None:
    plugin = bench.data_dir / "diary.py"
    shutil.copyfile(DIARY_PLUGIN, plugin)
    plugin.chmod(0o600)
    config = {"diary": str(bench.data_dir / "diary")}
    entries = [{"id": "diary", "path": "diary.py", "config": config}, {"id": "odd", "type": "nonsense"}]
    (bench.data_dir / "adapters.json").write_text(json.dumps({"adapters": entries}))
    await bench.call("adapters.reload")
    rows = {row["id"]: row for row in (await bench.call("adapters.list"))["adapters"]}
    assert rows.keys() == {"diary", "odd"}
    assert "nonsense" in rows["odd"]["problem"]
    assert (await bench.call("adapters.disable", id="diary"))["enabled"] is False
    assert (await bench.call("adapters.enable", id="diary"))["enabled"] is True
    assert (await bench.call("adapters.test", id="diary"))["state"]["id"] == "diary"
    await bench.call("adapters.reload", id="diary")
    for word in ("enable", "disable", "test", "reload"):
        assert await bench.refusal(f"adapters.{word}", id="nobody") == NOT_FOUND
    bench.covers("adapters")


async def test_access(bench: Bench) -> None:
    rule = {"from": SENDER, "to": A, "action": "deny", "priority": 5}
    assert (await bench.call("access.add", rule=rule))["rules"] == [rule]
    assert (await bench.call("access.list")) == {"rules": [rule]}
    refused = await bench.raw.answer(bench.raw.ask("publish", **PUBLISH))
    data = refused["error"]["data"]
    assert (data["error"], data["sender"], data["subject"]) == ("AccessDenied", SENDER, A)
    assert data["rule"] == rule
    assert await bench.call("access.remove", {"from": SENDER, "to": A}) == {"removed": 1}
    assert await bench.call("access.remove", {"from": SENDER, "to": A}) == {"removed": 0}
    assert await bench.refusal("access.add", rule={**rule, "action": "maybe"}) == ("ProtocolError", "invalid_params")
    bench.covers("access")


async def test_tokens(bench: Bench) -> None:
    made = await bench.call("tokens.add", pattern="relay.agent.s", note="for s")
    assert (await bench.call("tokens.list"))["tokens"] == [made["info"]]
    assert made["token"] not in json.dumps(made["info"])
    assert await bench.refusal("tokens.add", pattern="a b") == ("InvalidSubject", "invalid_subject")
    async with Raw(bench.socket) as agent:
        hello = await agent.call("server.hello", token=made["token"])
        assert (hello["operator"], hello["pattern"]) == (False, SENDER)
        # What the table marks is what a token's holder may call.
        for method in METHODS.values():
            answer = await agent.answer(agent.ask(method.name, nonsense=1))
            expected = "invalid_params" if AGENTS in method.traits else "operator_only"
            assert answer["error"]["data"]["code"] == expected, method.name
        assert (await agent.call("publish", **PUBLISH))["deliveredTo"] == 1
        another = {**PUBLISH, "from": B}
        assert await agent.refusal("publish", **another) == ("AccessDenied", "sender_not_yours")
        assert await agent.refusal("inbox.peek", subject=A) == ("AccessDenied", "subject_not_yours")
        assert await bench.call("tokens.remove", id=made["info"]["id"]) == {}
        assert await agent.over() == []
    assert await bench.refusal("tokens.remove", id=made["info"]["id"]) == NOT_FOUND
    bench.covers("tokens")


async def test_traces(bench: Bench) -> None:
    parent = (await bench.call("publish", PUBLISH))["messageId"]
    child = (await bench.call("publish", PUBLISH, parentId=parent))["messageId"]
    (span,) = (await bench.call("traces.get", id=child))["spans"]
    assert (span["messageId"], span["parentId"], span["traceId"]) == (child, parent, parent)
    spans = (await bench.call("traces.conversation", id=parent))["spans"]
    assert [span["messageId"] for span in spans] == [parent, child]
    assert (await bench.call("traces.get", id=UNKNOWN))["spans"] == []
    found = await bench.call("traces.search", subject=A, sender=SENDER, limit=1)
    assert ([row["messageId"] for row in found["rows"]], found["complete"]) == ([child], True)
    rest = await bench.call("traces.search", cursor=found["cursor"])
    assert ([row["messageId"] for row in rest["rows"]], "cursor" in rest) == ([parent], False)
    assert (await bench.call("traces.search", id=child))["rows"] == found["rows"]
    assert (await bench.call("traces.search", status="new"))["rows"] == rest["rows"]
    assert (await bench.call("traces.search", status="done"))["rows"] == []
    assert await bench.refusal("traces.get") == ("ProtocolError", "invalid_params")
    bench.covers("traces")


async def test_state(bench: Bench) -> None:
    watch = await bench.call("state.watch")
    note = await bench.note("state")
    assert (note["watchId"], note["full"]) == (watch["watchId"], True)
    assert await bench.call("state.unwatch", watch) == {}
    assert await bench.refusal("state.unwatch", **watch) == NOT_FOUND
    bench.covers("state")


async def test_jobs_and_reports(bench: Bench) -> None:
    names = [job["name"] for job in (await bench.call("jobs.list"))["jobs"]]
    assert {"expire", "purge", "index"} <= set(names)
    run = await bench.call("jobs.run", name="purge")
    assert run["outcome"] == "ok"
    assert "outcome" not in await bench.call("jobs.run", name="expire", wait=False)
    assert await bench.refusal("jobs.run", name="nonsense") == NOT_FOUND
    for name in ("purge", "nonsense"):
        assert await bench.refusal("jobs.cancel", name=name) == NOT_FOUND
    for wrong in ({"since": "2026-02-02", "until": "2026-02-01"}, {"day": "2026-02-01"}, {"date": "2999-01-01"}):
        assert (await bench.refusal("jobs.run", name="metrics", arguments=wrong))[1] == "invalid_params"
    nightly = {"command": ["sleep", "600"], "output": "s3a://bucket/reports"}
    bench.write_config({"durability": "os", "jobs": {"metrics": nightly}})
    assert (await bench.call("config.reload"))["problems"] == []
    assert [await bench.refusal(f"reports.{word}") for word in ("list", "get")] == [NOT_FOUND, NOT_FOUND]
    asked = {"date": "2026-01-31", "backfill": False, "today": False}
    begun = await bench.call("jobs.run", name="metrics", wait=False, arguments={"date": "2026-01-31"})
    assert (begun["arguments"], "outcome" in begun) == (asked, False)
    assert await bench.refusal("jobs.run", name="metrics") == ("RelayError", "job_busy")
    ended = await bench.call("jobs.cancel", name="metrics")
    assert (ended["startedAt"], ended["outcome"]) == (begun["startedAt"], "cancelled")
    bench.write_config({"durability": "os"})
    await bench.call("config.reload")

    assert await bench.call("reports.list") == {"reports": []}
    assert await bench.refusal("reports.get") == NOT_FOUND
    report = bench.data_dir / "reports" / "date=2026-01-31" / "report.json"
    report.parent.mkdir(parents=True)
    report.write_text('{"messages": 5}')
    (row,) = (await bench.call("reports.list"))["reports"]
    assert (row["date"], row["bytes"]) == ("2026-01-31", 15)
    for wanted in ({}, {"date": "2026-01-31"}):
        assert await bench.call("reports.get", wanted) == {"date": "2026-01-31", "report": {"messages": 5}}
    assert await bench.refusal("reports.get", date="2026-02-01") == NOT_FOUND
    for depth in (250, 252, 254, 500):  # JSON that can be read, but not all of it written again
        report.write_text(f'{{"a": {"[" * depth}{"]" * depth}}}')
        if depth == 250:
            assert (await bench.call("reports.get"))["date"] == "2026-01-31"
        else:
            assert (await bench.refusal("reports.get"))[0] == "StorageError"
    bench.covers("jobs")


async def test_schedules(bench: Bench) -> None:
    daily = {"id": "daily", "to": A, "payload": "hi", "cron": "0 9 * * *"}
    bench.write_config({"durability": "os", "schedules": [daily]})
    assert (await bench.call("config.reload"))["problems"] == []
    (found,) = (await bench.call("schedules.list"))["schedules"]
    assert (found["id"], found["to"], found["timing"], found["paused"]) == ("daily", A, "0 9 * * * UTC", False)
    run = await bench.call("schedules.run", id="daily")
    assert (run["outcome"], run["deliveredTo"]) == ("published", 1)
    paused = await bench.call("schedules.pause", id="daily")
    assert (paused["paused"], "nextRun" in paused, paused["last"]) == (True, False, run)
    assert "nextRun" in await bench.call("schedules.resume", id="daily")
    for word in ("run", "pause", "resume"):
        assert await bench.refusal(f"schedules.{word}", id="nonsense") == NOT_FOUND
    bench.covers("schedules")


async def test_config(bench: Bench) -> None:
    found = await bench.call("config.get")
    assert found["path"] == str(bench.data_dir / "config.json")
    assert (found["config"]["durability"], "problem" in found) == ("os", False)
    bench.write_config({"durability": "os", "nonsense": 1})
    (problem,) = (await bench.call("config.reload"))["problems"]
    assert "nonsense" in problem
    assert (await bench.call("config.get"))["problem"] == problem
    bench.write_config({"durability": "os"})
    assert await bench.call("config.reload") == {"problems": []}
    bench.covers("config")
