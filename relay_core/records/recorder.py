"""Record the traffic: index rows, counters and events.

Every step of a message's way calls one method here. None of them waits, and none can fail a publish: rows and events go
to background threads, counters are plain integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from relay_core.clock import Clock
from relay_core.config import BackpressureConfig
from relay_core.messages.delivery import Delivery, Status, TargetKind
from relay_core.messages.subjects import adapter_of
from relay_core.records.event_log import EventLog
from relay_core.records.events import EVENT_SCHEMA_VERSION, MAX_DETAIL, EventKind
from relay_core.records.index import Index
from relay_core.records.metrics import BUDGET_CODES, Metrics
from relay_core.records.rows import PublishRow
from relay_core.storage.mailbox import Mailbox, PressureEpisode

REPLAYED = "replayed"
"""The status of a publish that replaces a dead letter."""


class Recorder:
    """Record the events in a message's life."""

    def __init__(self, index: Index, metrics: Metrics, events: EventLog, clock: Clock) -> None:
        self.index = index
        self.metrics = metrics
        self.events = events
        self.on_ended: Callable[[Delivery], None] | None = None
        """Called with every delivery that was handled or dead-lettered; must neither block nor raise."""
        self._clock = clock

    def published(self, row: PublishRow, started: float, *, is_counted: bool) -> None:
        """Record a publish that passed the gates, or was dead-lettered there; an edited copy is not new traffic."""
        self.index.note(row if is_counted else row._replace(status=REPLAYED))  # a start does not count these either
        if row.status != REPLAYED:
            self.metrics.published(row.size, started)
        self.events.put((publish_event, row))

    def refused(self, delivery: Delivery) -> None:
        """Record that a rule refused a message for a target, or for all (target ``*``)."""
        self.index.note(delivery)
        if delivery.replays:
            return  # the replay run reports these
        code = delivery.code or "refused"
        self.metrics.refusals[code] += 1
        self._event(EventKind.REFUSED, delivery)

    def stored(self, delivery: Delivery) -> None:
        """Record that a message was stored in a mailbox."""
        self.index.note(delivery)
        self.metrics.deliveries[Status.NEW] += 1
        self.events.put((stored_event, delivery))

    def claimed(self, delivery: Delivery) -> None:
        """Record that a pull consumer claimed a message."""
        delivery.status = Status.CUR
        self.index.note(delivery)

    def handled(self, delivery: Delivery) -> None:
        """Record that a delivery's handlers have ended (status done or partial)."""
        self.index.note(delivery)
        self.metrics.deliveries[delivery.status] += 1
        self.metrics.handled(*_latencies(delivery))
        self.events.put((handled_event, delivery))
        if self.on_ended is not None:
            self.on_ended(delivery)

    def failed(self, delivery: Delivery, *, dead: bool) -> None:
        """Record a message in ``failed/``: a dead letter, or the copy of a partial delivery."""
        self.index.note(delivery)
        code = delivery.code or "failed"
        self.metrics.deliveries[delivery.status] += 1
        if code in BUDGET_CODES:
            self.metrics.budget_rejections[code] += 1
        if delivery.status == Status.NO_SUBSCRIBER:
            self.metrics.no_subscriber += 1
        if delivery.claimed_ms is not None:
            self._event(EventKind.FAILED, delivery)
        if code == "expired":
            self._event(EventKind.EXPIRED, delivery)
        if dead:
            self.metrics.dead_letters[code] += 1
            self._event(EventKind.DEAD_LETTER, delivery)
        if self.on_ended is not None:
            self.on_ended(delivery)

    def replayed(self, delivery: Delivery) -> None:
        """Record that an operator has replayed a dead letter."""
        self.index.note(delivery)
        self._event(EventKind.REPLAYED, delivery)

    def removed(self, delivery: Delivery) -> None:
        """Record that a dead letter was purged, or replaced by an edited copy."""
        self.index.note(delivery)
        self._event(EventKind.DEAD_LETTER, delivery)

    def pressure_raised(self, mailbox: Mailbox, state: str, load: int, limit: int, below: float) -> None:
        """Record pressure above the warning: when it begins, and when it becomes critical."""
        episode = mailbox.episode
        if episode is None:
            episode = mailbox.episode = PressureEpisode(state, load, limit, below)
        else:
            episode.worst = max(episode.worst, load)
            if state == episode.state or episode.state == "critical":
                return
            episode.state = state
        self._pressure(mailbox, state, load, limit)

    def pressure_cleared(self, mailbox: Mailbox) -> None:
        """Record that a mailbox is below the warning again, if so; called whenever a message is claimed."""
        episode = mailbox.episode
        if episode is not None and mailbox.load < episode.ends_below:
            mailbox.episode = None
            self._pressure(mailbox, "normal", episode.worst, episode.limit)

    def limits_changed(self, mailboxes: Iterable[Mailbox], limits: BackpressureConfig) -> None:
        """Apply new limits to the present pressure, which may end it."""
        below = limits.pressure_warning_at * limits.max_mailbox_size if limits.enabled else inf
        for mailbox in mailboxes:
            if mailbox.episode is not None:
                mailbox.episode.ends_below = below
                self.pressure_cleared(mailbox)

    def _pressure(self, mailbox: Mailbox, state: str, depth: int, limit: int) -> None:
        self.events.emit(
            EventKind.PRESSURE, subject=mailbox.subject, target=mailbox.hash, status=state, depth=depth, limit=limit
        )

    def event(self, kind: EventKind, **fields: Any) -> None:
        """Record an event that is not about a single message."""
        self.events.emit(kind, **fields)

    def _event(self, kind: EventKind, delivery: Delivery) -> None:
        queue_us, handle_us, total_us = _latencies(delivery)
        self.events.emit(
            kind,
            time=self._clock.now_ms(),
            message_id=delivery.message_id,
            trace_id=delivery.trace_id,
            parent_id=delivery.parent_id,
            subject=delivery.subject,
            sender=delivery.sender,
            target=delivery.target,
            target_kind=delivery.kind,
            status=delivery.status,
            code=delivery.code,
            queue_us=queue_us or None,
            handle_us=handle_us or None,
            total_us=total_us or None,
            hop_count=delivery.hops_after,
            calls_left=delivery.calls_after,
            bytes=delivery.size,
            adapter=adapter_of(delivery.target_subject) if delivery.kind == TargetKind.ADAPTER else None,
            detail=delivery.reason,
        )


