"""Frames: any bytes give complete lines or nothing, any line gives a value or a BadFrame, any error comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.errors import (
    AccessDenied,
    Closed,
    ConfigError,
    InvalidPayload,
    InvalidSubject,
    NotFound,
    ProtocolError,
    RelayError,
    StorageError,
    SupervisorUnavailable,
)
from relay_core.messages.results import PublishResult
from relay_core.protocol.frames import (
    ERROR_CLASSES,
    ERROR_NUMBERS,
    MAX_FRAME,
    BadFrame,
    FrameBuffer,
    Id,
    Request,
    Response,
    decode,
    encode_ack,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    error_from_wire,
    error_to_wire,
)
from relay_core.rules.access import AccessRule

LIMIT = 20
CANARY = "canary-4711"

lines_of_bytes = st.lists(st.binary(max_size=LIMIT).filter(lambda line: b"\n" not in line))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
params = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
ids = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=256)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Return the pieces of bytes that were cut at some places."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def feed_all(pieces: list[bytes], limit: int = MAX_FRAME) -> tuple[list[bytes], FrameBuffer]:
    buffer = FrameBuffer(limit)
    return [line for piece in pieces for line in buffer.feed(piece)], buffer


def conversation() -> bytes:
    """Return one frame of every kind."""
    return b"".join(
        [
            encode_request("publish", {"payload": "Grüße 👋"}, 1),
            encode_notification("ack", {"deliveryId": "7"}),
            encode_result("a", {"spans": []}, {"protocol": 1}),
            encode_error(None, NotFound("gone", what="x")),
        ]
    )


class TestFrameBuffer:
    @given(lines_of_bytes, st.binary(max_size=LIMIT).filter(lambda rest: b"\n" not in rest), st.lists(st.integers(0)))
    def test_however_the_bytes_are_cut_the_lines_are_the_same(
        self, lines: list[bytes], rest: bytes, places: list[int]
    ) -> None:
        data = b"".join(line + b"\n" for line in lines) + rest
        found, buffer = feed_all(cut(data, places), LIMIT)
        assert found == [line for line in lines if line not in (b"", b"\r")]
        assert buffer.begun == bool(rest)
        assert not buffer.overflowed

    @given(lines_of_bytes, st.integers(LIMIT + 1, 3 * LIMIT), lines_of_bytes, st.lists(st.integers(0)))
    def test_what_comes_before_a_line_that_is_too_long_counts_and_nothing_after_it(
        self, before: list[bytes], length: int, after: list[bytes], places: list[int]
    ) -> None:
        data = b"".join(line + b"\n" for line in [*before, b"x" * length, *after])
        found, buffer = feed_all(cut(data, places), LIMIT)
        assert found == [line for line in before if line not in (b"", b"\r")]
        assert buffer.overflowed
        assert not buffer.begun
        assert buffer.feed(b"{}\n") == []

    @pytest.mark.parametrize("pieces", [1, 2, LIMIT], ids=["at-once", "in-two", "byte-by-byte"])
    @pytest.mark.parametrize(("length", "passes"), [(LIMIT, True), (LIMIT + 1, False)], ids=["limit", "limit+1"])
    def test_the_limit_is_the_longest_line_without_its_end(self, length: int, passes: bool, pieces: int) -> None:
        data = b"x" * length + b"\n"
        step = len(data) // pieces
        found, buffer = feed_all([data[start : start + step] for start in range(0, len(data), step)], LIMIT)
        assert found == ([b"x" * length] if passes else [])
        assert buffer.overflowed is not passes

    def test_a_line_that_never_ends_is_given_up_at_the_limit(self) -> None:
        buffer = FrameBuffer(LIMIT)
        buffer.feed(b"x" * (LIMIT - 1))
        buffer.feed(b"x")
        assert (buffer.begun, buffer.overflowed) == (True, False)
        buffer.feed(b"x")
        assert (buffer.begun, buffer.overflowed) == (False, True)

    def test_every_truncated_conversation_gives_its_complete_frames_and_nothing_else(self) -> None:
        data = conversation()
        whole = [repr(decode(line)) for line in data.splitlines()]
        for length in range(len(data) + 1):
            found, buffer = feed_all([data[:length]])
            assert [repr(decode(line)) for line in found] == whole[: data[:length].count(b"\n")]
            assert buffer.begun == (length > 0 and data[length - 1 : length] != b"\n")

    @given(st.lists(st.binary(), max_size=20))
    def test_no_bytes_at_all_raise_anything_but_bad_frame(self, pieces: list[bytes]) -> None:
        for line in feed_all(pieces)[0]:
            try:
                decode(line)
            except BadFrame:
                continue


class TestRoundTrip:
    @given(st.text(), params, ids)
    def test_a_request_comes_back(self, method: str, params: dict[str, Any], id: int | str) -> None:
        assert decode(encode_request(method, params, id)[:-1]) == Request(method, params, id, False)

    @given(st.text(), params)
    def test_a_notification_comes_back_without_an_id(self, method: str, params: dict[str, Any]) -> None:
        assert decode(encode_notification(method, params)[:-1]) == Request(method, params, None, True)

    @given(st.text())
    def test_an_ack_is_written_as_any_notification(self, delivery_id: str) -> None:
        assert encode_ack(delivery_id) == encode_notification("ack", {"deliveryId": delivery_id})

    @given(ids, json_values)
    def test_an_answer_comes_back(self, id: int | str, result: Any) -> None:
        assert decode(encode_result(id, result)[:-1]) == Response(id, result)

    @given(params)
    def test_the_same_frame_in_other_words_says_the_same(self, params: dict[str, Any]) -> None:
        frame = {"jsonrpc": "2.0", "id": 1, "method": "m", "params": params}
        for line in (json.dumps(frame), json.dumps(frame, indent=1).replace("\n", " "), json.dumps(frame) + "\r"):
            assert decode(line.encode()) == Request("m", params, 1, False)

    def test_a_request_may_leave_out_its_params(self) -> None:
        assert decode(b'{"jsonrpc":"2.0","id":1,"method":"m"}') == Request("m", {}, 1, False)

    def test_an_id_of_null_is_an_id(self) -> None:
        assert decode(b'{"jsonrpc":"2.0","id":null,"method":"m"}') == Request("m", {}, None, False)

    def test_models_within_an_answer_are_written_as_their_wire_form(self) -> None:
        model, wire = PublishResult(message_id="m", delivered_to=1), {"messageId": "m", "deliveredTo": 1}
        assert orjson.loads(encode_result(1, model))["result"] == wire
        assert orjson.loads(encode_result(1, {"results": [model]}))["result"] == {"results": [wire]}

    def test_the_greeting_stands_beside_an_answer(self) -> None:
        for line in (encode_result(1, {}, {"protocol": 1}), encode_error(1, NotFound("no"), {"protocol": 1})):
            answer = decode(line[:-1])
            assert isinstance(answer, Response)
            assert answer.greeting == {"protocol": 1}

    def test_a_greeting_that_is_no_object_is_none(self) -> None:
        assert decode(b'{"jsonrpc":"2.0","id":1,"result":1,"relay":[]}') == Response(1, 1)


def request(**members: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": 7, "method": "m", "params": {}, **members})


def within(text: str) -> bytes:
    """Return a request with a piece of text for its params' only value."""
    return b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":' + text.encode() + b"}}"


