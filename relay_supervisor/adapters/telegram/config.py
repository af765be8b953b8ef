"""The config of a Telegram adapter.

1. No one can write to or be written to by the bot unless listed.
2. The token is a secret: given by reference, and in no error text.
3. Plain http would show the token to the network: it is only for a Bot API server on this machine.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from relay_core.adapters.secret import Secret
from relay_supervisor.adapters.platform import AbsolutePath, PlatformConfig

_TOKEN = re.compile(r"[0-9]{1,19}:[A-Za-z0-9_-]{10,200}")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

MIB = 1024 * 1024


class TelegramConfig(PlatformConfig):
    """The config of a Telegram adapter."""

    token: Secret
    """The bot's token from BotFather: ``env:NAME`` or ``file:PATH``."""
    api_base: str = "https://api.telegram.org"
    """URL of the Bot API; change it for your own Bot API server."""
    allow_users: frozenset[Annotated[int, Field(gt=0)]] = frozenset()
    """Ids of the people who may write to the bot, and be written to in private."""
    allow_chats: frozenset[Annotated[int, Field(lt=0)]] = frozenset()
    """Ids of the groups that may write and be written to; they are negative."""
    group_members: Literal["listed", "all"] = "listed"
    """Who may write in an allowed group: those in `allow_users`, or all its members."""
    group_messages: Literal["addressed", "all"] = "addressed"
    """Which messages of an allowed group are accepted: mentions of the bot and replies to it, or all."""
    answer_denied: bool = False
    """Whether a person who is not allowed is told so, with the id to list."""
    poll_timeout_secs: Annotated[int, Field(ge=1, le=50)] = 30
    """How long Telegram may hold a poll until there are updates."""
    request_timeout_secs: Annotated[float, Field(ge=1, le=60)] = 15
    """Time limit for any other call."""
    delete_webhook: bool = False
    """Remove a webhook of the bot at the start, so that polling works."""
    max_attachment_bytes: Annotated[int, Field(ge=0, le=20 * MIB)] = 10 * MIB
    """The largest file, incoming or outgoing; 0 disables files."""
    keep_attachments_days: Annotated[int, Field(ge=1, le=3650)] = 7
    """How long incoming files are kept; older ones are removed at the start."""
    attachment_dirs: tuple[AbsolutePath, ...] = ()
    """Directories from which agents may send files; none unless listed."""

    @field_validator("token")
    @classmethod
    def _check_token(cls, token: Secret) -> Secret:
        if not _TOKEN.fullmatch(token.reveal()):
            raise ValueError("not a bot token (123456:ABC-DEF...): copy it from BotFather, without spaces")
        return token

    @field_validator("api_base")
    @classmethod
    def _check_api_base(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise ValueError("must be a URL such as https://api.telegram.org") from None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError("must be a URL such as https://api.telegram.org, without user, query or fragment")
        if parts.scheme == "http" and host not in _LOOPBACK:
            raise ValueError("plain http would show the token to the network: use https, or a server on 127.0.0.1")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        if self.allow_chats and not self.allow_users and self.group_members == "listed":
            raise ValueError(
                "allowChats lists groups but allowUsers lists no one who may write in them: "
                'list users, or set groupMembers to "all"'
            )
        return self

    @property
    def bot_id(self) -> int:
        """Return the bot's id, the first part of its token."""
        return int(self.token.reveal().partition(":")[0])
