"""Publishes updates on the bus.

1. Sender, subject and `reply_to` are the chat's subject: the bus routes it to the agent that is bound to the chat, and
   the answer returns to the chat.
2. The dedupe id consists of the bot and the update, so an update is published once. The correlation id names the
   Telegram message: an answer that carries it becomes a reply to that message, even after restarts.
3. Messages of people who are not allowed are ignored. The others are told of every message that the bus refused, with
   the reason; that no agent answers the chat, once a minute.
4. A storage error, or a closing bus, is raised: the update is not done, and is retried. Any other refusal is final: a
   retry would change nothing.
5. An edit is published if it has a text: a live location is edited every few seconds without one.
"""

from __future__ import annotations

import re
from typing import Any

from relay_core.adapters.interface import AdapterContext
from relay_core.errors import AccessDenied, InvalidPayload, InvalidSubject
from relay_core.messages.payload import ChannelType, ResponseContext, StandardPayload
from relay_core.messages.results import PublishResult, Reason
from relay_supervisor.adapters.telegram.api import Api, OutcomeUnknown
from relay_supervisor.adapters.telegram.attachments import Attachments, content_of
from relay_supervisor.adapters.telegram.bot import Bot
from relay_supervisor.adapters.telegram.chats import Chat, is_addressed, may_speak, read_chat, subject_of
from relay_supervisor.adapters.telegram.config import TelegramConfig
from relay_supervisor.adapters.telegram.notices import Notices, OncePerMinute
from relay_supervisor.adapters.telegram.splitting import LIMIT

UPDATE_KINDS = ("message", "edited_message")
NO_AGENT = "No agent answers this chat at the moment."
PUT_OFF = {
    Reason.RATE_LIMITED: "This message was not passed on: too many came in a short time. Please send it again later.",
    Reason.BACKPRESSURE: "This message was not passed on: the agent has too many waiting. Please send it again later.",
    Reason.CIRCUIT_OPEN: "This message was not passed on: the agent takes none right now. Please send it again later.",
}
UNUSABLE = "This message could not be passed on."

_CORRELATION = re.compile(r"telegram-(-?[0-9]{1,18})-([0-9]{1,18})")
_CONTEXT = ResponseContext(platform="telegram", max_length=LIMIT, supported_formats=("markdown",))


def correlation_of(chat: int, message: int) -> str:
    """Return the correlation id of a Telegram message."""
    return f"telegram-{chat}-{message}"


def message_of(correlation: Any, chat: int) -> int | None:
    """Return the Telegram message of a chat that a correlation id names, if any."""
    found = _CORRELATION.fullmatch(correlation) if isinstance(correlation, str) else None
    return int(found[2]) if found and int(found[1]) == chat else None


