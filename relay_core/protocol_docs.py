"""docs/protocol.md, made from the models: `python -m relay_core.protocol_docs > docs/protocol.md`.

1. What a method takes and returns is read off its models, so the page cannot say anything else than the server does.
2. What a field means is the text below it in the source. pydantic could collect these texts itself, but would read
   every source file at every import to do so; here they are read when the page is made.
3. The examples are run by a test, as they stand on the page, against a real supervisor.

The module is long because a good third of it is the page's own prose and examples, in their order.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from relay_core.docstrings import field_texts
from relay_core.frames import ERROR_CLASSES, ERROR_NUMBERS, INTERNAL_ERROR, MAX_FRAME, PROTOCOL_NUMBERS
from relay_core.protocol import MAX_BATCH, MAX_PAGE, METHODS, NOTIFICATIONS, PROTOCOL_VERSION, Done, Method, Nothing

COMMAND = "python -m relay_core.protocol_docs > docs/protocol.md"

_TITLES = {
    "server": "The supervisor",
    "publish": "Publishing",
    "subscribe": "Subscriptions",
    "inbox": "Inboxes",
    "signal": "Signals",
    "endpoints": "Endpoints and mailboxes",
    "agents": "Agents",
    "deadletters": "Dead letters",
    "breakers": "Breakers",
    "senders": "Senders",
    "adapters": "Adapters",
    "access": "Access rules",
    "tokens": "Tokens",
    "traces": "Traces",
    "metrics": "Counters",
    "state": "The state stream",
    "jobs": "Jobs",
    "reports": "Reports",
    "config": "Configuration",
}
_GROUP_OF = {
    "unsubscribe": "subscribe",
    "start": "subscribe",
    "ack": "subscribe",
    "fail": "subscribe",
    "mailboxes": "endpoints",
    "replies": "endpoints",
}
"""First words that have no title of their own."""

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "string", Any: "anything"}

_CODES = {
    "parse_error": "The line is not JSON, is nested too deeply, or says a key twice.",
    "invalid_request": "The line is JSON, but neither a request nor a notification.",
    "frame_too_large": "The line is too long. The connection is closed, since nothing after it can be understood.",
    "unknown_method": "There is no such method.",
    "invalid_params": "A parameter is missing, unknown or of another type; the message names it.",
}

_INTRODUCTION = f"""\
# The protocol of the socket

<!-- Made from relay_core/protocol.py. Do not edit; run: {COMMAND} -->

For those who write a client in another language, or want to know what a field means. Python programs have
`RelayClient` in `relay_core`, which also reconnects and retries.

A supervisor listens on one Unix socket. It speaks JSON-RPC 2.0, one JSON object per line, and can be used from a
shell. This is version {PROTOCOL_VERSION} of the protocol.

## Connecting

The socket is at `$RELAY_SOCKET`; without that, at `$XDG_RUNTIME_DIR/relay/relay.sock`; without that, at `relay.sock` in
the data directory (`$RELAY_DATA_DIR`, or `~/.dork/relay`). `relay-supervisor status` prints where it is. Only the
user who runs the supervisor (and root) can connect.

The examples on this page use OpenBSD's netcat (`netcat-openbsd` on Debian). `-U` means a Unix socket, and `-N`
tells the supervisor that nothing more will be asked. It then answers what was asked and closes.

```sh
printf '%s\\n' '{{"jsonrpc":"2.0","id":1,"method":"server.info","params":{{}}}}' | nc -N -U "$RELAY_SOCKET"
```

Give a subject a mailbox, publish to it, and look at what waits there:

```sh
ask() {{ printf '{{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}}\\n' "$@" | nc -N -U "$RELAY_SOCKET"; }}
ask 1 endpoints.register '{{"subject":"relay.agent.ann"}}'
ask 2 publish '{{"subject":"relay.agent.ann","from":"relay.agent.bob","payload":{{"content":"hello Ann"}}}}'
ask 3 inbox.peek '{{"subject":"relay.agent.ann"}}'
```

Each step has a connection of its own here, so that the publish has been answered before the inbox is looked at.

Publish several messages in one frame. Each stands for itself; the second one here reaches nobody:

