"""Bindings: which agent hears a chat, and who may write to a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from relay_core import AccessDenied, AccessRule, Binding, RelayConfig, RelayCore
from relay_core.messages.delivery import Status
from relay_core.testing import FakeClock
from tests.kit.adapters import SampleAdapter, accept, refuse
from tests.kit.waiting import until

CHAT, OTHER_CHAT = "relay.human.chat.c.1", "relay.human.chat.c.2"
AGENT, STRANGER = "relay.agent.backend", "relay.agent.stranger"

pytestmark = pytest.mark.bus(RelayConfig(durability="os"))


class ChatAdapter(SampleAdapter):
    """A platform whose subjects are people."""

    bound = True

    def __init__(self) -> None:
        super().__init__("c", patterns=["relay.human.chat.c.>"])
        self.senders = self.patterns

    async def hear(self, text: str, chat: str = CHAT) -> Any:
        """Bring in what a person wrote."""
        return await self.context.publish(chat, text, sender=chat, reply_to=chat)


@pytest.fixture
async def chat(relay: RelayCore) -> ChatAdapter:
    adapter = ChatAdapter()
    await relay.add_adapter(adapter)
    await relay.register_endpoint(AGENT)
    return adapter


def bind(relay: RelayCore, *bindings: dict[str, str]) -> None:
    relay.set_bindings([Binding.model_validate({"chat": CHAT, "agent": AGENT, **binding}) for binding in bindings])


async def test_what_a_person_writes_goes_to_the_bound_agent_and_the_answer_finds_the_chat(
    relay: RelayCore, chat: ChatAdapter
) -> None:
    bind(relay, {})
    result = await chat.hear("hello")
    (asked,) = await relay.inbox(AGENT)
    assert (asked.id, asked.subject, asked.sender, asked.reply_to) == (result.message_id, AGENT, CHAT, CHAT)
    assert asked.budget.ancestor_chain == (AGENT,)
    (span,) = await relay.trace(result.message_id)
    assert (span.subject, span.target_subject) == (CHAT, AGENT)
    assert asked.reply_to is not None
    await relay.publish(asked.reply_to, "well?", sender=AGENT, parent_id=asked.id)
    assert chat.got == ["well?"]


async def test_an_agent_that_listens_gets_it_under_its_own_subject(relay: RelayCore, chat: ChatAdapter) -> None:
    bind(relay, {})
    heard: list[tuple[str, str]] = []
    await relay.subscribe(AGENT, lambda envelope: heard.append((envelope.subject, envelope.sender)))
    await chat.hear("hello")
    await relay.idle()
    assert heard == [(AGENT, CHAT)]


async def test_without_a_binding_a_persons_message_is_kept_and_traced_and_a_replay_finds_one_made_since(
    relay: RelayCore, chat: ChatAdapter
) -> None:
    result = await chat.hear("anybody?")
    assert result.delivered_to == 0
    assert [span.status for span in await relay.trace(result.message_id)] == [Status.NO_SUBSCRIBER]
    bind(relay, {})
    plan = await relay.plan_replay(ids=[result.message_id])
    assert [item.verdict for item in plan.items] == ["will_deliver"]
    assert (await relay.run_replay(plan.id)).delivered == 1
    assert [mail.payload for mail in await relay.inbox(AGENT)] == ["anybody?"]


async def test_whoever_listens_to_the_chat_hears_it_as_well(relay: RelayCore, chat: ChatAdapter) -> None:
    bind(relay, {})
    heard: list[str] = []
    await relay.subscribe("relay.human.>", lambda envelope: heard.append(envelope.subject))
    assert (await chat.hear("hello")).delivered_to == 2
    await relay.idle()
    assert heard == [CHAT]


async def test_the_first_binding_that_takes_it_gets_it(relay: RelayCore, chat: ChatAdapter) -> None:
    other = "relay.agent.other"
    await relay.register_endpoint(other)
    bind(relay, {"chat": OTHER_CHAT}, {"agent": other, "chat": "relay.human.chat.>"}, {})
    await chat.hear("hello")
    assert [len(await relay.inbox(agent)) for agent in (other, AGENT)] == [1, 0]


async def test_what_an_agent_writes_to_a_chat_does_not_come_back_to_an_agent(
    relay: RelayCore, chat: ChatAdapter
) -> None:
    bind(relay, {"start": "both"})
    await relay.publish(CHAT, "hi", sender=AGENT)
    assert (chat.got, await relay.inbox(AGENT)) == (["hi"], [])


WRITING: list[Any] = [
    pytest.param([], AGENT, "is not bound to", id="no binding"),
    pytest.param([{"start": "both"}], STRANGER, "is not bound to", id="another agent's binding"),
    pytest.param([{"chat": OTHER_CHAT, "start": "both"}], AGENT, "is not bound to", id="another chat"),
    pytest.param([{"start": "chat"}], AGENT, "the chat has to write first", id="the chat begins"),
    pytest.param([{"start": "agent"}], AGENT, None, id="the agent begins"),
    pytest.param([{"start": "both"}], AGENT, None, id="both may"),
    pytest.param([], "relay.adapter.x", None, id="an adapter"),
    pytest.param([], "relay.system.bus", None, id="the bus"),
]


@pytest.mark.parametrize(("bindings", "sender", "problem"), WRITING)
async def test_an_agent_cannot_write_to_a_person_who_is_not_bound_to_it(
    bindings: list[dict[str, str]], sender: str, problem: str | None, relay: RelayCore, chat: ChatAdapter
) -> None:
    bind(relay, *bindings)
    if problem is None:
        await relay.publish(CHAT, "hi", sender=sender)
        assert chat.got == ["hi"]
        return
    with pytest.raises(AccessDenied, match=problem) as caught:
        await relay.publish(CHAT, "hi", sender=sender)
    assert caught.value.code == "not_bound"
    assert caught.value.message_id is not None
    assert [span.code for span in await relay.trace(caught.value.message_id)] == ["not_bound"]
    assert (chat.got, await relay.dead_letters()) == ([], [])


async def test_once_the_chat_has_written_the_agent_may_also_after_a_restart(data_dir: Path, clock: FakeClock) -> None:
    async def talk(relay: RelayCore, *, heard: bool) -> ChatAdapter:
        adapter = ChatAdapter()
        await relay.add_adapter(adapter)
        await relay.register_endpoint(AGENT)
        bind(relay, {})
        if heard:
            await adapter.hear("hello")
        return adapter

    async with RelayCore(data_dir, RelayConfig(durability="os"), clock) as relay:
        await talk(relay, heard=True)
    async with RelayCore(data_dir, RelayConfig(durability="os"), clock) as relay:
        adapter = await talk(relay, heard=False)
        await relay.publish(CHAT, "sorry, I was away", sender=AGENT)
        assert adapter.got == ["sorry, I was away"]
        with pytest.raises(AccessDenied):
            await relay.publish(OTHER_CHAT, "you too?", sender=AGENT)
    (data_dir / "conversations.json").write_text("{rubbish")
    async with RelayCore(data_dir, RelayConfig(durability="os"), clock) as relay:
        await talk(relay, heard=False)
        with pytest.raises(AccessDenied, match="has to write first"):
            await relay.publish(CHAT, "hi", sender=AGENT)


async def test_an_agent_that_begins_is_not_woken_before(relay: RelayCore, chat: ChatAdapter) -> None:
    bind(relay, {"start": "agent"})
    assert (await chat.hear("are you there?")).delivered_to == 0
    await relay.publish(CHAT, "the build is red", sender=AGENT)
    assert (await chat.hear("mend it")).delivered_to == 1
    assert [mail.payload for mail in await relay.inbox(AGENT)] == ["mend it"]


async def test_an_access_rule_can_keep_a_chat_from_its_agent(relay: RelayCore, chat: ChatAdapter) -> None:
    bind(relay, {})
    relay.bus.access.add_rule(AccessRule.model_validate({"from": CHAT, "to": AGENT, "action": "deny"}))
    with pytest.raises(AccessDenied):
        await chat.hear("hello")
    assert await relay.inbox(AGENT) == []


async def test_a_failure_notice_reaches_the_chat(relay: RelayCore, chat: ChatAdapter) -> None:
    bind(relay, {})

    def fail(envelope: Any) -> None:
        raise RuntimeError("out of ideas")

    await relay.subscribe(AGENT, fail)
    await chat.hear("help")
    await relay.idle()
    (notice,) = chat.got
    assert isinstance(notice, dict)
    assert notice["performative"] == "failure"


async def test_a_failure_is_no_way_to_write_to_just_anybody(relay: RelayCore, chat: ChatAdapter) -> None:
    bind(relay, {"start": "both"})
    for sender in (STRANGER, AGENT):
        result = await relay.publish(AGENT, "x", sender=sender, reply_to=CHAT)
        await relay.claim(AGENT)
        await relay.fail(AGENT, result.message_id, f"dear person, {sender} needs money")
    await until(lambda: bool(chat.got))
    await relay.idle()
    assert [notice["content"] for notice in chat.got] == [f"dear person, {AGENT} needs money"]  # type: ignore[index]


async def test_only_a_chats_own_adapter_speaks_for_it(relay: RelayCore, chat: ChatAdapter) -> None:
    bind(relay, {})
    other = SampleAdapter("other", ["relay.other"])
    await relay.add_adapter(other)
    with pytest.raises(AccessDenied, match="reserved for adapter c"):
        await other.context.publish(CHAT, "spoof", sender=CHAT)
    with pytest.raises(AccessDenied, match="is not bound"):
        await relay.publish(CHAT, "spoof", sender=CHAT)
    assert (chat.got, await relay.inbox(AGENT)) == ([], [])


async def test_an_adapter_that_takes_both_chat_and_agent_gets_it_once(relay: RelayCore, chat: ChatAdapter) -> None:
    bind(relay, {})
    archive = SampleAdapter("archive", ["relay.>"])
    await relay.add_adapter(archive)
    assert (await chat.hear("hello")).delivered_to == 2
    await relay.idle()
    assert (archive.got, len(await relay.inbox(AGENT)), await relay.dead_letters()) == (["hello"], 1, [])


async def test_a_replay_asks_the_bindings_again(relay: RelayCore, chat: ChatAdapter) -> None:
    bind(relay, {"start": "both"})
    chat.platform = refuse
    await relay.publish(CHAT, "one", sender=AGENT)
    await relay.register_endpoint("relay.late")
    await relay.unregister_endpoint("relay.late")
    other = await relay.publish("relay.late", "two", sender=AGENT)
    await relay.register_endpoint("relay.late")
    chat.platform = accept
    relay.set_bindings([])
    letters = await relay.dead_letters()
    plan = await relay.plan_replay(ids=[letter.message_id for letter in letters])
    assert sorted(item.verdict for item in plan.items) == ["denied", "will_deliver"]
    assert (await relay.run_replay(plan.id)).delivered == 1
    assert [mail.id for mail in await relay.inbox("relay.late")] == [other.message_id]


async def test_rules_may_allow_a_chat_its_agent_and_nothing_else(relay: RelayCore, chat: ChatAdapter) -> None:
    bind(relay, {})
    rules = [("relay.human.>", AGENT, "allow", 10), (">", ">", "deny", 0)]
    for sender, to, action, priority in rules:
        rule = {"from": sender, "to": to, "action": action, "priority": priority}
        relay.bus.access.add_rule(AccessRule.model_validate(rule))
    heard: list[str] = []
    await relay.subscribe("relay.human.>", lambda envelope: heard.append(envelope.subject))
    assert (await chat.hear("hello")).delivered_to == 1
    await relay.idle()
    assert (len(await relay.inbox(AGENT)), heard) == (1, [])


async def test_a_conversation_begins_with_a_message_that_passes(relay: RelayCore, chat: ChatAdapter) -> None:
    bind(relay, {"start": "agent"})
    refused = await relay.publish(CHAT, "hi", sender=AGENT, budget={"callBudgetRemaining": 0})
    assert refused.rejected is not None
    assert (await chat.hear("who is it?")).delivered_to == 0


async def test_reading_the_operators_files_again_forgets_no_conversation(
    relay: RelayCore, chat: ChatAdapter, data_dir: Path
) -> None:
    bind(relay, {})
    await chat.hear("hello")
    (data_dir / "conversations.json").unlink()
    relay.bus.reload()
    await relay.publish(CHAT, "still here", sender=AGENT)
    assert chat.got == ["still here"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"chat": "relay..x"},
        {"agent": "relay.agent.*"},
        {"start": "nobody"},
        {"chats": "relay.x"},
    ],
)
def test_a_bad_binding_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Binding.model_validate({"chat": CHAT, "agent": AGENT, **wrong})
