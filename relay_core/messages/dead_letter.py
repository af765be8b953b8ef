"""Dead letters: messages that could not be delivered, and the reason.

A dead letter is one file in a mailbox's ``failed/``::

    {"envelope": {...}, "reason": ..., "code": ..., "failedAt": ..., "endpointHash": ..., "replays": 0,
     "stage": "target"}

1. `stage` says where a replay goes: ``target`` is a target's own copy and goes back to that target; ``gate`` failed
   before it had a target and is published to its subject again.
2. `partial` marks the copy of a target that failed while others accepted the message. It is listed, planned, exported
   and purged like a dead letter, but not counted as one.
3. The record of a file that was not an envelope has none: its bytes are beside the record as ``{id}.original``, and it
   cannot be replayed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, ValidationError, field_validator

from relay_core.clock import LAST_MS, iso, parse_iso
from relay_core.errors import InvalidPayload
from relay_core.messages.base import Instant, WireModel, first_problem
from relay_core.messages.delivery import Delivery, TargetKind, stored_delivery
from relay_core.messages.envelope import Envelope
from relay_core.messages.filter_language import BODY, FAILED, Term, parse_filter
from relay_core.messages.ids import ulid_ms
from relay_core.messages.payload import check_depth

DAMAGED = "the record is damaged: "
"""The prefix of the reason of an unreadable record."""
_LONGEST_REASON = 2000


class Code:
    """Why a message is a dead letter."""

    NO_MATCH = "no_match"
    MAX_HOPS = "max_hops"
    CYCLE = "cycle"
    EXPIRED = "expired"
    CALL_BUDGET = "call_budget"
    HANDLER_FAILED = "handler_failed"
    TIMEOUT = "timeout"
    ADAPTER_FAILED = "adapter_failed"
    CONSUMER_FAILED = "consumer_failed"
    DISCONNECTED = "disconnected"
    INTERRUPTED = "interrupted"
    MALFORMED = "malformed"
    UNREAD = "unread"


class DeadLetter(WireModel):
    """A message that failed, and why."""

    message_id: str
    envelope: Envelope | None = None
    """None if the file was not a message."""
    reason: str
    """At most 2,000 characters."""
    code: str
    """The reason as a stable word: `no_match`, `max_hops`, `cycle`, `expired`, `call_budget`, `handler_failed`,
    `timeout`, `adapter_failed`, `consumer_failed`, `disconnected`, `interrupted`, `malformed` or
    `unread`."""
    failed_at: Instant
    """An ISO 8601 instant."""
    endpoint_hash: str
    """The mailbox that holds it."""
    replays: int = 0
    """The number of replays so far."""
    stage: Literal["target", "gate"] = "target"
    """``target`` is the target's own copy and is replayed to it; ``gate`` had none and is replayed to its subject."""
    partial: bool = False
    """True if other targets accepted the message: then it is this target's copy, and not counted as a dead letter."""

    @property
    def cursor(self) -> str:
        """Return the start of the page after this dead letter; a message may be dead at several targets."""
        return f"{self.message_id}/{self.endpoint_hash}"


class DeadLetterFilter(WireModel):
    """A selection of dead letters; every given condition must hold."""

    # A misspelt condition must not select all of them.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    where: str | None = None
    """A filter expression: ``reason~timeout !to=relay.agent.* age>1h "not found"``."""
    ids: tuple[str, ...] | None = None
    """Message ids, or one target's copy of a message as ``ID/HASH``."""
    code: str | None = None
    """Exactly this code."""
    reason: str | None = None
    """Part of the code or of the reason, ignoring case."""
    endpoint: str | None = None
    """The mailbox's subject (or a pattern over it) or its hash."""
    sender: str | None = None
    """The sender's subject, or a pattern over it."""
    failed_before: int | None = None
    """Wall time in milliseconds."""
    failed_after: int | None = None
    """Wall time in milliseconds."""
    text: str | None = None
    """Part of the payload's JSON text, ignoring case."""
    exclude: bool = False
    """Negate the filter: select everything that does not match."""

    @field_validator("where")
    @classmethod
    def _where_is_a_filter(cls, value: str | None) -> str | None:
        parse_filter(value or "")
        return value

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return every condition but the ids as a term."""
        conditions = (
            ("code", "=", self.code),
            ("reason", "~", self.reason),
            ("to", "=", self.endpoint),
            ("from", "=", self.sender),
            (FAILED, "<", self.failed_before),
            (FAILED, ">", self.failed_after),
            (BODY, "~", self.text),
        )
        return parse_filter(self.where or "") + tuple(
            Term(field, op, value) for field, op, value in conditions if value is not None
        )


class DeadLetterSummary(WireModel):
    """A dead letter in a list: everything but its payload."""

    message_id: str
    endpoint_hash: str
    """The mailbox that holds it."""
    endpoint_subject: str
    """The mailbox's subject."""
    subject: str
    sender: str
    code: str
    reason: str
    failed_at: float
    """Wall time in milliseconds."""
    replays: int
    """The number of replays so far."""
    size: int
    """Bytes of the payload as JSON."""
    partial: bool = False
    """True if other targets accepted the message: then it is this target's copy."""

    @property
    def cursor(self) -> str:
        """Return the start of the page after this dead letter; a message may be dead at several targets."""
        return f"{self.message_id}/{self.endpoint_hash}"


