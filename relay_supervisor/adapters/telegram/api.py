"""One call of the Bot API, which ends in its result or in one of `errors`.

1. The token is part of every URL, and httpx shows URLs in its errors and its log. So no error of httpx leaves this
   module, not even as a cause, and httpx's loggers never get to see a URL: the path is filled in below them.
2. A 5xx is unclear: Telegram may have done it before it failed.
3. Answers are read up to a size; one that is no JSON object, or not of the Bot API's shape, is unclear too.
4. A call ends within its time as a whole, however busily the other side sends a byte now and then. Reaching somebody
   may take a part of it, so that a network that is gone is told apart from an answer that is.
5. Nobody can make us wait for longer than an hour.
"""

from __future__ import annotations

import asyncio
import json
import math
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from relay_core.secret import Secret
from relay_supervisor.adapters.telegram.errors import (
    BadToken,
    Conflict,
    Migrated,
    NotSent,
    Refused,
    TelegramError,
    TooLarge,
    TooMany,
    Unclear,
    Unparsed,
    Unreachable,
)

MAX_ANSWER_BYTES = 16 * 1024 * 1024
FILE_SECS = 60.0
"""How long a file may take, up or down."""
LONGEST_WAIT_SECS = 3600.0
_DEFAULT_WAIT_SECS = 1.0
_LONGEST_REASON = 300


class _Tokens(httpx.AsyncBaseTransport):
    """Put the token into the path below httpx's own log."""

    def __init__(self, token: Secret) -> None:
        self._token = token
        self._inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=100, keepalive_expiry=4))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.replace(b"/bot-/", f"/bot{self._token.reveal()}/".encode(), 1)
        real = httpx.Request(
            request.method,
            request.url.copy_with(raw_path=path),
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        return await self._inner.handle_async_request(real)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Api:
    """The Bot API of one bot."""

    def __init__(self, token: Secret, base: str, *, timeout: float) -> None:
        self._base = base
        self._timeout = timeout
        self._http = httpx.AsyncClient(
            transport=_Tokens(token), timeout=_timeouts(timeout), follow_redirects=False, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

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
            TelegramError: one of its tree.
        """
        params = {name: value for name, value in params.items() if value is not None}
        limit = self._timeout if within is None else within
        url = f"{self._base}/bot-/{method}"
        if document is None:
            request = self._http.build_request("POST", url, json=params, timeout=_timeouts(limit))
        else:
            fields = {name: value if isinstance(value, str) else json.dumps(value) for name, value in params.items()}
            files = {"document": document}
            request = self._http.build_request("POST", url, data=fields, files=files, timeout=_timeouts(limit))
        try:
            status, body = await self._exchange(request, MAX_ANSWER_BYTES, limit, method)
        except TooLarge:
            raise Unclear(f"what answered {method} is too long to be the Bot API") from None
        return _read_answer(method, status, body)

    async def download(self, file_path: str, limit: int) -> bytes:
        """Return the bytes of a file that `getFile` named.

        Raises:
            TooLarge: if it has more bytes than allowed; it is not read to its end.
            TelegramError: as `call`.
        """
        url = f"{self._base}/file/bot-/{quote(file_path)}"
        request = self._http.build_request("GET", url)
        status, body = await self._exchange(request, limit, FILE_SECS, "the download of a file")
        if status != 200:
            raise Refused(f"Telegram does not give the file (HTTP {status})", str(status))
        return body

    async def _exchange(self, request: httpx.Request, size: int, seconds: float, what: str) -> tuple[int, bytes]:
        problem: TelegramError
        if self._http.is_closed:
            raise NotSent("the adapter has been stopped")
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.send(request, stream=True)
                try:
                    body = bytearray()
                    async for chunk in response.aiter_bytes():
                        body += chunk
                        if len(body) > size:
                            raise TooLarge(f"{what}: more than {size} bytes")
                    return response.status_code, bytes(body)
                finally:
                    await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol) as error:
            problem = NotSent(f"Telegram cannot be reached ({type(error).__name__})")
        except (httpx.TimeoutException, TimeoutError) as error:
            problem = Unclear(f"Telegram did not answer {what} in time ({type(error).__name__})")
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            problem = Unclear(f"the connection to Telegram broke during {what} ({type(error).__name__})")
        except RuntimeError:
            problem = Unclear(f"the adapter was stopped during {what}")
        raise problem  # here, where no error of httpx is its context


def _timeouts(seconds: float) -> httpx.Timeout:
    """Return the limits of each step; looking for a free connection, TCP and TLS together take less than the whole."""
    reach = min(seconds / 4, 10.0)
    return httpx.Timeout(seconds, connect=reach, pool=reach)


def _read_answer(method: str, status: int, body: bytes) -> Any:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
        if 500 <= status <= 599:
            raise Unclear(f"Telegram failed at {method} (HTTP {status})")
        raise Unclear(f"what answered {method} (HTTP {status}) is not the Bot API")
    if answer["ok"]:
        if "result" not in answer:
            raise Unclear(f"Telegram's answer to {method} has no result")
        return answer["result"]
    raise _refusal(method, status, answer)


def _refusal(method: str, status: int, answer: dict[str, Any]) -> TelegramError:
    given = answer.get("error_code")
    code = given if isinstance(given, int) else status
    said = answer.get("description")
    why = " ".join(said.split())[:_LONGEST_REASON] if isinstance(said, str) else "no reason given"
    found = answer.get("parameters")
    parameters: dict[str, Any] = found if isinstance(found, dict) else {}
    text = f"Telegram refused {method}: {why}"
    match code:
        case 401 | 404:
            return BadToken(text, str(code))
        case 409:
            return Conflict(text, "409")
        case 429:
            return TooMany(text, "429", _seconds(parameters.get("retry_after")))
        case 400 if isinstance(chat := parameters.get("migrate_to_chat_id"), int):
            return Migrated(text, "migrated", chat)
        case 400 if "can't parse entities" in why.lower():
            return Unparsed(text, "400")
        case 400 if "chat not found" in why.lower():
            return Unreachable(text, "chat_not_found")
        case 403:
            return Unreachable(text, "403")
        case _ if code >= 500:
            return Unclear(f"Telegram failed at {method}: {why}")
        case _:
            return Refused(text, str(code))


def _seconds(given: Any) -> float:
    """Return how long to wait: whatever is said, a sensible time."""
    if type(given) is int:
        given = float(min(given, int(LONGEST_WAIT_SECS)))  # there are whole numbers that are no float
    if not isinstance(given, float) or not math.isfinite(given) or given <= 0:
        return _DEFAULT_WAIT_SECS
    return min(given, LONGEST_WAIT_SECS)