class Inbound:
    """Publish people's messages."""

    def __init__(
        self,
        adapter_id: str,
        config: TelegramConfig,
        context: AdapterContext,
        api: Api,
        bot: Bot,
        attachments: Attachments,
        notices: Notices,
    ) -> None:
        self.username: str | None = None
        """The bot's name, once known."""
        self._id = adapter_id
        self._config = config
        self._context = context
        self._api = api
        self._bot = bot
        self._attachments = attachments
        self._notices = notices
        self._denied = OncePerMinute(context.clock)
        self._identified = False

    async def identify(self) -> None:
        """Ask Telegram for the bot's name, once; raises TelegramError."""
        if self._identified:
            return
        me = await self._api.call("getMe")
        if not isinstance(me, dict):
            raise OutcomeUnknown("Telegram's response to getMe is not a bot")
        username = me.get("username")
        self.username = username if isinstance(username, str) else None
        if self._config.delete_webhook:
            await self._api.call("deleteWebhook")
        self._identified = True

    async def publish(self, update: dict[str, Any]) -> None:
        """Publish an update if its sender is allowed.

        Raises:
            StorageError, Closed: if it must be retried.
        """
        message, chat, number = _read(update)
        if chat is None or number is None:
            return
        if not may_speak(self._config, chat):
            self._deny(chat, number)
            return
        edited = "message" not in update
        if edited and not content_of(message, []):
            return
        if type(moved := message.get("migrate_to_chat_id")) is int:
            self._context.logger.warning(
                "group %s has become %s: add the new id to allowChats, and bind %s",
                chat.id,
                moved,
                subject_of(self._id, moved),
            )
            return
        if not self._is_wanted(chat, message):
            return
        payload = await self._make_payload(chat, message, update["update_id"], edited=edited)
        if payload is None:
            return
        subject = subject_of(self._id, chat.id)
        self._bot.publishing.add((chat.id, number))
        try:
            result = await self._context.publish(
                subject,
                payload,
                sender=subject,
                reply_to=subject,
                dedupe_id=f"telegram-{self._config.bot_id}-{update['update_id']}",
            )
        except AccessDenied:
            self._notices.send_once(chat.id, number, NO_AGENT)
        except (InvalidPayload, InvalidSubject) as error:
            self._context.logger.error("update %s is not published: %s", update["update_id"], error.code)
            self._notices.send(chat.id, number, UNUSABLE)
        else:
            self._bot.remember(result.message_id, chat.id, number)
            match _notice(result):
                case text, True:
                    self._notices.send(chat.id, number, text)
                case text, False:
                    self._notices.send_once(chat.id, number, text)
        finally:
            self._bot.publishing.discard((chat.id, number))

    def give_up(self, update: dict[str, Any]) -> None:
        """Tell a person that an update cannot be handled."""
        try:
            message, chat, number = _read(update)
            if chat is not None and number is not None and may_speak(self._config, chat):
                if self._is_wanted(chat, message):
                    self._notices.send(chat.id, number, UNUSABLE)
        except Exception as error:
            self._context.logger.error("the sender of an update cannot be notified: %s", type(error).__name__)

    def _is_wanted(self, chat: Chat, message: dict[str, Any]) -> bool:
        everything = self._config.group_messages == "all" or not chat.is_group
        return everything or is_addressed(message, self._config.bot_id, self.username)

    def _deny(self, chat: Chat, number: int) -> None:
        if not self._denied.note((chat.id, chat.user)):
            return
        where = f"group {chat.id}" if chat.is_group else "a private chat"
        self._context.logger.info("ignored: user %s in %s is not on the allow-list", chat.user, where)
        if self._config.answer_denied and not chat.is_group:
            self._notices.send(chat.id, number, f"You are not on this bot's list. Your user id is {chat.user}.")

    async def _make_payload(
        self, chat: Chat, message: dict[str, Any], update: int, *, edited: bool
    ) -> StandardPayload | None:
        fetched = await self._attachments.fetch(message, update)
        content = content_of(message, fetched.notes)
        if not content and not fetched.files:
            return None  # a service message: someone joined, left, pinned
        replied = message.get("reply_to_message")
        number = replied.get("message_id") if isinstance(replied, dict) else None
        platform: dict[str, Any] = {
            "updateId": update,
            "messageId": message["message_id"],
            "userId": chat.user,
            "chatId": chat.id,
            "username": chat.username,
            "replyToMessageId": number if type(number) is int else None,
            "edited": edited or None,
        }
        return StandardPayload(
            content=content,
            sender_name=chat.name,
            channel_name=chat.title if chat.is_group else chat.name,
            channel_type=ChannelType.GROUP if chat.is_group else ChannelType.DM,
            attachments=tuple(fetched.files) or None,
            response_context=_CONTEXT,
            conversation_id=str(chat.id),
            correlation_id=correlation_of(chat.id, message["message_id"]),
            platform_data={name: value for name, value in platform.items() if value is not None},
        )


def _read(update: dict[str, Any]) -> tuple[dict[str, Any], Chat | None, int | None]:
    """Return the message of an update, its chat, and its number in the chat."""
    message: dict[str, Any] = next((update[kind] for kind in UPDATE_KINDS if isinstance(update.get(kind), dict)), {})
    number = message.get("message_id")
    return message, read_chat(message), number if type(number) is int else None


def _notice(result: PublishResult) -> tuple[str, bool] | None:
    """Return the notice for a message that was not delivered, and whether to send it for each message."""
    if result.delivered_to > 0:
        return None
    for reason, text in PUT_OFF.items():
        if reason in result.put_off:
            return text, True
    if result.rejected:
        return UNUSABLE, True
    if result.adapter_results:
        return None  # the agent still has it, or failed, of which the bus notifies
    return NO_AGENT, False
