"""Failure notices: nobody waits for ever on the `reply_to` of a message that was taken and then not handled.

1. When a target's copy of a message with a `reply_to` is parked, for whatever reason, a `StandardPayload` with the
   performative ``failure`` goes to that subject, from ``relay.adapter.{id}`` if it was an adapter's, else from
   ``relay.system.bus``, with the message as its parent. Its `platform_data` says which message, why (code), and whether
   other targets took it (partial).
2. One notice per message: none for a failure notice, and none when a replay fails again. It is the
   bus that sends it, so it may also go to the adapter that failed: to another chat or agent there.
3. A notice must arrive where the message itself could not go on: the access rules hold, but neither
   the rate limit nor the budget gate. What follows from it has the message's hops and ancestors.
4. Where there is nobody to take it, nobody waits, and no notice is sent. What a crash interrupted is parked before
   anybody listens; its notices wait until the subject they go to has a taker: an endpoint at once, an adapter when
   it is added.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from relay_core.deliver import Deliver
from relay_core.delivery import TargetKind
from relay_core.envelope import Budget
from relay_core.errors import RelayError
from relay_core.mailbox import Item
from relay_core.match import Match
from relay_core.payload import Performative, StandardPayload, encode_payload
from relay_core.pipeline import Access, Settle, run_pipeline
from relay_core.publication import Publication
from relay_core.subjects import BUS_SENDER, adapter_of, adapter_subject

if TYPE_CHECKING:
    from relay_core.bus import Bus

logger = logging.getLogger(__name__)


class Notices:
    """Send failure notices."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._open = False
        self._waiting: list[Publication] = []
        """Notices from before the bus was open, until their subject has a taker."""
        bus.parking.on_parked = self._parked

    def flush(self) -> None:
        """Send the notices that wait for a taker, where there is one now."""
        self._open = True
        waiting, self._waiting = self._waiting, []
        for notice in waiting:
            if self._has_taker(notice):
                self._send(notice)
            else:
                self._waiting.append(notice)

    def _parked(self, item: Item, partial: bool) -> None:
        envelope = item.envelope
        if item.delivery.kind == TargetKind.NONE or envelope.reply_to is None:
            return  # what nobody took, its publisher knows already
        if envelope.replays or _is_failure(envelope.payload):
            return
        if not self._may_tell(envelope.sender, envelope.reply_to):
            return
        notice = self._write(item, envelope.reply_to, partial)
        if not self._open:
            self._waiting.append(notice)
        elif self._has_taker(notice):
            self._send(notice)

    def _may_tell(self, sender: str, reply_to: str) -> bool:
        """Tell whether whoever asked may have the answer go there: to a person, only by a binding or as that person.

        The reason of a failure is the consumer's text: it must not be a way to write to just anybody.
        """
        bus = self._bus
        if sender == reply_to or not bus.adapters.is_person(reply_to):
            return True
        return not isinstance(bus.bindings.find(sender, reply_to), str)

    def _write(self, item: Item, reply_to: str, partial: bool) -> Publication:
        bus, envelope, delivery = self._bus, item.envelope, item.delivery
        asked = envelope.payload if isinstance(envelope.payload, dict) else {}
        payload = StandardPayload(
            content=delivery.reason or "",
            performative=Performative.FAILURE,
            conversation_id=_text(asked.get("conversationId")),
            correlation_id=_text(asked.get("correlationId")) or envelope.id,
            platform_data={"messageId": envelope.id, "code": delivery.code, "partial": partial},
        )
        sender = BUS_SENDER
        if delivery.kind == TargetKind.ADAPTER:
            sender = adapter_subject(adapter_of(delivery.target_subject))  # lanes are its own affair
        notice = Publication(reply_to, payload, sender)
        notice.is_notice = True
        notice.data = encode_payload(payload, limit=bus.config.limits.max_payload_bytes)
        notice.created_ms = now = bus.clock.now_ms()
        notice.id = bus.new_id(now)
        notice.started = bus.clock.monotonic()
        notice.trace_id = delivery.trace_id
        notice.parent_id = envelope.id
        spent = envelope.budget
        notice.budget = Budget(
            hop_count=spent.hop_count,
            max_hops=max(spent.max_hops, spent.hop_count + 1),
            ancestor_chain=spent.ancestor_chain,
            ttl=now + bus.config.budget.ttl_ms,
            call_budget_remaining=max(spent.call_budget_remaining, 1),
        )
        return notice

    def _has_taker(self, notice: Publication) -> bool:
        bus, subject = self._bus, notice.subject
        return bool(
            bus.mailboxes.endpoint(subject) or bus.adapters.matching(subject) or bus.subscriptions.match(subject)
        )

    def _send(self, notice: Publication) -> None:
        self._bus.tasks.start(self._publish(notice), name=f"failure notice to {notice.subject}")

    async def _publish(self, notice: Publication) -> None:
        stages = [stage for stage in self._bus.stages if isinstance(stage, Access | Match | Deliver | Settle)]
        try:
            await run_pipeline(stages, notice)
        except RelayError as error:
            logger.warning("%s is not told that %s failed: %s", notice.subject, notice.parent_id, error.message)


def _is_failure(payload: Any) -> bool:
    return isinstance(payload, dict) and payload.get("performative") == Performative.FAILURE


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
