"""Earlier publishes, read from the journal, for an index that lacks their rows.

Losing the index, or its last rows in a kill, must cost only time: a retry still gets the first outcome, a sender has
still used its rate window, and a message still has a parent with a budget.

1. A publish counts once. A replay, an edited copy, a failure notice and a file that another process dropped do not
   count; neither does a publish that was struck from the journal, since its publisher got an error.
2. The last record of a message at a target has its budget there: a replay has renewed it.
3. A delivery from here only records that the message existed. Its status is `gone`, which never overwrites a row; a
   message that is still on disk gets its row from its file (`Reindexer`).
4. Reading is best effort: a damaged line hides the rest of its segment, an unreadable segment is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from relay_core.clock import parse_iso
from relay_core.journal.segment import read_ops, read_segment
from relay_core.messages.dead_letter import Code
from relay_core.messages.delivery import Delivery, Status, TargetKind, stored_delivery
from relay_core.messages.envelope import Envelope
from relay_core.messages.ids import is_ulid, ulid_ms
from relay_core.messages.payload import Performative
from relay_core.messages.subjects import ADAPTER_PREFIX, is_of_bus, subject_hash
from relay_core.records.rows import PublishRow, Row
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.maildir import CUR, NEW
from relay_core.storage.stored_message import BadFile

logger = logging.getLogger(__name__)


class JournalHistory:
    """Publishes and deliveries since a time, from the journal's records; of a single message if `only`."""

    def __init__(self, since_ms: int = 0, only: str | None = None) -> None:
        self._since_ms = since_ms
        self._only = only
        self.outcomes: dict[str, dict[str, Any]] = {}
        """Dedupe key → the outcome of its publish."""
        self.publishes: dict[str, PublishRow] = {}
        """By message id."""
        self.deliveries: dict[tuple[str, str], Delivery] = {}
        """By message id and target."""
        self.read_to = 0
        """The last segment that was closed before this history was read."""

    def read(self, segments: Iterable[tuple[int, Path]]) -> None:
        """Read segments, oldest first."""
        for sequence, path in segments:
            try:
                for record in read_segment(sequence, path):
                    self.note(record)
            except OSError as error:
                logger.warning("journal: %s cannot be read: %s", path, error)

    def rows(self) -> Iterator[Row]:
        """Yield all publishes and deliveries as rows of the index."""
        yield from self.publishes.values()
        yield from self.deliveries.values()

    def note(self, record: dict[str, Any]) -> None:
        """Note one record of the journal."""
        if self._only is not None and record["id"] != self._only:
            return
        dedupe, result = record.get("dedupe"), record.get("result")
        if dedupe is not None:
            if result is None:  # struck
                self.outcomes.pop(dedupe, None)
                self.publishes.pop(record["id"], None)
            else:
                self.outcomes[dedupe] = result
        for op, mailbox, _, data in read_ops(record):
            if data is not None:
                self._note_message(op, mailbox, data, dedupe, result)

    def _note_message(
        self, op: str, mailbox: str, data: dict[str, Any], dedupe: str | None, result: dict[str, Any] | None
    ) -> None:
        letter = data if op == "failed" else {}
        try:
            envelope = Envelope.model_validate(letter.get("envelope") if letter else data)
            delivery = _delivery(envelope, mailbox, at_gate=letter.get("stage") == "gate")
        except ValueError:
            return  # not a message, or of another version of Relay
        if delivery.sent_ms < self._since_ms:
            return
        self.deliveries[envelope.id, mailbox] = delivery
        is_publish = op == "new" or letter.get("stage") == "gate"
        if is_publish and is_counted(envelope) and envelope.id not in self.publishes:
            self.publishes[envelope.id] = PublishRow(
                envelope.id,
                envelope.subject,
                envelope.sender,
                envelope.reply_to,
                int(delivery.sent_ms),
                delivery.trace_id,
                delivery.parent_id,
                _status(letter),
                delivery.size,
                delivery.hops_before,
                delivery.calls_before,
                dedupe if result is not None else None,
                result,
            )


def is_counted(envelope: Envelope) -> bool:
    """Return True if the publish of an envelope was counted against its sender's rate limit."""
    if envelope.replays or envelope.replay_of is not None:
        return False
    payload = envelope.payload
    is_failure = isinstance(payload, dict) and payload.get("performative") == Performative.FAILURE
    is_notice = is_failure and envelope.parent_id is not None and is_of_bus(envelope.sender)
    return not is_notice


def _status(letter: dict[str, Any]) -> str:
    if not letter:
        return "accepted"
    return Status.NO_SUBSCRIBER if letter.get("code") == Code.NO_MATCH else Status.FAILED


def _delivery(envelope: Envelope, target: str, *, at_gate: bool) -> Delivery:
    chain = envelope.budget.ancestor_chain
    subject = chain[-1] if chain and subject_hash(chain[-1]) == target else envelope.subject
    delivery = stored_delivery(
        envelope,
        target=target,
        kind=TargetKind.ADAPTER if subject.startswith(ADAPTER_PREFIX) else TargetKind.ENDPOINT,
        target_subject=subject,
        status=Status.GONE,
        size=len(orjson.dumps(envelope.payload)),
    )
    if at_gate:
        delivery.mark_as_refused_at_gate()
    return delivery


def waiting_since(mailboxes: Iterable[Mailbox], since_ms: int) -> dict[str, tuple[str, int]]:
    """Return id → (sender, time) of the messages on disk that were published since a time. Blocks.

    The closed segments of some may have been removed: then these are their only trace.
    """
    messages: dict[str, tuple[str, int]] = {}
    for mailbox in mailboxes:
        for state in (NEW, CUR):
            for message_id in mailbox.maildir.ids(state):
                if not is_ulid(message_id) or ulid_ms(message_id) <= since_ms or message_id in messages:
                    continue
                with suppress(OSError):
                    item = mailbox.read(state, message_id)
                    if not isinstance(item, BadFile) and is_counted(item.envelope):
                        messages[message_id] = item.envelope.sender, parse_iso(item.envelope.created_at)
    return messages
