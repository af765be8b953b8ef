"""What adapters.json says of a Telegram adapter.

1. Nobody is heard and nobody is written to unless a list names them.
2. The token is a secret: written as a reference, and of no text that this module makes.
3. Plain http would show the token to the network: it is for a Bot API server on this machine only.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from relay_core.adapters.secret import Secret
from relay_core.messages.base import WireModel

_TOKEN = re.compile(r"[0-9]{1,19}:[A-Za-z0-9_-]{10,200}")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

MIB = 1024 * 1024


class TelegramConfig(WireModel):
    """The config of a Telegram adapter."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    token: Secret
    """The bot's token, as BotFather gave it: ``env:NAME`` or ``file:PATH``."""
    api_base: str = "https://api.telegram.org"
    """Where the Bot API is; another one for a Bot API server of your own."""
    allow_users: frozenset[Annotated[int, Field(gt=0)]] = frozenset()
    """Ids of the people who are heard, and who can be written to in private."""
    allow_chats: frozenset[Annotated[int, Field(lt=0)]] = frozenset()
    """Ids of the groups that are heard and can be written to; they are negative."""
    group_members: Literal["listed", "all"] = "listed"
    """Who is heard in an allowed group: those of `allow_users`, or everyone in it."""
    group_messages: Literal["addressed", "all"] = "addressed"
    """What is heard in an allowed group: mentions of the bot and replies to it, or everything."""
    answer_denied: bool = False
    """Whether a person who is not allowed is told so, with the id that would have to be listed."""
    poll_timeout_secs: Annotated[int, Field(ge=1, le=50)] = 30
    """How long Telegram may hold a question for updates until there are some."""
    request_timeout_secs: Annotated[float, Field(ge=1, le=60)] = 15
    """How long any other call may take."""
    delete_webhook: bool = False
    """Whether a webhook that is set for the bot is removed at the start, so that polling works."""
    max_attachment_bytes: Annotated[int, Field(ge=0, le=20 * MIB)] = 10 * MIB
    """The largest file that is taken in or sent out; 0 takes none."""
    keep_attachments_days: Annotated[int, Field(ge=1, le=3650)] = 7
    """How long files that came in are kept; older ones are removed at the start."""
    attachment_dirs: tuple[Path, ...] = ()
    """Directories from which agents may send files; none unless listed."""

    @field_validator("token")
    @classmethod
    def _token_is_one(cls, token: Secret) -> Secret:
        if not _TOKEN.fullmatch(token.reveal()):
            raise ValueError("this is no bot token (123456:ABC-DEF...): copy it from BotFather, without spaces")
        return token

    @field_validator("api_base")
    @classmethod
    def _api_base_is_safe(cls, url: str) -> str:
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

    @field_validator("attachment_dirs")
    @classmethod
    def _directories_are_absolute(cls, directories: tuple[Path, ...]) -> tuple[Path, ...]:
        for directory in directories:
            if not directory.is_absolute():
                raise ValueError("must be absolute paths: what is relative would depend on where the supervisor starts")
        return directories

    @model_validator(mode="after")
    def _someone_is_listed(self) -> Self:
        if self.allow_chats and not self.allow_users and self.group_members == "listed":
            raise ValueError(
                "allowChats lists groups but allowUsers nobody who is heard in them: "
                'list users, or set groupMembers to "all"'
            )
        return self

    @property
    def bot_id(self) -> int:
        """Return the bot's own id, which its token begins with."""
        return int(self.token.reveal().partition(":")[0])
