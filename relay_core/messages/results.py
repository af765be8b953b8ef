"""What a publish tells its caller."""

from __future__ import annotations

from typing import Any

from relay_core.messages.base import WireModel


class Reason:
    """Why a target refused a message."""

    BACKPRESSURE = "backpressure"
    CIRCUIT_OPEN = "circuit_open"
    RATE_LIMITED = "rate_limited"
    BUDGET_EXCEEDED = "budget_exceeded"
    STORE_FAILED = "store_failed"


_PASSING = frozenset({Reason.BACKPRESSURE, Reason.CIRCUIT_OPEN, Reason.RATE_LIMITED})


class Rejection(WireModel):
    """A target that refused, and why; ``*`` where the publish itself was refused."""

    endpoint_hash: str
    """The mailbox's hash, or ``*`` where the publish itself was refused."""
    reason: str
    """``backpressure``, ``circuit_open``, ``rate_limited``, ``budget_exceeded`` or ``store_failed``."""


class AdapterResult(WireModel):
    """What an adapter did with its copy."""

    adapter_id: str
    status: str
    """``delivered``, ``failed``, ``queued`` (still waiting when the answer was due) or ``refused``."""
    error: str | None = None
    """Why it failed or was refused."""
    duration_ms: float | None = None
    """From the publish to its answer; None if there was none."""


class PublishResult(WireModel):
    """The outcome of a publish; empty parts are left out of its JSON."""

    message_id: str
    """Also there if the message was refused: `traces.get` tells what became of it."""
    delivered_to: int
    """Targets that took the message."""
    rejected: tuple[Rejection, ...] | None = None
    """Targets that refused it."""
    mailbox_pressure: dict[str, float] | None = None
    """How full each mailbox was, 0 to 1."""
    adapter_results: tuple[AdapterResult, ...] | None = None
    """Of every adapter that matched."""

    @property
    def put_off(self) -> frozenset[str]:
        """Return the reasons for which nobody took it, if they pass by themselves: it may be published again later.

        Empty if somebody took it, or it is kept as a dead letter, or no later try can help.
        """
        failed = any(one.status == "failed" for one in self.adapter_results or ())
        reasons = frozenset(one.reason for one in self.rejected or ())
        return frozenset() if self.delivered_to or failed or not reasons <= _PASSING else reasons

    def to_wire(self) -> dict[str, Any]:
        """Return plain JSON data, leaving out empty parts; by hand, which takes a fifth of pydantic's time."""
        wire: dict[str, Any] = {"messageId": self.message_id, "deliveredTo": self.delivered_to}
        if self.rejected is not None:
            wire["rejected"] = [one.to_wire() for one in self.rejected]
        if self.mailbox_pressure is not None:
            wire["mailboxPressure"] = self.mailbox_pressure
        if self.adapter_results is not None:
            wire["adapterResults"] = [one.to_wire() for one in self.adapter_results]
        return wire
