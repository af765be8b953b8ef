"""A local server for the part of the Messages API that the real program needs for a turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web


class MessagesApi:
    """Responds with the blocks that a test has set, one per request, then with a text."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        block = self.answers.pop(0) if self.answers else {"type": "text", "text": "pong"}
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in _events(block, body["model"]):
            await response.write(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), orjson.dumps(event)))
        return response


def _events(block: dict[str, Any], model: str) -> list[dict[str, Any]]:
    tool = block["type"] == "tool_use"
    about: dict[str, Any] = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
    }
    usage = {"input_tokens": 1, "output_tokens": 1}
    begun = {**block, "input": {}} if tool else {**block, "text": ""}
    delta = (
        {"type": "input_json_delta", "partial_json": orjson.dumps(block["input"]).decode()}
        if tool
        else {"type": "text_delta", "text": block["text"]}
    )
    return [
        {"type": "message_start", "message": {**about, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": begun},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use" if tool else "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]


@asynccontextmanager
async def serve_api() -> AsyncIterator[MessagesApi]:
    """Serve on a free port of this machine."""
    api = MessagesApi()
    application = web.Application(client_max_size=50 * 1024 * 1024)
    application.router.add_post("/v1/messages", api.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    api.url = site.name
    try:
        yield api
    finally:
        await runner.cleanup()
