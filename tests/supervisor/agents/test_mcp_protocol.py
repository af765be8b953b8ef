"""What a client says and what it is answered, in both generations; held against the `mcp` package's models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import methods
from mcp_types.jsonrpc import jsonrpc_message_adapter
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from relay_supervisor.agents.mcp.protocol import HANDSHAKE_VERSIONS, MODERN_VERSIONS, Id, Mcp

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
MODERN = {VERSION: "2026-07-28", CAPABILITIES: {}}


class Wire:
    """A session whose calls never end, and what it was made to do."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.calls: dict[Id, tuple[str, Any, Id | None]] = {}
        self.mcp = Mcp(self)

    def write(self, frame: dict[str, Any]) -> None:
        jsonrpc_message_adapter.validate_python(frame)
        self.written.append(frame)

    def call(self, id: Id, name: str, arguments: Any, progress_token: Id | None) -> None:
        self.calls[id] = (name, arguments, progress_token)

    def cancel(self, id: Id) -> None:
        self.calls.pop(id, None)

    def is_under_way(self, id: Id) -> bool:
        return id in self.calls

    def say(self, frame: Any) -> list[dict[str, Any]]:
        """Say something and return what is answered."""
        self.written.clear()
        self.mcp.take(frame if isinstance(frame, bytes) else json.dumps(frame).encode())
        return list(self.written)

    def ask(self, method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:
        """Ask something and return the one answer."""
        frame = {"jsonrpc": "2.0", "id": id, "method": method}
        (answer,) = self.say(frame if params is None else {**frame, "params": params})
        assert answer["id"] == id
        return answer

    def result(self, method: str, params: dict[str, Any], version: str) -> dict[str, Any]:
        """Ask something and return the result, having checked it against the model of that version."""
        result: dict[str, Any] = self.ask(method, params)["result"]
        methods.validate_server_result(method, version, result)
        return result

    def error(self, method: str, params: Any = None) -> int:
        """Ask something and return the error's number."""
        return int(self.ask(method, params)["error"]["code"])


def initialize(version: str = "2025-11-25") -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def legacy(wire: Wire) -> Wire:
    wire.ask("initialize", initialize())
    return wire


@pytest.fixture
def modern(wire: Wire) -> Wire:
    wire.ask("server/discover", {"_meta": MODERN})
    return wire


def test_the_versions_are_those_of_the_package() -> None:
    assert HANDSHAKE_VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS
    assert MODERN_VERSIONS == MODERN_PROTOCOL_VERSIONS


# The handshake generation


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_every_version_of_the_handshake_is_agreed_to(wire: Wire, version: str) -> None:
    result = wire.result("initialize", initialize(version), version)
    assert result["protocolVersion"] == version
    assert result["capabilities"] == {"tools": {}}
    assert "relay_ack" in result["instructions"]
    assert wire.result("tools/list", {}, version)["tools"]
    assert wire.result("ping", {}, version) == {}


@pytest.mark.parametrize("version", ["1999-01-01", "2026-07-28", "2099-01-01"])
def test_to_another_version_the_newest_is_offered(wire: Wire, version: str) -> None:
    assert wire.ask("initialize", initialize(version))["result"]["protocolVersion"] == "2025-11-25"


def test_before_initialize_only_ping_is_served(wire: Wire) -> None:
    assert wire.ask("ping")["result"] == {}
    assert wire.error("tools/list") == -32600
    assert wire.error("tools/call", {"name": "relay_list"}) == -32600
    assert wire.error("server/discover") == -32601
    assert wire.ask("initialize", initialize())["result"]


def test_no_parameters_may_be_null(legacy: Wire) -> None:
    (answer,) = legacy.say({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": None})
    assert answer["result"]["tools"]


def test_initialize_needs_a_version(wire: Wire) -> None:
    assert wire.error("initialize", {}) == -32602
    assert wire.ask("initialize", initialize())["result"]


@pytest.mark.parametrize("method", ["resources/list", "prompts/list", "logging/setLevel", "server/discover", "nope"])
def test_a_method_that_nobody_serves_is_not_found(legacy: Wire, method: str) -> None:
    assert legacy.error(method, {}) == -32601


def test_a_modern_request_in_a_session_of_the_handshake_is_refused(legacy: Wire) -> None:
    assert legacy.error("tools/list", {"_meta": MODERN}) == -32600
    assert legacy.ask("tools/list", {"_meta": {"progressToken": 1}})["result"]


# The modern generation


def test_discovery_says_everything(wire: Wire) -> None:
    result = wire.result("server/discover", {"_meta": MODERN}, "2026-07-28")
    assert result["supportedVersions"] == ["2026-07-28"]
    assert result["resultType"] == "complete"
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "relay"
    assert "relay_ack" in result["instructions"]


def test_no_discovery_is_needed(wire: Wire) -> None:
    assert wire.result("tools/list", {"_meta": MODERN}, "2026-07-28")["tools"]


def test_a_version_that_is_not_served_is_told_those_that_are_and_may_still_use_them(wire: Wire) -> None:
    error = wire.ask("server/discover", {"_meta": {**MODERN, VERSION: "2099-01-01"}})["error"]
    assert error["code"] == -32022
    assert error["data"] == {"supported": [*HANDSHAKE_VERSIONS, "2026-07-28"], "requested": "2099-01-01"}
    assert wire.ask("initialize", initialize())["result"]


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        pytest.param({VERSION: "2026-07-28"}, -32602, id="no capabilities"),
        pytest.param({CAPABILITIES: {}}, -32602, id="no version"),
        pytest.param({VERSION: 1, CAPABILITIES: {}}, -32602, id="a version that is no text"),
        pytest.param({VERSION: "2025-11-25", CAPABILITIES: {}}, -32022, id="a version of the handshake"),
        pytest.param({}, -32602, id="nothing"),
        pytest.param(None, -32602, id="null"),
    ],
)
def test_every_modern_request_says_what_it_speaks(modern: Wire, meta: Any, code: int) -> None:
    assert modern.error("tools/list", {"_meta": meta}) == code


def test_a_modern_session_has_no_handshake(modern: Wire) -> None:
    error = modern.ask("initialize", initialize())["error"]
    assert error["code"] == -32022
    assert error["data"] == {"supported": ["2026-07-28"], "requested": "2025-11-25"}


@pytest.mark.parametrize("method", ["ping", "logging/setLevel", "resources/list", "subscriptions/listen"])
def test_what_the_modern_version_lacks_is_not_found(modern: Wire, method: str) -> None:
    assert modern.error(method, {"_meta": MODERN}) == -32601


# Calls


def test_a_call_is_begun_with_its_progress_token(legacy: Wire) -> None:
    params = {"name": "relay_inbox", "arguments": {"claim": True}, "_meta": {"progressToken": "p"}}
    assert legacy.say({"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": params}) == []
    assert legacy.calls == {"x": ("relay_inbox", {"claim": True}, "p")}


@pytest.mark.parametrize("params", [{}, {"name": "relay_destroy"}, {"name": ["relay_list"]}], ids=str)
def test_a_tool_that_does_not_exist_is_an_error(legacy: Wire, params: dict[str, Any]) -> None:
    assert legacy.error("tools/call", params) == -32602


def test_a_cursor_that_was_never_given_is_an_error(legacy: Wire) -> None:
    assert legacy.error("tools/list", {"cursor": "2"}) == -32602


def test_an_id_is_used_once_at_a_time(legacy: Wire) -> None:
    frame = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "relay_list"}}
    assert legacy.say(frame) == []
    assert legacy.say(frame)[0]["error"]["code"] == -32600
    assert list(legacy.calls) == [7]


