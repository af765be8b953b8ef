"""One call of the Bot API, which returns its result or raises a `TelegramError`.

::

    TelegramError
    ├── NotSent              no connection: the call had no effect and may be repeated
    ├── OutcomeUnknown       the connection or the response broke: the call may have had its effect, so no repeat
    ├── TooLarge             a file has more bytes than allowed
    └── Rejected             Telegram refused the call: no effect
        ├── BadToken         401, 404: the token is not, or no longer, valid
        ├── Conflict         409: another program receives the updates
        ├── RateLimited      429: with the seconds to wait
        ├── BadMarkup        400: the HTML cannot be parsed
        ├── GroupMigrated    400: the group has a new id
        └── ChatUnreachable  400, 403: the chat is gone, or has blocked the bot

Every error text is fit for an operator and contains no token. `explain` maps an error to the adapter's status.

1. The token is part of every URL, and aiohttp puts URLs into its errors. No error of aiohttp leaves this module, not
   even as a cause.
2. The outcome of a 5xx is unknown: Telegram may have acted before it failed.
3. Responses are read up to a limit. The outcome of one that is not a JSON object of the Bot API is unknown too.
4. The total time of a call is limited, even if the server keeps sending a byte now and then. Connecting has a part of
   it, which tells an unreachable network from a missing response.
5. No response can make the adapter wait for longer than an hour.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from io import BytesIO
from typing import Any, Self
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, FormData
from yarl import URL

from relay_core.adapters.secret import Secret
from relay_core.messages.operator_views import StateName
from relay_supervisor.http.client import NOT_SENT, connect_within, open_session, trust

MAX_RESPONSE_BYTES = 16 * 1024 * 1024
FILE_SECS = 60.0
"""Time limit for a file, up or down."""
MAX_WAIT_SECS = 3600.0
_DEFAULT_WAIT_SECS = 1.0
_MAX_REASON = 300
_MAX_CONNECTIONS = 100
_KEEP_ALIVE_SECS = 4
"""Shorter than a server keeps an idle connection: the outcome of a POST on a closing one would be unknown."""


class TelegramError(Exception):
    """A call did not succeed; the message is fit for an operator."""

    code = "telegram"


class NotSent(TelegramError):
    """Telegram could not be reached."""

    code = "unreachable"


class OutcomeUnknown(TelegramError):
    """The call may or may not have had its effect."""

    code = "unclear"


class Rejected(TelegramError):
    """Telegram refused the call."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class BadToken(Rejected):
    """The token is not valid."""


class Conflict(Rejected):
    """Another program receives the updates."""


class RateLimited(Rejected):
    """Too many calls."""

    def __init__(self, text: str, code: str, retry_after: float) -> None:
        super().__init__(text, code)
        self.retry_after = retry_after


class BadMarkup(Rejected):
    """The HTML could not be parsed."""


class GroupMigrated(Rejected):
    """The group has become a supergroup, with another id."""

    def __init__(self, text: str, code: str, chat: int) -> None:
        super().__init__(text, code)
        self.chat = chat


class ChatUnreachable(Rejected):
    """The chat is gone, or has blocked the bot."""


class TooLarge(TelegramError):
    """A file is larger than allowed."""

    code = "too_large"


def explain(error: TelegramError) -> tuple[StateName, str]:
    """Return the adapter's state after an error, and the remedy."""
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
                "another program polls with this bot's token (409): stop it, or create another bot for it "
                "(@BotFather, /newbot); this adapter then resumes by itself"
            )
        case _:
            return "disconnected", f"{error}; retrying"


