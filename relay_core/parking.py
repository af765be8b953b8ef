"""Where failed messages go: a record in ``failed/``, an index row, a count and an event.

A message is parked in one change (see commit.py), so it is never in neither place. If even that
cannot be written (a full disk), it stays in ``cur/`` and the next start parks it as `interrupted`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from relay_core.clock import Clock
from relay_core.commit import Change, Commits, Op
from relay_core.deadletters import Code, clean_reason, dead_delivery, decode_dead_letter, encode_dead_letter
from relay_core.delivery import Status
from relay_core.ids import is_of_clock
from relay_core.mailbox import BadFile, Item, Mailbox
from relay_core.maildir import FAILED
from relay_core.recorder import Recorder

logger = logging.getLogger(__name__)


class Parking:
    """Park what failed."""

    def __init__(self, commits: Commits, recorder: Recorder, clock: Clock, new_id: Callable[[], str]) -> None:
        self._commits = commits
        self._recorder = recorder
        self._clock = clock
        self._new_id = new_id
        self.on_parked: Callable[[Item, bool], None] | None = None
        """Told of every message that was parked, and whether other targets took it."""

    async def park(
        self,
        mailbox: Mailbox,
        item: Item,
        *,
        code: str,
        reason: str,
        stage: str = "target",
        partial: bool = False,
        status: str | None = None,
        dedupe: str | None = None,
        result: dict[str, Any] | None = None,
    ) -> OSError | None:
        """Put a message into ``failed/``; return why that could not be done, if so.

        `dedupe` and `result` are for a publish that ends here: what a retry of it is told.
        """
        delivery = item.delivery
        if delivery.handled_ms is None:
            delivery.handled_ms = self._clock.now_ms()
        record = encode_dead_letter(
            item.data,
            reason=reason,
            code=code,
            failed_ms=int(delivery.handled_ms),
            endpoint_hash=mailbox.hash,
            replays=item.envelope.replays,
            stage=stage,
            partial=partial,
        )
        delivery.status = status or (Status.PARTIAL_FAILURE if partial else Status.FAILED)
        delivery.code, delivery.reason = code, clean_reason(reason)
        error = await self._commit(mailbox, item.envelope.id, record, dedupe, result)
        if error is None:
            self._recorder.parked(delivery, dead=not partial)
            if self.on_parked is not None:
                self.on_parked(item, partial)
        return error

    async def set_aside(self, mailbox: Mailbox, bad: BadFile) -> None:
        """Move a file that is no message out of the way, unopened, and say why."""
        message_id = bad.message_id
        if not is_of_clock(message_id, self._clock) or FAILED in mailbox.maildir.whereabouts(message_id):
            # It has none, or one that would be the newest for years, or a dead letter has the same and stays.
            message_id = self._new_id()
        try:
            mailbox.maildir.set_aside(bad.state, bad.name, message_id)
        except FileNotFoundError:
            return  # somebody took it away
        except OSError as error:
            logger.error("%s: cannot set %s aside: %s", mailbox.maildir.path, bad.name, error)
            return
        now = self._clock.now_ms()
        record = encode_dead_letter(
            None, reason=bad.problem, code=Code.MALFORMED, failed_ms=now, endpoint_hash=mailbox.hash
        )
        await self._commit(mailbox, message_id, record)
        letter = decode_dead_letter(message_id, record)
        delivery = dead_delivery(
            letter,
            target=mailbox.hash,
            kind=mailbox.about.kind,
            target_subject=mailbox.subject,
            status=Status.FAILED,
        )
        delivery.handled_ms = now
        self._recorder.parked(delivery, dead=True)

    async def _commit(
        self,
        mailbox: Mailbox,
        message_id: str,
        record: bytes,
        dedupe: str | None = None,
        result: dict[str, Any] | None = None,
    ) -> OSError | None:
        def settle(change: Change) -> None:
            if change.failure(0) is None:
                mailbox.claimed.pop(message_id, None)
                mailbox.forget(message_id)
                mailbox.dead += 1

        change = Change(message_id, [Op("failed", mailbox.hash, mailbox.maildir, message_id, record)], settle)
        if dedupe is not None:
            change.dedupe, change.result = dedupe, result
        await self._commits.commit(change)
        error = change.failure(0)
        if error is not None:
            logger.error("%s could not be parked (%s): what there is of it stays where it is", message_id, error)
        return error
