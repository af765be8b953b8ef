"""Frames: JSON-RPC 2.0, one JSON object per line, as bytes in and values out. No socket and no clock.

1. A frame is one line of UTF-8 JSON that ends in a newline. Empty lines are ignored.
2. A line longer than `MAX_FRAME` ends the stream: the rest cannot be framed. Earlier frames are still valid.
3. A frame is a request (`id` and `method`), a notification (`method` alone) or an answer (`id` and `result` or
   `error`). Arrays (JSON-RPC batches) are refused: lines are pipelined.
4. An object with a duplicate key is refused, at any depth: two readers could interpret it differently. (A client does
   not check this: it knows who serves its socket.)
5. An error carries JSON-RPC's number, a message, and in `data` the stable code, the class's name and its fields, so
   that the other side raises the same error.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson
from pydantic.alias_generators import to_camel, to_snake

from relay_core import errors
from relay_core.errors import ProtocolError, RelayError
from relay_core.messages.base import WireModel

MAX_FRAME = 4 * 1024 * 1024

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

_MAX_ID = 256
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?', re.DOTALL)
_MAX_INT = 2**63

ERROR_CLASSES: dict[str, type[RelayError]] = {
    name: found for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, RelayError)
}
# In the order of errors.py, which is only ever added to at the end.
ERROR_NUMBERS = {name: -32000 - position for position, name in enumerate(ERROR_CLASSES)}
PROTOCOL_NUMBERS = {
    "parse_error": PARSE_ERROR,
    "invalid_request": INVALID_REQUEST,
    "frame_too_large": INVALID_REQUEST,
    "unknown_method": METHOD_NOT_FOUND,
    "invalid_params": INVALID_PARAMS,
}

Id = int | str | None


class FrameBuffer:
    """Split a stream of bytes into lines."""

    __slots__ = ("_begun", "limit", "overflowed")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self.overflowed = False
        """True once a line was too long; no more lines are returned."""
        self._begun = bytearray()

    @property
    def begun(self) -> bool:
        """Return True if an incomplete line is waiting for the rest."""
        return bool(self._begun)

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the lines that they complete, without newlines."""
        if self.overflowed:
            return []
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._begun:
            self._begun += lines[0]
            lines[0] = bytes(self._begun)
            self._begun = bytearray()
        if rest:
            self._begun += rest
        if len(data) > self.limit or (lines and len(lines[0]) > self.limit) or len(self._begun) > self.limit:
            lines = self._cut(lines)
        if b"" in lines or b"\r" in lines:
            return [line for line in lines if line and line != b"\r"]
        return lines

    def _cut(self, lines: list[bytes]) -> list[bytes]:
        """Return the lines before the first that is too long."""
        for position, line in enumerate(lines):
            if len(line) > self.limit:
                self._overflow()
                return lines[:position]
        if len(self._begun) > self.limit:
            self._overflow()
        return lines

    def _overflow(self) -> None:
        self.overflowed = True
        self._begun = bytearray()


class Request(NamedTuple):
    """A method called by the other side; a notification has no id and gets no answer."""

    method: str
    params: dict[str, Any]
    id: Id
    is_notification: bool


class Response(NamedTuple):
    """The answer to a request."""

    id: Id
    result: Any = None
    error: RelayError | None = None
    greeting: dict[str, Any] | None = None
    """The server's identity, sent with its first answer."""


class BadFrame(ProtocolError):
    """An invalid frame; `id` is its id, if it could be read."""

    def __init__(self, message: str, *, code: str, id: Id = None) -> None:
        super().__init__(message, code=code)
        self.id = id


def decode(line: bytes) -> Request | Response:
    """Return the request or the answer in a line.

    Raises:
        BadFrame: if it is not a valid frame.
    """
    frame = _load(line)
    if not isinstance(frame, dict):
        raise BadFrame("a frame must be one JSON object per line", code="invalid_request")
    id = frame.get("id")
    if not _is_id(id):
        raise BadFrame("id must be a whole number or a text of at most 256 characters", code="invalid_request")
    if frame.get("jsonrpc") != "2.0":
        raise BadFrame('a frame must say "jsonrpc": "2.0"', code="invalid_request", id=id)
    method = frame.get("method")
    if method is None and ("result" in frame or "error" in frame):
        return _decode_response(frame, id)
    if not isinstance(method, str):
        raise BadFrame("method must be a text", code="invalid_request", id=id)
    params = frame.get("params", {})
    if not isinstance(params, dict):
        raise BadFrame("params must be an object", code="invalid_params", id=id)
    return Request(method, params, id, "id" not in frame)


