"""The six tools, as a model sees them: names, descriptions and schemas; and the check of what it calls them with.

1. Every token here is read by every session of every agent: the whole list stays below 1,200 tokens (a test counts).
2. A schema has exactly what a tool takes. Whatever else is given is an error that names it; above all there is no
   argument for the sender, which is the server's.
3. Errors are for the model: what is wrong, with which argument, and what it should be.
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
"""Many clients give a tool a minute; the answer that comes too late for one goes to the inbox."""

_TEXT = {"type": "string"}
_TO = {"type": "string", "description": "Subject, as in relay_list"}
_IN_REPLY_TO = {"type": "string", "description": "Id of the message this answers or follows from"}
_NEW_TOPIC = {"type": "boolean", "description": "True only if a person has just asked you for this"}
_PAYLOAD = {"type": "object", "description": "More JSON to go with it"}


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
        "Send a message to another agent. It is kept until it is read. To answer one, give in_reply_to.",
        ["to", "content"],
        {"to": _TO, "content": _TEXT, "in_reply_to": _IN_REPLY_TO, "new_topic": _NEW_TOPIC, "payload": _PAYLOAD},
        destructiveHint=False,
    ),
    _tool(
        "relay_ask",
        "Send a message to another agent and wait for its answer. If none comes in time it will come to your inbox: "
        "do not ask again.",
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
        "Show your unread messages, oldest first. Each stays unread until you relay_ack it. claim: take them, so that "
        "no other session of yours works on them too.",
        [],
        {"claim": {"type": "boolean"}, "limit": {"type": "integer", "minimum": 1, "maximum": 50}},
        destructiveHint=False,
    ),
    _tool(
        "relay_ack",
        "Say that you have handled messages: they leave your inbox. failed: you could not, and why (for the sender).",
        ["ids"],
        {"ids": {"type": "array", "items": _TEXT}, "failed": _TEXT},
        idempotentHint=True,
    ),
    _tool("relay_list", "List who is there, and which people relay_notify_user reaches.", [], {}, readOnlyHint=True),
    _tool(
        "relay_notify_user",
        "Write to your user's phone or chat, for what cannot wait until they are back.",
        ["content"],
        {"content": _TEXT},
        destructiveHint=False,
        openWorldHint=True,
    ),
]

_SCHEMAS: dict[str, dict[str, Any]] = {one["name"]: one["inputSchema"] for one in TOOLS}

_KINDS: dict[str, tuple[type[Any], str]] = {
    "string": (str, "a text"),
    "boolean": (bool, "true or false"),
    "integer": (int, "a whole number"),
    "object": (dict, "an object"),
    "array": (list, "a list"),
}


def is_tool(name: Any) -> bool:
    """Tell whether there is such a tool."""
    return isinstance(name, str) and name in _SCHEMAS


def explain_arguments(name: str, arguments: Any) -> str | None:
    """Return what is wrong with the arguments of a tool, or None."""
    schema = _SCHEMAS[name]
    if not isinstance(arguments, dict):
        return "the arguments must be an object"
    known: dict[str, dict[str, Any]] = schema["properties"]
    for argument in arguments:
        if argument not in known:
            takes = ", ".join(known) or "no arguments"
            hint = "; you always send as yourself" if argument in ("from", "sender") else ""
            return f"there is no argument {str(argument)[:100]!r}: {name} takes {takes}{hint}"
    for argument in schema.get("required", ()):
        if argument not in arguments:
            return f"{argument} is missing"
    for argument, value in arguments.items():
        wrong = _explain_value(value, known[argument])
        if wrong is not None:
            return f"{argument} must be {wrong}"
    return _explain_together(arguments)


def _explain_value(value: Any, schema: dict[str, Any]) -> str | None:
    kind, words = _KINDS[schema["type"]]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return words
    if kind is int and not schema["minimum"] <= value <= schema["maximum"]:
        return f"from {schema['minimum']} to {schema['maximum']}"
    if kind is list and not (1 <= len(value) <= MAX_IDS and all(isinstance(one, str) for one in value)):
        return f"1 to {MAX_IDS} texts"
    if kind is str and len(value) > MAX_CONTENT:
        return f"at most {MAX_CONTENT:,} characters long; send the path of a file instead"
    return _explain_json(value) if kind is dict else None


def _explain_json(value: Any) -> str | None:
    """Return what the bus could not read of a value: it would not even know which question that was."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        if any(_is_no_number(one) for one in level):
            return "without numbers that are no JSON, or beyond 64 bits"
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
        ]
        if not level:
            return None
    return f"nested at most {MAX_DEPTH} levels deep"


def _is_no_number(value: Any) -> bool:
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
        return "payload must not have content: that is an argument of its own"
    return None
