"""Generate docs/protocol.md from the models: `python -m tools.docs.protocol > docs/protocol.md`.

1. Methods, parameters, results, types and limits are read from the models, so the page cannot contradict the server.
2. The meaning of a field is the text below it in the source. pydantic could collect these texts, but would read every
   source file at every import; here they are read when the page is generated.
3. A type is described once, with one line per field. Fields that two types inherit are described with their base, and
   a text that several types repeat stands under "Shared fields".
4. A test runs the examples as they stand on the page, against a real supervisor.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from relay_core.protocol.base import MAX_BATCH, MAX_PAGE, PROTOCOL_VERSION, Done, Nothing
from relay_core.protocol.frames import ERROR_CLASSES, ERROR_NUMBERS, INTERNAL_ERROR, MAX_FRAME, PROTOCOL_NUMBERS
from relay_core.protocol.methods import METHODS, NOTIFICATIONS, Method, Trait
from tools.docs.docstrings import field_texts
from tools.docs.markdown import item, paragraph, table

COMMAND = "python -m tools.docs.protocol > docs/protocol.md"

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "string", Any: "any JSON"}

_CODES = {
    "parse_error": "The line is not JSON, is nested too deeply, or repeats a key.",
    "invalid_request": "The line is JSON, but neither a request nor a notification.",
    "frame_too_large": "The line is too long; the connection is closed.",
    "unknown_method": "There is no such method.",
    "invalid_params": "A parameter is missing, unknown or of another type; the message names it.",
}

_INTRODUCTION = f"""\
# The socket protocol

<!-- Generated from relay_core/protocol/methods.py. Do not edit; run: {COMMAND} -->

For authors of clients in other languages. Python programs use `RelayClient` from `relay_core`, which also reconnects
and retries. The supervisor listens on a Unix socket and speaks JSON-RPC 2.0, one JSON object per line. This is
version {PROTOCOL_VERSION} of the protocol.

## Connecting

The socket is `$RELAY_SOCKET`, else `$XDG_RUNTIME_DIR/relay/relay.sock`, else `relay.sock` in the data directory
(`$RELAY_DATA_DIR`, or `~/.dork/relay`). `relay-supervisor status` prints its path. Only the supervisor's user (and
root) can connect.

The examples use OpenBSD's netcat (`netcat-openbsd` on Debian). `-U` means a Unix socket. With `-N` the supervisor
answers the requests, then closes the connection.

```sh
printf '%s\\n' '{{"jsonrpc":"2.0","id":1,"method":"server.info","params":{{}}}}' | nc -N -U "$RELAY_SOCKET"
```

Give a subject a mailbox, publish to it, and list the waiting messages. Each step has its own connection, so the
publish has been answered before the inbox is read:

```sh
ask() {{ printf '{{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}}\\n' "$@" | nc -N -U "$RELAY_SOCKET"; }}
ask 1 endpoints.register '{{"subject":"relay.agent.ann"}}'
ask 2 publish '{{"subject":"relay.agent.ann","from":"relay.agent.bob","payload":{{"content":"hello Ann"}}}}'
ask 3 inbox.peek '{{"subject":"relay.agent.ann"}}'
```

Publish several messages in one frame. Each has its own outcome; here the second has no recipient:

```sh
ask() {{ printf '{{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}}\\n' "$@" | nc -N -U "$RELAY_SOCKET"; }}
one='{{"subject":"relay.agent.cid","from":"relay.agent.bob","payload":"first of a batch"}}'
two='{{"subject":"relay.agent.nobody","from":"relay.agent.bob","payload":"second of a batch"}}'
ask 1 endpoints.register '{{"subject":"relay.agent.cid"}}'
ask 2 publish.batch '{{"messages":['"$one,$two"']}}'
ask 3 inbox.peek '{{"subject":"relay.agent.cid"}}'
```

## Frames

