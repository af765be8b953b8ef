"""A Bot API server on loopback that behaves like Telegram's, with faults on demand.

::

    async with BotServer() as server:
        server.send(chat_id=7, text="hello", user_id=7)   # a person writes to the bot
        await server.wait_sent(1)                          # the bot has answered
        server.sent[0]["text"]                             # as people see it: without tags

By hand: ``python -m tests.kit.servers.telegram [PORT]`` prints URL and token, shows the bot's messages, and sends every
line ``CHAT TEXT`` that is typed.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable
from html import unescape
from typing import Any, Self

from aiohttp import web

TOKEN = "4242:CANARY-do-not-show-this-token-a1b2c3d4"
USERNAME = "relay_test_bot"

_TOKENS = re.compile(r"<(/?)([a-z-]+)((?: [a-z-]+=\"[^\"<>]*\")*)>|<|&(?:lt|gt|amp|quot|#[0-9]+|#x[0-9a-f]+);|&", re.I)
_TAGS = {"b", "strong", "i", "em", "u", "ins", "s", "strike", "del", "a", "code", "pre", "blockquote", "tg-spoiler"}

Params = dict[str, Any]


class ApiError(Exception):
    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.parameters = parameters

    def body(self) -> Params:
        body: Params = {"ok": False, "error_code": self.code, "description": self.description}
        if self.parameters:
            body["parameters"] = self.parameters
        return body


FAULTS: dict[str, Callable[[], ApiError]] = {
    "401": lambda: ApiError(401, "Unauthorized"),
    "403": lambda: ApiError(403, "Forbidden: bot was blocked by the user"),
    "chat_not_found": lambda: ApiError(400, "Bad Request: chat not found"),
    "migrated": lambda: ApiError(
        400, "Bad Request: group chat was upgraded to a supergroup chat", migrate_to_chat_id=-100999
    ),
    "unparsed": lambda: ApiError(400, "Bad Request: can't parse entities: Unsupported start tag"),
    "429": lambda: ApiError(429, "Too Many Requests: retry after 3", retry_after=3),
    "429_long": lambda: ApiError(429, "Too Many Requests: retry after 600", retry_after=600),
    "500": lambda: ApiError(500, "Internal Server Error"),
}


def parse_html(html: str) -> str:
    """Return the text that people see, or refuse as Telegram does."""
    opened: list[str] = []
    seen: list[str] = []
    end = 0
    for found in _TOKENS.finditer(html):
        seen.append(html[end : found.start()])
        end = found.end()
        closing, tag = found[1], (found[2] or "").lower()
        if tag:
            if tag not in _TAGS:
                raise ApiError(400, f"Bad Request: can't parse entities: Unsupported start tag {tag!r}")
            if not closing:
                opened.append(tag)
            elif not opened or opened.pop() != tag:
                raise ApiError(400, f"Bad Request: can't parse entities: Unexpected end tag {tag!r}")
        elif found[0].startswith("<"):
            raise ApiError(400, "Bad Request: can't parse entities: Unsupported start tag")
        else:
            seen.append(unescape(found[0]))
    if opened:
        raise ApiError(400, f"Bad Request: can't parse entities: Can't find end tag for {opened[-1]!r}")
    seen.append(html[end:])
    return "".join(seen)


class BotServer:
    """Telegram, as far as one bot sees it."""

    def __init__(self, token: str = TOKEN, port: int = 0) -> None:
        self.token = token
        self.url = ""
        self.sent: list[Params] = []
        """The bot's messages that have not been deleted: newest last, texts as people see them."""
        self.calls: list[tuple[str, Params]] = []
        """Every call with the right token, in order."""
        self.now: Callable[[], float] = lambda: 0.0
        """The clock for `times`."""
        self.times: list[float] = []
        """The time of each call."""
        self.edits: list[Params] = []
        self.deleted: list[int] = []
        self.files: dict[str, bytes] = {}
        self.webhook = False
        self.polls = 0
        """Pending polls."""
        self.most_polls = 0
        self._port = port
        self._updates: list[Params] = []
        self._next_update = 1000
        self._next_message = 1
        self._news = asyncio.Event()
        """Set, and replaced, after every event."""
        self._poll = 0
        self._faults: defaultdict[str, list[str]] = defaultdict(list)
        self._always: dict[str, str] = {}
        self._gate = asyncio.Event()
        self._closing = False
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def up(self) -> None:
        """Listen, at the same address as before."""
        self._closing = False
        self._gate = asyncio.Event()
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/bot{token}/{method}", self._handle)
        app.router.add_get("/file/bot{token}/{path:.+}", self._file)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def down(self) -> None:
        """Refuse connections until `up`."""
        self._closing = True
        self._gate.set()
        self._notify()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # People's actions

    def send(self, chat_id: int, text: str | None = None, *, user_id: int | None = None, **more: Any) -> int:
        """Write to the bot, and return the number of the update; `more` is added to the message."""
        user = user_id if user_id is not None else abs(chat_id)
        chat: Params = {"id": chat_id, "type": "private" if chat_id > 0 else "supergroup"}
        chat.update({"first_name": "Ada"} if chat_id > 0 else {"title": "Engineers"})
        message: Params = {
            "message_id": self._number(),
            "date": 1,
            "chat": chat,
            "from": {"id": user, "is_bot": False, "first_name": "Ada", "last_name": "L", "username": "ada"},
        }
        if text is not None:
            message["text"] = text
        message.update(more)
        return self.update(message=message)

    def update(self, **parts: Any) -> int:
        """Queue an update of any kind."""
        number = self._next_update
        self._next_update += 1
        self._updates.append({"update_id": number, **parts})
        self._notify()
        return number

    @property
    def unconfirmed(self) -> list[int]:
        return [update["update_id"] for update in self._updates]

    async def wait_sent(self, count: int, *, timeout: float = 20.0) -> None:
        """Wait until the bot has sent so many messages."""
        await self.wait_for(lambda: len(self.sent) >= count, timeout=timeout)

    async def wait_for(self, holds: Callable[[], bool], *, timeout: float = 20.0) -> None:
        """Wait until a condition holds; it is checked after every event."""
        async with asyncio.timeout(timeout):
            while not holds():
                await self._news.wait()

    # Faults

    def misbehave(self, how: str, method: str = "sendMessage", *, times: int | None = None) -> None:
        """Do one of `FAULTS`, or ``slow``, ``garbage``, ``late`` (not before `behave`), ``cut``, ``dribble``."""
        if times is None:
            self._always[method] = how
        else:
            self._faults[method] += [how] * times

    @property
    def has_faults(self) -> bool:
        """Return True if some faults have not occurred yet."""
        return any(self._faults.values())

    def behave(self) -> None:
        self._always.clear()
        self._faults.clear()
        self._gate.set()
        self._gate = asyncio.Event()

    # The server

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        if request.match_info["token"] != self.token:
            return web.json_response(ApiError(401, "Unauthorized").body(), status=401)
        params = await self._params(request)
        self.calls.append((method, params))
        self.times.append(self.now())
        self._notify()
        faults = self._faults[method]
        fault = faults.pop(0) if faults else self._always.get(method)
        try:
            if fault in FAULTS:
                error = FAULTS[fault]()
                raise error
            if fault == "slow":
                await self._gate.wait()
                return web.Response(status=503)
            if fault == "late":
                await self._gate.wait()
            if fault == "dribble":
                return await self._dribble(request)
            if fault == "garbage":
                return web.Response(text="<html>a proxy says hello")
            act: Callable[[Params], Awaitable[Any]] | None = getattr(self, f"_do_{method}", None)
            if act is None:
                raise ApiError(404, "Not Found")
            result = await act(params)
        except ApiError as refusal:
            return web.json_response(refusal.body(), status=refusal.code)
        finally:
            self._notify()
        body = json.dumps({"ok": True, "result": result}).encode()
        if fault == "cut":
            response = web.StreamResponse(headers={"Content-Length": str(len(body))})
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
            assert request.transport is not None
            request.transport.abort()
            return response
        return web.Response(body=body, content_type="application/json")

    async def _dribble(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100000"})
        await response.prepare(request)
        while not self._closing:
            await response.write(b" ")
            await asyncio.sleep(0.1)
        return response

    async def _params(self, request: web.Request) -> Params:
        if request.content_type == "application/json":
            found = await request.json()
            assert isinstance(found, dict)
            return found
        params: Params = {}
        for name, value in (await request.post()).items():
            if isinstance(value, web.FileField):
                params[name] = {"name": value.filename, "data": value.file.read(), "type": value.content_type}
            else:
                params[name] = value
        return params

    async def _file(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["token"] != self.token:
            return web.json_response(ApiError(401, "Unauthorized").body(), status=401)
        path = request.match_info["path"]
        if path not in self.files:
            return web.json_response(ApiError(404, "Not Found").body(), status=404)
        return web.Response(body=self.files[path])

    async def _do_getMe(self, params: Params) -> Params:
        return {"id": int(self.token.partition(":")[0]), "is_bot": True, "first_name": "Relay", "username": USERNAME}

    async def _do_deleteWebhook(self, params: Params) -> bool:
        self.webhook = False
        return True

    async def _do_getUpdates(self, params: Params) -> list[Params]:
        if self.webhook:
            raise ApiError(
                409,
                "Conflict: can't use getUpdates method while webhook is active; "
                "use deleteWebhook to delete the webhook first",
            )
        self._poll += 1
        mine = self._poll
        offset = params.get("offset")
        if offset is not None:
            self._updates = [update for update in self._updates if update["update_id"] >= offset]
        self._notify()
        self.polls += 1
        self.most_polls = max(self.most_polls, self.polls)
        try:
            async with asyncio.timeout(params.get("timeout", 0)):
                while not self._updates and self._poll == mine and not self._closing:
                    await self._news.wait()
        except TimeoutError:
            pass
        finally:
            self.polls -= 1
        if self._poll != mine:
            raise ApiError(
                409,
                "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running",
            )
        return self._updates[: params.get("limit", 100)]

    async def _do_sendMessage(self, params: Params) -> Params:
        text = self._text(params)
        return self._record(params, method="sendMessage", text=text)

    async def _do_sendDocument(self, params: Params) -> Params:
        reply = params.get("reply_parameters")
        if isinstance(reply, str):
            params["reply_parameters"] = json.loads(reply)
        params["chat_id"] = int(params["chat_id"])
        document = params["document"]
        return self._record(params, method="sendDocument", text=params.get("caption", ""), document=document)

    async def _do_editMessageText(self, params: Params) -> Params:
        text = self._text(params)
        for message in self.sent:
            if message["message_id"] == params["message_id"]:
                if message["text"] == text:
                    raise ApiError(400, "Bad Request: message is not modified")
                message["text"] = text
                self.edits.append({"message_id": params["message_id"], "text": text})
                return {"message_id": params["message_id"]}
        raise ApiError(400, "Bad Request: message to edit not found")

    async def _do_deleteMessage(self, params: Params) -> bool:
        before = len(self.sent)
        self.sent[:] = [message for message in self.sent if message["message_id"] != params["message_id"]]
        if len(self.sent) == before:
            raise ApiError(400, "Bad Request: message to delete not found")
        self.deleted.append(params["message_id"])
        return True

    async def _do_sendChatAction(self, params: Params) -> bool:
        return True

    async def _do_getFile(self, params: Params) -> Params:
        path = f"documents/{params['file_id']}"
        if path not in self.files:
            raise ApiError(400, "Bad Request: invalid file_id")
        return {"file_id": params["file_id"], "file_size": len(self.files[path]), "file_path": path}

    def _text(self, params: Params) -> str:
        text = params["text"]
        if params.get("parse_mode") == "HTML":
            text = parse_html(text)
        if len(text.encode("utf-16-le")) // 2 > 4096:
            raise ApiError(400, "Bad Request: message is too long")
        if not text.strip():
            raise ApiError(400, "Bad Request: message text is empty")
        return str(text).strip()

    def _record(self, params: Params, **more: Any) -> Params:
        reply = params.get("reply_parameters") or {}
        message = {
            "message_id": self._number(),
            "chat_id": params["chat_id"],
            "raw": params.get("text"),
            "parse_mode": params.get("parse_mode"),
            "reply_to": reply.get("message_id"),
            **more,
        }
        self.sent.append(message)
        return {"message_id": message["message_id"], "date": 1, "chat": {"id": params["chat_id"]}}

    def _number(self) -> int:
        number = self._next_message
        self._next_message += 1
        return number

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


async def main() -> None:
    async with BotServer(port=int(sys.argv[1]) if len(sys.argv) > 1 else 0) as server:
        sys.stdout.write(f"apiBase {server.url}\ntoken   {server.token}\n")
        shown = 0
        line = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        while True:
            await asyncio.wait({line}, timeout=0.2)
            for message in server.sent[shown:]:
                sys.stdout.write(f"{message['chat_id']} < {message['text']}\n")
            shown = len(server.sent)
            sys.stdout.flush()
            if line.done():
                if not line.result():
                    return
                chat, _, text = line.result().strip().partition(" ")
                if chat.removeprefix("-").isdigit():
                    server.send(int(chat), text)
                line = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main())
