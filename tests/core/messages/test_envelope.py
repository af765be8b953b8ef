"""An envelope is read back as it was written, or not at all."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from relay_core.clock import iso, parse_iso
from relay_core.messages.envelope import (
    Budget,
    BudgetOverrides,
    Envelope,
    decode_envelope,
    encode_envelope,
    trusted_envelope,
)

ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
STORED: dict[str, Any] = {
    "id": ID,
    "subject": "relay.agent.a",
    "from": "relay.agent.b",
    "budget": {"hopCount": 1, "maxHops": 5, "ancestorChain": ["relay.agent.a"], "ttl": 2_000, "callBudgetRemaining": 9},
    "createdAt": "2026-02-24T12:00:00.000Z",
    "payload": {"content": "hi"},
}

SUBJECTS = st.sampled_from(["relay.agent.a", "relay.b", "c"])
BUDGETS = st.fixed_dictionaries(
    {
        "hopCount": st.integers(0, 9),
        "maxHops": st.integers(1, 9),
        "ancestorChain": st.lists(SUBJECTS, max_size=3),
        "ttl": st.integers(-(2**63), 2**63 - 1),
        "callBudgetRemaining": st.integers(0, 9),
    }
)
PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
ENVELOPES = st.fixed_dictionaries(
    {
        "id": st.just(ID),
        "subject": SUBJECTS,
        "from": SUBJECTS,
        "budget": BUDGETS,
        "createdAt": st.integers(0, 4_000_000_000_000).map(iso),
        "payload": PAYLOADS,
    },
    optional={
        "replyTo": SUBJECTS,
        "replayOf": st.just(ID),
        "replays": st.integers(0, 3),
        "replayedAt": st.integers(0, 4_000_000_000_000).map(iso),
        "traceId": st.just(ID),
        "parentId": st.just(ID),
        "origin": st.just("telegram"),
    },
).map(Envelope.model_validate)


@given(ENVELOPES)
def test_an_envelope_survives_its_stored_form(envelope: Envelope) -> None:
    assert decode_envelope(encode_envelope(envelope)) == envelope


@given(ENVELOPES)
def test_a_trusted_envelope_is_the_one_that_was_written(envelope: Envelope) -> None:
    found = trusted_envelope(orjson.loads(encode_envelope(envelope)))
    assert found == envelope
    assert found.to_wire() == envelope.to_wire()
    assert list(vars(found)) == list(Envelope.model_fields)
    assert list(vars(found.budget)) == list(Budget.model_fields)


def test_the_stored_form_is_the_seeds_camel_case_without_empty_parts() -> None:
    assert orjson.loads(encode_envelope(decode_envelope(orjson.dumps(STORED)))) == STORED


def test_null_parts_of_a_payload_stay() -> None:
    for payload in (None, {"a": None}, [None]):
        stored = {**STORED, "payload": payload}
        assert orjson.loads(encode_envelope(Envelope.model_validate(stored))) == stored


def test_unknown_keys_of_a_later_version_are_ignored() -> None:
    assert decode_envelope(orjson.dumps({**STORED, "colour": "red"})).id == ID


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"id": "../../escape"}, "id: not a ULID", id="id-is-a-path"),
        pytest.param({"id": None}, "id: ", id="id-is-null"),
        pytest.param({"subject": "a..b"}, "subject: subject 'a..b' has an empty token", id="bad-subject"),
        pytest.param({"from": "a.*"}, "from: ", id="pattern-as-sender"),
        pytest.param({"from": ""}, "from: ", id="empty-sender"),
        pytest.param({"replyTo": "a b"}, "replyTo: ", id="bad-reply-to"),
        pytest.param({"createdAt": "yesterday"}, "createdAt: ", id="bad-instant"),
        pytest.param({"budget": {}}, "budget.ttl: Field required", id="budget-without-ttl"),
        pytest.param({"budget": {"ttl": 1, "hopCount": -1}}, "budget.hopCount: ", id="negative-hops"),
        pytest.param({"budget": {"ttl": 1, "maxHops": 0}}, "budget.maxHops: ", id="no-hops-at-all"),
        pytest.param({"replays": -1}, "replays: ", id="negative-replays"),
    ],
)
def test_what_is_no_envelope_raises_value_error_and_says_where(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the text is checked below
        decode_envelope(orjson.dumps({**STORED, **change}))
    assert type(caught.value) is ValueError
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize("missing", ["id", "subject", "from", "budget", "createdAt"])
def test_no_part_may_be_missing(missing: str) -> None:
    part = {key: value for key, value in STORED.items() if key != missing}
    with pytest.raises(ValueError, match=f"{missing}: Field required"):
        decode_envelope(orjson.dumps(part))


@given(st.binary(max_size=30) | st.integers(0, 200).map(lambda cut: orjson.dumps(STORED)[:cut]))
def test_any_other_bytes_raise_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011, whichever text
        decode_envelope(data)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"[]", b"null", b'"text"', b"1"], ids=lambda data: data[:6].decode())
def test_json_of_another_shape_raises_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011, whichever text
        decode_envelope(data)


@pytest.mark.parametrize("key", ["payload", "colour"])
def test_what_is_nested_deeper_than_a_payload_may_be_is_no_envelope(key: str) -> None:
    # orjson reads four times as deep as it writes: what it reads could not be kept.
    def stored(levels: int) -> bytes:
        return orjson.dumps({**STORED, key: orjson.Fragment(b"[" * levels + b"]" * levels)})

    assert decode_envelope(stored(100)).id == ID
    for levels in (101, 300, 1000):
        with pytest.raises(ValueError, match="nested deeper than 100 levels"):
            decode_envelope(stored(levels))


def test_an_envelope_cannot_be_changed() -> None:
    envelope = decode_envelope(orjson.dumps(STORED))
    with pytest.raises(ValidationError, match="frozen"):
        envelope.subject = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        envelope.budget.hop_count = 0  # type: ignore[misc]


def test_overrides_say_only_what_was_asked() -> None:
    assert BudgetOverrides.model_validate({"maxHops": 2}).to_wire() == {"maxHops": 2}


@given(st.integers(0, 4_000_000_000_000))
def test_an_instant_survives_its_text(ms: int) -> None:
    assert parse_iso(iso(ms)) == ms