def test_a_cancelled_call_is_given_up_and_other_notifications_mean_nothing(legacy: Wire) -> None:
    for id in (7, 1):
        legacy.say({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "relay_list"}})
    for method, params in [
        ("notifications/initialized", {}),
        ("notifications/cancelled", {"requestId": 8}),
        ("notifications/cancelled", {"requestId": [7]}),
        ("notifications/cancelled", {"requestId": True}),
        ("notifications/cancelled", {}),
        ("notifications/roots/list_changed", {}),
    ]:
        assert legacy.say({"jsonrpc": "2.0", "method": method, "params": params}) == []
    assert list(legacy.calls) == [7, 1]
    assert legacy.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}) == []
    assert list(legacy.calls) == [1]


# What is no request


@pytest.mark.parametrize(
    ("line", "id", "code"),
    [
        pytest.param(b"{", None, -32700, id="not JSON"),
        pytest.param(b"\xff\xfe", None, -32700, id="not UTF-8"),
        pytest.param(b"[" * 100_000, None, -32700, id="too deep"),
        pytest.param(b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None, -32600, id="a batch"),
        pytest.param(b'"x"', None, -32600, id="no object"),
        pytest.param(b'{"id":1}', 1, -32600, id="no method"),
        pytest.param(b'{"id":1,"method":5}', 1, -32600, id="a method that is no text"),
        pytest.param(b'{"id":1,"method":"ping","params":[]}', 1, -32600, id="parameters by position"),
        pytest.param(b'{"id":null,"method":"ping"}', None, -32600, id="an id of null"),
        pytest.param(b'{"id":true,"method":"ping"}', None, -32600, id="an id that is no id"),
        pytest.param(b'{"id":1.5,"method":"ping"}', None, -32600, id="an id that is no whole number"),
    ],
)
def test_what_is_no_request_gets_an_error_and_the_session_goes_on(wire: Wire, line: bytes, id: Any, code: int) -> None:
    (answer,) = wire.say(line)
    assert (answer["id"], answer["error"]["code"]) == (id, code)
    assert wire.ask("ping")["result"] == {}


def test_answers_to_nothing_are_passed_over(wire: Wire) -> None:
    assert wire.say({"jsonrpc": "2.0", "id": 1, "result": {}}) == []
    assert wire.say({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}}) == []
