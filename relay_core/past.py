"""What the journal tells of earlier publishes, for an index that does not know them.

An index that was lost, or that a kill kept from writing its last rows, must cost nothing but time: a retry still gets
the first outcome, a sender has still used its rate window, and a message still has a parent with a budget.

1. A publish counts once. A replay, an edited copy, a failure notice and a file that another process dropped do not
   count; neither does what was struck from the journal, since its publisher got an error.
2. The last record of a message at a target tells its budget there: a replay has renewed it.
3. A delivery from here only says that the message was there. Its status is `gone`, which never overwrites a row; a
   message that is still on disk gets its row from its file (reindex.py).
4. Reading is best effort: a damaged line costs the rest of its segment, a segment that cannot be read costs itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from relay_core.clock import parse_iso
from relay_core.deadletters import Code
from relay_core.delivery import Delivery, Status, TargetKind, stored_delivery
from relay_core.envelope import Envelope
from relay_core.ids import is_ulid, ulid_ms
from relay_core.index import PublishRow, Row
from relay_core.journal import read_segment
from relay_core.mailbox import BadFile, Mailbox
from relay_core.maildir import CUR, NEW
from relay_core.payload import Performative
from relay_core.subjects import ADAPTER_PREFIX, is_of_bus, subject_hash

logger = logging.getLogger(__name__)


class Past:
    """Publishes and deliveries since an instant, as the journal's records tell of them; of one message if `only`."""

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
        """The last segment that was closed before this was read."""

    def read(self, segments: Iterable[tuple[int, Path]]) -> None:
        """Read segments, oldest first."""
        for sequence, path in segments:
            try:
                for record in read_segment(sequence, path):
                    self.note(record)
            except OSError as error:
                logger.warning("journal: %s cannot be read: %s", path, error)

    def rows(self) -> Iterator[Row]:
        """Yield everything as rows of the index."""
        yield from self.publishes.values()
        yield from self.deliveries.values()

    def note(self, record: dict[str, Any]) -> None:
        """Note one record of the journal."""
        if "ops" not in record or (self._only is not None and record["id"] != self._only):
            return
        dedupe, result = record.get("dedupe"), record.get("result")
        if dedupe is not None:
            if result is None:  # struck
                self.outcomes.pop(dedupe, None)
                self.publishes.pop(record["id"], None)
            else:
                self.outcomes[dedupe] = result
        for op, mailbox, _, *data in record["ops"]:
            if data:
                self._note_message(op, mailbox, data[0], dedupe, result)

    def _note_message(
        self, op: str, mailbox: str, data: dict[str, Any], dedupe: str | None, result: dict[str, Any] | None
    ) -> None:
        letter = data if op == "failed" else {}
        try:
            envelope = Envelope.model_validate(letter.get("envelope") if letter else data)
            delivery = _delivery(envelope, mailbox, at_gate=letter.get("stage") == "gate")
        except ValueError:
            return  # it was no message, or another Relay's
        if delivery.sent_ms < self._since_ms:
            return
        self.deliveries[envelope.id, mailbox] = delivery
        is_publish = op == "new" or letter.get("stage") == "gate" or letter.get("code") == Code.STORE_FAILED
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
    if at_gate:  # it never reached a target: nothing was stored there, and nothing spent
        delivery.kind, delivery.stored_ms = TargetKind.NONE, None
        delivery.hops_before, delivery.calls_before = delivery.hops_after, delivery.calls_after
    return delivery


def waiting_since(mailboxes: Iterable[Mailbox], since_ms: int) -> dict[str, tuple[str, int]]:
    """Return id → (sender, time) of the messages on disk that were published since an instant. Blocks.

    With durability ``os`` the journal has only publishes with a dedupe id; of the others these are all that is left.
    """
    found: dict[str, tuple[str, int]] = {}
    for mailbox in mailboxes:
        for state in (NEW, CUR):
            for message_id in mailbox.maildir.ids(state):
                if not is_ulid(message_id) or ulid_ms(message_id) <= since_ms or message_id in found:
                    continue
                with suppress(OSError):
                    item = mailbox.read(state, message_id)
                    if not isinstance(item, BadFile) and is_counted(item.envelope):
                        found[message_id] = item.envelope.sender, parse_iso(item.envelope.created_at)
    return found
