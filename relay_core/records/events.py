"""The event schema: one flat, versioned JSON line for each event on the bus.

This is all that Spark imports of the bus. event_log.py writes the lines.

1. Flat: every value is a string or a number, and None is omitted. Never a payload.
2. On disk the names are camelCase. A test compares Spark's StructType with this model.
3. A new field goes to the end of `Event`; a change of meaning raises the version. Readers ignore unknown fields, so an
   old reader reads new lines.
4. A file may end in a torn line, or contain one after a power loss: readers skip and count it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
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
    PROBLEM = "problem"
    """An operator's file or an adapter's entry cannot be used (`error`), or can be used again (`ok`)."""
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
    """The status of the delivery, or the new state of the breaker, mailbox, adapter, job, file or bus."""
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


WireEvent: TypeAlias = dict[str, Any]
"""An event in its JSON form, without None."""

EventSource: TypeAlias = tuple[Callable[[Any], WireEvent], Any]
"""A function and its argument: the log's thread makes the event, to keep that off the hot path."""

_ALIASES = {name: str(field.alias) for name, field in Event.model_fields.items()}


def make_event(kind: EventKind, time: int, fields: Mapping[str, str | int | None]) -> WireEvent:
    """Return an event given by field names.

    Raises:
        TypeError: if the schema has no such field.
    """
    if unknown := fields.keys() - _ALIASES.keys():
        raise TypeError(f"unknown event field: {', '.join(sorted(unknown))}")
    event: WireEvent = {_ALIASES[name]: value for name, value in fields.items() if value is not None}
    if "detail" in event:
        event["detail"] = event["detail"][:MAX_DETAIL]
    return {"time": time, "kind": kind, **event, "v": EVENT_SCHEMA_VERSION}


def format_events(events: list[WireEvent]) -> tuple[bytes, int]:
    """Return the lines of these events and their number; an event that cannot be encoded as JSON is omitted."""
    try:
        data = orjson.dumps(events)
    except TypeError:
        events = [event for event in map(_repaired, events) if event is not None]
        data = orjson.dumps(events)
    # One call for the batch costs a third of one call per event. Events are flat and a quote within a string is always
    # escaped, so these four bytes occur only between two events.
    lines = data[1:-1].replace(b'},{"', b'}\n{"')
    return lines + b"\n" if lines else b"", len(events)


def _repaired(event: WireEvent) -> WireEvent | None:
    """Return the event without lone surrogates (they occur in exception texts), or None if it cannot be JSON."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = value.encode("utf-8", "replace").decode()
    try:
        orjson.dumps(event)
    except TypeError:
        return None
    return event