class DeadLetterGroup(WireModel):
    """Dead letters, or copies from partial deliveries, that share a code and a target."""

    code: str
    endpoint_hash: str
    """The mailbox that holds them."""
    endpoint_subject: str
    """The mailbox's subject."""
    count: int
    oldest_at: float
    """Wall time in milliseconds at which the first of them failed."""
    newest_at: float
    """Wall time in milliseconds at which the last of them failed."""
    sample_reason: str
    """The reason of the newest."""
    partial: bool = False
    """True if other targets accepted these messages: then they are not counted as dead letters."""


def group_key(code: str, endpoint_hash: str, *, partial: bool) -> str:
    """Return the key of a group in the live state."""
    return f"{code}/{endpoint_hash}/partial" if partial else f"{code}/{endpoint_hash}"


def count_dead(groups: Iterable[DeadLetterGroup]) -> int:
    """Return the number of dead letters in some groups, without the copies from partial deliveries."""
    return sum(group.count for group in groups if not group.partial)


def clean_reason(reason: str) -> str:
    """Return a reason as it is stored: of bounded length, and valid Unicode, which the text of an error may not be."""
    return reason[:_LONGEST_REASON].encode(errors="replace").decode().replace("\0", "\ufffd")


def encode_dead_letter(
    envelope: bytes | None,
    *,
    reason: str,
    code: str,
    failed_ms: int,
    endpoint_hash: str,
    replays: int = 0,
    stage: str = "target",
    partial: bool = False,
) -> bytes:
    """Return the record in ``failed/`` for a stored envelope, or for a file that was not one."""
    record: dict[str, Any] = {
        "envelope": orjson.Fragment(envelope) if envelope is not None else None,
        "reason": clean_reason(reason),
        "code": code,
        "failedAt": iso(failed_ms),
        "endpointHash": endpoint_hash,
        "replays": replays,
        "stage": stage,
    }
    if partial:
        record["partial"] = True
    return orjson.dumps(record)


def decode_dead_letter(message_id: str, data: bytes) -> DeadLetter:
    """Return the dead letter in a record.

    Raises:
        ValueError: if the record is damaged.
    """
    try:
        record = orjson.loads(data)
        if not isinstance(record, dict):
            raise ValueError("not an object")
        check_depth(data, record, around=2)
        record["messageId"] = message_id
        letter = DeadLetter.model_validate(record)
    except InvalidPayload as error:
        raise ValueError(error.message) from error
    except ValidationError as error:
        raise ValueError(": ".join(first_problem(error))) from error
    if letter.envelope is not None and letter.envelope.id != message_id:
        raise ValueError(f"contains the id {letter.envelope.id}")
    return letter


def damaged_letter(message_id: str, endpoint_hash: str, problem: Exception) -> DeadLetter:
    """Return the dead letter of an unreadable record; the time comes from its name, which is the message's id."""
    return DeadLetter(
        message_id=message_id,
        reason=clean_reason(f"{DAMAGED}{problem}"),
        code=Code.MALFORMED,
        failed_at=iso(min(ulid_ms(message_id), LAST_MS)),
        endpoint_hash=endpoint_hash,
    )


def dead_delivery(letter: DeadLetter, *, target: str, kind: str, target_subject: str, status: str) -> Delivery:
    """Return the delivery that a dead letter belongs to."""
    envelope = letter.envelope
    if envelope is None:
        delivery = Delivery(
            message_id=letter.message_id,
            target=target,
            kind=TargetKind.NONE,
            target_subject=target_subject,
            subject=target_subject,
            sender="",
            trace_id=letter.message_id,
            parent_id=None,
            status=status,
            sent_ms=parse_iso(letter.failed_at),
        )
    else:
        size = len(orjson.dumps(envelope.payload))
        delivery = stored_delivery(
            envelope, target=target, kind=kind, target_subject=target_subject, status=status, size=size
        )
        if letter.stage == "gate":
            delivery.mark_as_refused_at_gate()
    delivery.code, delivery.reason, delivery.replays = letter.code, letter.reason, letter.replays
    return delivery
