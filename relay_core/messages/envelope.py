"""The envelope: what a message is, in memory, in a mailbox file and on the wire.

A stored message is one JSON object, the envelope's camelCase form. Reading checks its shape:
whatever does not parse as an envelope is `malformed`, never half-accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
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

from relay_core.clock import parse_iso
from relay_core.config import explain_unknown
from relay_core.errors import InvalidPayload
from relay_core.messages.base import Pattern, Subject, WireModel, first_problem
from relay_core.messages.ids import is_ulid
from relay_core.messages.payload import check_depth

Count = Annotated[int, Field(ge=0)]


class Budget(WireModel):
    """How far a message may still travel; it only ever shrinks."""

    hop_count: Count = 0
    """Deliveries that the chain of messages has made, this one included."""
    max_hops: Annotated[int, Field(ge=1)] = 5
    """A message whose `hopCount` has come so far is delivered no more."""
    ancestor_chain: tuple[str, ...] = ()
    """Subjects that the chain has been delivered to, oldest first; to none of them again."""
    ttl: int
    """Wall time in milliseconds since the epoch after which the message is expired."""
    call_budget_remaining: Count = 10
    """Calls that are left; each delivery spends one."""


class BudgetOverrides(WireModel):
    """What a publisher asks for; the bus clamps it to the operator's ceilings. Unknown keys are refused."""

    hop_count: Count | None = None
    """Begin as if so many deliveries had been made."""
    max_hops: Annotated[int, Field(ge=1)] | None = None
    """The operator's ceiling (`budget.maxHops`) at most."""
    ancestor_chain: tuple[str, ...] | None = None
    """Subjects that must not get it; a parent's chain takes their place."""
    ttl: int | None = None
    """An instant in milliseconds since the epoch, not a duration; `budget.ttlMs` from now at most."""
    call_budget_remaining: Count | None = None
    """The operator's ceiling (`budget.callBudget`) at most."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        # A limit that is misspelt must not pass for a limit that was set.
        if isinstance(given, Mapping):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for key in given:
                if key not in known and key not in cls.model_fields:
                    raise ValueError(explain_unknown(str(key), known))
        return given


class Envelope(WireModel):
    """One message as one target receives it."""

    id: str
    """A ULID: ids of one bus sort by when the messages were made."""
    subject: Pattern  # a broadcast that reached nobody is kept under its pattern
    """As it was published, but the target's own for a broadcast and for an agent that a chat is bound to."""
    sender: Annotated[Subject, Field(alias="from")]
    reply_to: Subject | None = None
    """Where answers are to go."""
    budget: Budget
    """What is left at this target."""
    created_at: str
    """An ISO 8601 instant."""
    payload: Any = None
    replay_of: str | None = None
    """The message this one is an edited copy of."""
    replays: Count = 0
    """How often an operator has replayed this message."""
    replayed_at: str | None = None
    """When that was last, as an ISO 8601 instant: it waits since then."""
    trace_id: str | None = None
    """The first message of the conversation, if that is another one."""
    parent_id: str | None = None
    """The message whose handling published this one."""
    origin: str | None = None
    """The adapter that published it, and must not get it back."""

    @field_validator("id")
    @classmethod
    def _id_is_ulid(cls, value: str) -> str:
        if not is_ulid(value):
            raise ValueError("not a ULID")
        return value

    @field_validator("created_at", "replayed_at")
    @classmethod
    def _is_instant(cls, value: str | None) -> str | None:
        if value is not None:
            parse_iso(value)
        return value

    @model_serializer(mode="wrap")
    def _keep_payload(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keep a payload of null, also within another model; other empty parts are left out."""
        wire: dict[str, Any] = write(self)
        wire["payload"] = self.payload
        if not self.replays:
            wire.pop("replays", None)
        return wire


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the stored form of an envelope."""
    return orjson.dumps(envelope.to_wire())


def decode_envelope(data: bytes) -> Envelope:
    """Return the envelope in a stored message.

    Raises:
        ValueError: if the bytes are no valid envelope; the text says what is wrong.
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
