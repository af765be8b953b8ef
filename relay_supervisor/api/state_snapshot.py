"""Snapshots of the state: rows by section and key, cheap enough to take 5 times a second.

A mailbox's row is a plain tuple until it is sent, since there may be ten thousand of them; all other rows are models.
Times are instants, so that a row that only grows older compares equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from relay_core.core import RelayCore
from relay_core.messages.dead_letter import DeadLetterGroup, group_key
from relay_core.messages.operator_views import ConfiguredAdapter, JobState
from relay_core.protocol.live_state import LiveBreaker, LiveSender
from relay_core.records.events import Event
from relay_core.rules.breaker import CircuitState

_MOMENT_MS = 100


@dataclass(slots=True)
class StateSnapshot:
    """Take snapshots of the bus and of the other parts of the supervisor."""

    relay: RelayCore
    adapters: Callable[[], list[ConfiguredAdapter]]
    jobs: Callable[[], list[JobState]]
    problems: Callable[[], list[str]]
    """Errors in the operator's files."""
    _resets: dict[str, int] = field(default_factory=dict)
    """When each sender's window has room again, as last sent."""

    def sections(self, groups: list[DeadLetterGroup]) -> dict[str, dict[str, Any]]:
        """Return every row by section and key; the caller has queried the index for the groups of dead letters."""
        relay = self.relay
        return {
            "mailboxes": relay.mailbox_rows(),
            "senders": self._senders(),
            "breakers": self._breakers(),
            "adapters": {adapter.id: adapter for adapter in self.adapters()},
            "dead_letters": {
                group_key(group.code, group.endpoint_hash, partial=group.partial): group for group in groups
            },
            "jobs": {job.name: job for job in self.jobs()},
            "replays": {run.plan.id: run.progress() for run in relay.replays.runs()},
        }

    def events(self, newest: int) -> list[dict[str, Any]]:
        """Return the newest events in their wire form, oldest first."""
        recent = list(self.relay.events.recent)
        return [Event.model_validate(row).to_wire() for row in recent[max(len(recent) - newest, 0) :]]

    def _senders(self) -> dict[str, LiveSender]:
        now = self.relay.clock.now_ms()
        usages = self.relay.senders()
        sent = self._resets
        self._resets = {usage.sender: now + usage.resets_in_ms for usage in usages}
        for sender, at in self._resets.items():
            # The two clocks behind this value do not tick together: ignore small differences.
            if abs(sent.get(sender, 0) - at) < _MOMENT_MS:
                self._resets[sender] = sent[sender]
        return {usage.sender: LiveSender(**vars(usage), resets_at=self._resets[usage.sender]) for usage in usages}

    def _breakers(self) -> dict[str, LiveBreaker]:
        cooldown = self.relay.config.reliability.circuit_breaker.cooldown_ms
        return {
            breaker.key: LiveBreaker(
                **vars(breaker),
                retry_at=(
                    breaker.opened_at + cooldown
                    if breaker.opened_at is not None and breaker.state is CircuitState.OPEN and not breaker.forced
                    else None
                ),
            )
            for breaker in self.relay.breakers()
        }