BAD: dict[str, tuple[bytes, str, Id]] = {
    "space": (b"  ", "parse_error", None),
    "binary": (bytes(range(1, 10)), "parse_error", None),
    "nul": (b"\0", "parse_error", None),
    "utf-16": ('{"jsonrpc":"2.0","id":7,"method":"m"}'.encode("utf-16"), "parse_error", None),
    "bom": (b"\xef\xbb\xbf" + request(), "parse_error", None),
    "invalid-utf-8": (b'{"jsonrpc":"2.0","id":7,"method":"\xff"}', "parse_error", None),
    "cut-utf-8": (b'{"jsonrpc":"2.0","id":7,"method":"\xc3"}', "parse_error", None),
    "overlong-utf-8": (b'{"jsonrpc":"2.0","id":7,"method":"\xc0\x80"}', "parse_error", None),
    "encoded-surrogate": (b'{"jsonrpc":"2.0","id":7,"method":"\xed\xa0\x80"}', "parse_error", None),
    "control-character": (b'{"jsonrpc":"2.0","id":7,"method":"a\tb"}', "parse_error", None),
    "single-quotes": (b"{'jsonrpc':'2.0'}", "parse_error", None),
    "trailing-comma": (b'{"jsonrpc":"2.0","id":7,"method":"m",}', "parse_error", None),
    "two-objects": (request() + request(), "parse_error", None),
    "comment": (request() + b"// hi", "parse_error", None),
    "deep-arrays": (within("[" * 10_000 + "]" * 10_000), "parse_error", None),
    "deep-objects": (within('{"a":' * 10_000 + "1" + "}" * 10_000), "parse_error", None),
    "deep-never-closed": (b"[" * 10_000, "parse_error", None),
    "deep-yet-readable": (within("[" * 500 + "]" * 500), "parse_error", None),
    "twice": (b'{"jsonrpc":"2.0","id":7,"id":8,"method":"m"}', "parse_error", None),
    "twice-with-spaces": (b'{"jsonrpc": "2.0", "id": 7, "id": 8, "method": "m"}', "parse_error", None),
    "twice-and-the-same": (b'{"jsonrpc":"2.0","id":7,"method":"m","method":"m"}', "parse_error", None),
    "twice-nested": (within('{"b":1,"b":2}'), "parse_error", None),
    "twice-nested-with-spaces": (within(' { "b" : 1, "b" : 2 } '), "parse_error", None),
    "twice-in-an-array": (within('[[{"b":1,"b":1}]]'), "parse_error", None),
    "twice-by-escape": (within('{"b":1,"\\u0062":2}'), "parse_error", None),
    "nan": (within("NaN"), "parse_error", None),
    "infinity": (within("Infinity"), "parse_error", None),
    "minus-infinity": (within("-Infinity"), "parse_error", None),
    "too-large-a-number": (within("1e999"), "parse_error", None),
    "5000-digits": (within("9" * 5000), "parse_error", None),
    "leading-zero": (within("01"), "parse_error", None),
    "hexadecimal": (within("0x1"), "parse_error", None),
    "lone-high-surrogate": (within('"\\ud800"'), "parse_error", None),
    "lone-low-surrogate": (within('"\\udc00"'), "parse_error", None),
    "lone-surrogate-key": (within('{"\\ud800":1}'), "parse_error", None),
    "array": (b"[]", "invalid_request", None),
    "batch": (b"[" + request() + b"]", "invalid_request", None),
    "number": (b"1", "invalid_request", None),
    "text": (b'"m"', "invalid_request", None),
    "null": (b"null", "invalid_request", None),
    "true": (b"true", "invalid_request", None),
    "empty-object": (b"{}", "invalid_request", None),
    "no-version": (b'{"id":7,"method":"m"}', "invalid_request", 7),
    "version-1": (request(jsonrpc="1.0"), "invalid_request", 7),
    "version-as-number": (request(jsonrpc=2.0), "invalid_request", 7),
    "version-null": (request(jsonrpc=None), "invalid_request", 7),
    "no-method": (b'{"jsonrpc":"2.0","id":7}', "invalid_request", 7),
    "method-null": (request(method=None), "invalid_request", 7),
    "method-number": (request(method=1), "invalid_request", 7),
    "method-array": (request(method=["m"]), "invalid_request", 7),
    "method-object": (request(method={}), "invalid_request", 7),
    "method-true": (request(method=True), "invalid_request", 7),
    "params-null": (request(params=None), "invalid_params", 7),
    "params-array": (request(params=[1]), "invalid_params", 7),
    "params-text": (request(params="a"), "invalid_params", 7),
    "params-number": (request(params=1), "invalid_params", 7),
    "params-false": (request(params=False), "invalid_params", 7),
    "params-wrong-and-id-text": (request(params=1, id="x"), "invalid_params", "x"),
    "id-true": (request(id=True), "invalid_request", None),
    "id-fraction": (request(id=1.5), "invalid_request", None),
    "id-float": (request(id=1.0), "invalid_request", None),
    "id-array": (request(id=[1]), "invalid_request", None),
    "id-object": (request(id={}), "invalid_request", None),
    "id-of-257-characters": (request(id="x" * 257), "invalid_request", None),
    "id-of-2**63": (request(id=2**63), "invalid_request", None),
    "id-of-2**64": (b'{"jsonrpc":"2.0","id":18446744073709551616,"method":"m"}', "invalid_request", None),
}


