"""Payloads: the JSON that the bus carries, and the standard payload of agents and adapters."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, Field

from relay_core.errors import InvalidPayload
from relay_core.messages.base import WireModel

MAX_DEPTH = 100

_FLAT = frozenset({str, int, bool, type(None)})
"""Types of values that have no depth and cannot be NaN."""
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


class Performative(StrEnum):
    """The role of a message in a conversation."""

    REQUEST = "request"
    INFORM = "inform"
    QUERY = "query"
    PROPOSE = "propose"
    ACCEPT = "accept"
    REJECT = "reject"
    CFP = "cfp"
    FAILURE = "failure"


class ChannelType(StrEnum):
    """The kind of place that a message comes from."""

    DM = "dm"
    GROUP = "group"
    CHANNEL = "channel"
    THREAD = "thread"


class Attachment(WireModel):
    """A file, sent by its path."""

    path: str
    filename: str
    mime_type: str
    size: Annotated[int, Field(ge=0)] | None = None


class ResponseContext(WireModel):
    """Where an answer will be shown."""

    platform: str
    max_length: Annotated[int, Field(ge=1)] | None = None
    supported_formats: tuple[str, ...] | None = None
    instructions: str | None = None


class StandardPayload(WireModel):
    """The payload that agents, people and adapters share."""

    content: str
    sender_name: str | None = None
    sender_avatar: str | None = None
    channel_name: str | None = None
    channel_type: ChannelType | None = None
    attachments: tuple[Attachment, ...] | None = None
    response_context: ResponseContext | None = None
    performative: Performative | None = None
    conversation_id: str | None = None
    correlation_id: str | None = None
    platform_data: Any = None


def encode_payload(payload: Any, *, limit: int) -> bytes:
    """Return the payload as JSON bytes.

    Raises:
        InvalidPayload: if it is not JSON (NaN, Infinity, lone surrogates and integers beyond 64 bits are not), longer
            than `limit` bytes or nested deeper than 100 levels.
    """
    try:
        if type(payload) is not dict and isinstance(payload, BaseModel):
            _check_values(payload.model_dump())  # before the JSON form, which has null for NaN
            payload = payload.model_dump(mode="json", by_alias=True, exclude_none=True)
        data = orjson.dumps(payload, option=_STRICT)
    except (TypeError, ValueError, RecursionError) as error:
        raise _refuse(payload, error) from error
    if len(data) > limit:
        raise InvalidPayload(
            f"payload is {len(data)} bytes, the limit is {limit} (limits.maxPayloadBytes): "
            "send a reference to a file instead",
            code="payload_too_large",
            size=len(data),
            limit=limit,
        )
    if type(payload) is dict and _FLAT.issuperset(map(type, payload.values())):
        return data  # the usual payload; searching the bytes takes ten times as long
    # Each level opens a bracket, and orjson writes NaN and Infinity as null: without them there is nothing to check.
    if data.count(b"null") or (len(data) > 2 * MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH):
        _check_values(payload)
    return data


def check_depth(data: bytes, document: Any, *, around: int) -> None:
    """Check the depth of an untrusted document with a payload `around` levels down.

    Raises:
        InvalidPayload: if it is too deep: it could be read, but not written again.
    """
    levels = MAX_DEPTH + around
    if data.count(b"[") + data.count(b"{") > levels:  # each level opens a bracket
        _check_values(document, levels)


def _refuse(payload: Any, error: Exception) -> InvalidPayload:
    if "recursion" in str(error).lower() or "depth" in str(error).lower():
        return _too_deep()
    return InvalidPayload(f"payload is not JSON: {error}", code="payload_not_json")


def _too_deep() -> InvalidPayload:
    return InvalidPayload(
        f"payload is nested deeper than {MAX_DEPTH} levels",
        code="payload_too_deep",
        limit=MAX_DEPTH,
    )


def _check_values(payload: Any, levels: int = MAX_DEPTH) -> None:
    level: list[Any] = [payload]
    for depth in range(levels + 1):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict | list | tuple):
                if depth == levels:
                    raise _too_deep()
                below.extend(value.values() if isinstance(value, dict) else value)
            elif isinstance(value, float) and not isfinite(value):
                raise InvalidPayload(f"payload is not JSON: {value} is not a JSON number", code="payload_not_json")
        level = below
