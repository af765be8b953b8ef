"""Dead letters as values: what a filter means, and what a record in ``failed/`` tells, damaged or not."""

from __future__ import annotations

import contextlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.clock import iso, parse_iso
from relay_core.messages.dead_letter import (
    Code,
    DeadLetter,
    DeadLetterFilter,
    clean_reason,
    damaged_letter,
    dead_delivery,
    decode_dead_letter,
    encode_dead_letter,
)
from relay_core.messages.envelope import Budget, Envelope, encode_envelope
from relay_core.records.selection import Selection

ID = "01HF7YAT0A8CDKSYBCF7B20000"
OTHER_ID = "01HF7YAT0A8CDKSYBCF7B20001"
BOX = "0123456789ab"
SUBJECT = "relay.agent.a"
NOW = 1_700_000_000_000


def envelope(message_id: str = ID, payload: Any = None, sender: str = "relay.agent.s") -> Envelope:
    budget = Budget(
        hop_count=2, max_hops=5, ancestor_chain=("relay.agent.b", SUBJECT), ttl=NOW, call_budget_remaining=7
    )
    return Envelope(
        id=message_id, subject=SUBJECT, sender=sender, budget=budget, created_at=iso(NOW - 5), payload=payload
    )


def letter(**values: Any) -> DeadLetter:
    known: dict[str, Any] = {
        "message_id": ID,
        "envelope": envelope(payload={"content": "hello"}),
        "reason": "handle: ValueError: broken",
        "code": Code.HANDLER_FAILED,
        "failed_at": iso(NOW),
        "endpoint_hash": BOX,
    }
    return DeadLetter(**(known | values))


def record(**changes: Any) -> bytes:
    data = encode_dead_letter(
        encode_envelope(envelope()), reason="why", code=Code.TIMEOUT, failed_ms=NOW, endpoint_hash=BOX, replays=3
    )
    return orjson.dumps({**orjson.loads(data), **changes})


def accepts(filter: DeadLetterFilter, letter: DeadLetter) -> bool:
    return Selection.of(filter, NOW).accepts(letter, SUBJECT, NOW)


FIELDS = [
    ("ids", (ID, OTHER_ID), (OTHER_ID,)),
    ("code", Code.HANDLER_FAILED, Code.TIMEOUT),
    ("reason", "ValueError", "KeyError"),
    ("endpoint", SUBJECT, "relay.agent"),
    ("endpoint", "relay.agent.*", "relay.*"),
    ("endpoint", "relay.>", "other.>"),
    ("endpoint", BOX, BOX[:-1]),
    ("sender", "relay.agent.s", "relay.agent.a"),
    ("sender", "relay.*.s", "relay.*.a"),
    ("failed_before", NOW + 1, NOW),
    ("failed_after", NOW - 1, NOW),
    ("text", '"hello"', "goodbye"),
]


@pytest.mark.parametrize(("field", "fits", "does_not"), FIELDS)
def test_each_field_holds_or_not(field: str, fits: Any, does_not: Any) -> None:
    for value, expected in ((fits, True), (does_not, False)):
        wanted = DeadLetterFilter.model_validate({field: value})
        assert accepts(wanted, letter()) is expected


@given(st.lists(st.tuples(st.sampled_from(FIELDS), st.booleans())), st.booleans())
def test_every_part_given_must_hold_and_exclude_turns_it_round(
    chosen: list[tuple[tuple[str, Any, Any], bool]], exclude: bool
) -> None:
    values = {field: (fits if good else does_not, good) for (field, fits, does_not), good in chosen}
    parts = {field: value for field, (value, _) in values.items()}
    wanted = DeadLetterFilter.model_validate({**parts, "exclude": exclude})
    assert accepts(wanted, letter()) == (all(good for _, good in values.values()) != exclude)


@given(
    st.builds(
        DeadLetterFilter,
        ids=st.none() | st.lists(st.sampled_from([ID, OTHER_ID])).map(tuple),
        code=st.none() | st.sampled_from([Code.MALFORMED, Code.TIMEOUT]),
        reason=st.none() | st.text(max_size=3),
        endpoint=st.none() | st.sampled_from([SUBJECT, BOX, "relay.*.a", ">", "", "..", "*"]),
        sender=st.none() | st.sampled_from(["relay.agent.s", "relay.>", ""]),
        failed_before=st.none() | st.integers(NOW - 2, NOW + 2),
        failed_after=st.none() | st.integers(NOW - 2, NOW + 2),
        text=st.none() | st.text(max_size=3),
    ),
    st.sampled_from([letter(), letter(envelope=None), letter(message_id=OTHER_ID, code=Code.TIMEOUT, reason="")]),
)
def test_a_filter_and_its_opposite_share_nothing_and_leave_nothing(wanted: DeadLetterFilter, one: DeadLetter) -> None:
    opposite = wanted.model_copy(update={"exclude": True})
    assert accepts(wanted, one) != accepts(opposite, one)


@pytest.mark.parametrize("field", ["sender", "text"])
def test_what_is_no_message_has_neither_sender_nor_payload(field: str) -> None:
    wanted = DeadLetterFilter.model_validate({field: "e"})
    assert not accepts(wanted, letter(envelope=None))


def test_an_empty_filter_accepts_everything() -> None:
    assert accepts(DeadLetterFilter(), letter(envelope=None))
    assert not accepts(DeadLetterFilter(exclude=True), letter())


