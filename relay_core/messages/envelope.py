"""The envelope: a message in memory, in a mailbox file and on the wire.

A stored message is one JSON object, the envelope's camelCase form. Reading validates it: a file that is not a valid
envelope is `malformed`, never half-accepted.
"""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from relay_core.config import refuse_unknown_keys
from relay_core.errors import InvalidPayload
from relay_core.messages.base import Instant, Pattern, Subject, WireModel, first_problem, trusted
from relay_core.messages.ids import is_ulid
from relay_core.messages.payload import check_depth

Count = Annotated[int, Field(ge=0)]


class Budget(WireModel):
    """How far a message may still travel; it only shrinks."""

    hop_count: Count = 0
    """Deliveries in the chain of messages so far, including this one."""
    max_hops: Annotated[int, Field(ge=1)] = 5
    """A message whose `hopCount` has reached this is not delivered."""
    ancestor_chain: tuple[str, ...] = ()
    """Subjects that the chain has been delivered to, oldest first; it is not delivered to them again."""
    ttl: int
    """Wall time in milliseconds since the epoch after which the message is expired."""
    call_budget_remaining: Count = 10
    """Remaining calls; each delivery spends one."""


class BudgetOverrides(WireModel):
    """A publisher's limits, clamped to the operator's ceilings. Unknown keys are refused."""

    hop_count: Count | None = None
    """Start as if this many deliveries had been made."""
    max_hops: Annotated[int, Field(ge=1)] | None = None
    """At most the operator's ceiling (`budget.maxHops`)."""
    ancestor_chain: tuple[str, ...] | None = None
    """Subjects that must not receive it; a parent's chain replaces it."""
    ttl: int | None = None
    """An instant in milliseconds since the epoch, not a duration; at most `budget.ttlMs` from now."""
    call_budget_remaining: Count | None = None
    """At most the operator's ceiling (`budget.callBudget`)."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        return refuse_unknown_keys(cls, given)  # a misspelt limit would be no limit


class Envelope(WireModel):
    """One message as one target receives it."""

    id: str
    """A ULID: ids of one bus sort by creation time."""
    subject: Pattern  # a broadcast without a match is kept under its pattern
    """As published; for a broadcast, and for an agent bound to a chat, the target's own subject."""
    sender: Annotated[Subject, Field(alias="from")]
    reply_to: Subject | None = None
    """Where to send answers."""
    budget: Budget
    """The remaining budget at this target."""
    created_at: Instant
    """An ISO 8601 instant."""
    payload: Any = None
    replay_of: str | None = None
    """The message this one is an edited copy of."""
    replays: Count = 0
    """The number of replays so far."""
    replayed_at: Instant | None = None
    """The last replay, as an ISO 8601 instant: the message has been waiting since then."""
    trace_id: str | None = None
    """The first message of the conversation, unless it is this one."""
    parent_id: str | None = None
    """The message whose handling published this one."""
    origin: str | None = None
    """The adapter that published it, and must not receive it."""

    @field_validator("id")
    @classmethod
    def _id_is_ulid(cls, value: str) -> str:
        if not is_ulid(value):
            raise ValueError("not a ULID")
        return value

    @model_serializer(mode="wrap")
    def _keep_payload(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keep a payload of null, also within another model; omit other empty parts."""
        wire: dict[str, Any] = write(self)
        wire["payload"] = self.payload
        if not self.replays:
            wire.pop("replays", None)
        return wire


def trusted_envelope(wire: dict[str, Any]) -> Envelope:
    """Return the envelope of a wire form that a bus has written; takes half the time of validation.

    Raises:
        KeyError: if a part is missing.
    """
    budget, get = wire["budget"], wire.get
    return trusted(
        Envelope,
        {
            "id": wire["id"],
            "subject": wire["subject"],
            "sender": wire["from"],
            "reply_to": get("replyTo"),
            "budget": trusted(
                Budget,
                {
                    "hop_count": budget["hopCount"],
                    "max_hops": budget["maxHops"],
                    "ancestor_chain": tuple(budget["ancestorChain"]),
                    "ttl": budget["ttl"],
                    "call_budget_remaining": budget["callBudgetRemaining"],
                },
            ),
            "created_at": wire["createdAt"],
            "payload": wire["payload"],
            "replay_of": get("replayOf"),
            "replays": get("replays", 0),
            "replayed_at": get("replayedAt"),
            "trace_id": get("traceId"),
            "parent_id": get("parentId"),
            "origin": get("origin"),
        },
    )


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the stored form of an envelope."""
    return orjson.dumps(envelope.to_wire())


def decode_envelope(data: bytes) -> Envelope:
    """Return the envelope in a stored message.

    Raises:
        ValueError: if the bytes are not a valid envelope; the text says why.
    """
    try:
        document = orjson.loads(data)
        check_depth(data, document, around=1)
        return Envelope.model_validate(document)
    except InvalidPayload as error:
        raise ValueError(error.message) from error
    except ValidationError as error:
        where, problem = first_problem(error)
        raise ValueError(f"{where or 'envelope'}: {problem}") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
