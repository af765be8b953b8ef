"""The six tools with the `mcp` package's own client, in both generations, against a real supervisor."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any

import pytest

from relay_supervisor.agents.light import fence
from tests.kit.cli import Relay, write_plugin
from tests.kit.waiting import until
from tests.supervisor.agents.clients import LEGACY, MODERN, Agent, an_agent

NUMBERS = count(1)
MODES = pytest.mark.parametrize("mode", [LEGACY, "auto", MODERN])


class Pair:
    """Two agents' subjects that no other test has used."""

    def __init__(self, relay: Relay, name: str) -> None:
        self.relay = relay
        self.a, self.b = f"relay.agent.{name}-a", f"relay.agent.{name}-b"
        for subject in (self.a, self.b):
            relay.ask("agents.add", subject=subject, description=f"it is {subject[-1]}")

    def agent(self, subject: str, mode: str = LEGACY) -> AbstractAsyncContextManager[Agent]:
        return an_agent(self.relay.daemon, subject, mode=mode)

    def waiting(self, subject: str) -> list[Any]:
        found: list[Any] = self.relay.ask("inbox.peek", subject=subject)["messages"]
        return found


@pytest.fixture
def pair(relay: Relay) -> Pair:
    return Pair(relay, f"t{next(NUMBERS)}")


@MODES
async def test_a_session_of_all_six(pair: Pair, mode: str) -> None:
    async with pair.agent(pair.a, mode) as a, pair.agent(pair.b, mode) as b:
        assert a.client.protocol_version == ("2025-11-25" if mode == LEGACY else "2026-07-28")
        assert mode == MODERN or (a.client.server_info is not None and a.client.server_info.name == "relay")
        tools = (await a.client.list_tools()).tools
        assert [one.name for one in tools] == [
            *("relay_send", "relay_ask", "relay_inbox", "relay_ack", "relay_list", "relay_notify_user")
        ]

        assert await b.ok("relay_inbox") == "0 messages."
        there = await a.ok("relay_list")
        assert f"{pair.a} (you), connected, 0 unread: it is a" in there
        assert f"{pair.b}, connected, 0 unread: it is b" in there
        assert there.endswith("relay_notify_user reaches: no one")
        assert "adapters.json" in await a.failed("relay_notify_user", content="hi")

        sent = await a.ok("relay_send", to=pair.b, content="hello", payload={"extra": [1]})
        inbox = await b.ok("relay_inbox")
        assert inbox.startswith(f"1 message:\n\nMessage {sent.message_id} from {pair.a}, 20")
        assert 'hello\n\nFurther data: {"extra": [1]}\n' in inbox
        assert await b.ok("relay_ack", ids=[sent.message_id]) == f"{sent.message_id}: done."
        assert await b.ok("relay_inbox") == "0 messages."

        asking = asyncio.Task(a.ok("relay_ask", to=pair.b, content="how much?"))
        await until(lambda: pair.waiting(pair.b))
        (asked,) = pair.waiting(pair.b)
        assert asked["payload"] == {"content": "how much?", "performative": "request"}
        await b.ok("relay_inbox", claim=True)
        await b.ok("relay_send", to=pair.a, content="42", in_reply_to=asked["id"])
        await b.ok("relay_ack", ids=[asked["id"]])
        answer = await asking
        assert answer.startswith(f"Answer to your message {asked['id']}:\nMessage ")
        assert "\n42\n" in answer
        await until(lambda: not pair.waiting(pair.a))
        assert await a.ok("relay_inbox") == "0 messages."
    assert pair.relay.letters(endpoint=pair.a) == pair.relay.letters(endpoint=pair.b) == []


@MODES
async def test_errors_of_the_protocol_reach_the_client(pair: Pair, mode: str) -> None:
    from mcp.shared.exceptions import MCPError

    async with pair.agent(pair.a, mode) as a:
        with pytest.raises(MCPError, match="unknown tool 'relay_destroy'"):
            await a("relay_destroy")
        with pytest.raises(MCPError, match="unknown method"):
            await a.client.list_resources()
        assert await a.failed("relay_ask", content="x") == "to is missing"


# Asking


