from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from relay_core.rules.bindings import Binding
from tests.kit.servers.telegram import USERNAME, BotServer
from tests.kit.waiting import until
from tests.supervisor.adapters.telegram.conftest import ADA, AGENT, CHAT, GROUP, ROOM, FastClock, bridge


async def test_a_message_reaches_the_bound_agent_in_the_standard_shape(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir) as here:
        update = server.send(ADA, "hello\x00 there\x1b[31m", user_id=ADA)
        [envelope] = await here.mail(1)
        assert (envelope.sender, envelope.reply_to) == (CHAT, CHAT)
        assert envelope.payload == {
            "content": "hello there[31m",
            "senderName": "Ada L",
            "channelName": "Ada L",
            "channelType": "dm",
            "conversationId": str(ADA),
            "correlationId": f"telegram-{ADA}-1",
            "responseContext": {"platform": "telegram", "maxLength": 4000, "supportedFormats": ["markdown"]},
            "platformData": {
                "updateId": update,
                "messageId": 1,
                "userId": ADA,
                "chatId": ADA,
                "username": "ada",
            },
        }


async def test_an_answer_is_a_reply_to_the_message_it_answers(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir) as here:
        server.send(ADA, "first")
        server.send(ADA, "second")
        first, _ = await here.mail(2)
        result = await here.relay.publish(CHAT, {"content": "**yes**"}, sender=AGENT, parent_id=first.id)
        assert result.delivered_to == 1
        await server.wait_sent(1)
        assert server.sent[0]["raw"] == "<b>yes</b>"
        assert server.sent[0]["reply_to"] == 1


async def test_an_answer_finds_its_message_by_the_correlation_id_alone(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir) as here:
        server.send(ADA, "first")
        [asked] = await here.mail(1)
    async with bridge(server, data_dir) as here:  # everything else has been forgotten
        await here.answer("late", correlationId=asked.payload["correlationId"])
        await server.wait_sent(1)
        assert server.sent[0]["reply_to"] == 1


async def test_a_group_has_its_own_subject_and_hears_what_is_addressed_to_it(server: BotServer, data_dir: Path) -> None:
    mention = f"@{USERNAME}"
    entity = [{"type": "mention", "offset": 3, "length": len(mention)}]
    async with bridge(server, data_dir) as here:
        server.send(GROUP, "not for the bot", user_id=ADA)
        server.send(GROUP, f"\U0001f600 {mention} hi", user_id=ADA, entities=entity)
        server.send(GROUP, "an answer", user_id=ADA, reply_to_message={"message_id": 1, "from": {"id": 4242}})
        mail = await here.mail(2)
        assert [envelope.payload["content"] for envelope in mail] == [f"\U0001f600 {mention} hi", "an answer"]
        assert mail[0].sender == ROOM
        assert mail[0].payload["channelType"] == "group"
        assert mail[0].payload["channelName"] == "Engineers"
        await here.answer("hi all", ROOM)
        await server.wait_sent(1)
        assert server.sent[0]["chat_id"] == GROUP


PERSON = {"id": ADA, "is_bot": False, "first_name": "A"}


@pytest.mark.parametrize(
    ("chat", "user", "more"),
    [
        pytest.param(8, 8, {}, id="a person who is not listed"),
        pytest.param(-100999, ADA, {}, id="a group that is not listed"),
        pytest.param(GROUP, 8, {}, id="a person who is not listed in a listed group"),
        pytest.param(ADA, ADA, {"from": {**PERSON, "is_bot": True}}, id="a bot"),
        pytest.param(ADA, ADA, {"from": {"id": ADA}}, id="who does not say whether it is a bot"),
        pytest.param(GROUP, ADA, {"sender_chat": {"id": GROUP}}, id="an anonymous admin"),
        pytest.param(ADA, ADA, {"chat": {"id": ADA, "type": "channel"}}, id="a channel"),
        pytest.param(ADA, ADA, {"text": None, "new_chat_members": []}, id="nothing that was said"),
        pytest.param(ADA, ADA, {"chat": {"id": "7", "type": "private"}}, id="a chat that is no number"),
        pytest.param(ADA, ADA, {"message_id": "x"}, id="a message that has no number"),
    ],
)
async def test_what_is_not_heard(server: BotServer, data_dir: Path, chat: int, user: int, more: dict[str, Any]) -> None:
    async with bridge(server, data_dir, groupMessages="all") as here:
        server.send(chat, user_id=user, **{"text": "listen to me", **more})
        server.update(callback_query={"id": "1"})
        server.send(ADA, "heard")
        [only] = await here.mail(1)
        assert only.payload["content"] == "heard"
        await until(lambda: server.unconfirmed == [])
        assert server.sent == []


async def test_who_is_denied_can_be_told_once_a_minute(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, answerDenied=True) as here:
        server.send(8, "let me in")
        server.send(8, "let me in!")
        server.send(ADA, "heard")
        await here.mail(1)
        await server.wait_sent(1)
        await until(lambda: server.unconfirmed == [])
        [told] = server.sent
        assert told["chat_id"] == 8
        assert "Your user id is 8" in told["text"]


async def test_an_agent_that_is_not_bound_cannot_write_to_a_person(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir) as here:
        here.relay.set_bindings([Binding(chat=CHAT, agent="relay.agent.other", start="both")])
        with pytest.raises(Exception, match="not bound"):
            await here.answer("spam")
        assert server.sent == []