@given(
    st.text(),
    st.sampled_from(sorted(value for name, value in vars(Code).items() if name.isupper())),
    st.integers(0, 10**13),
    st.integers(0, 100),
    st.sampled_from(["target", "gate"]),
    st.booleans(),
    st.recursive(st.none() | st.booleans() | st.text() | st.integers(-(2**53), 2**53), st.lists, max_leaves=5),
)
def test_a_record_tells_what_was_written(
    reason: str, code: str, failed_ms: int, replays: int, stage: str, partial: bool, payload: Any
) -> None:
    stored = envelope(payload=payload)
    data = encode_dead_letter(
        encode_envelope(stored),
        reason=reason,
        code=code,
        failed_ms=failed_ms,
        endpoint_hash=BOX,
        replays=replays,
        stage=stage,
        partial=partial,
    )
    read = decode_dead_letter(ID, data)
    assert read.envelope == stored
    assert (read.reason, read.code, read.replays, read.stage, read.partial, read.endpoint_hash) == (
        clean_reason(reason), code, replays, stage, partial, BOX,
    )  # fmt: skip
    assert parse_iso(read.failed_at) == failed_ms


@given(st.text(st.characters(), max_size=50))
def test_any_reason_can_be_written_down(text: str) -> None:
    reason = text + "\udcff" + text
    data = encode_dead_letter(None, reason=reason, code=Code.TIMEOUT, failed_ms=NOW, endpoint_hash=BOX)
    assert decode_dead_letter(ID, data).reason == reason.encode(errors="replace").decode().replace("\0", "\ufffd")


DAMAGE = {
    "empty": b"",
    "zeroes": bytes(512),
    "no JSON": b"{",
    "a list": b"[]",
    "a string": b'"x"',
    "null": b"null",
    "no UTF-8": b'{"reason": "\xff"}',
    "nothing in it": b"{}",
    "deep": b"[" * 5000,
    "a payload that is deep": record(
        envelope=orjson.loads(encode_envelope(envelope(ID))) | {"payload": orjson.Fragment(b"[" * 300 + b"]" * 300)}
    ),
    "no reason": record(reason=None),
    "no code": record(code=7),
    "no instant": record(failedAt="yesterday"),
    "an instant that is a number": record(failedAt=5),
    "another stage": record(stage="elsewhere"),
    "replays that are no number": record(replays="often"),
    "an envelope that is none": record(envelope={"id": ID}),
    "an envelope that is a text": record(envelope="hello"),
    "another message's envelope": record(envelope=orjson.loads(encode_envelope(envelope(OTHER_ID)))),
}


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_record_is_a_value_error_and_can_still_be_shown(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        decode_dead_letter(ID, data)
    shown = damaged_letter(ID, BOX, caught.value)
    assert (shown.message_id, shown.endpoint_hash, shown.code, shown.envelope) == (ID, BOX, Code.MALFORMED, None)
    assert shown.reason.startswith("the record is damaged: ")
    assert len(shown.reason) <= 2000


@given(st.binary() | st.integers(0, len(record())).map(lambda end: record()[:end]))
def test_bytes_are_a_dead_letter_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode_dead_letter(ID, data)


@pytest.mark.parametrize(
    "text",
    ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00", "9999-12-31T23:59:59.999999Z"],
    ids=["after", "before", "rounded up"],
)
def test_an_instant_beyond_the_calendar_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="outside the years 1 to 9999"):
        parse_iso(text)
    with pytest.raises(ValueError, match="failedAt"):
        decode_dead_letter(ID, record(failedAt=text))


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"], ids=["first", "last"])
def test_an_instant_of_the_calendar_can_be_written_again(text: str) -> None:
    assert parse_iso(iso(parse_iso(text))) == parse_iso(text)


def test_an_id_beyond_all_dates_can_be_shown() -> None:
    assert damaged_letter("7" + "Z" * 25, BOX, ValueError("x")).failed_at == "9999-12-31T23:59:59.999Z"


def test_unknown_keys_of_a_later_relay_are_no_damage() -> None:
    assert decode_dead_letter(ID, record(colour="red")).replays == 3


def test_a_targets_copy_has_paid_for_its_delivery() -> None:
    found = dead_delivery(letter(replays=2), target=BOX, kind="endpoint", target_subject=SUBJECT, status="failed")
    assert (found.hops_before, found.hops_after, found.calls_before, found.calls_after) == (1, 2, 8, 7)
    assert (found.stored_ms, found.sent_ms, found.size) == (NOW - 5, NOW - 5, len('{"content":"hello"}'))
    assert (found.code, found.reason, found.replays) == (Code.HANDLER_FAILED, "handle: ValueError: broken", 2)


def test_what_never_reached_a_target_has_spent_nothing() -> None:
    found = dead_delivery(letter(stage="gate"), target=BOX, kind="endpoint", target_subject=SUBJECT, status="failed")
    assert (found.hops_before, found.hops_after, found.calls_before, found.calls_after) == (2, 2, 7, 7)
    assert (found.kind, found.stored_ms) == ("none", None)


def test_what_is_no_message_has_a_delivery_all_the_same() -> None:
    found = dead_delivery(
        letter(envelope=None, code=Code.MALFORMED), target=BOX, kind="endpoint", target_subject=SUBJECT, status="purged"
    )
    assert (found.message_id, found.target, found.status, found.code) == (ID, BOX, "purged", Code.MALFORMED)
    assert (found.sender, found.subject, found.sent_ms) == ("", SUBJECT, NOW)


def test_a_dead_letter_survives_its_wire_form() -> None:
    for one in (letter(), letter(message_id=OTHER_ID, envelope=None, reason="two\nlines")):
        wire = orjson.loads(orjson.dumps(one.to_wire()))
        assert DeadLetter.model_validate(wire) == one
        assert ("envelope" in wire) is (one.envelope is not None)
