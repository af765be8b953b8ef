"""Calls whose answers are parsed into models, on top of the reconnecting client."""

from __future__ import annotations

from typing import Any, TypeVar

from relay_core.client.reconnect import OWN_TIMEOUT, ReconnectingClient, given
from relay_core.errors import ProtocolError
from relay_core.messages.base import WireModel
from relay_core.messages.payload import encode_payload
from relay_core.protocol.base import MAX_PAGE
from relay_core.protocol.frames import MAX_FRAME
from relay_core.protocol.methods import parse_answer

M = TypeVar("M", bound=WireModel)


class TypedCalls(ReconnectingClient):
    """Call methods and return models."""

    async def _ask(
        self, model: type[M], method: str, params: dict[str, Any] | None = None, *, timeout: float | None = OWN_TIMEOUT
    ) -> M:
        return parse_answer(model, method, await self.call(method, params, timeout=timeout))

    async def _list(self, model: type[M], method: str, key: str, params: dict[str, Any] | None = None) -> list[M]:
        return _rows(model, method, key, await self.call(method, params))

    async def _pages(self, model: type[M], method: str, key: str, **params: Any) -> list[M]:
        """Return all pages of a list."""
        rows: list[M] = []
        cursor = None
        while True:
            answer = await self.call(method, given(cursor=cursor, limit=MAX_PAGE, **params))
            rows += _rows(model, method, key, answer)
            cursor = answer.get("cursor")
            if cursor is None:
                return rows


def _rows(model: type[M], method: str, key: str, answer: Any) -> list[M]:
    rows = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise ProtocolError(f"unexpected response to {method} (no {key})", code="bad_answer")
    return [parse_answer(model, method, row) for row in rows]


def encode_json(payload: Any) -> bytes:
    """Return a payload as JSON by the bus's rules: NaN is an error, not null."""
    return encode_payload(payload, limit=MAX_FRAME)


def wire_or_none(model: WireModel | None) -> dict[str, Any] | None:
    """Return a model's wire form, or None."""
    return model.to_wire() if model is not None else None