```sh
ask() {{ printf '{{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}}\\n' "$@" | nc -N -U "$RELAY_SOCKET"; }}
one='{{"subject":"relay.agent.cid","from":"relay.agent.bob","payload":"first of a batch"}}'
two='{{"subject":"relay.agent.nobody","from":"relay.agent.bob","payload":"second of a batch"}}'
ask 1 endpoints.register '{{"subject":"relay.agent.cid"}}'
ask 2 publish.batch '{{"messages":['"$one,$two"']}}'
ask 3 inbox.peek '{{"subject":"relay.agent.cid"}}'
```

## Frames

- A frame is one JSON object on one line of UTF-8 that ends in a newline. Empty lines mean nothing.
- A frame has at most {MAX_FRAME:,} bytes ({MAX_FRAME // 1024 // 1024} MiB), in both directions. A longer one gets an
  error and ends the connection; what was asked before it is still answered. A line that was begun must be
  complete within 30 seconds.
- A request is `{{"jsonrpc": "2.0", "id": ..., "method": ..., "params": {{...}}}}`. The id is a whole number of 64 bits
  or a string of at most 256 characters. `params` is always an object; it may be left out where nothing is needed.
- A request without an `id` is a notification: it is carried out and never answered, not even if it fails.
- Several requests may be sent without waiting. They are begun in their order and run side by side; answers come as
  they are ready, in any order: the id tells which is which. What changes endpoints, subscriptions, an inbox, rules or
  tokens is done before the next request is begun, so registering and publishing needs no waiting in between. A
  publish is not waited for: ask for what it led to once it has been answered. JSON-RPC's batches (arrays) are
  refused; send several lines instead.
- An object that says the same key twice, at any depth, is refused. So are NaN, Infinity and half a surrogate pair.
  Whole numbers of more than 64 bits become floating-point numbers.
- Parameters are strict: an unknown key or a value of another type is an error that names it. In answers,
  ignore keys that you do not know; keys without a value are left out of them.

## The handshake

None is needed. The first answer on every connection carries the server's greeting beside its result or error:

```json
{{"jsonrpc": "2.0", "id": 1, "result": {{}}, "relay": {{"version": "0.1.0", "protocol": {PROTOCOL_VERSION}}}}}
```

A client that wants to be sure, that has a token, or that wants a name in logs begins with
[`server.hello`](#serverhello). It names the newest version that it speaks, and is refused with
`unsupported_protocol` if the server does not speak that any more.

## Who may call what

A process of the supervisor's own user is the operator and may call everything, unless `auth.requireTokens` is set in
config.json. Then everyone needs a token: the operator's own is in the file `operator.token` in the data directory,
others are made with `relay token add PATTERN`.

Whoever says hello with a token publishes only as senders that its pattern matches (otherwise `sender_not_yours`),
reads only their mail (`subject_not_yours`), and calls only the methods marked *agents* below (`operator_only`). Nobody
can publish as `relay.system.>` or as an adapter (`sender_reserved`).

[`replies.open`](#repliesopen) makes a private mailbox below `relay.reply.` for answers, to name as `replyTo`. It goes
with the connection; its key opens it again on another. Nobody else can read it, no pattern reaches it, and only a
recipient of the question can answer there (otherwise `not_asked`): as the subject that was asked, or by naming the
question's id as `parentId`. Limits of what a token may own are refused with `too_many`.
"""

_DELIVERIES = """\
## Subscriptions and acknowledgements

[`subscribe`](#subscribe) pushes messages as [`message`](#notification-message) notifications, those that wait already
first. Each has a `deliveryId` and must be answered with [`ack`](#ack) or [`fail`](#fail), as a request or as a
notification, on the same connection. Until then no further message of that mailbox comes. One that is not answered
within the handler timeout (`dispatch.handlerTimeoutMs`, 30 seconds) becomes a dead letter with code `timeout`, one that
was failed with `consumer_failed`, and one whose connection is lost with `disconnected`, since nobody knows how far its
consumer came.
The same becomes of claims made with [`inbox.claim`](#inboxclaim), unless they were made with a lease.

A subscription lives as long as its connection. Here bash holds one open, publishes on it, and acknowledges what comes:

```sh
coproc relay { nc -N -U "$RELAY_SOCKET"; }
say() { printf '{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}\\n' "$@" >&"${relay[1]}"; }
say 1 subscribe '{"pattern":"relay.agent.dora"}'
while read -r line <&"${relay[0]}"; do
  printf '%s\\n' "$line"
  case "$line" in
    *'"id":1,'*) say 2 publish '{"subject":"relay.agent.dora","from":"relay.agent.bob","payload":"hello Dora"}' ;;
    *'"method":"message"'*)
      delivery=$(sed 's/.*"deliveryId":"\\([^"]*\\)".*/\\1/' <<<"$line")
      say 3 ack '{"deliveryId":"'"$delivery"'"}' ;;
    *'"id":3,'*) break ;;
  esac
done
```

What could not be delivered is a dead letter:

```sh
ask() { printf '{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}\\n' "$@" | nc -N -U "$RELAY_SOCKET"; }
ask 1 publish '{"subject":"relay.agent.eve","from":"relay.agent.bob","payload":"hello Eve"}'
ask 2 deadletters.list '{"filter":{"code":"no_match"},"limit":10}'
```
"""

_FLOW = f"""\
## Flow control and limits

- At most 256 requests of one connection are under way; more wait, unread in the end. So a client that sends faster
  than it is served is slowed down, and never refused.
- A client that does not read its answers is not read from either. What the server sends by itself then depends on its
  kind: a `message` waits, within the handler timeout; a `signal` is dropped; a `state` watcher misses updates and gets
  the whole state again once it reads.
- A `publish.batch` holds at most {MAX_BATCH:,} messages, a page at most {MAX_PAGE:,} rows. An answer is also cut so
  that it fits into a frame: ask on with its `cursor` for as long as there is one.
- There are at most 1,000 connections; one more is told so (`refused`) and closed.
- When the supervisor stops, every connection gets [`closing`](#notification-closing). Until it is closed, only what
  finishes deliveries is answered; the rest gets `stopping`, and can be asked again when the supervisor is back.
"""


def protocol_markdown() -> str:
    """Return the page."""
    parts = [_INTRODUCTION, *_errors(), _DELIVERIES, _FLOW, *_overview()]
    methods = METHODS.values()
    for group, members in groupby(methods, key=_group):
        parts.append(f"## {_TITLES.get(group, group)}\n")
        for method in members:
            parts += _method(method)
    parts.append("## Notifications\n\nWhat the server sends by itself. They have no id and get no answer.\n")
    for name, model in NOTIFICATIONS.items():
        parts += [f"### Notification `{name}`\n", f"{_about(model)}\n", _table(model, answer=True)]
    parts.append("## Shared values\n\nValues that occur in more than one place, by name.\n")
    for shared in sorted(_shared(), key=lambda one: str(one.__name__)):
        note = "\n\nSent as an array of these, in this order." if not issubclass(shared, BaseModel) else ""
        answer = not any(shared in _nested(method.params) for method in methods)
        parts += [f"### Value `{shared.__name__}`\n", f"{_about(shared)}{note}\n", _table(shared, answer=answer)]
    return "\n".join(parts).rstrip() + "\n"


def _errors() -> Iterator[str]:
    yield "## Errors\n"
    yield (
        "An error has JSON-RPC's number, a sentence for people, and in `data` the name of its class (`error`), a\n"
        "stable word for programs (`code`) and the fields below, as far as they are known. A class may come with a\n"
        "narrower code, such as `storage_full`. Its number is the class's all the same, but for the codes of the\n"
        "second table.\n"
    )
    rows = [
        [f"`{name}`", str(ERROR_NUMBERS[name]), f"`{kind.default_code}`", _fields_of(kind.fields), _about(kind)]
        for name, kind in ERROR_CLASSES.items()
    ]
    yield _rows(["class", "number", "code", "fields", "meaning"], rows)
    rows = [[f"`{code}`", str(number), _CODES[code]] for code, number in PROTOCOL_NUMBERS.items()]
    rows.append(["`internal_error`", str(INTERNAL_ERROR), "A fault of the server; its log says more."])
    yield _rows(["code", "number", "meaning"], rows)


def _overview() -> Iterator[str]:
    yield "## Methods\n"
    rows = [
        [f"[`{one.name}`](#{one.name.replace('.', '')})", "agents" if one.for_agents else "operator", one.summary]
        for one in METHODS.values()
    ]
    yield _rows(["method", "for", "what it does"], rows)


def _method(method: Method) -> Iterator[str]:
    yield f"### `{method.name}`\n"
    yield f"{method.summary}{' *(agents)*' if method.for_agents else ''}\n"
    if method.params is Nothing:
        yield "Takes nothing.\n"
    else:
        yield f"Takes: {_about(method.params)}\n"
        yield _table(method.params, answer=False)
    if method.result is Done:
        yield "Returns an empty object.\n"
    elif method.result in _shared():
        yield f"Returns: {_link(method.result)}\n"
    else:
        yield f"Returns: {_about(method.result)}\n"
        yield _table(method.result, answer=True)


def _group(method: Method) -> str:
    first = method.name.partition(".")[0]
    return _GROUP_OF.get(first, first)


# Models


@cache
def _shared() -> frozenset[type[Any]]:
    """Return what is described once, at the end: whatever is nested, and what several methods return."""
    found: set[type[Any]] = set()
    results = [method.result for method in METHODS.values() if method.result is not Done]
    for model in [*(method.params for method in METHODS.values()), *results, *NOTIFICATIONS.values()]:
        found |= _nested(model)
    return frozenset(found | {result for result in results if results.count(result) > 1})


def _nested(model: type[Any]) -> set[type[Any]]:
    found: set[type[Any]] = set()
    waiting = [annotation for _, annotation, _ in _fields(model)]
    while waiting:
        annotation = waiting.pop()
        if _is_value(annotation) and annotation not in found:
            found.add(annotation)
            waiting += [inner for _, inner, _ in _fields(annotation)]
        elif get_origin(annotation) is not Literal:
            waiting += get_args(annotation)
    return found


def _is_value(annotation: Any) -> bool:
    """Tell whether an annotation is a type of ours that has fields."""
    return isinstance(annotation, type) and (issubclass(annotation, BaseModel) or hasattr(annotation, "_fields"))


def _fields(model: type[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each field's name in Python, its type with what limits it, and what pydantic knows of it."""
    if issubclass(model, BaseModel):
        for name, field in model.model_fields.items():
            limited = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            yield name, limited, field
    else:
        for name, annotation in get_type_hints(model).items():
            yield name, annotation, None


def _table(model: type[Any], *, answer: bool) -> str:
    texts = field_texts(model)
    rows = []
    for name, annotation, field in _fields(model):
        shown = field.alias or name if field is not None else to_camel(name)
        presence = _presence(annotation, field, answer=answer)
        rows.append([f"`{shown}`", _type(annotation), presence, _plain(texts.get(name, ""))])
    return _rows(["name", "type", "there" if answer else "needed", "meaning"], rows)


def _presence(annotation: Any, field: Any, *, answer: bool) -> str:
    if answer and NoneType in get_args(annotation):
        return "if any"
    if field is None or field.is_required():
        return "always" if answer else "yes"
    default = field.get_default(call_default_factory=True)
    if answer:
        return "if any" if default in ({}, (), []) else "always"
    return "no" if default is None else f"no (`{_json(default)}`)"


def _type(annotation: Any) -> str:
    """Return a type in the words of JSON."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if _is_value(annotation):
        return _link(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _either(f"`{_json(one.value)}`" for one in annotation)
    if origin is Literal:
        return _either(f"`{_json(one)}`" for one in inner)
    if origin is Annotated:
        return ", ".join(filter(None, [_type(inner[0]), *map(_limits, _flat(inner[1:]))]))
    if origin in (list, tuple):
        return f"array of {_type(inner[0])}"
    if origin is dict:
        return "object" if inner[1] is Any else f"object of {_type(inner[1])}"
    return _either(_type(one) for one in inner if one is not NoneType)


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    for one in metadata:
        yield from getattr(one, "metadata", [one])  # Field(...) within a union keeps its limits to itself


def _limits(limit: Any) -> str:
    words = {
        "ge": "at least {}",
        "gt": "more than {}",
        "le": "at most {}",
        "max_length": "at most {} long",
        "pattern": "like `{}`",
    }
    return ", ".join(text.format(getattr(limit, name)) for name, text in words.items() if hasattr(limit, name))


def _either(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _json(value: Any) -> str:
    return json.dumps(value, default=list)


def _link(model: type[Any]) -> str:
    return f"[{model.__name__}](#value-{model.__name__.lower()})"


def _fields_of(names: Iterable[str]) -> str:
    return ", ".join(f"`{to_camel(name)}`" for name in names)


# Texts from the source


def _about(model: type[Any]) -> str:
    return _plain(inspect.getdoc(model) or "")


def _plain(text: str) -> str:
    """Return a docstring as one line of Markdown."""
    text = re.sub(r"(^|[.] )None\b", r"\1Missing", text.replace("``", "`"))
    return " ".join(re.sub(r"\bNone\b", "missing", text).split())


def _rows(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(protocol_markdown())