- A frame is one JSON object on one line of UTF-8, ended by a newline. Empty lines are ignored.
- A frame has at most {MAX_FRAME:,} bytes ({MAX_FRAME // 1024 // 1024} MiB), in both directions. A longer one gets an
  error and ends the connection, after the answers to earlier requests. A line must be complete within 30 seconds.
- A request is `{{"jsonrpc": "2.0", "id": ..., "method": ..., "params": {{...}}}}`. The id is a 64-bit integer
  or a string of at most 256 characters. `params` is an object and may be omitted if the method needs none.
- A request without an `id` is a notification. It is carried out and never answered, even if it fails.
- Requests may be pipelined. They begin in order and run concurrently; answers arrive in any order, matched by id. An
  *ordered* request ends before the next one begins, so you can register an endpoint and publish to it without waiting.
  A publish is not ordered: query its effects after its answer.
- JSON-RPC batches (arrays) are refused; send several lines instead.
- Duplicate keys at any depth, NaN, Infinity and unpaired surrogates are refused. Integers of more than 64 bits become
  floating-point numbers.
- Parameters are strict: an unknown key or a value of another type is an error that names it. In answers, ignore unknown
  keys; keys without a value are omitted.

## Handshake

None is needed. The first answer on a connection also carries the server's version:

```json
{{"jsonrpc": "2.0", "id": 1, "result": {{}}, "relay": {{"version": "0.1.0", "protocol": {PROTOCOL_VERSION}}}}}
```

To check versions, present a token or set a name for logs, begin with `server.hello`. It sends the newest version that
the client supports; if the server no longer supports it, the error is `unsupported_protocol`.

## Permissions

A process of the supervisor's user is the operator and may call every method, unless `auth.requireTokens` is set in
config.json. Then every client needs a token: the operator's is in `operator.token` in the data directory, others are
created with `relay token add PATTERN`.

A client with a token publishes only as senders that match its pattern (otherwise `sender_not_yours`), reads only their
mail (`subject_not_yours`), and calls only the methods marked *agents* (`operator_only`). Exceeding a token's limits is
`too_many`. No client can publish as `relay.system.>` or as an adapter (`sender_reserved`).

`replies.open` creates a private mailbox below `relay.reply.`, to be used as `replyTo`. It ends with the connection; its
key opens it again on another. No other client can read it and no pattern matches it. Only a recipient of the request
can answer there (otherwise `not_asked`): as the subject it was sent to, or with the request's id as `parentId`.
"""

_DELIVERIES = """\
## Subscriptions and acknowledgements

`subscribe` delivers messages as `message` notifications, waiting ones first. Answer each with `ack` or `fail` and its
`deliveryId`, as a request or as a notification, on the same connection. Until then, that mailbox sends no further
message. A message becomes a dead letter with code `timeout` if it is not answered within the handler timeout
(`dispatch.handlerTimeoutMs`, 30 seconds), `consumer_failed` after `fail`, and `disconnected` if the connection is lost.
The same applies to messages from `inbox.claim`, unless they were claimed with a lease.

A subscription ends with its connection. Here bash keeps one open, publishes on it, and acknowledges the message:

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

A message that cannot be delivered becomes a dead letter:

```sh
ask() { printf '{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}\\n' "$@" | nc -N -U "$RELAY_SOCKET"; }
ask 1 publish '{"subject":"relay.agent.eve","from":"relay.agent.bob","payload":"hello Eve"}'
ask 2 deadletters.list '{"filter":{"code":"no_match"},"limit":10}'
```
"""

_FLOW = f"""\
## Flow control and limits

- At most 256 requests of a connection run at a time; the server stops reading until one has ended.
- It also stops reading from a client that does not read. Until the client reads again, `message` notifications wait
  (within the handler timeout), signals are dropped, and a state watcher misses updates, then gets the whole state.
- A `publish.batch` has at most {MAX_BATCH:,} messages, a page at most {MAX_PAGE:,} rows. A page is also cut to fit into
  a frame: continue while there is a `cursor`.
- There are at most 1,000 connections; a further one gets the error `refused` and is closed.
- When the supervisor stops, every connection gets `closing`. Until it is closed, only methods marked *while stopping*
  are answered; others get `stopping` and can be retried when the supervisor is back.
"""

_TYPES = """\
## Types

`name?` may be omitted from a request, and is missing from an answer if it has no value. A time is a number of
milliseconds since the epoch, or an ISO 8601 string.
"""


def protocol_markdown() -> str:
    """Return the page."""
    parts = [_INTRODUCTION, *_errors(), _DELIVERIES, _FLOW, *_methods(), *_notifications(), *_shared_fields()]
    parts.append(_TYPES)
    described = [model for model in _types() if model not in _simple()]
    for model in described:
        parts += [f"### {model.__name__}\n", _description(model)]
    parts.append("".join(f"[{model.__name__}]: #{model.__name__.lower()}\n" for model in described))
    return "\n".join(parts).rstrip() + "\n"


def _errors() -> Iterator[str]:
    yield "## Errors\n"
    yield (
        "An error has JSON-RPC's `code`, a `message` in plain words, and in `data` the name of its class (`error`), a\n"
        "stable `code` for programs, and the fields below as far as they are known. An error may have a narrower code\n"
        "than its class, such as `storage_full`; the number stays, except for the codes of the second table.\n"
        "`AccessDenied` with `rules_broken` means that access-rules.json is broken: repair it and retry.\n"
    )
    rows = [
        [f"`{name}`", str(ERROR_NUMBERS[name]), f"`{kind.default_code}`", _codes(kind.field_names()), _about(kind)]
        for name, kind in ERROR_CLASSES.items()
    ]
    for row in rows:
        row[-1] = re.sub(r"\. .*", ".", row[-1])  # the first sentence: a cell should fit on a line
    yield table(["class", "number", "code", "fields", "meaning"], rows)
    rows = [[f"`{code}`", str(number), _CODES[code]] for code, number in PROTOCOL_NUMBERS.items()]
    rows.append(["`internal_error`", str(INTERNAL_ERROR), "A bug in the server; its log has the details."])
    yield table(["code", "number", "meaning"], rows)


def _methods() -> Iterator[str]:
    yield "## Methods\n"
    texts = field_texts(Trait)
    yield "Traits:\n"
    yield "".join(item(f"*{trait.value}*: {_plain(texts[trait.name])}") for trait in Trait)
    rows = [
        [f"`{method.name}`", method.summary, _cell(method.params), _cell(method.result), _traits(method)]
        for method in METHODS.values()
    ]
    yield table(["method", "purpose", "parameters", "result", "traits"], rows)


def _notifications() -> Iterator[str]:
    yield "## Notifications\n\nSent by the server, without an id; they get no answer.\n"
    rows = [[f"`{name}`", _about(model), _cell(model)] for name, model in NOTIFICATIONS.items()]
    yield table(["notification", "meaning", "parameters"], rows)


def _shared_fields() -> Iterator[str]:
    yield "## Shared fields\n\nThese mean the same in every type that has them; the types do not repeat it.\n"
    times = Counter(name for name, _ in _repeated())
    for name, text in sorted(_repeated()):
        yield item(f"`{name}`{_side(name, text) if times[name] > 1 else ''}: {text}").rstrip("\n")
    yield ""


def _side(name: str, text: str) -> str:
    """Return where a shared field has this meaning, for a name that has another one on the other side."""
    models = [
        model for model in _types() if any((field.name, field.text) == (name, text) for field in _own_fields(model))
    ]
    return " in parameters" if _parameters().issuperset(models) else " in results"


def _cell(model: type[Any]) -> str:
    """Return a reference to a type, or its only field if that says enough."""
    if model in (Nothing, Done):
        return ""
    if model not in _simple():
        return _reference(model)
    (field,) = _own_fields(model)
    return f"{_name(field)}: {field.type}"


def _traits(method: Method) -> str:
    return ", ".join(trait.value for trait in Trait if trait in method.traits)


# Types


class _Field(NamedTuple):
    """A line about a field: its name on the wire, whether it may be missing, its type in JSON's words, its meaning."""

    name: str
    optional: bool
    type: str
    text: str


def _description(model: type[Any]) -> str:
    about = [] if _is_explained(model) else [_about(model)]
    if (base := _shared_base(model)) is not None:
        about.append(f"Also has the fields of {_reference(base)}.")
    fields = _own_fields(model)
    if not issubclass(model, BaseModel):
        about.append("Sent as an array, in this order.")
    lines = []
    for has_text, members in groupby(fields, key=_has_own_text):
        if has_text:
            lines += [item(f"{_name(field)}: {field.type}. {field.text}") for field in members]
        else:
            by_type = groupby(members, key=lambda field: field.type)
            lines.append(item("; ".join(f"{', '.join(map(_name, same))}: {kind}" for kind, same in by_type)))
    return "\n".join([*([f"{paragraph(' '.join(about))}\n"] if about else []), "".join(lines)])


def _is_explained(model: type[Any]) -> bool:
    """Return True if the table of methods or notifications has already said what this type is."""
    users = [method for method in METHODS.values() if method.params is model]
    is_phrase = not re.search("[,;:]", _about(model))
    return model in NOTIFICATIONS.values() or (len(users) == 1 and is_phrase)


def _name(field: _Field) -> str:
    return f"`{field.name}{'?' if field.optional else ''}`"


def _has_own_text(field: _Field) -> bool:
    return bool(field.text) and (field.name, field.text) not in _repeated()


@cache
def _repeated() -> frozenset[tuple[str, str]]:
    """Return the names and texts that at least three types share, if no type has the name without a text."""
    texts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for model in _types():
        for field in _own_fields(model):
            texts[field.name][field.text] += 1
    return frozenset(
        (name, text) for name, times in texts.items() for text in times if times[text] >= 3 and "" not in times
    )


@cache
def _types() -> tuple[type[Any], ...]:
    """Return every type that methods and notifications use, and the bases that they share, by name."""
    found = {
        *NOTIFICATIONS.values(),
        *(model for method in METHODS.values() for model in (method.params, method.result)),
    }
    found -= {Nothing, Done}
    for model in tuple(found):
        found |= _nested(model)
    found |= {base for model in found if (base := _shared_base_among(model, found)) is not None}
    return tuple(sorted(found, key=lambda model: str(model.__name__)))


@cache
def _simple() -> frozenset[type[Any]]:
    """Return the types with a single field whose name and type say enough; the tables show these in place."""
    nested = set[type[Any]]().union(*map(_nested, _types()))
    fields = {model: _own_fields(model) for model in _types() if model not in nested}
    return frozenset(
        model for model, own in fields.items() if len(own) == 1 and not own[0].text and "," not in own[0].type
    )


def _shared_base(model: type[Any]) -> type[Any] | None:
    return _shared_base_among(model, set(_types()))


def _shared_base_among(model: type[Any], types: set[type[Any]]) -> type[Any] | None:
    """Return the base whose fields this type shares with another one, if there are enough of them to refer to it."""
    for base in model.__mro__[1:]:
        heirs = [other for other in types if other is not base and issubclass(other, base)]
        if issubclass(base, BaseModel) and len(base.model_fields) >= 3 and len(heirs) > 1:
            return base
    return None


@cache
def _parameters() -> frozenset[type[Any]]:
    """Return the types that clients send, in which a default makes a field optional."""
    params = {method.params for method in METHODS.values()}
    return frozenset(params.union(*map(_nested, params)))


def _nested(model: type[Any]) -> set[type[Any]]:
    found: set[type[Any]] = set()
    waiting = [annotation for _, annotation, _ in _annotations(model)]
    while waiting:
        annotation = waiting.pop()
        if _is_type(annotation) and annotation not in found:
            found.add(annotation)
            waiting += [inner for _, inner, _ in _annotations(annotation)]
        elif get_origin(annotation) is not Literal:
            waiting += get_args(annotation)
    return found


def _is_type(annotation: Any) -> bool:
    """Return True if an annotation is one of our types that have fields."""
    return isinstance(annotation, type) and (issubclass(annotation, BaseModel) or hasattr(annotation, "_fields"))


def _annotations(model: type[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each field's name in Python, its type with its limits, and pydantic's description of it."""
    if issubclass(model, BaseModel):
        for name, field in model.model_fields.items():
            limited = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            yield name, limited, field
    else:
        for name, annotation in get_type_hints(model).items():
            yield name, annotation, None


def _own_fields(model: type[Any]) -> list[_Field]:
    """Return the fields of a type, without those that its shared base describes."""
    texts = field_texts(model)
    base = _shared_base(model)
    inherited = set(base.model_fields) if base is not None else set()
    fields = []
    for name, annotation, field in _annotations(model):
        if name in inherited:
            continue
        wire = field.alias or name if field is not None else to_camel(name)
        optional, default = _presence(annotation, field, sent=model in _parameters())
        fields.append(_Field(wire, optional, _type(annotation) + default, _plain(texts.get(name, ""))))
    return fields


def _presence(annotation: Any, field: Any, *, sent: bool) -> tuple[bool, str]:
    """Return whether a field may be missing, and its default in words."""
    if not sent and NoneType in get_args(annotation):
        return True, ""
    if field is None or field.is_required():
        return False, ""
    default = field.get_default(call_default_factory=True)
    if not sent:
        return default in ({}, (), []), ""
    return True, "" if default is None else f", default `{_json(default)}`"


def _type(annotation: Any) -> str:
    """Return a type in the words of JSON."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if _is_type(annotation):
        return _reference(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _either(f"`{_json(member.value)}`" for member in annotation)
    if origin is Literal:
        return _either(f"`{_json(value)}`" for value in inner)
    if origin is Annotated:
        limits = {name: getattr(limit, name) for limit in _flat(inner[1:]) for name in _LIMITS if hasattr(limit, name)}
        return ", ".join([_type(inner[0]), *_limits(limits, "items" if "array" in _type(inner[0]) else "characters")])
    if origin in (list, tuple):
        return f"array of {_type(inner[0])}"
    if origin is dict:
        return "object" if inner[1] is Any else f"object of {_type(inner[1])}"
    return _either(_type(member) for member in inner if member is not NoneType)


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    for limit in metadata:
        yield from getattr(limit, "metadata", [limit])  # the limits of a Field(...) within a union are its metadata


_LIMITS = ("ge", "gt", "le", "max_length", "pattern")


def _limits(limits: dict[str, Any], unit: str) -> Iterator[str]:
    if "ge" in limits and "le" in limits:
        yield f"{limits['ge']} to {limits['le']}"
    elif "ge" in limits:
        yield f"at least {limits['ge']}"
    if "gt" in limits:
        yield f"more than {limits['gt']}"
    if "max_length" in limits:
        yield f"at most {limits['max_length']} {unit}"
    if "pattern" in limits:
        yield f"matching `{limits['pattern']}`"


def _either(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _json(value: Any) -> str:
    return json.dumps(value, default=list)


def _reference(model: type[Any]) -> str:
    return f"[{model.__name__}]"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{to_camel(name)}`" for name in names)


# Text

_UNITS = {
    r"^Wall time in milliseconds( since the epoch)? (at|after) which": "When",
    r"^(Wall time in milliseconds( since the epoch)?|Epoch milliseconds)(, (as|like) [a-z ]+ below)?[;.] ?": "",
    r", (in epoch milliseconds|as wall time in milliseconds|as an ISO 8601 instant)": "",
    r"^An ISO 8601 (instant|timestamp)[.] ?": "",
}


def _about(model: type[Any]) -> str:
    return _plain(inspect.getdoc(model) or "")


def _plain(text: str) -> str:
    """Return a docstring as one line of Markdown, without the units that the page gives once for all fields."""
    for phrase, short in _UNITS.items():
        text = re.sub(phrase, short, text)
    text = re.sub(r"(^|[.] )None\b", r"\1Missing", text.replace("``", "`"))
    return " ".join(re.sub(r"\bNone\b", "missing", text).split())


if __name__ == "__main__":
    sys.stdout.write(protocol_markdown())