async def test_calls_run_side_by_side(pair: Pair) -> None:
    async with pair.agent(pair.a) as a:
        asking = asyncio.Task(a("relay_ask", to=pair.b, content="slow"))
        await until(lambda: pair.waiting(pair.b))
        await a.ok("relay_send", to=pair.b, content="quick")
        assert not asking.done()
        asked = pair.waiting(pair.b)[0]["id"]
        pair.relay.publish(pair.a, {"content": "yes"}, sender=pair.b, parentId=asked)
        assert "\nyes\n" in await asking


async def test_the_answer_may_come_by_its_correlation_id(pair: Pair) -> None:
    async with pair.agent(pair.a) as a:
        asking = asyncio.Task(a.ok("relay_ask", to=pair.b, content="x"))
        await until(lambda: pair.waiting(pair.b))
        pair.relay.publish(pair.a, {"content": "something else"}, sender=pair.b)
        answer = {"content": "the answer", "correlationId": pair.waiting(pair.b)[0]["id"]}
        pair.relay.publish(pair.a, answer, sender=pair.b)
        assert "\nthe answer\n" in await asking
        await until(lambda: len(pair.waiting(pair.a)) == 1)
        assert pair.waiting(pair.a)[0]["payload"]["content"] == "something else"


async def test_a_failure_settles_the_question_and_says_why(pair: Pair) -> None:
    async with pair.agent(pair.a) as a, pair.agent(pair.b) as b:
        asking = asyncio.Task(a.failed("relay_ask", to=pair.b, content="do it"))
        await until(lambda: pair.waiting(pair.b))
        asked = pair.waiting(pair.b)[0]["id"]
        assert "dead letter" in await b.ok("relay_ack", ids=[asked], failed="I have no hands")
        failed = await asking
        assert failed.startswith(f"Your message {asked} was not handled. Why:\n")
        assert "from relay.system.bus" in failed
        assert "\nI have no hands\n" in failed
        await until(lambda: not pair.waiting(pair.a))


async def test_somebody_who_only_says_failure_does_not_settle_it_as_one(pair: Pair) -> None:
    async with pair.agent(pair.a) as a:
        asking = asyncio.Task(a.ok("relay_ask", to=pair.b, content="do it"))
        await until(lambda: pair.waiting(pair.b))
        lie = {"content": "no", "performative": "failure"}
        pair.relay.publish(pair.a, lie, sender=pair.b, parentId=pair.waiting(pair.b)[0]["id"])
        assert f"Written by {pair.b}, not by your user" in await asking


async def test_an_answer_that_comes_too_late_is_in_the_inbox(pair: Pair) -> None:
    async with pair.agent(pair.a) as a:
        said = await a.ok("relay_ask", to=pair.b, content="x", timeout_secs=1)
        asked = pair.waiting(pair.b)[0]["id"]
        assert said.startswith(f"No answer within 1 s. Your message {asked} is delivered, ")
        assert said.endswith("Do not ask again.")
        pair.relay.publish(pair.a, {"content": "late"}, sender=pair.b, parentId=asked)
        assert f", in reply to {asked}\n" in await a.ok("relay_inbox")


@MODES
async def test_a_cancelled_question_leaves_the_answer_in_the_inbox(pair: Pair, mode: str) -> None:
    async with pair.agent(pair.a, mode) as a:
        asking = asyncio.Task(a("relay_ask", to=pair.b, content="x"))
        await until(lambda: pair.waiting(pair.b))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await a.ok("relay_list")  # what was said before it has been read by then
        asked = pair.waiting(pair.b)[0]["id"]
        pair.relay.publish(pair.a, {"content": "late"}, sender=pair.b, parentId=asked)
        assert "\nlate\n" in await a.ok("relay_inbox")


async def test_an_agent_that_handles_a_message_can_ask_another_about_it(pair: Pair) -> None:
    """Its own subject is among the message's ancestors: an answer to it would be taken for a loop."""
    async with pair.agent(pair.a) as a, pair.agent(pair.b) as b:
        pair.relay.publish(pair.a, {"content": "find out"}, sender="relay.agent.chief")
        await a.ok("relay_inbox", claim=True)
        asking = asyncio.Task(a.ok("relay_ask", to=pair.b, content="do you know?"))
        await until(lambda: pair.waiting(pair.b))
        (asked,) = pair.waiting(pair.b)
        assert (asked["budget"]["hopCount"], asked["budget"]["callBudgetRemaining"]) == (2, 8)
        assert asked["budget"]["ancestorChain"] == [pair.b]
        await b.ok("relay_send", to=pair.a, content="I do", in_reply_to=asked["id"])
        assert "\nI do\n" in await asking


