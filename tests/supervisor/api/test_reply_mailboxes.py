"""Reply mailboxes: private to the connection that has them, and answered only by those who were asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from relay_core.client import typed_calls
from relay_core.client.client import RelayClient
from relay_core.config import RateLimitConfig, RelayConfig, ReliabilityConfig
from relay_core.core import RelayCore
from relay_core.errors import AccessDenied
from relay_core.messages.envelope import Envelope
from relay_supervisor.supervisor import Supervisor
from tests.kit.bus import A, B, C
from tests.kit.raw_client import Raw, authenticate, kind
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until

FREE = RelayConfig(durability="os", reliability=ReliabilityConfig(rate_limit=RateLimitConfig(enabled=False)))
NOT_YOURS = ("AccessDenied", "subject_not_yours")
NOT_ASKED = ("AccessDenied", "not_asked")
WIDE = [">", "relay.>", "relay.*.>", "*.reply.>", "relay.reply.>", "relay.reply.*", "relay.*.*", "*.*.*"]

pytestmark = pytest.mark.bus(FREE, endpoints=[A, B, C])


def message(sender: str, to: str, **more: Any) -> dict[str, Any]:
    return {"subject": to, "from": sender, "payload": {"content": "hi"}, **more}


async def read(raw: Raw, mailbox: str) -> list[str]:
    """Return who has written to a reply mailbox."""
    return [message["from"] for message in (await raw.call("inbox.peek", subject=mailbox))["messages"]]


# No pattern reaches one


async def test_a_broadcast_reaches_no_reply_mailbox(supervisor: Supervisor, operator: Raw, agent: Raw) -> None:
    mine = (await agent.call("replies.open"))["subject"]
    async with Raw(supervisor.socket) as stranger:
        await authenticate(stranger, operator, C)
        for pattern in (*WIDE, f"relay.*.{mine.split('.')[-1]}"):
            for client, sender in ((stranger, C), (operator, B), (agent, A)):
                answer = await client.answer(client.ask("publish", **message(sender, pattern)))
                assert "result" in answer or kind(answer) == NOT_ASKED
    assert await read(agent, mine) == []


async def test_a_subscription_by_pattern_gets_no_mail_of_a_reply_mailbox(
    operator: Raw, agent: Raw, relay: RelayCore
) -> None:
    heard: list[Envelope] = []

    async def listen(envelope: Envelope) -> None:
        heard.append(envelope)

    before = (await agent.call("replies.open"))["subject"]
    for pattern in WIDE:
        await relay.subscribe(pattern, listen)
        subscribed = await operator.answer(operator.ask("subscribe", pattern=pattern))
        assert "result" in subscribed or kind(subscribed) == NOT_YOURS
    after = (await agent.call("replies.open"))["subject"]
    for mine in (before, after):
        await agent.call("publish", **message(A, B, replyTo=mine))
        await operator.call("publish", **message(B, mine))
    for pattern in WIDE:  # nor do those that come later drain it
        await relay.subscribe(pattern, listen)
    await until(lambda: B in {envelope.subject for envelope in heard})
    assert await read(agent, before) == await read(agent, after) == [B]
    assert {note["params"]["envelope"]["subject"] for note in operator.notes} <= {B}
    assert {envelope.subject for envelope in heard} == {B}


# Who may answer


async def test_an_answer_is_accepted_from_the_one_who_was_asked_and_from_no_other(
    supervisor: Supervisor, operator: Raw, agent: Raw
) -> None:
    mine = (await agent.call("replies.open"))["subject"]
    asked = (await agent.call("publish", **message(A, B, replyTo=mine)))["messageId"]
    async with Raw(supervisor.socket) as stranger:
        await authenticate(stranger, operator, C)
        for more in ({}, {"parentId": asked}, {"payload": {"content": "x", "correlationId": asked}}):
            assert await stranger.refusal("publish", **(message(C, mine) | more)) == NOT_ASKED
            assert await operator.refusal("publish", **(message(C, mine) | more)) == NOT_ASKED
        batch = await stranger.call("publish.batch", messages=[message(C, mine)])
        assert batch["results"][0]["error"]["data"]["code"] == "not_asked"
    refused = await operator.answer(operator.ask("publish", **message(C, mine)))
    assert "name the question's id" in refused["error"]["message"]
    assert (await operator.call("publish", **message(B, mine, parentId=asked)))["deliveredTo"] == 1
    assert await read(agent, mine) == [B]


async def test_a_recipient_under_another_name_answers_by_the_questions_id(
    supervisor: Supervisor, operator: Raw, agent: Raw
) -> None:
    mine = (await agent.call("replies.open"))["subject"]
    jobs, worker = "relay.team.jobs", "relay.team.worker"
    async with Raw(supervisor.socket) as reader, Raw(supervisor.socket) as other:
        await authenticate(reader, operator, "relay.team.*")
        await authenticate(other, operator, "relay.team.*")  # the same names, by another token
        await reader.call("subscribe", pattern=jobs, queue="workers")
        await agent.call("publish", **message(A, jobs, replyTo=mine))
        asked = (await reader.note())["envelope"]["id"]
        assert await reader.refusal("publish", **message(worker, mine)) == NOT_ASKED
        assert await other.refusal("publish", **message(worker, mine, parentId=asked)) == NOT_ASKED
        assert (await reader.call("publish", **message(worker, mine, parentId=asked)))["deliveredTo"] == 1
    assert await read(agent, mine) == [worker]


async def test_each_recipient_of_a_broadcast_may_answer(operator: Raw, agent: Raw) -> None:
    mine = (await agent.call("replies.open"))["subject"]
    await agent.call("publish", **message(A, "relay.agent.*", replyTo=mine))
    for sender in (B, C):
        assert (await operator.call("publish", **message(sender, mine)))["deliveredTo"] == 1
    assert await operator.refusal("publish", **message("relay.agent.d", mine)) == NOT_ASKED
    assert await read(agent, mine) == [B, C]


async def test_an_answer_is_judged_by_the_question_that_it_names(operator: Raw, agent: Raw) -> None:
    mine = (await agent.call("replies.open"))["subject"]
    to_b = (await agent.call("publish", **message(A, B, replyTo=mine)))["messageId"]
    to_c = (await agent.call("publish", **message(A, C, replyTo=mine)))["messageId"]
    assert await operator.refusal("publish", **message(C, mine, parentId=to_b)) == NOT_ASKED
    await operator.call("publish", **message(C, mine, parentId=to_c))
    await operator.call("publish", **message(B, mine, parentId=to_b))
    assert await read(agent, mine) == [C, B]


async def test_a_failure_notice_reaches_the_asker(operator: Raw, agent: Raw) -> None:
    mine = (await agent.call("replies.open"))["subject"]
    asked = (await agent.call("publish", **message(A, B, replyTo=mine)))["messageId"]
    await operator.call("inbox.claim", subject=B)
    await operator.call("inbox.fail", subject=B, id=asked, reason="no")
    assert len((await agent.call("inbox.wait", subject=mine, answerTo=asked))["ids"]) == 1
    assert await read(agent, mine) == ["relay.system.bus"]


async def test_a_question_can_be_passed_on_by_the_one_who_was_asked_and_by_no_other(
    supervisor: Supervisor, operator: Raw, agent: Raw
) -> None:
    mine = (await agent.call("replies.open"))["subject"]
    asked = (await agent.call("publish", **message(A, B, replyTo=mine)))["messageId"]
    async with Raw(supervisor.socket) as stranger:
        await authenticate(stranger, operator, C)
        for to in (C, B):  # a stranger that knows the name does not make itself one who was asked
            refused = await stranger.refusal("publish", **message(C, to, replyTo=mine, parentId=asked))
            assert refused == ("AccessDenied", "reply_not_yours")
    await operator.call("publish", **message(B, C, replyTo=mine, parentId=asked))
    assert (await operator.call("publish", **message(C, mine)))["deliveredTo"] == 1


# Whose it is


async def test_a_reply_mailbox_is_its_connections_alone(supervisor: Supervisor, operator: Raw, agent: Raw) -> None:
    mine = (await agent.call("replies.open"))["subject"]
    await agent.call("publish", **message(A, B, replyTo=mine))
    await operator.call("publish", **message(B, mine))
    async with Raw(supervisor.socket) as same, Raw(supervisor.socket) as wide:
        await authenticate(same, operator, A)
        await authenticate(wide, operator, "relay.reply.*")
        for client in (operator, same, wide):
            for method in ("inbox.peek", "inbox.claim", "inbox.wait", "endpoints.register", "endpoints.unregister"):
                assert await client.refusal(method, subject=mine) == NOT_YOURS
            for method in ("inbox.complete", "inbox.fail"):
                more = {"reason": "x"} if method == "inbox.fail" else {}
                assert await client.refusal(method, subject=mine, id="x", **more) == NOT_YOURS
            for method in ("subscribe", "signal.subscribe"):
                assert await client.refusal(method, pattern=mine) == NOT_YOURS
            assert mine not in str(await client.call("endpoints.list"))
            assert mine not in str(await client.call("agents.list"))
    assert await read(agent, mine) == [B]


async def test_no_client_chooses_the_name_of_a_reply_mailbox(operator: Raw, agent: Raw) -> None:
    for client in (operator, agent):
        assert await client.refusal("endpoints.register", subject="relay.reply.f00f") == NOT_YOURS
        assert await client.refusal("replies.open", key="short") == ("ProtocolError", "invalid_params")


async def test_leftovers_of_a_closed_connections_mailbox_are_for_no_other_client(
    supervisor: Supervisor, operator: Raw, agent: Raw, relay: RelayCore
) -> None:
    opened = await agent.call("replies.open")
    mine = opened["subject"]
    await agent.call("publish", **message(A, B, replyTo=mine))
    await operator.call("publish", **message(B, mine))
    await agent.close()
    await until(lambda: mine not in [endpoint.subject for endpoint in relay.endpoints()])
    async with Raw(supervisor.socket) as stranger, Raw(supervisor.socket) as back:
        await authenticate(stranger, operator, B)
        assert await stranger.refusal("endpoints.register", subject=mine) == NOT_YOURS
        assert await stranger.refusal("inbox.claim", subject=mine) == NOT_YOURS
        assert await operator.refusal("endpoints.register", subject=mine) == NOT_YOURS
        assert await operator.refusal("subscribe", pattern=mine) == NOT_YOURS
        assert await read(operator, mine) == [B]  # an operator sees what is left
        late = await operator.call("publish", **message(B, mine))  # a late answer is kept, as a dead letter
        assert late["deliveredTo"] == 0
        assert [letter.code for letter in await relay.dead_letters()] == ["no_match"]
        await authenticate(back, operator, A)
        assert (await back.call("replies.open", key=opened["key"]))["subject"] == mine
        assert await read(back, mine) == [B]
        assert await operator.refusal("inbox.peek", subject=mine) == NOT_YOURS


async def test_the_key_takes_a_mailbox_from_the_connection_before(supervisor: Supervisor, agent: Raw) -> None:
    opened = await agent.call("replies.open")
    await agent.call("subscribe", pattern=opened["subject"])
    async with Raw(supervisor.socket) as again:
        await again.call("replies.open", key=opened["key"])
        assert await agent.refusal("inbox.peek", subject=opened["subject"]) == NOT_YOURS
        assert await read(again, opened["subject"]) == []
    assert supervisor.context.relay.subscriptions() == []


async def test_an_open_question_can_be_answered_after_a_restart(data_dir: Path) -> None:
    async with a_supervisor(data_dir, FREE) as supervisor, Raw(supervisor.socket) as raw:
        await raw.call("endpoints.register", subject=B)
        opened = await raw.call("replies.open")
        asked = (await raw.call("publish", **message(A, B, replyTo=opened["subject"])))["messageId"]
    async with a_supervisor(data_dir, FREE) as supervisor, Raw(supervisor.socket) as raw:
        mine = opened["subject"]
        assert await raw.refusal("publish", **message(B, mine, parentId=asked)) == NOT_ASKED  # it has not read it yet
        await raw.call("inbox.claim", subject=B)
        await raw.call("replies.open", key=opened["key"])
        assert await raw.refusal("publish", **message(C, mine)) == NOT_ASKED
        assert (await raw.call("publish", **message(B, mine, parentId=asked)))["deliveredTo"] == 1
        assert await read(raw, mine) == [B]


async def test_a_request_is_answered_while_strangers_try(supervisor: Supervisor) -> None:
    async with a_client(supervisor) as client, a_client(supervisor) as other, asyncio.TaskGroup() as group:

        async def answer(client: RelayClient) -> None:
            async with client.subscribe(B) as questions:
                async for question in questions:
                    assert question.reply_to is not None
                    await client.publish("relay.>", "forged", sender=C)
                    with pytest.raises(AccessDenied):
                        await client.publish("relay.reply.>", "forged", sender=C)
                    with pytest.raises(AccessDenied):
                        await client.publish(question.reply_to, "forged", sender=C)
                    await client.publish(question.reply_to, "real", sender=B, parent_id=question.id)
                    return

        group.create_task(answer(other))
        reply = await client.request(B, "?", sender=A, timeout=60)
    assert (reply.sender, reply.payload) == (B, "real")


# What one client may own


async def test_limits_are_refused_clearly(data_dir: Path) -> None:
    limits = {"maxReplyMailboxes": 2, "maxEndpointsPerToken": 2, "maxSubscriptionsPerToken": 2}
    config = {"durability": "os", "limits": limits}
    async with a_supervisor(data_dir, config) as supervisor, Raw(supervisor.socket) as operator:
        token = (await operator.call("tokens.add", pattern="relay.team.*"))["token"]
        async with Raw(supervisor.socket) as raw, Raw(supervisor.socket) as second:
            for client in (raw, second):
                await client.call("server.hello", token=token)
            tries: list[tuple[str, list[dict[str, Any]]]] = [
                ("replies.open", [{}, {}, {}]),
                ("endpoints.register", [{"subject": f"relay.team.{n}"} for n in range(3)]),
                ("subscribe", [{"pattern": f"relay.team.{n}"} for n in range(3)]),
            ]
            for method, (first, next, last) in tries:
                await raw.call(method, **first)
                await second.call(method, **next)  # they are counted over all connections of the token
                for client in (raw, second):
                    answer = await client.answer(client.ask(method, **last))
                    assert kind(answer) == ("AccessDenied", "too_many")
                    assert "limits.max" in answer["error"]["message"]
            assert await raw.refusal("signal.subscribe", pattern="relay.team.*") == ("AccessDenied", "too_many")
        await until(lambda: len(supervisor.context.connections) == 1)
        await until(lambda: len(supervisor.context.relay.endpoints()) == 2)  # the reply mailboxes are gone
        async with Raw(supervisor.socket) as raw:
            await raw.call("server.hello", token=token)
            await raw.call("endpoints.register", subject="relay.team.0")  # again changes nothing
            for method in ("replies.open", "subscribe"):
                await raw.call(method, **({"pattern": "relay.team.0"} if method == "subscribe" else {}))
        for number in range(3):
            await operator.call("endpoints.register", subject=f"relay.other.{number}")
            await operator.call("subscribe", pattern=f"relay.other.{number}")


async def test_a_broadcast_that_would_store_too_much_is_refused(data_dir: Path) -> None:
    config = {"durability": "os", "limits": {"maxBroadcastBytes": 10_000}}
    async with a_supervisor(data_dir, config) as supervisor, Raw(supervisor.socket) as raw:
        for number in range(5):
            await raw.call("endpoints.register", subject=f"relay.team.{number}")
        large = message(A, "relay.team.*", payload="x" * 2000)
        answer = await raw.answer(raw.ask("publish", **large))
        assert kind(answer) == ("InvalidPayload", "broadcast_too_large")
        assert "limits.maxBroadcastBytes" in answer["error"]["message"]
        assert all(mailbox.depth == 0 for mailbox in supervisor.context.relay.mailboxes())
        assert (await raw.call("publish", **message(A, "relay.team.*", payload="x" * 900)))["deliveredTo"] == 5
        assert (await raw.call("publish", **message(A, "relay.team.1", payload="x" * 20_000)))["deliveredTo"] == 1


async def test_others_are_served_while_a_gone_connections_mailboxes_are_cleaned_up(
    supervisor: Supervisor, operator: Raw, agent: Raw, relay: RelayCore
) -> None:
    count = 300
    for number in range(count):
        agent.send(b'{"jsonrpc": "2.0", "id": %d, "method": "replies.open"}\n' % (number + 1000))
    for _ in range(count):
        assert "result" in (await agent.frame() or {})

    def left() -> int:
        return len(relay.endpoints()) - 3

    assert left() == count
    await agent.close()
    seen = set()
    while left():
        await operator.call("server.ping")
        seen.add(left())
    assert len(seen - {0, count}) >= 1  # it was answered in between


async def test_lists_come_in_pages_and_clients_fetch_all_of_them(
    supervisor: Supervisor, operator: Raw, agent: Raw, relay: RelayCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [A, B, C, *(f"relay.many.{number}" for number in range(5))]
    for name in names[3:]:
        await relay.register_endpoint(name)
    await operator.call("replies.open")
    for method, key in (("endpoints.list", "endpoints"), ("agents.list", "agents")):
        assert [row["subject"] for row in (await operator.call(method))[key]] == names
        page = await operator.call(method, limit=3)
        assert [row["subject"] for row in page[key]] == names[:3]
        found = page[key]
        while "cursor" in page:
            page = await operator.call(method, limit=3, cursor=page["cursor"])
            found += page[key]
        assert [row["subject"] for row in found] == names
        assert await operator.call(method, cursor="relay.many.zzz") == {key: []}
        assert await operator.refusal(method, limit=1001) == ("ProtocolError", "invalid_params")
    await operator.call("agents.add", subject="relay.aaa")
    await operator.call("access.add", rule={"from": A, "to": "relay.many.>", "action": "deny"})
    page = await agent.call("agents.list", limit=4)
    assert [agent["subject"] for agent in page["agents"]] == ["relay.aaa", A, B, C]
    page = await agent.call("agents.list", limit=4, cursor=page["cursor"])
    assert (page["agents"], "cursor" in page) == ([], True)  # what it may not see takes up room all the same
    assert await agent.call("agents.list", limit=4, cursor=page["cursor"]) == {"agents": []}
    monkeypatch.setattr(typed_calls, "MAX_PAGE", 3)
    async with a_client(supervisor) as client:
        assert [endpoint.subject for endpoint in await client.endpoints()] == ["relay.aaa", *names]
        assert [agent.subject for agent in await client.agents()] == ["relay.aaa", *names]