def _latencies(delivery: Delivery) -> tuple[int, int, int]:
    handled = delivery.handled_ms
    claimed = delivery.claimed_ms
    if handled is None or claimed is None:
        return 0, 0, 0
    stored = delivery.stored_ms if delivery.stored_ms is not None else claimed
    began = stored if delivery.replays else delivery.sent_ms  # time as a dead letter is not waiting time
    return int((claimed - stored) * 1000), int((handled - claimed) * 1000), int((handled - began) * 1000)


# The event log's thread calls these; their arguments no longer change by then. They write the schema's JSON names
# (events.py) directly, which costs a third of going through its fields.


def publish_event(row: PublishRow) -> dict[str, Any]:
    """Return the event of a publish."""
    event = {
        "time": row.created_ms,
        "v": EVENT_SCHEMA_VERSION,
        "kind": EventKind.PUBLISH,
        "messageId": row.id,
        "traceId": row.trace_id,
        "subject": row.subject,
        "sender": row.sender,
        "status": row.status,
        "hopCount": row.hops,
        "callsLeft": row.calls,
        "bytes": row.size,
    }
    if row.parent_id is not None:
        event["parentId"] = row.parent_id
    return event


def stored_event(delivery: Delivery) -> dict[str, Any]:
    """Return the event of a stored copy."""
    stored = delivery.stored_ms or delivery.sent_ms
    event = _delivery_event(EventKind.STORED, delivery, stored, Status.NEW)
    if not delivery.replays:
        event["storeUs"] = event["totalUs"] = int((stored - delivery.sent_ms) * 1000)
    return event


def handled_event(delivery: Delivery) -> dict[str, Any]:
    """Return the event of a delivery whose handlers have ended."""
    event = _delivery_event(EventKind.HANDLED, delivery, delivery.handled_ms or 0, delivery.status)
    event["queueUs"], event["handleUs"], event["totalUs"] = _latencies(delivery)
    if delivery.code is not None:
        event["code"], event["detail"] = delivery.code, (delivery.reason or "")[:MAX_DETAIL]
    return event


def _delivery_event(kind: str, delivery: Delivery, time: float, status: str) -> dict[str, Any]:
    event = {
        "time": int(time),
        "v": EVENT_SCHEMA_VERSION,
        "kind": kind,
        "messageId": delivery.message_id,
        "traceId": delivery.trace_id,
        "subject": delivery.subject,
        "sender": delivery.sender,
        "target": delivery.target,
        "targetKind": delivery.kind,
        "status": status,
        "hopCount": delivery.hops_after,
        "callsLeft": delivery.calls_after,
        "bytes": delivery.size,
    }
    if delivery.parent_id is not None:
        event["parentId"] = delivery.parent_id
    if delivery.kind == TargetKind.ADAPTER:
        event["adapter"] = adapter_of(delivery.target_subject)
    return event