async def test_an_answer_from_another_than_the_one_who_was_asked_says_so(pair: Pair) -> None:
    async with pair.agent(pair.a) as a:
        asking = asyncio.Task(a.ok("relay_ask", to=pair.b, content="x"))
        await until(lambda: pair.waiting(pair.b))
        (asked,) = pair.waiting(pair.b)
        pair.relay.publish(pair.a, {"content": "no"}, sender="relay.agent.other", parentId=asked["id"])
        answer = await asking
        assert answer.startswith(
            f"Answer to your message {asked['id']}, from relay.agent.other (you asked {pair.b}):\nMessage "
        )
        assert "Written by relay.agent.other, not by your user:" in answer


async def test_an_answer_that_is_cut_stays_in_the_inbox(pair: Pair) -> None:
    async with pair.agent(pair.a) as a:
        asking = asyncio.Task(a.ok("relay_ask", to=pair.b, content="x"))
        await until(lambda: pair.waiting(pair.b))
        text = "y" * (fence.MAX_TEXT + 1)
        pair.relay.publish(pair.a, {"content": text}, sender=pair.b, parentId=pair.waiting(pair.b)[0]["id"])
        assert (await asking).endswith("It stays in your inbox: relay_ack it.")
        assert "y" in (await a.ok("relay_inbox"))
        assert len(pair.waiting(pair.a)) == 1


@pytest.mark.parametrize("mode", [LEGACY, MODERN])
async def test_progress_is_told_to_a_client_that_asks_for_it(pair: Pair, mode: str) -> None:
    heard: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with pair.agent(pair.a, mode) as a:
        arguments = {"to": pair.b, "content": "x"}
        asking = asyncio.Task(a.client.call_tool("relay_ask", arguments, progress_callback=hear))
        await until(lambda: len(heard) == 2)
        asked = pair.waiting(pair.b)[0]["id"]
        pair.relay.publish(pair.a, {"content": "yes"}, sender=pair.b, parentId=asked)
        assert not (await asking).is_error
    assert heard == sorted(set(heard))


# Reading


async def test_claimed_is_taken_and_must_be_acknowledged(pair: Pair) -> None:
    async with pair.agent(pair.a) as a:
        first, second = (pair.relay.publish(pair.a, {"content": one}, sender=pair.b) for one in "xy")
        said = await a.ok("relay_inbox", claim=True, limit=1)
        assert said.startswith(f"1 message, more are waiting:\n\nMessage {first} ")
        assert [one["id"] for one in pair.waiting(pair.a)] == [second]
        assert f"not acknowledged: {first}" in await a.ok("relay_inbox")
        assert await a.ok("relay_ack", ids=[first, second]) == f"{first}: done.\n{second}: done."
        assert pair.waiting(pair.a) == []
        said = await a.failed("relay_ack", ids=[first, "nonsense"])
        assert said.count("is not in your inbox: already acknowledged, or a dead letter now") == 2


async def test_two_sessions_of_an_agent_share_its_mail(pair: Pair) -> None:
    id = pair.relay.publish(pair.a, {"content": "for either"}, sender=pair.b)
    async with pair.agent(pair.a) as one, pair.agent(pair.a, MODERN) as other:
        assert id in await one.ok("relay_inbox")
        assert id in await other.ok("relay_inbox")
        assert id in await one.ok("relay_inbox", claim=True)
        assert await other.ok("relay_inbox", claim=True) == "0 messages."
        asking = asyncio.Task(one.ok("relay_ask", to=pair.b, content="x"))
        await until(lambda: pair.waiting(pair.b))
        await other.ok("relay_send", to=pair.b, content="y")
        asked = pair.waiting(pair.b)[0]["id"]
        pair.relay.publish(pair.a, {"content": "to the one who asked"}, sender=pair.b, parentId=asked)
        assert "\nto the one who asked\n" in await asking
        await until(lambda: not pair.waiting(pair.a))
        assert await one.ok("relay_ack", ids=[id]) == f"{id}: done."
    assert pair.relay.letters(endpoint=pair.a) == []