class TestBadFrames:
    @pytest.mark.parametrize(("line", "code", "id"), BAD.values(), ids=BAD.keys())
    def test_is_refused_with_its_code_and_the_id_as_far_as_it_is_known(self, line: bytes, code: str, id: Id) -> None:
        with pytest.raises(BadFrame) as refused:
            decode(line)
        assert (refused.value.code, refused.value.id) == (code, id)
        assert len(refused.value.message) < 200

    @pytest.mark.parametrize(
        "line",
        [*conversation().splitlines(), within('{"b": [1, {"c": "ü"}]}')],
        ids=["request", "notification", "result", "error", "nested"],
    )
    def test_cut_at_any_byte_it_is_refused(self, line: bytes) -> None:
        decode(line)
        for length in range(len(line)):
            with pytest.raises(BadFrame) as refused:
                decode(line[:length])
            assert refused.value.code == "parse_error"

    @pytest.mark.parametrize("id", [0, -1, 2**63 - 1, -(2**63), "", "x" * 256], ids=repr)
    def test_the_widest_ids_pass(self, id: int | str) -> None:
        assert decode(request(id=id)) == Request("m", {}, id, False)

    def test_a_key_may_be_there_again_on_another_level_or_in_another_object(self) -> None:
        assert decode(within('[{"a": 1}, {"a": {"a": 2}}]')) == Request(
            "m", {"a": [{"a": 1}, {"a": {"a": 2}}]}, 7, False
        )

    @pytest.mark.parametrize(
        "text",
        [
            '{"twin":1,"twin":2}',
            '{"twin" : 1, "other": "\\"twin\\":", "twin"\t: 2}',
            '{"t\\u0077in": 1, "twin": 2}',
            '[{"a": {"twin": 1, "twin": 1}}]',
            '{"": 1, "": 1}',
        ],
    )
    def test_a_duplicate_key_is_refused(self, text: str) -> None:
        with pytest.raises(BadFrame, match="duplicate key"):
            decode(within(text))

    @given(st.recursive(st.none() | st.text(), lambda below: st.lists(below) | st.dictionaries(st.text(), below)))
    def test_no_text_or_layout_passes_for_a_key(self, value: Any) -> None:
        for layout in (None, 1):
            line = within(json.dumps(value, indent=layout, ensure_ascii=layout is None).replace("\n", " "))
            found = decode(line)
            assert isinstance(found, Request)
            assert found.params == {"a": value}

    def test_a_payload_of_the_deepest_kind_that_the_bus_takes_fits_into_a_frame(self) -> None:
        deep = json.loads("[" * 100 + "]" * 100)
        decode(encode_request("publish.batch", {"messages": [{"payload": deep}]}, 1)[:-1])

    def test_deep_nesting_is_called_that(self) -> None:
        with pytest.raises(BadFrame, match="nested too deeply"):
            decode(within("[" * 500 + "]" * 500))

    def test_a_whole_number_beyond_64_bits_becomes_a_floating_point_one(self) -> None:
        assert decode(within(str(2**70))) == Request("m", {"a": float(2**70)}, 7, False)