async def test_a_chat_that_is_not_allowed_is_not_written_to(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir) as here:
        await here.answer("spam", "relay.human.telegram.tg.8")
        await here.relay.idle()
        [letter] = await here.relay.dead_letters()
        assert "allowUsers" in letter.reason
        assert server.sent == []


async def test_edits_come_as_messages_of_their_own(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir) as here:
        server.send(ADA, "tpyo")
        server.update(
            edited_message={
                "message_id": 1,
                "chat": {"id": ADA, "type": "private"},
                "from": PERSON,
                "text": "typo",
            }
        )
        mail = await here.mail(2)
        assert [envelope.payload["content"] for envelope in mail] == ["tpyo", "typo"]
        assert mail[1].payload["platformData"]["edited"] is True


async def test_a_place_that_moves_is_said_once(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir) as here:
        place = {"message_id": 1, "chat": {"id": ADA, "type": "private"}, "from": PERSON, "location": {"latitude": 1}}
        server.update(message=place)
        for _ in range(5):
            server.update(edited_message=place)
        server.send(ADA, "there")
        assert [envelope.payload["content"] for envelope in await here.mail(2)] == ["[location]", "there"]


async def test_an_answer_to_the_older_of_two_open_questions_is_a_reply_to_that(
    server: BotServer, data_dir: Path
) -> None:
    async with bridge(server, data_dir, FastClock()) as here:
        server.send(ADA, "first")
        server.send(ADA, "second")
        first, second = await here.mail(2)
        await here.answer("to the second", correlationId=second.payload["correlationId"])
        await here.answer("to the first", correlationId=first.payload["correlationId"])
        await server.wait_sent(2)
        assert [(message["text"], message["reply_to"]) for message in server.sent] == [
            ("to the second", 2),
            ("to the first", 1),
        ]


async def test_a_long_answer_comes_in_parts_in_order_of_which_the_first_is_the_reply(
    server: BotServer, data_dir: Path
) -> None:
    text = "\n".join(f"line {number} of a long answer" for number in range(500))
    async with bridge(server, data_dir, FastClock()) as here:
        server.send(ADA, "tell me")
        [asked] = await here.mail(1)
        await here.answer(text, correlationId=asked.payload["correlationId"])
        await here.relay.idle()
        assert len(server.sent) > 2
        assert [message["reply_to"] for message in server.sent] == [1] + [None] * (len(server.sent) - 1)
        assert "\n".join(message["text"] for message in server.sent) == text
        assert here.state().delivered == 1


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("word " * 50_000, id="too many characters"),
        pytest.param(f"{'x' * 2500}\n" * 30, id="too many parts"),
    ],
)
async def test_a_very_long_answer_comes_as_a_file(server: BotServer, data_dir: Path, text: str) -> None:
    async with bridge(server, data_dir) as here:
        await here.answer(text)
        await here.relay.idle()
        [sent] = server.sent
        assert sent["document"]["name"] == "message.md"
        assert sent["document"]["data"].decode() == text


async def test_a_fence_alone_is_no_message(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, FastClock()) as here:
        await here.answer("```py\n" + "x" * 3986 + "\n   ````````\n")
        await here.relay.idle()
        [sent] = server.sent
        assert sent["text"] == "x" * 3986


async def test_html_that_telegram_does_not_parse_goes_as_plain_text(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, FastClock()) as here:
        server.misbehave("unparsed", times=1)
        await here.answer("**bold**")
        await here.relay.idle()
        [sent] = server.sent
        assert (sent["raw"], sent["parse_mode"]) == ("**bold**", None)


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        pytest.param("just text", "just text", id="text"),
        pytest.param({"answer": 42}, '{\n  "answer": 42\n}', id="any JSON"),
        pytest.param({"content": "it broke", "performative": "failure"}, "⚠️ it broke", id="a failure"),
    ],
)
async def test_whatever_an_agent_sends_is_shown(server: BotServer, data_dir: Path, payload: Any, shown: str) -> None:
    async with bridge(server, data_dir) as here:
        await here.relay.publish(CHAT, payload, sender=AGENT)
        await here.relay.idle()
        assert server.sent[0]["text"] == shown


async def test_an_empty_message_is_a_failure(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir) as here:
        await here.answer(" \n")
        await here.relay.idle()
        [letter] = await here.relay.dead_letters()
        assert "(empty)" in letter.reason


async def test_a_group_can_be_opened_to_all_its_members_and_messages(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, allowUsers=[], groupMembers="all", groupMessages="all") as here:
        server.send(GROUP, "by anybody", user_id=99)
        [only] = await here.mail(1)
        assert only.payload["platformData"]["userId"] == 99


async def test_a_chat_waits_for_no_other(server: BotServer, data_dir: Path) -> None:
    async with bridge(server, data_dir, allowUsers=[ADA, 9]) as here:
        server.misbehave("late", times=1)
        first = asyncio.gather(here.answer("held up"))
        await server.wait_for(lambda: "sendMessage" in [name for name, _ in server.calls])
        assert (await here.answer("at once", "relay.human.telegram.tg.9")).delivered_to == 1
        server.behave()
        await first
        assert [message["text"] for message in server.sent] == ["at once", "held up"]
