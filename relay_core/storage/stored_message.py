"""A message as a mailbox holds it in memory, and files in a mailbox that are not messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from relay_core.messages.delivery import Delivery
from relay_core.messages.envelope import Envelope
from relay_core.storage.maildir import HasData


class FanoutListener(Protocol):
    """Decides the outcome of a publish with several targets."""

    def succeeded(self, message: StoredMessage) -> None:
        """Count a target that took its copy."""
        ...

    def failed(self, message: StoredMessage, code: str, reason: str) -> None:
        """Take over a copy that its target failed, still claimed; the fan-out decides whether to dead-letter it."""
        ...

    def postponed(self, message: StoredMessage) -> None:
        """Count a target that has requeued its copy."""
        ...


@dataclass(slots=True, eq=False)
class StoredMessage:
    """A message that is stored in a mailbox, with its delivery."""

    envelope: Envelope
    source: HasData
    """What it is encoded from; most messages in memory are handled and never encoded."""
    delivery: Delivery
    probe: bool = False
    """Whether it holds a half-open breaker's permit."""
    stored_at: float = 0.0
    """Monotonic time at which this process stored it; 0 if it was read from disk."""
    fanout: FanoutListener | None = None
    """Set if the publish has other targets: it decides what happens to a failed copy."""
    ended: bool = False
    """Whether its completion is already recorded."""

    @property
    def id(self) -> str:
        """Return the message's id."""
        return self.envelope.id

    @property
    def data(self) -> bytes:
        """Return the content of its file."""
        return self.source.data

    def to_wire(self) -> Any:
        """Return its envelope as clients get it, ready to be encoded."""
        if isinstance(self.source, FileContent):
            return self.envelope.to_wire()  # a dropped file may have any layout, and unknown keys
        return orjson.Fragment(self.source.data)  # already in the wire form: a third of the cost


@dataclass(frozen=True, slots=True)
class FileContent:
    """The bytes of a message's file."""

    data: bytes


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that is not a message and must be quarantined."""

    message_id: str
    state: str
    name: str
    problem: str