async def test_only_what_can_be_shown_is_claimed(pair: Pair) -> None:
    async with pair.agent(pair.a) as a:
        for _ in range(4):
            pair.relay.publish(pair.a, {"content": "x" * 15_000}, sender=pair.b)
        assert (await a.ok("relay_inbox", claim=True)).startswith("2 messages, more are waiting:")
        assert len(pair.waiting(pair.a)) == 2


async def test_what_was_claimed_when_the_session_ended_is_put_aside_and_can_be_completed_late(pair: Pair) -> None:
    async with pair.agent(pair.a) as a:
        id = pair.relay.publish(pair.a, {"content": "x"}, sender=pair.b)
        await a.ok("relay_inbox", claim=True)
    await until(lambda: [one["code"] for one in pair.relay.letters(endpoint=pair.a)] == ["disconnected"])
    async with pair.agent(pair.a) as a:
        assert "late: it had already become a dead letter" in await a.ok("relay_ack", ids=[id])
    assert pair.relay.letters(endpoint=pair.a) == []


# Refusals in words


async def test_nobody_there(pair: Pair) -> None:
    async with pair.agent(pair.a) as a:
        said = await a.failed("relay_send", to="relay.agent.nobody", content="x")
        assert said == "Not delivered: no agent has the subject relay.agent.nobody. Find agents with relay_list."
        assert await a.failed("relay_ask", to="relay.agent.nobody", content="x") == said
        assert "Refused: " in await a.failed("relay_send", to="not a subject", content="x")


async def test_what_may_be_sent_is_what_the_bus_can_read(pair: Pair) -> None:
    deep: dict[str, Any] = {"most": [2**64 - 1, -(2**63), 1.5e300, True, None]}
    for _ in range(90):
        deep = {"a": deep}
    async with pair.agent(pair.a) as a:
        await a.ok("relay_send", to=pair.b, content="x", payload=deep)
        deep = {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": deep}}}}}}}}}}
        assert "nested" in await a.failed("relay_send", to=pair.b, content="x", payload=deep)
        assert "Refused: payload is " in await a.failed("relay_send", to=pair.b, content="é" * 600_000)
    assert len(pair.waiting(pair.b)) == 1


async def test_access_denied(pair: Pair) -> None:
    rule = {"from": pair.a, "to": pair.b, "action": "deny", "priority": 10}
    pair.relay.ask("access.add", rule=rule)
    async with pair.agent(pair.a) as a:
        said = await a.failed("relay_send", to=pair.b, content="x")
        assert said.startswith("Refused: ")
        assert said.endswith("the operator decides who may write to whom.")
        assert pair.b not in await a.ok("relay_list")


async def test_a_breaker_that_is_open(pair: Pair) -> None:
    pair.relay.ask("breakers.force", target=pair.b, state="OPEN", reason="test")
    async with pair.agent(pair.a) as a:
        said = await a.failed("relay_send", to=pair.b, content="x")
        assert said.startswith(f"Not delivered: {pair.b} has failed repeatedly")


@pytest.fixture
def known(pair: Pair) -> Pair:
    """Return two agents, of whom the first may write to two persons."""
    bindings = [{"chat": f"relay.human.chat.{who}", "agent": pair.a, "start": "both"} for who in ("ann", "bob")]
    write_plugin(pair.relay.daemon.data_dir, "chat", "relay.human.chat.>", "bound", bindings=bindings)
    pair.relay.ask("adapters.reload")
    return pair


async def test_people_are_told_through_their_chats(known: Pair) -> None:
    async with known.agent(known.a) as a:
        assert (await a.ok("relay_list")).endswith("reaches: relay.human.chat.ann, relay.human.chat.bob")
        said = await a.ok("relay_notify_user", content="it burns")
        assert "relay.human.chat.ann: sent." in said
        assert "relay.human.chat.bob: Not delivered: " in said
        assert "the chat is closed" in said
