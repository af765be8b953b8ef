"""What a call of the Bot API can end with; every text is fit for an operator, and shows no token.

::

    TelegramError
    ├── NotSent         nobody could be reached: the call has had no effect, and may be made again
    ├── Unclear         the connection or the answer broke: the call may have had its effect, and is not made again
    ├── TooLarge        a file has more bytes than allowed
    └── Refused         Telegram answered no: no effect
        ├── BadToken    401, 404: the token is not, or no longer, valid
        ├── Conflict    409: somebody else gets the updates
        ├── TooMany     429: with the seconds to wait
        ├── Unparsed    400: the HTML is not to Telegram's liking
        ├── Migrated    400: the group has another id now
        └── Unreachable 400, 403: the chat is gone, or does not want us

`explain` says what such an error means for the adapter's status.
"""

from __future__ import annotations

from relay_core.operations import StateName


class TelegramError(Exception):
    """A call did not succeed; its text is fit for an operator."""

    code = "telegram"


class NotSent(TelegramError):
    """Nobody could be reached."""

    code = "unreachable"


class Unclear(TelegramError):
    """Nobody knows whether the call had its effect."""

    code = "unclear"


class Refused(TelegramError):
    """Telegram said no."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class BadToken(Refused):
    """The token is not valid."""


class Conflict(Refused):
    """Somebody else gets the updates."""


class TooMany(Refused):
    """Too many calls."""

    def __init__(self, text: str, code: str, retry_after: float) -> None:
        super().__init__(text, code)
        self.retry_after = retry_after


class Unparsed(Refused):
    """The HTML could not be parsed."""


class Migrated(Refused):
    """The group has become a supergroup, with another id."""

    def __init__(self, text: str, code: str, chat: int) -> None:
        super().__init__(text, code)
        self.chat = chat


class Unreachable(Refused):
    """The chat is gone, or does not want us."""


class TooLarge(TelegramError):
    """A file is larger than allowed."""

    code = "too_large"


def explain(error: TelegramError) -> tuple[StateName, str]:
    """Return what an error means for the adapter, with the remedy."""
    match error:
        case BadToken():
            return "error", (
                f"Telegram does not know the token ({error.code}): it was revoked or mistyped; "
                "get one from @BotFather (/token) and change the secret that 'token' refers to"
            )
        case Conflict() if "webhook" in str(error).lower():
            return "error", (
                "a webhook is set for this bot (409), so it cannot be polled: "
                'set "deleteWebhook": true in this adapter\'s config, or remove the webhook where it was set'
            )
        case Conflict():
            return "error", (
                "another program polls with this bot's token (409): stop it, or give it a bot of its own "
                "(@BotFather, /newbot); this adapter goes on by itself then"
            )
        case _:
            return "disconnected", f"{error}; it is tried again by itself"
