"""Write dead letters: a record in ``failed/``, an index row, a count and an event.

A message becomes a dead letter in one transaction (journal/commit.py), so it is always in one of the two places. If
that cannot be written (a full disk), the message stays claimed in ``cur/``, and the write is retried until it succeeds,
with the original reason and time. Until then `complete` and `fail` work on the message (inbox.py), and its mailbox
reports the error. A bus that is closed meanwhile retries once; the next start dead-letters the rest as `interrupted`.

The same holds for a file that must be quarantined, and for the completion of a handled message.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from relay_core.clock import Clock, sleep
from relay_core.journal.commit import Commits
from relay_core.journal.transaction import Move, Transaction
from relay_core.limited_log import LimitedLog
from relay_core.messages.dead_letter import Code, clean_reason, dead_delivery, decode_dead_letter, encode_dead_letter
from relay_core.messages.delivery import Status
from relay_core.messages.ids import is_of_clock
from relay_core.records.recorder import Recorder
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.maildir import FAILED
from relay_core.storage.stored_message import BadFile, StoredMessage
from relay_core.tasks import Tasks

logger = logging.getLogger(__name__)

RETRY_SECS = 1.0
_RETRY_SECS_MAX = 16.0


@dataclass(slots=True, eq=False)
class _Waiting:
    """A write that the disk refused, and how to retry it."""

    mailbox: Mailbox
    message: StoredMessage | None
    """The message to be dead-lettered, if there is one."""
    attempt: Callable[[], Awaitable[OSError | None]]


class DeadLetterWriter:
    """Dead-letter failed messages."""

    def __init__(
        self, commits: Commits, recorder: Recorder, clock: Clock, new_id: Callable[[], str], tasks: Tasks
    ) -> None:
        self._commits = commits
        self._recorder = recorder
        self._clock = clock
        self._new_id = new_id
        self._tasks = tasks
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._trying = asyncio.Lock()
        """Held while a waiting write is retried."""
        self._retrying: asyncio.Task[Any] | None = None
        self._log = LimitedLog(logger, clock)
        self.on_dead_letter: Callable[[StoredMessage, bool], None] | None = None
        """Called with every dead-lettered message, and whether other targets took it."""

    async def dead_letter(
        self,
        mailbox: Mailbox,
        message: StoredMessage,
        *,
        code: str,
        reason: str,
        stage: str = "target",
        partial: bool = False,
        status: str | None = None,
        dedupe: str | None = None,
        result: dict[str, Any] | None = None,
    ) -> OSError | None:
        """Dead-letter a message; return the error if the disk refuses.

        `dedupe` and `result` are for a publish that ends here: the result that a retry gets.
        """
        delivery = message.delivery
        if delivery.handled_ms is None:
            delivery.handled_ms = self._clock.now_ms()
        record = encode_dead_letter(
            message.data,
            reason=reason,
            code=code,
            failed_ms=int(delivery.handled_ms),
            endpoint_hash=mailbox.hash,
            replays=message.envelope.replays,
            stage=stage,
            partial=partial,
        )
        delivery.status = status or (Status.PARTIAL_FAILURE if partial else Status.FAILED)
        delivery.code, delivery.reason = code, clean_reason(reason)
        error = await self._commit(mailbox, message.envelope.id, record, dedupe, result)
        if error is None:
            self._recorder.failed(delivery, dead=not partial)
            if self.on_dead_letter is not None:
                self.on_dead_letter(message, partial)
        return error

    async def dead_letter_or_retry(
        self, mailbox: Mailbox, message: StoredMessage, *, code: str, reason: str, partial: bool = False
    ) -> None:
        """Dead-letter a claimed message, now or as soon as the disk allows; it stays claimed until then."""
        attempt = functools.partial(self.dead_letter, mailbox, message, code=code, reason=reason, partial=partial)
        error = await attempt()
        if error is not None:
            mailbox.claimed[message.id] = message
            self._retry_later((mailbox.hash, message.id), _Waiting(mailbox, message, attempt), error)

    def finish_later(self, mailbox: Mailbox, message: StoredMessage, error: OSError) -> None:
        """Record that a claimed message was handled, as soon as the disk allows; it stays claimed until then."""

        async def attempt() -> OSError | None:
            try:
                self._commits.finish(mailbox.hash, mailbox.maildir, message.id)
            except OSError as error:
                return error
            mailbox.claimed.pop(message.id, None)
            return None

        logger.error("%s: %s is handled, but its completion cannot be recorded: %s", mailbox.subject, message.id, error)
        self._retry_later((mailbox.hash, message.id), _Waiting(mailbox, None, attempt), error)

    async def find(self, mailbox: Mailbox, message_id: str) -> StoredMessage | None:
        """Return a message that is waiting to be dead-lettered."""
        if (mailbox.hash, message_id) not in self._waiting:
            return None
        async with self._trying:  # it may be written right now
            waiting = self._waiting.get((mailbox.hash, message_id))
        return waiting.message if waiting is not None else None

    def forget(self, mailbox: Mailbox, message_id: str) -> None:
        """Stop retrying a message that has been completed otherwise."""
        del self._waiting[mailbox.hash, message_id]
        self._clear_degraded(mailbox)

    async def retry_now(self, mailbox: Mailbox, message_id: str, *, code: str, reason: str) -> OSError | None:
        """Dead-letter a waiting message now, with this reason; return the error if the disk refuses."""
        async with self._trying:
            waiting = self._waiting.get((mailbox.hash, message_id))
            if waiting is None or waiting.message is None:
                return None  # it was written just now
            error = await self.dead_letter(mailbox, waiting.message, code=code, reason=reason)
            if error is None:
                self.forget(mailbox, message_id)
            return error

    def _retry_later(self, key: tuple[str, str], waiting: _Waiting, error: OSError) -> None:
        self._waiting[key] = waiting
        waiting.mailbox.degraded = f"dead letters or completions cannot be written: {error}"
        if self._retrying is None or self._retrying.done():
            self._retrying = self._tasks.start(self._retry(), name="retry dead letters")

    async def _retry(self) -> None:
        delay = RETRY_SECS
        while self._waiting:
            await sleep(self._clock, delay)
            delay = RETRY_SECS if await self.retry_all() else min(2 * delay, _RETRY_SECS_MAX)

    async def retry_all(self) -> bool:
        """Retry the waiting writes until one fails, which moves to the end; return True if any succeeded."""
        succeeded = False
        for key in list(self._waiting):
            async with self._trying:
                waiting = self._waiting.get(key)
                if waiting is None:
                    continue  # completed meanwhile
                error = await waiting.attempt()
                del self._waiting[key]
                if error is not None:
                    self._waiting[key] = waiting
                    break
                succeeded = True
                self._clear_degraded(waiting.mailbox)
        return succeeded

    def _clear_degraded(self, mailbox: Mailbox) -> None:
        if all(waiting.mailbox is not mailbox for waiting in self._waiting.values()):
            mailbox.degraded = None

    async def quarantine(self, mailbox: Mailbox, bad: BadFile) -> None:
        """Move a malformed file to ``failed/``, unopened, and record why; now or as soon as the disk allows."""
        if (mailbox.hash, bad.name) in self._waiting:
            return
        message_id = bad.message_id
        if not is_of_clock(message_id, self._clock) or FAILED in mailbox.maildir.whereabouts(message_id):
            # It has no id, one far in the future, or the id of an existing dead letter.
            message_id = self._new_id()
        attempt = functools.partial(self._quarantine, mailbox, bad, message_id, self._clock.now_ms())
        error = await attempt()
        if error is not None:
            self._retry_later((mailbox.hash, bad.name), _Waiting(mailbox, None, attempt), error)

    async def _quarantine(self, mailbox: Mailbox, bad: BadFile, message_id: str, now: int) -> OSError | None:
        try:
            mailbox.maildir.quarantine(bad.state, bad.name, message_id)
        except FileNotFoundError:
            if not mailbox.maildir.has_original(message_id):
                return None  # another process removed it
        except OSError as error:
            logger.error("%s: cannot quarantine %s: %s", mailbox.maildir.path, bad.name, error)
            return error
        record = encode_dead_letter(
            None, reason=bad.problem, code=Code.MALFORMED, failed_ms=now, endpoint_hash=mailbox.hash
        )
        if (commit_error := await self._commit(mailbox, message_id, record)) is not None:
            return commit_error
        letter = decode_dead_letter(message_id, record)
        delivery = dead_delivery(
            letter,
            target=mailbox.hash,
            kind=mailbox.about.kind,
            target_subject=mailbox.subject,
            status=Status.FAILED,
        )
        delivery.handled_ms = now
        self._recorder.failed(delivery, dead=True)
        return None

    async def _commit(
        self,
        mailbox: Mailbox,
        message_id: str,
        record: bytes,
        dedupe: str | None = None,
        result: dict[str, Any] | None = None,
    ) -> OSError | None:
        def settle(transaction: Transaction) -> None:
            if transaction.failure(0) is None:
                mailbox.claimed.pop(message_id, None)
                mailbox.forget(message_id)
                mailbox.dead += 1

        move = Move("failed", mailbox.hash, mailbox.maildir, message_id, record)
        transaction = Transaction(message_id, [move], settle)
        if dedupe is not None:
            transaction.dedupe, transaction.result = dedupe, result
        await self._commits.commit(transaction)
        error = transaction.failure(0)
        if error is not None:
            self._log.error(
                ("dead letter", error.errno),
                "%s could not be dead-lettered (%s): it stays where it is",
                message_id,
                error,
            )
        return error
