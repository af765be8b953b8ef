"""The event schema: one flat, versioned JSON line for each event on the bus.

This is all that Spark imports of the bus. event_log.py writes the lines.

1. Flat: every value is a string or a number, and None is omitted. Never a payload.
2. On disk the names are camelCase. A test compares Spark's StructType with this model.
3. A new field goes to the end of `Event` and of `EventRow`; a change of meaning raises the version. Readers ignore
   unknown fields, so an old reader reads new lines.
4. A file may end in a torn line, or contain one after a power loss: readers skip and count it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import orjson
from pydantic import Field

from relay_core.messages.base import WireModel

EVENT_SCHEMA_VERSION = 3
"""2 has `depth` and `limit`, which version 1 wrote into the `detail` of pressure as ``depth/limit``.
Since 3, `bytes` is always the payload's size (for a message read from disk it was the stored file's), `queueUs` and
`totalUs` of a replay begin when it was stored again, and a replay under its own id has no `publish`."""
MAX_DETAIL = 500
RECENT = 200
"""How many of the newest events are kept in memory for dashboards."""


class EventKind(StrEnum):
    """The kind of an event."""

    PUBLISH = "publish"
    REFUSED = "refused"
    STORED = "stored"
    HANDLED = "handled"
    FAILED = "failed"
    DEAD_LETTER = "dead_letter"
    REPLAYED = "replayed"
    EXPIRED = "expired"
    BREAKER = "breaker"
    PRESSURE = "pressure"
    ADAPTER = "adapter"
    JOB = "job"
    BUS = "bus"
    """The bus itself has started or stopped: the states of breakers, pressure and adapters are reset."""


class Event(WireModel):
    """One line of the log."""

    v: int = EVENT_SCHEMA_VERSION
    """Version of the schema."""
    time: int
    """Wall time in milliseconds since the epoch."""
    kind: EventKind
    message_id: str | None = None
    trace_id: str | None = None
    """The first message of the conversation."""
    parent_id: str | None = None
    """The message whose handling published this one."""
    subject: str | None = None
    sender: str | None = None
    target: str | None = None
    """The mailbox's hash, or ``*`` where the publish itself was refused."""
    target_kind: str | None = None
    status: str | None = None
    """The status of the delivery, or the new state of the breaker, mailbox, adapter, job or bus."""
    code: str | None = None
    """The reason as a stable code."""
    store_us: int | None = None
    """From publish until the message was durable; not for a replay."""
    queue_us: int | None = None
    """From stored, at the latest replay, until a handler began."""
    handle_us: int | None = None
    """From a handler's start to its end."""
    total_us: int | None = None
    """From publish, or from a replay's store, to the end of this step."""
    hop_count: int | None = None
    """Deliveries in the chain of messages so far."""
    calls_left: int | None = None
    bytes: int | None = None
    """The size of the payload as JSON, in every kind of event."""
    adapter: str | None = None
    """The id of the adapter that the event is about, or that the message goes to."""
    detail: Annotated[str, Field(max_length=MAX_DETAIL)] | None = None
    """The reason as text, truncated to 500 characters."""
    depth: int | None = None
    """The number of messages waiting in the mailbox."""
    limit: int | None = None
    """The most messages the mailbox may hold."""


_Text: TypeAlias = str | None
_Number: TypeAlias = int | None

# An event as the hot path passes it: the fields of `Event` after `v`, in order.
EventRow: TypeAlias = tuple[
    int,  # time
    str,  # kind
    _Text,  # message_id
    _Text,  # trace_id
    _Text,  # parent_id
    _Text,  # subject
    _Text,  # sender
    _Text,  # target
    _Text,  # target_kind
    _Text,  # status
    _Text,  # code
    _Number,  # store_us
    _Number,  # queue_us
    _Number,  # handle_us
    _Number,  # total_us
    _Number,  # hop_count
    _Number,  # calls_left
    _Number,  # bytes
    _Text,  # adapter
    _Text,  # detail
    _Number,  # depth
    _Number,  # limit
]


# An event that the log's thread makes from its source (in JSON form, without None), to keep that off the hot path.
EventSource: TypeAlias = tuple[Callable[[Any], dict[str, Any]], Any]

EVENT_FIELDS = tuple(name for name in Event.model_fields if name != "v")

_COLUMNS = tuple(str(Event.model_fields[name].alias) for name in EVENT_FIELDS)


def wire_event(item: EventRow | EventSource) -> dict[str, Any]:
    """Return an event's JSON form."""
    if len(item) == 2:
        make, about = item
        event = make(about)
        event["v"] = EVENT_SCHEMA_VERSION
        return event
    return _to_wire(item)


def format_events(events: list[dict[str, Any]]) -> tuple[bytes, int]:
    """Return the lines of these events and their number; an event that cannot be encoded as JSON is omitted."""
    try:
        data = orjson.dumps(events)
    except TypeError:
        events = [event for event in map(_repaired, events) if event is not None]
        data = orjson.dumps(events)
    # One call for the batch costs a third of one call per row. Events are flat and a quote within a string is always
    # escaped, so these four bytes occur only between two events.
    return data[1:-1].replace(b'},{"', b'}\n{"') + b"\n", len(events)


def _to_wire(row: EventRow) -> dict[str, Any]:
    event: dict[str, Any] = {name: value for name, value in zip(_COLUMNS, row, strict=True) if value is not None}
    event["v"] = EVENT_SCHEMA_VERSION
    if "detail" in event:
        event["detail"] = event["detail"][:MAX_DETAIL]
    return event


def _repaired(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return the event without lone surrogates (they occur in exception texts), or None if it cannot be JSON."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = value.encode("utf-8", "replace").decode()
    try:
        orjson.dumps(event)
    except TypeError:
        return None
    return event


class EventReader:
    """Iterate over the events in one segment; `bad_lines` counts the torn and unreadable lines skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.bad_lines = 0

    def __iter__(self) -> Iterator[Event]:
        self.bad_lines = 0
        with self._path.open("rb") as lines:
            for line in lines:
                try:
                    event = Event.model_validate(orjson.loads(line))
                except ValueError:
                    self.bad_lines += 1
                else:
                    yield event


def read_events(path: Path) -> EventReader:
    """Return the events in a segment, sealed or not, skipping and counting bad lines."""
    return EventReader(path)