def encode_request(method: str, params: dict[str, Any], id: Id) -> bytes:
    """Return the line of a request."""
    return orjson.dumps(
        {"jsonrpc": "2.0", "id": id, "method": method, "params": params}, option=orjson.OPT_APPEND_NEWLINE
    )


def encode_notification(method: str, params: dict[str, Any]) -> bytes:
    """Return the line of a notification."""
    return orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params}, option=orjson.OPT_APPEND_NEWLINE)


def encode_ack(delivery_id: str) -> bytes:
    """Return the line of the notification `ack`, which follows every message."""
    return b'{"jsonrpc":"2.0","method":"ack","params":{"deliveryId":%b}}\n' % orjson.dumps(delivery_id)


def encode_result(id: Id, result: Any, greeting: dict[str, Any] | None = None) -> bytes:
    """Return the line of an answer; models within it are written in their wire form."""
    return _encode_answer(id, "result", result, greeting)


def encode_error(id: Id, error: Exception, greeting: dict[str, Any] | None = None) -> bytes:
    """Return the line of an error answer."""
    return _encode_answer(id, "error", error_to_wire(error), greeting)


def _encode_answer(id: Id, kind: str, value: Any, greeting: dict[str, Any] | None) -> bytes:
    if isinstance(value, WireModel):
        value = value.to_wire()  # faster than through `default`
    frame: dict[str, Any] = {"jsonrpc": "2.0", "id": id, kind: value}
    if greeting is not None:
        frame["relay"] = greeting
    return orjson.dumps(frame, default=_plain, option=orjson.OPT_APPEND_NEWLINE)


def error_to_wire(error: Exception) -> dict[str, Any]:
    """Return an error as a JSON-RPC error; an unexpected exception reveals no details."""
    if not isinstance(error, RelayError):
        return {
            "code": INTERNAL_ERROR,
            "message": "internal error: the supervisor's log says more",
            "data": {"code": "internal_error", "error": "RelayError"},
        }
    kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in ERROR_NUMBERS)
    data = {to_camel(name): _sendable(value) for name, value in error.data.items()}
    return {
        "code": PROTOCOL_NUMBERS.get(error.code, ERROR_NUMBERS[kind]),
        "message": _sendable(error.message),
        "data": {**data, "code": error.code, "error": kind},
    }


def error_from_wire(wire: Any) -> RelayError:
    """Return the error that the other side raised, as the same class with the same fields."""
    wire = wire if isinstance(wire, dict) else {}
    data = wire.get("data")
    data = dict(data) if isinstance(data, dict) else {}
    kind = ERROR_CLASSES.get(str(data.pop("error", "")), RelayError)
    code = str(data.pop("code", kind.default_code))
    known = {to_snake(name): value for name, value in data.items() if to_snake(name) in kind.field_names()}
    return kind(str(wire.get("message", "unknown error")), code=code, **known)


def _decode_response(frame: dict[str, Any], id: Id) -> Response:
    greeting = frame.get("relay")
    greeting = greeting if isinstance(greeting, dict) else None
    if "error" in frame:
        return Response(id, error=error_from_wire(frame["error"]), greeting=greeting)
    return Response(id, frame["result"], greeting=greeting)


def _load(line: bytes) -> Any:
    try:
        frame = orjson.loads(line)
        written = orjson.dumps(frame)
    except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes
        raise BadFrame("nested too deeply", code="parse_error") from None
    except ValueError as error:
        raise BadFrame(f"not JSON: {error}", code="parse_error") from None
    # Of duplicate keys, one was dropped. Lines that orjson reproduces exactly, such as our own clients', have none.
    if written != line and _count_keys(written) != _count_keys(line):
        raise BadFrame("duplicate key in an object", code="parse_error")
    return frame


def _count_keys(text: bytes) -> int:
    """Return the number of keys in a valid JSON text: strings that a colon follows."""
    return sum(map(bool, _STRINGS.findall(text)))


def _is_id(id: Any) -> bool:
    if type(id) is int:  # not isinstance, which takes True for an int
        return -_MAX_INT <= id < _MAX_INT
    return id is None or (isinstance(id, str) and len(id) <= _MAX_ID)


def _sendable(value: Any) -> Any:
    """Return a value that can be encoded: a path may contain invalid Unicode."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    if isinstance(value, WireModel):
        return value.to_wire()
    raise TypeError(f"{type(value).__name__} cannot be sent")
