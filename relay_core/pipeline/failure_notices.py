"""Failure notices: a sender does not wait forever on the `reply_to` of a message that was stored and then failed.

1. When a target's copy of a message with a `reply_to` is dead-lettered, for any reason, a `StandardPayload` with the
   performative ``failure`` goes to that subject, from ``relay.adapter.{id}`` if it was an adapter's, else from
   ``relay.system.bus``, with the message as its parent. Its `platform_data` says which message, why (code), and whether
   other targets took it (partial).
2. One notice per message: none for a failure notice, and none when a replay fails again. The bus sends it, so it may
   also go to the adapter that failed: to another chat or agent there.
3. A notice must arrive although the message itself could go no further: the access rules hold, but neither the rate
   limit nor the budget gate. Messages published because of it inherit the message's hops and ancestors.
4. If `reply_to` has no target, no notice is sent. Messages that a crash interrupted are dead-lettered before there are
   consumers; their notices wait until their subject has a target: an endpoint at once, an adapter when it is added.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from relay_core.clock import Clock
from relay_core.dispatch.dead_lettering import DeadLetterWriter
from relay_core.dispatch.subscriptions import Subscriptions
from relay_core.errors import RelayError
from relay_core.messages.delivery import TargetKind
from relay_core.messages.envelope import Budget
from relay_core.messages.payload import Performative, StandardPayload, encode_payload
from relay_core.messages.subjects import BUS_SENDER, adapter_of, adapter_subject
from relay_core.pipeline.publication import Publication
from relay_core.pipeline.publisher import Pipeline
from relay_core.pipeline.routing import AdapterRouting
from relay_core.rules.bindings import Bindings
from relay_core.storage.config_file import LiveConfig
from relay_core.storage.mailboxes import Mailboxes
from relay_core.storage.stored_message import StoredMessage
from relay_core.tasks import Tasks

logger = logging.getLogger(__name__)


class FailureNotices:
    """Send failure notices."""

    def __init__(
        self,
        pipeline: Pipeline,
        dead_letter_writer: DeadLetterWriter,
        mailboxes: Mailboxes,
        subscriptions: Subscriptions,
        adapters: AdapterRouting,
        bindings: Bindings,
        settings: LiveConfig,
        clock: Clock,
        new_id: Callable[[int], str],
        tasks: Tasks,
    ) -> None:
        self._pipeline = pipeline
        self._mailboxes = mailboxes
        self._subscriptions = subscriptions
        self._adapters = adapters
        self._bindings = bindings
        self._settings = settings
        self._clock = clock
        self._new_id = new_id
        self._tasks = tasks
        self._open = False
        self._waiting: list[Publication] = []
        """Notices from before the bus was open, until their subject has a target."""
        dead_letter_writer.on_dead_letter = self._on_dead_letter

    def flush(self) -> None:
        """Send the waiting notices whose subject has a target by now."""
        self._open = True
        waiting, self._waiting = self._waiting, []
        for notice in waiting:
            if self._has_target(notice):
                self._send(notice)
            else:
                self._waiting.append(notice)

    def _on_dead_letter(self, message: StoredMessage, partial: bool) -> None:
        envelope = message.envelope
        if message.delivery.kind == TargetKind.NONE or envelope.reply_to is None:
            return  # it had no target: its publisher got that result
        if envelope.replays or _is_failure(envelope.payload):
            return
        if not self._may_notify(envelope.sender, envelope.reply_to):
            return
        notice = self._write(message, envelope.reply_to, partial)
        if not self._open:
            self._waiting.append(notice)
        elif self._has_target(notice):
            self._send(notice)

    def _may_notify(self, sender: str, reply_to: str) -> bool:
        """Return True if a notice may go to `reply_to`: to a person, only through a binding or to the sender itself.

        The reason of a failure is the consumer's text, and must not be a way to write to people.
        """
        if sender == reply_to or not self._adapters.is_person(reply_to):
            return True
        return not isinstance(self._bindings.find(sender, reply_to), str)

    def _write(self, message: StoredMessage, reply_to: str, partial: bool) -> Publication:
        envelope, delivery, config = message.envelope, message.delivery, self._settings.config
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
            sender = adapter_subject(adapter_of(delivery.target_subject))  # without the lane
        now, spent = self._clock.now_ms(), envelope.budget
        notice = Publication(reply_to, payload, sender, parent_id=envelope.id)
        notice.stamp(
            self._new_id(now),
            now,
            self._clock.monotonic(),
            trace_id=delivery.trace_id,
            budget=Budget(
                hop_count=spent.hop_count,
                max_hops=max(spent.max_hops, spent.hop_count + 1),
                ancestor_chain=spent.ancestor_chain,
                ttl=now + config.budget.ttl_ms,
                call_budget_remaining=max(spent.call_budget_remaining, 1),
            ),
            data=encode_payload(payload, limit=config.limits.max_payload_bytes),
        )
        return notice

    def _has_target(self, notice: Publication) -> bool:
        subject = notice.subject
        return bool(
            self._mailboxes.endpoint(subject) or self._adapters.matching(subject) or self._subscriptions.match(subject)
        )

    def _send(self, notice: Publication) -> None:
        self._tasks.start(self._publish(notice), name=f"failure notice to {notice.subject}")

    async def _publish(self, notice: Publication) -> None:
        try:
            await self._pipeline.run(notice)
        except RelayError as error:
            logger.warning("%s gets no notice that %s failed: %s", notice.subject, notice.parent_id, error.message)


def _is_failure(payload: Any) -> bool:
    return isinstance(payload, dict) and payload.get("performative") == Performative.FAILURE


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
