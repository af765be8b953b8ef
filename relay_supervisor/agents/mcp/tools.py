"""The six tools, as a model sees them: names, descriptions and schemas; and the validation of arguments.

1. Every session of every agent reads this list: it stays below 1,200 tokens (a test counts).
2. An argument that is not in the schema is an error that names it. There is no argument for the sender: it is always
   the session's agent.
3. Errors are for the model: which argument is wrong, and what it should be.
"""

from __future__ import annotations

from relay_supervisor.agents.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


MAX_CONTENT = 1_000_000
MAX_IDS = 100
MAX_DEPTH = 100
LONGEST_WAIT_SECS = 600
USUAL_WAIT_SECS = 50
"""Many clients give a tool one minute; a later answer goes to the inbox."""

_TEXT = {"type": "string"}
_TO = {"type": "string", "description": "Subject, as in relay_list"}
_IN_REPLY_TO = {"type": "string", "description": "Id of the message this answers or follows from"}
_NEW_TOPIC = {"type": "boolean", "description": "True only if a person has just asked you for this"}
_PAYLOAD = {"type": "object", "description": "Further JSON data"}


def _tool(
    name: str, description: str, required: list[str], properties: dict[str, Any], **hints: bool
) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    return {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "annotations": {"openWorldHint": False, **hints},
    }


TOOLS: list[dict[str, Any]] = [
    _tool(
        "relay_send",
        "Send a message to another agent. It is kept until it is read. To answer a message, give in_reply_to.",
        ["to", "content"],
        {"to": _TO, "content": _TEXT, "in_reply_to": _IN_REPLY_TO, "new_topic": _NEW_TOPIC, "payload": _PAYLOAD},
        destructiveHint=False,
    ),
    _tool(
        "relay_ask",
        "Send a message to another agent and wait for its answer. A late answer goes to your inbox: do not ask again.",
        ["to", "content"],
        {
            "to": _TO,
            "content": _TEXT,
            "timeout_secs": {
                "type": "integer",
                "minimum": 1,
                "maximum": LONGEST_WAIT_SECS,
                "description": f"{USUAL_WAIT_SECS} if left out",
            },
            "in_reply_to": _IN_REPLY_TO,
            "new_topic": _NEW_TOPIC,
            "payload": _PAYLOAD,
        },
        destructiveHint=False,
    ),
    _tool(
        "relay_inbox",
        "Show your unread messages, oldest first. Each stays unread until you relay_ack it. claim: reserve them, so "
        "that no other session of yours handles them too.",
        [],
        {"claim": {"type": "boolean"}, "limit": {"type": "integer", "minimum": 1, "maximum": 50}},
        destructiveHint=False,
    ),
    _tool(
        "relay_ack",
        "Mark messages as handled: they leave your inbox. failed: why you could not handle them (for the sender).",
        ["ids"],
        {"ids": {"type": "array", "items": _TEXT}, "failed": _TEXT},
        idempotentHint=True,
    ),
    _tool("relay_list", "List the agents, and the people whom relay_notify_user reaches.", [], {}, readOnlyHint=True),
    _tool(
        "relay_notify_user",
        "Write to your user's phone or chat, if it cannot wait until they are back.",
        ["content"],
        {"content": _TEXT},
        destructiveHint=False,
        openWorldHint=True,
    ),
]

_SCHEMAS: dict[str, dict[str, Any]] = {tool["name"]: tool["inputSchema"] for tool in TOOLS}

_KINDS: dict[str, tuple[type[Any], str]] = {
    "string": (str, "a string"),
    "boolean": (bool, "true or false"),
    "integer": (int, "an integer"),
    "object": (dict, "an object"),
    "array": (list, "a list"),
}


def is_tool(name: Any) -> bool:
    """Return True if this is the name of a tool."""
    return isinstance(name, str) and name in _SCHEMAS


def explain_arguments(name: str, arguments: Any) -> str | None:
    """Return the problem with the arguments of a tool, or None."""
    schema = _SCHEMAS[name]
    if not isinstance(arguments, dict):
        return "the arguments must be an object"
    known: dict[str, dict[str, Any]] = schema["properties"]
    for argument in arguments:
        if argument not in known:
            takes = ", ".join(known) or "no arguments"
            hint = "; you always send as yourself" if argument in ("from", "sender") else ""
            return f"unknown argument {str(argument)[:100]!r}: {name} takes {takes}{hint}"
    for argument in schema.get("required", ()):
        if argument not in arguments:
            return f"{argument} is missing"
    for argument, value in arguments.items():
        expected = _explain_value(value, known[argument])
        if expected is not None:
            return f"{argument} must be {expected}"
    return _explain_together(arguments)


def _explain_value(value: Any, schema: dict[str, Any]) -> str | None:
    kind, words = _KINDS[schema["type"]]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return words
    if kind is int and not schema["minimum"] <= value <= schema["maximum"]:
        return f"from {schema['minimum']} to {schema['maximum']}"
    if kind is list and not (1 <= len(value) <= MAX_IDS and all(isinstance(item, str) for item in value)):
        return f"a list of 1 to {MAX_IDS} strings"
    if kind is str and len(value) > MAX_CONTENT:
        return f"at most {MAX_CONTENT:,} characters long; send a file's path instead"
    return _explain_json(value) if kind is dict else None


def _explain_json(value: Any) -> str | None:
    """Return why the bus could not parse a value: it would reject the whole frame, without the request's id."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        if any(_is_bad_number(item) for item in level):
            return "without NaN, infinity or integers beyond 64 bits"
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
        ]
        if not level:
            return None
    return f"nested at most {MAX_DEPTH} levels deep"


def _is_bad_number(value: Any) -> bool:
    if isinstance(value, float):
        return not abs(value) < float("inf")
    return isinstance(value, int) and not -(2**63) <= value < 2**64


def _explain_together(arguments: dict[str, Any]) -> str | None:
    for argument in ("to", "content", "in_reply_to", "failed"):
        if argument in arguments and not arguments[argument].strip():
            return f"{argument} must not be empty"
    if arguments.get("new_topic") and "in_reply_to" in arguments:
        return "in_reply_to and new_topic contradict each other: give one of them"
    if "content" in arguments.get("payload", {}):
        return "payload must not have content: use the argument content"
    return None