class Api:
    """The Bot API of one bot, as an async context manager."""

    def __init__(self, token: Secret, base: str, *, timeout: float) -> None:
        self._token = token
        self._base = base
        self._timeout = timeout
        self._session: ClientSession

    async def __aenter__(self) -> Self:
        tls = await asyncio.to_thread(trust, os.environ.get("SSL_CERT_FILE"))
        self._session = open_session(tls, keep_alive_secs=_KEEP_ALIVE_SECS, max_connections=_MAX_CONNECTIONS)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(
        self,
        method: str,
        *,
        within: float | None = None,
        document: tuple[str, bytes, str] | None = None,
        **params: Any,
    ) -> Any:
        """Call a method and return its result; parameters that are None are left out.

        Raises:
            TelegramError: one of its subclasses.
        """
        params = {name: value for name, value in params.items() if value is not None}
        limit = self._timeout if within is None else within
        body: dict[str, Any] = {"json": params} if document is None else {"data": _form(params, document)}
        try:
            status, response = await self._request(
                "POST", f"bot{self._token.reveal()}/{method}", MAX_RESPONSE_BYTES, limit, method, **body
            )
        except TooLarge:
            raise OutcomeUnknown(f"the response to {method} is too long to be the Bot API's") from None
        return _read_response(method, status, response)

    async def download(self, file_path: str, limit: int) -> bytes:
        """Return the bytes of a file that `getFile` named; raises TooLarge as soon as it exceeds the limit."""
        path = f"file/bot{self._token.reveal()}/{quote(file_path)}"
        status, body = await self._request("GET", path, limit, FILE_SECS, "the download of a file")
        if status != 200:
            raise Rejected(f"Telegram refused the download of a file (HTTP {status})", str(status))
        return body

    async def _request(
        self, verb: str, path: str, max_bytes: int, seconds: float, what: str, **body: Any
    ) -> tuple[int, bytes]:
        problem: TelegramError
        if self._session.closed:
            raise NotSent("the adapter has been stopped")
        url = URL(f"{self._base}/{path}", encoded=True)
        timeout = connect_within(min(seconds / 4, 10.0))
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(verb, url, allow_redirects=False, timeout=timeout, **body) as response,
            ):
                content = bytearray()
                async for chunk in response.content.iter_any():
                    content += chunk
                    if len(content) > max_bytes:
                        raise TooLarge(f"{what}: more than {max_bytes} bytes")
                return response.status, bytes(content)
        except NOT_SENT as error:
            problem = NotSent(f"Telegram cannot be reached ({type(error).__name__})")
        except TimeoutError:
            problem = OutcomeUnknown(f"Telegram did not respond to {what} in time")
        except ClientError as error:
            problem = OutcomeUnknown(f"the connection to Telegram broke during {what} ({type(error).__name__})")
        raise problem  # outside the except clauses, so that no error of aiohttp is its context


def _form(params: dict[str, Any], document: tuple[str, bytes, str]) -> FormData:
    name, data, content_type = document
    form = FormData(quote_fields=False)
    for field, value in params.items():
        form.add_field(field, value if isinstance(value, str) else json.dumps(value))
    form.add_field("document", BytesIO(data), filename=name, content_type=content_type)
    return form


def _read_response(method: str, status: int, body: bytes) -> Any:
    try:
        response = json.loads(body)
    except (ValueError, RecursionError):
        response = None
    if not isinstance(response, dict) or not isinstance(response.get("ok"), bool):
        if 500 <= status <= 599:
            raise OutcomeUnknown(f"Telegram failed at {method} (HTTP {status})")
        raise OutcomeUnknown(f"the response to {method} (HTTP {status}) is not the Bot API's")
    if response["ok"]:
        if "result" not in response:
            raise OutcomeUnknown(f"Telegram's response to {method} has no result")
        return response["result"]
    raise _refusal(method, status, response)


def _refusal(method: str, status: int, response: dict[str, Any]) -> TelegramError:
    error_code, description = response.get("error_code"), response.get("description")
    code = error_code if isinstance(error_code, int) else status
    why = " ".join(description.split())[:_MAX_REASON] if isinstance(description, str) else "no reason given"
    parameters = response.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    text = f"Telegram refused {method}: {why}"
    match code:
        case 401 | 404:
            return BadToken(text, str(code))
        case 409:
            return Conflict(text, "409")
        case 429:
            return RateLimited(text, "429", _seconds(parameters.get("retry_after")))
        case 400 if isinstance(chat := parameters.get("migrate_to_chat_id"), int):
            return GroupMigrated(text, "migrated", chat)
        case 400 if "can't parse entities" in why.lower():
            return BadMarkup(text, "400")
        case 400 if "chat not found" in why.lower():
            return ChatUnreachable(text, "chat_not_found")
        case 403:
            return ChatUnreachable(text, "403")
        case _ if code >= 500:
            return OutcomeUnknown(f"Telegram failed at {method}: {why}")
        case _:
            return Rejected(text, str(code))


def _seconds(retry_after: Any) -> float:
    """Return the seconds to wait, within limits."""
    if type(retry_after) is int:
        retry_after = float(min(retry_after, int(MAX_WAIT_SECS)))  # an int may be too large for a float
    if not isinstance(retry_after, float) or not math.isfinite(retry_after) or retry_after <= 0:
        return _DEFAULT_WAIT_SECS
    return min(retry_after, MAX_WAIT_SECS)
