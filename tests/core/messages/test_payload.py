"""The bus carries JSON, whole and unchanged, or says why not."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from relay_core.errors import InvalidPayload
from relay_core.messages.payload import (
    MAX_DEPTH,
    Attachment,
    ChannelType,
    Performative,
    StandardPayload,
    encode_payload,
)

LIMIT = 1_048_576

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(st.characters(exclude_categories=[])),
)
PAYLOADS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(0, 1)), inner, max_size=4),
    ),
    max_leaves=12,
)


def nested(depth: int, core: Any) -> Any:
    for _ in range(depth):
        core = [core]
    return core


def is_carried(value: Any, depth: int = 0) -> bool:
    """Tell, by the rules read literally, whether a payload is JSON the bus carries."""
    if isinstance(value, dict):
        return depth < MAX_DEPTH and all(
            isinstance(key, str) and is_carried(key) and is_carried(item, depth + 1) for key, item in value.items()
        )
    if isinstance(value, list):
        return depth < MAX_DEPTH and all(is_carried(item, depth + 1) for item in value)
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or -(2**63) <= value < 2**64


@given(PAYLOADS)
@example({"a": math.nan})
@example([math.inf])
@example({"\ud800": 1})
@example("null [{")
@example(nested(MAX_DEPTH - 1, []))
@example(nested(MAX_DEPTH, []))
@example(nested(MAX_DEPTH, 1))
@example(nested(MAX_DEPTH, None))
@example(nested(MAX_DEPTH, math.nan))
@example(nested(MAX_DEPTH + 1, 1))
@example([[]] * (MAX_DEPTH + 1))
def test_what_is_accepted_is_exactly_what_comes_back(payload: Any) -> None:
    try:
        data = encode_payload(payload, limit=LIMIT)
    except InvalidPayload:
        assert not is_carried(payload)
    else:
        assert is_carried(payload)
        assert json.loads(data) == orjson.loads(data) == payload


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        pytest.param(math.nan, "payload_not_json", id="nan"),
        pytest.param({"deep": [{"x": -math.inf}]}, "payload_not_json", id="infinity-inside"),
        pytest.param((1, (math.nan,)), "payload_not_json", id="nan-in-tuple"),
        pytest.param("\ud800", "payload_not_json", id="lone-surrogate"),
        pytest.param(2**64, "payload_not_json", id="too-large-integer"),
        pytest.param(object(), "payload_not_json", id="object"),
        pytest.param(b"bytes", "payload_not_json", id="bytes"),
        pytest.param({1: 2}, "payload_not_json", id="integer-key"),
        pytest.param({1, 2}, "payload_not_json", id="set"),
        pytest.param(datetime.now(UTC), "payload_not_json", id="datetime"),
        pytest.param(StandardPayload(content="", platform_data=object()), "payload_not_json", id="object-in-model"),
        pytest.param(StandardPayload(content="", platform_data=[math.nan]), "payload_not_json", id="nan-in-model"),
        pytest.param(StandardPayload(content="", platform_data=nested(100, 1)), "payload_too_deep", id="deep-model"),
        pytest.param(StandardPayload(content="", platform_data=nested(400, 1)), "payload_too_deep", id="deeper-model"),
        pytest.param(nested(101, 1), "payload_too_deep", id="101-levels"),
        pytest.param(nested(100, []), "payload_too_deep", id="101-levels-empty-inside"),
        pytest.param(nested(5_000, 1), "payload_too_deep", id="5000-levels"),
    ],
)
def test_a_refusal_has_a_code(payload: Any, code: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        encode_payload(payload, limit=LIMIT)
    assert caught.value.code == code


def test_a_payload_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidPayload) as caught:
        encode_payload(loop, limit=LIMIT)
    assert caught.value.code == "payload_too_deep"


@given(st.text(max_size=20))
def test_the_limit_counts_encoded_bytes_and_is_inclusive(text: str) -> None:
    size = len(orjson.dumps(text))
    assert len(encode_payload(text, limit=size)) == size
    with pytest.raises(InvalidPayload) as caught:
        encode_payload(text, limit=size - 1)
    assert caught.value.code == "payload_too_large"
    assert (caught.value.size, caught.value.limit) == (size, size - 1)


def test_a_standard_payload_is_written_in_camel_case_without_empty_parts() -> None:
    payload = StandardPayload(
        content="hi",
        sender_name="Ada",
        channel_type=ChannelType.DM,
        performative=Performative.REQUEST,
        attachments=(Attachment(path="/tmp/a", filename="a", mime_type="text/plain"),),
        platform_data={"chatId": None},
    )
    assert orjson.loads(encode_payload(payload, limit=LIMIT)) == {
        "content": "hi",
        "senderName": "Ada",
        "channelType": "dm",
        "performative": "request",
        "attachments": [{"path": "/tmp/a", "filename": "a", "mimeType": "text/plain"}],
        "platformData": {"chatId": None},
    }


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({}, id="no-content"),
        pytest.param({"content": "x", "performative": "shout"}, id="unknown-performative"),
        pytest.param({"content": "x", "channelType": "pigeon"}, id="unknown-channel"),
        pytest.param({"content": "x", "attachments": [{"path": "a"}]}, id="incomplete-attachment"),
        pytest.param({"content": "x", "responseContext": {"platform": "p", "maxLength": 0}}, id="no-room-to-answer"),
    ],
)
def test_a_standard_payload_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        StandardPayload.model_validate(wrong)
