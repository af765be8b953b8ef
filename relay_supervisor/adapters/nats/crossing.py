"""Messages as they cross the bridge, in both directions.

1. Out: the payload is the body as JSON; sender, reply subject, ids and budget are headers. ``Nats-Msg-Id`` is the
   message's id, also when an operator replays it: the stream does not store a message twice.
2. The adapter's own mailbox, last in the chain of ancestors, becomes ``relay.nats.{relay}``. Its local name means
   nothing elsewhere, and would be a cycle on a relay whose bridge has the same id.
3. In: a message keeps its subject, and its sender if `importSenders` covers it and it is not the bus's own. Otherwise
   its sender is ``relay.nats.{id}``: a client that can write to the stream must not be able to impersonate others.
4. The dedupe id consists of the exporting relay's id and the message id; for foreign messages, of the position in the
   stream and its time.
5. Invalid messages are `Poison`, never repaired. A message that another relay would find invalid is not exported.
6. A message that only bridges have handled since this relay sent it has looped, over however many streams. A reply to
   it also has this relay among its ancestors, but a consumer has handled it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from relay_core.messages.envelope import BudgetOverrides, Envelope
from relay_core.messages.ids import is_ulid
from relay_core.messages.subjects import ADAPTER_PREFIX, is_subject, matches_pattern
from relay_supervisor.adapters.budget_headers import FROM, TRACE, read_budget, write_budget
from relay_supervisor.adapters.nats.config import NatsConfig, is_reserved

MSG_ID = "Nats-Msg-Id"
REPLY_TO = "relay-reply-to"
ID = "relay-id"
RELAY = "relay-relay"
UNREADABLE = "unreadable headers"
"""Marks a message whose headers could not be parsed; not a valid header name."""

_MARK = "relay.nats."
_HEADER_OVERHEAD = 64
"""The header block's own lines, with a margin."""


class Poison(Exception):
    """A message that can never be accepted; the text does not quote it."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message as it is published to the stream."""

    subject: str
    data: bytes
    headers: dict[str, str]

    @property
    def size(self) -> int:
        """Return an upper bound of the size that the server compares with its maximum payload."""
        return (
            len(self.data) + sum(len(name) + len(value) + 8 for name, value in self.headers.items()) + _HEADER_OVERHEAD
        )


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as it is published to the bus."""

    subject: str
    payload: Any
    sender: str
    reply_to: str | None
    budget: BudgetOverrides
    dedupe_id: str


def pack(envelope: Envelope, config: NatsConfig, adapter_id: str, relay: str, trace_id: str) -> Outgoing:
    """Convert a message for the stream.

    Raises:
        Poison: if another relay would refuse it; the text says why.
    """
    chain = envelope.budget.ancestor_chain
    if chain and f"{chain[-1]}.".startswith(f"{ADAPTER_PREFIX}{adapter_id}."):
        chain = (*chain[:-1], bridge_subject(relay))
    headers = {
        MSG_ID: envelope.id,
        ID: envelope.id,
        RELAY: relay,
        FROM: envelope.sender,
        TRACE: trace_id,
        **write_budget(envelope.budget.model_copy(update={"ancestor_chain": chain}), ancestors=True),
    }
    if envelope.reply_to is not None:
        headers[REPLY_TO] = envelope.reply_to
    _read(headers)
    return Outgoing(config.outside(envelope.subject), orjson.dumps(envelope.payload), headers)


def unpack(
    subject: str, data: bytes, headers: Mapping[str, str], config: NatsConfig, adapter_id: str, place: str
) -> Incoming:
    """Convert a message (with lower-case header names) for the bus.

    Raises:
        Poison: if it is invalid; the text says why.
    """
    if UNREADABLE in headers:
        raise Poison("its headers cannot be parsed")
    reply_to, budget = _read(headers)
    try:
        payload = orjson.loads(data)
    except ValueError:
        raise Poison("the body is not JSON") from None
    sender = headers.get(FROM, "")
    if not _may_keep(sender, config):
        sender = bridge_subject(adapter_id)
    return Incoming(_inside(subject, config), payload, sender, reply_to, budget, _dedupe_id(headers, place))


def bridge_subject(name: str) -> str:
    """Return the sender of imported messages that do not keep theirs (by adapter id), or a relay's ancestor mark."""
    return f"{_MARK}{name}"


def has_looped(chain: tuple[str, ...], relay: str) -> bool:
    """Return True if only bridges have handled a message since this relay sent it."""
    for ancestor in reversed(chain):
        if not ancestor.startswith(_MARK):
            return False
        if ancestor == bridge_subject(relay):
            return True
    return False


def _read(headers: Mapping[str, str]) -> tuple[str | None, BudgetOverrides]:
    """Return the reply subject and the budget in the headers."""
    reply_to = headers.get(REPLY_TO)
    if reply_to is not None and (not is_subject(reply_to) or is_reserved(reply_to)):
        raise Poison(f"the header {REPLY_TO} must be a subject that does not belong to the bus")
    try:
        return reply_to, read_budget(headers, ancestors=True)
    except ValueError as error:
        raise Poison(str(error)) from None


def _inside(subject: str, config: NatsConfig) -> str:
    if config.prefix is not None:
        subject = subject.removeprefix(f"{config.prefix}.")
    if not is_subject(subject):
        raise Poison("its subject is not valid in Relay: letters, digits, '_' and '-', at most 16 tokens")
    if is_reserved(subject):
        raise Poison("its subject belongs to the bus")
    return subject


def _may_keep(sender: str, config: NatsConfig) -> bool:
    if not is_subject(sender) or is_reserved(sender):
        return False
    return any(matches_pattern(sender, pattern) for pattern in config.import_senders)


def _dedupe_id(headers: Mapping[str, str], place: str) -> str:
    id, relay = headers.get(ID), headers.get(RELAY)
    if id is None and relay is None:
        return f"nats-{place}"
    if id is None or relay is None or not is_ulid(id) or not is_subject(relay):
        raise Poison(f"the headers {ID} and {RELAY} go together: a message id and the name of a relay")
    return f"nats-{relay}-{id}"
