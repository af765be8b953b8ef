"""What the state consists of: rows by section and key, cheap enough to be looked at 5 times a second.

A mailbox's row is a plain tuple until it is sent, since there may be ten thousand of them. All other rows are models
already. Times are instants, so that a row which only grows older compares equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from relay_core.backpressure import check_backpressure
from relay_core.breaker import CircuitState
from relay_core.core import RelayCore
from relay_core.deadletters import DeadLetterGroup, group_key
from relay_core.events import EVENT_FIELDS, MAX_DETAIL, Event
from relay_core.ids import is_ulid, ulid_ms
from relay_core.live_state import LiveBreaker, LiveMailbox, LiveSender, LiveThroughput
from relay_core.mailbox import Mailbox
from relay_core.model import WireModel
from relay_core.operations import ConfiguredAdapter, JobState
from relay_core.state import breaker_states, is_registered

SHOWN_SECS = 60
"""Of throughput, second by second."""
_MOMENT_MS = 100


@dataclass(slots=True)
class StateView:
    """Read the state of a bus and of the parts beside it."""

    relay: RelayCore
    adapters: Callable[[], list[ConfiguredAdapter]]
    jobs: Callable[[], list[JobState]]
    problems: Callable[[], list[str]]
    """What is wrong with the operator's files."""
    _resets: dict[str, int] = field(default_factory=dict)
    """When each sender has room again, as it was last told."""

    def sections(self, groups: list[DeadLetterGroup]) -> dict[str, dict[str, Any]]:
        """Return every row by section and key; the groups of dead letters are the caller's, who has asked the index."""
        relay = self.relay
        return {
            "mailboxes": {mailbox.hash: self._mailbox(mailbox) for mailbox in relay.bus.mailboxes},
            "senders": self._senders(),
            "breakers": self._breakers(),
            "adapters": {adapter.id: adapter for adapter in self.adapters()},
            "dead_letters": {
                group_key(group.code, group.endpoint_hash, partial=group.partial): group for group in groups
            },
            "jobs": {job.name: job for job in self.jobs()},
            "replays": {run.plan.id: run.progress() for run in relay.replays.runs()},
        }

    def throughput(self) -> LiveThroughput:
        """Return what has been counted."""
        metrics = self.relay.bus.metrics
        found = metrics.snapshot()
        return LiveThroughput(
            publishes=found.publishes,
            bytes=found.bytes,
            rate_10s=found.rate_10s,
            rate_60s=found.rate_60s,
            per_second=tuple(metrics.per_second(SHOWN_SECS)),
            deliveries=found.deliveries,
            refusals=found.refusals,
            dead_letters=found.dead_letters,
            queue_us=found.queue_us,
            handle_us=found.handle_us,
            total_us=found.total_us,
            recent_us=metrics.recent_us(),
        )

    def events(self, newest: int) -> list[dict[str, Any]]:
        """Return the newest events in their wire form, oldest first."""
        recent = list(self.relay.bus.events.recent)
        return [_wire_event(row) for row in recent[max(len(recent) - newest, 0) :]]

    def dead_mark(self) -> tuple[int, ...]:
        """Return what changes whenever a dead letter comes or goes, or the index may know of others."""
        bus = self.relay.bus
        return (
            sum(bus.metrics.dead_letters.values()),
            sum(mailbox.dead for mailbox in bus.mailboxes),
            bus.index.dirty,
            bus.index.repairs,
        )

    def _mailbox(self, mailbox: Mailbox) -> tuple[Any, ...]:
        about = mailbox.about
        return (
            mailbox.subject,
            about.kind,
            is_registered(self.relay.bus, mailbox),
            mailbox.depth,
            len(mailbox.claimed),
            mailbox.dead,
            check_backpressure(mailbox.load, self.relay.bus.config.reliability.backpressure).pressure,
            mailbox.head(),
            len(self.relay.bus.consumers(mailbox)[0]),
            mailbox.degraded,
        )

    def _senders(self) -> dict[str, LiveSender]:
        now = self.relay.bus.clock.now_ms()
        found = self.relay.senders()
        told = self._resets
        self._resets = {usage.sender: now + usage.resets_in_ms for usage in found}
        for sender, at in self._resets.items():
            # The two clocks that this comes from do not tick together: a moment's difference is no news.
            if abs(told.get(sender, 0) - at) < _MOMENT_MS:
                self._resets[sender] = told[sender]
        return {
            usage.sender: LiveSender(
                count=usage.count,
                limit=usage.limit,
                window_secs=usage.window_secs,
                resets_at=self._resets[usage.sender],
            )
            for usage in found
        }

    def _breakers(self) -> dict[str, LiveBreaker]:
        cooldown = self.relay.bus.config.reliability.circuit_breaker.cooldown_ms
        return {
            one.key: LiveBreaker(
                subject=one.subject,
                state=one.state,
                consecutive_failures=one.consecutive_failures,
                half_open_successes=one.half_open_successes,
                forced=one.forced,
                opened_at=one.opened_at,
                retry_at=(
                    one.opened_at + cooldown
                    if one.opened_at is not None and one.state is CircuitState.OPEN and not one.forced
                    else None
                ),
                transitions=one.transitions,
            )
            for one in breaker_states(self.relay.bus)
        }


def wire_row(row: Any) -> dict[str, Any]:
    """Return a row as it is sent."""
    if isinstance(row, WireModel):
        return row.to_wire()
    subject, kind, registered, depth, claimed, failed, pressure, head, consumers, degraded = row
    return LiveMailbox(
        subject=subject,
        kind=kind,
        registered=registered,
        depth=depth,
        claimed=claimed,
        failed=failed,
        pressure=round(pressure, 4),
        oldest_at=ulid_ms(head) if head is not None and is_ulid(head) else None,
        consumers=consumers,
        degraded=degraded,
    ).to_wire()


def _wire_event(row: Any) -> dict[str, Any]:
    values = dict(zip(EVENT_FIELDS, row, strict=True))
    if values["detail"] is not None:
        values["detail"] = values["detail"][:MAX_DETAIL]
    return Event(**values).to_wire()
