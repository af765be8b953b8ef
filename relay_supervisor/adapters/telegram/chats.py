"""Rules about chats, pure: who may write, the subject of a chat, clean text.

1. A private chat is ``relay.human.telegram.{adapter}.{chat}``; a group, whose id is negative,
   ``relay.human.telegram.{adapter}.group.{chat}``. Nothing else is a chat's subject.
2. Everything is denied by default. In private, the person must be listed. In a group, the group must be, and the person
   too unless the config opens it to all members.
3. Messages of bots, channels and anonymous admins are ignored.
4. A clean text has no control characters except line ends and tabs, no unpaired surrogates, and no bidirectional
   controls, which can make a text look like another one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from relay_supervisor.adapters.telegram.config import TelegramConfig

GROUP_KINDS = frozenset({"group", "supergroup"})

_CHAT = re.compile(r"-?[1-9][0-9]{0,17}")
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat, and the person who wrote."""

    id: int
    user: int
    is_group: bool
    name: str
    title: str | None
    username: str | None


def prefix(adapter_id: str) -> str:
    """Return the prefix of the subjects of an adapter's chats."""
    return f"relay.human.telegram.{adapter_id}"


def subject_of(adapter_id: str, chat: int) -> str:
    """Return the subject of a chat."""
    return f"{prefix(adapter_id)}.group.{chat}" if chat < 0 else f"{prefix(adapter_id)}.{chat}"


def chat_of(adapter_id: str, subject: str) -> int | None:
    """Return the chat of a subject, if it is a chat's."""
    token = subject.rpartition(".")[2]
    if _CHAT.fullmatch(token) and subject_of(adapter_id, int(token)) == subject:
        return int(token)
    return None


def may_write(config: TelegramConfig, chat: int) -> bool:
    """Return True if a chat may be written to."""
    return chat in (config.allow_chats if chat < 0 else config.allow_users)


def may_speak(config: TelegramConfig, chat: Chat) -> bool:
    """Return True if a person's messages in a chat are accepted."""
    if chat.is_group:
        return chat.id in config.allow_chats and (config.group_members == "all" or chat.user in config.allow_users)
    return chat.user in config.allow_users


def read_chat(message: dict[str, Any]) -> Chat | None:
    """Return the chat and author of a message; None if it is not a person's in a private chat or group."""
    place, person = message.get("chat"), message.get("from")
    if not isinstance(place, dict) or not isinstance(person, dict) or person.get("is_bot") is not False:
        return None
    chat, user, kind = place.get("id"), person.get("id"), place.get("type")
    if type(chat) is not int or type(user) is not int or not _CHAT.fullmatch(str(chat)) or "sender_chat" in message:
        return None
    if (kind == "private") != (chat > 0) or (chat < 0 and kind not in GROUP_KINDS):
        return None
    parts = [clean_name(person.get(part)) for part in ("first_name", "last_name")]
    username = clean_name(person.get("username")) or None
    name = " ".join(part for part in parts if part) or username or str(user)
    return Chat(chat, user, chat < 0, name, clean_name(place.get("title")) or None, username)


def is_addressed(message: dict[str, Any], bot: int, username: str | None) -> bool:
    """Return True if a group message is for the bot: a reply to it, a mention, or a command with its name."""
    replied = message.get("reply_to_message")
    if isinstance(replied, dict) and isinstance(replied.get("from"), dict) and replied["from"].get("id") == bot:
        return True
    for text, entities in (("text", "entities"), ("caption", "caption_entities")):
        if _mentions(message.get(text), message.get(entities), bot, username):
            return True
    return False


def _mentions(text: Any, entities: Any, bot: int, username: str | None) -> bool:
    if not isinstance(text, str) or not isinstance(entities, list):
        return False
    units = text.encode("utf-16-le", "surrogatepass")  # the unit of Telegram's offsets
    for entity in entities:
        if not isinstance(entity, dict):
            continue
        match entity:
            case {"type": "text_mention", "user": {"id": id}} if id == bot:
                return True
            case {"type": "mention" | "bot_command", "offset": int(at), "length": int(length)} if username:
                mention = units[2 * at : 2 * (at + length)].decode("utf-16-le", "replace")
                if mention.rpartition("@")[2].lower() == username.lower() and "@" in mention:
                    return True
    return False


def clean(text: Any) -> str:
    """Return a text without unwanted characters; empty if it is not a text."""
    if not isinstance(text, str):
        return ""
    return _UNWANTED.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def clean_name(text: Any) -> str:
    """Return a name on one line, of limited length."""
    return " ".join(clean(text).split())[:_LONGEST_NAME]
