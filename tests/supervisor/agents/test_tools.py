"""The tools as a model sees them: few, small, and strict about what they are called with."""

from __future__ import annotations

import json
from typing import Any

import mcp_types
import pytest

from relay_supervisor.agents.mcp.protocol import INSTRUCTIONS
from relay_supervisor.agents.mcp.session import VERBS
from relay_supervisor.agents.mcp.tools import MAX_CONTENT, MAX_DEPTH, TOOLS, explain_arguments

NAMES = ["relay_send", "relay_ask", "relay_inbox", "relay_ack", "relay_list", "relay_notify_user"]

GOOD: dict[str, dict[str, Any]] = {
    "relay_send": {"to": "relay.agent.b", "content": "x"},
    "relay_ask": {"to": "relay.agent.b", "content": "x"},
    "relay_inbox": {},
    "relay_ack": {"ids": ["01A"]},
    "relay_list": {},
    "relay_notify_user": {"content": "x"},
}


def deep(levels: int) -> dict[str, Any]:
    """Return an object with so many levels in it."""
    made: dict[str, Any] = {}
    for _ in range(levels):
        made = {"a": made}
    return made


def test_there_are_six_and_each_does_something() -> None:
    assert [one["name"] for one in TOOLS] == NAMES
    assert list(VERBS) == NAMES


def test_they_are_mcps_tools() -> None:
    for one in TOOLS:
        assert mcp_types.Tool.model_validate(one).name == one["name"]


def test_together_they_stay_below_twelve_hundred_tokens() -> None:
    # No tokenizer is at hand. English in JSON is 3.5 to 4.5 characters a token with every current one, and 3 is fewer
    # than punctuation costs at its worst: 3,600 characters are below 1,200 tokens, instructions included.
    assert len(json.dumps(TOOLS, separators=(",", ":"))) + len(INSTRUCTIONS) < 3600


@pytest.mark.parametrize("name", NAMES)
def test_what_is_asked_for_is_enough(name: str) -> None:
    assert explain_arguments(name, GOOD[name]) is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("argument", ["from", "sender", "as", "replyTo", "subject"])
def test_there_is_no_argument_for_the_sender(name: str, argument: str) -> None:
    wrong = explain_arguments(name, {**GOOD[name], argument: "relay.agent.someone-else"})
    assert wrong is not None
    assert wrong.startswith(f"unknown argument '{argument}': {name} takes ")


@pytest.mark.parametrize(
    ("name", "more", "wrong"),
    [
        ("relay_send", {"to": 1}, "to must be a string"),
        ("relay_send", {"to": " "}, "to must not be empty"),
        ("relay_send", {"content": ""}, "content must not be empty"),
        ("relay_send", {"content": "x" * (MAX_CONTENT + 1)}, "content must be at most 1,000,000 characters long"),
        ("relay_send", {"payload": []}, "payload must be an object"),
        ("relay_send", {"payload": {"content": "y"}}, "payload must not have content"),
        ("relay_send", {"payload": deep(MAX_DEPTH)}, "payload must be nested at most 100 levels deep"),
        (
            "relay_send",
            {"payload": {"n": [float("nan")]}},
            "payload must be without NaN, infinity or integers beyond 64 bits",
        ),
        (
            "relay_send",
            {"payload": {"n": float("inf")}},
            "payload must be without NaN, infinity or integers beyond 64 bits",
        ),
        ("relay_send", {"payload": {"n": 2**64}}, "payload must be without NaN, infinity or integers beyond 64 bits"),
        ("relay_send", {"new_topic": "yes"}, "new_topic must be true or false"),
        ("relay_send", {"new_topic": True, "in_reply_to": "01A"}, "in_reply_to and new_topic contradict each other"),
        ("relay_ask", {"timeout_secs": 0}, "timeout_secs must be from 1 to 600"),
        ("relay_ask", {"timeout_secs": True}, "timeout_secs must be an integer"),
        ("relay_ask", {"timeout_secs": 2.5}, "timeout_secs must be an integer"),
        ("relay_inbox", {"limit": 51}, "limit must be from 1 to 50"),
        ("relay_ack", {"ids": []}, "ids must be a list of 1 to 100 strings"),
        ("relay_ack", {"ids": [1]}, "ids must be a list of 1 to 100 strings"),
        ("relay_ack", {"ids": "01A"}, "ids must be a list"),
    ],
)
def test_a_wrong_argument_is_named(name: str, more: dict[str, Any], wrong: str) -> None:
    assert (explain_arguments(name, {**GOOD[name], **more}) or "").startswith(wrong)


@pytest.mark.parametrize(("name", "argument"), [(name, one) for name in NAMES for one in GOOD[name]])
def test_a_missing_argument_is_named(name: str, argument: str) -> None:
    rest = {key: value for key, value in GOOD[name].items() if key != argument}
    assert explain_arguments(name, rest) == f"{argument} is missing"


@pytest.mark.parametrize("arguments", [[], "x", 1], ids=str)
def test_arguments_are_an_object(arguments: Any) -> None:
    assert explain_arguments("relay_list", arguments) == "the arguments must be an object"