ERRORS: dict[str, RelayError] = {
    "RelayError": RelayError("a"),
    "InvalidSubject": InvalidSubject("a", subject="relay..x"),
    "InvalidPayload": InvalidPayload("a", size=5, limit=4, code="payload_too_large"),
    "AccessDenied": AccessDenied(
        "a", sender="relay.a", subject="relay.b", rule={"to": "*"}, message_id="m", code="sender_reserved"
    ),
    "NotFound": NotFound("a", what="plan 1"),
    "StorageError": StorageError("a", path="/x", retryable=True, pid=4, code="storage_full"),
    "ConfigError": ConfigError("a", path="/x", key="a.b"),
    "ProtocolError": ProtocolError("a", code="unknown_method"),
    "SupervisorUnavailable": SupervisorUnavailable("a", socket="/s"),
    "Closed": Closed("a", code="stopping"),
}


def sent(error: Exception) -> RelayError:
    """Return an error as the other side gets it."""
    answer = decode(encode_error(1, error)[:-1])
    assert isinstance(answer, Response)
    assert answer.error is not None
    return answer.error


class TestErrors:
    def test_every_class_is_in_the_table_below_with_every_field(self) -> None:
        assert list(ERRORS) == list(ERROR_CLASSES)
        assert all(set(error.data) == set(error.field_names()) for error in ERRORS.values())

    @pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
    def test_comes_back_as_the_same_class_with_the_same_code_and_fields(self, error: RelayError) -> None:
        back = sent(error)
        assert type(back) is type(error)
        assert (back.message, back.code, back.data) == (error.message, error.code, error.data)

    @pytest.mark.parametrize("kind", ERROR_CLASSES.values(), ids=ERROR_CLASSES.keys())
    def test_without_fields_comes_back_too(self, kind: type[RelayError]) -> None:
        back = sent(kind("a"))
        assert (type(back), back.code, back.data) == (kind, kind.default_code, kind("a").data)

    @pytest.mark.parametrize(
        ("name", "number"),
        list(zip(ERRORS, range(-32000, -32010, -1), strict=True)),
    )
    def test_has_its_number_for_good(self, name: str, number: int) -> None:
        assert ERROR_NUMBERS[name] == number
        assert error_to_wire(ERROR_CLASSES[name]("a"))["code"] == number

    @pytest.mark.parametrize(
        ("code", "number"),
        [
            ("parse_error", -32700),
            ("invalid_request", -32600),
            ("unknown_method", -32601),
            ("invalid_params", -32602),
            ("frame_too_large", -32600),
        ],
    )
    def test_of_the_protocol_has_json_rpcs_own_number(self, code: str, number: int) -> None:
        assert error_to_wire(ProtocolError("a", code=code))["code"] == number

    def test_a_bad_frame_arrives_as_a_protocol_error(self) -> None:
        back = sent(BadFrame("a", code="parse_error", id=1))
        assert (type(back), back.code) == (ProtocolError, "parse_error")

    def test_a_plugins_own_subclass_arrives_as_the_class_we_know(self) -> None:
        class TooWarm(ConfigError):
            pass

        back = sent(TooWarm("a", key="k"))
        assert isinstance(back, ConfigError)
        assert (type(back), back.key) == (ConfigError, "k")

    def test_a_model_in_a_field_arrives_as_its_json(self) -> None:
        back = sent(AccessDenied("a", rule=AccessRule(sender="relay.a", to="*", action="deny")))
        assert back.data == {"rule": {"from": "relay.a", "to": "*", "action": "deny", "priority": 0}}

    def test_fields_have_camel_case_names_on_the_wire(self) -> None:
        assert error_to_wire(AccessDenied("a", message_id="m"))["data"] == {
            "messageId": "m",
            "code": "access_denied",
            "error": "AccessDenied",
        }

    @pytest.mark.parametrize(
        "make",
        [
            lambda: ValueError(CANARY),
            lambda: KeyError(CANARY),
            lambda: OSError(5, CANARY, CANARY),
            lambda: type(CANARY, (Exception,), {})(CANARY),
        ],
        ids=["value", "key", "os", "class"],
    )
    def test_what_is_none_of_ours_says_nothing_of_itself(self, make: Callable[[], Exception]) -> None:
        line = encode_error(1, make())
        assert CANARY.encode() not in line
        assert orjson.loads(line)["error"]["code"] == -32603
        assert (type(sent(make())), sent(make()).code) == (RelayError, "internal_error")

    def test_text_that_is_no_unicode_can_still_be_sent(self) -> None:
        back = sent(StorageError("cannot read /x\udcff", path="/x\udcff"))
        assert (back.message, back.data["path"]) == ("cannot read /x?", "/x?")

    def test_a_class_of_a_newer_server_becomes_the_root_and_keeps_its_code(self) -> None:
        wire = {"code": -32042, "message": "a", "data": {"error": "QuotaSpent", "code": "quota", "left": 0}}
        back = error_from_wire(wire)
        assert (type(back), back.code, back.message, back.data) == (RelayError, "quota", "a", {})

    def test_a_field_of_a_newer_server_is_ignored(self) -> None:
        wire = {"code": -32004, "message": "a", "data": {"error": "NotFound", "code": "x", "what": "w", "why": "y"}}
        back = error_from_wire(wire)
        assert (type(back), back.data) == (NotFound, {"what": "w"})

    @given(json_values)
    def test_whatever_stands_for_an_error_becomes_one(self, wire: Any) -> None:
        assert isinstance(error_from_wire(wire), RelayError)

    @given(json_values)
    def test_whatever_stands_for_its_data_becomes_one(self, data: Any) -> None:
        assert isinstance(error_from_wire({"code": 1, "message": "a", "data": data}), RelayError)
