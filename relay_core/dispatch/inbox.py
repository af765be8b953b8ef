"""Pull consumers: peek at a subject's messages, wait for them, claim them, and finish them.

1. Peeking and waiting claim nothing. A claim is the atomic step on disk, oldest first or by id; a claimed message must
   be completed or failed. A message in flight at a subscriber is finished by that subscriber. A message whose consumer
   is gone and whose dead letter the disk refuses (dead_lettering.py) can be completed or failed here as well.
2. A waiting consumer is notified of new arrivals, and then looks up the waiting messages again.
3. A message that was dead-lettered because its consumer was gone (`interrupted`, `disconnected`, `timeout`) may have
   been handled all the same. If the consumer returns and completes it `late`, the dead letter becomes a completed
   message. If it was replayed before, the consumer gets `NotFound`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator

from relay_core.clock import Clock
from relay_core.dispatch.dead_lettering import DeadLetterWriter
from relay_core.dispatch.handling import Handling
from relay_core.errors import NotFound
from relay_core.journal.commit import Commits
from relay_core.messages.dead_letter import Code
from relay_core.messages.delivery import Status
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import subject_hash, validate_subject
from relay_core.records.recorder import Recorder
from relay_core.rules.breaker import CircuitBreakers
from relay_core.rules.replies import ReplyRules
from relay_core.storage.atomic_file import storage_error
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.mailboxes import Mailboxes
from relay_core.storage.maildir import NEW
from relay_core.storage.stored_message import BadFile, StoredMessage

_SEARCH_BATCH = 100
"""Messages that are read at a time in search of an answer."""


class Inbox:
    """Serve pull consumers."""

    def __init__(
        self,
        mailboxes: Mailboxes,
        commits: Commits,
        dead_letter_writer: DeadLetterWriter,
        handling: Handling,
        breakers: CircuitBreakers,
        replies: ReplyRules,
        recorder: Recorder,
        clock: Clock,
        complete_late: Callable[[Mailbox, str], Awaitable[bool]],
    ) -> None:
        self._mailboxes = mailboxes
        self._commits = commits
        self._dead_letter_writer = dead_letter_writer
        self._handling = handling
        self._breakers = breakers
        self._replies = replies
        self._recorder = recorder
        self._clock = clock
        self._complete_late = complete_late
        """Completes a dead-lettered message; returns False if there is none."""
        self._taken: set[StoredMessage] = set()
        """The claimed messages of pull consumers."""

    async def peek(self, subject: str, limit: int, *, room: int | None = None, after: str = "") -> list[Envelope]:
        """Return the oldest waiting messages after an id: at most `room` bytes, but at least one message."""
        mailbox = self._mailbox(subject)
        return await self._read(mailbox, mailbox.waiting(limit, after), room)

    async def wait(self, subject: str, limit: int, *, after: str = "", answer_to: str | None = None) -> list[str]:
        """Wait until there are messages after an id, or answers to a message if one is given, and return their ids."""
        mailbox = self._mailbox(subject)
        while True:
            arrival = mailbox.next_arrival()  # before the search, so that no arrival is missed
            try:
                found = await self._search(mailbox, limit, after, answer_to)
                if found:
                    return found
                await arrival
            finally:
                arrival.cancel()

    async def claim(self, subject: str, limit: int = 1, *, ids: Iterable[str] | None = None) -> list[Envelope]:
        """Claim the oldest waiting messages, or those with these ids that are still waiting."""
        mailbox = self._mailbox(subject)
        claimed: list[Envelope] = []
        for taken in self._take(mailbox, ids):
            envelope = await self._begin(mailbox, taken)
            if envelope is not None:
                claimed.append(envelope)
            if len(claimed) == limit:
                break
        return claimed

    async def complete(self, subject: str, message_id: str, *, late: bool) -> bool:
        """Complete a claimed message, or with `late` a dead-lettered one; return True if it was late."""
        mailbox = self._mailbox(subject)
        message = self._find(mailbox, message_id)
        if message is not None:
            self._finish(mailbox, message)
            self._taken.discard(message)
            return False
        if (waiting := await self._dead_letter_writer.find(mailbox, message_id)) is not None:
            self._finish(mailbox, waiting)
            self._dead_letter_writer.forget(mailbox, message_id)
            return True
        if late and await self._complete_late(mailbox, message_id):
            return True
        raise _not_claimed(mailbox, message_id)

    def _finish(self, mailbox: Mailbox, message: StoredMessage) -> None:
        try:
            self._commits.finish(mailbox.hash, mailbox.maildir, message.id)
        except OSError as error:
            raise storage_error("complete a message in", mailbox.maildir.path, error) from error
        del mailbox.claimed[message.id]
        message.delivery.status = Status.DONE
        message.delivery.code = message.delivery.reason = None
        message.delivery.handled_ms = float(self._clock.now_ms())
        self._recorder.handled(message.delivery)
        self._settled(message, True)

    async def fail(self, subject: str, message_id: str, reason: str, code: str) -> None:
        """Dead-letter a claimed message."""
        mailbox = self._mailbox(subject)
        message = self._find(mailbox, message_id)
        if message is None:
            message = await self._dead_letter_writer.find(mailbox, message_id)
            if message is None:
                raise _not_claimed(mailbox, message_id)
            error = await self._dead_letter_writer.retry_now(mailbox, message_id, code=code, reason=reason)
        else:
            del mailbox.claimed[message_id]  # before waiting: only one caller may finish it
            self._taken.discard(message)
            error = await self._dead_letter_writer.dead_letter(mailbox, message, code=code, reason=reason)
            if error is not None:
                mailbox.claimed[message_id] = message
                self._taken.add(message)
        if error is not None:
            raise storage_error("dead-letter a message in", mailbox.maildir.path, error) from error
        self._settled(message, False)

    def _settled(self, message: StoredMessage, handled: bool) -> None:
        """Report the outcome to a replay that waits for the message."""
        if (on_settled := self._handling.on_settled) is not None:
            on_settled(message, handled)

    async def abandon(self, subject: str, message_id: str, reason: str, code: str) -> None:
        """Dead-letter a claimed message whose consumer is gone, as soon as the disk allows."""
        mailbox = self._mailbox(subject)
        message = self._find(mailbox, message_id)
        if message is not None:  # else it was finished just now
            del mailbox.claimed[message_id]
            self._taken.discard(message)
            await self._dead_letter_writer.dead_letter_or_retry(mailbox, message, code=code, reason=reason)
            self._settled(message, False)

    async def discard(self, target: str, message_id: str, reason: str, code: str) -> bool:
        """Dead-letter a waiting message; return False if it is claimed, gone or malformed."""
        mailbox = self._mailboxes.get(target)
        taken = mailbox.take(message_id) if mailbox is not None else None
        if mailbox is None or taken is None:
            return False
        self._recorder.pressure_cleared(mailbox)
        if isinstance(taken, BadFile):
            await self._dead_letter_writer.quarantine(mailbox, taken)
            return False
        if taken.probe:
            self._breakers.release(mailbox.hash)
        if taken.fanout is not None:
            taken.fanout.failed(taken, code, reason)
        else:
            await self._dead_letter_writer.dead_letter_or_retry(mailbox, taken, code=code, reason=reason)
        self._settled(taken, False)
        return True

    def _mailbox(self, subject: str) -> Mailbox:
        validate_subject(subject)
        mailbox = self._mailboxes.get(subject_hash(subject))
        if mailbox is None:
            raise NotFound(f"no mailbox for {subject}: register the endpoint first", what=subject)
        return mailbox

    def _find(self, mailbox: Mailbox, message_id: str) -> StoredMessage | None:
        """Return a message that a pull consumer has claimed."""
        message = mailbox.claimed.get(message_id)
        return message if message in self._taken else None

    async def _search(self, mailbox: Mailbox, limit: int, after: str, answer_to: str | None) -> list[str]:
        if answer_to is None:
            return mailbox.waiting(limit, after)
        found: list[str] = []
        while len(found) < limit and (ids := mailbox.waiting(_SEARCH_BATCH, after)):
            found += [envelope.id for envelope in await self._read(mailbox, ids) if is_answer(envelope, answer_to)]
            after = ids[-1]
        return found[:limit]

    async def _read(self, mailbox: Mailbox, ids: list[str], room: int | None = None) -> list[Envelope]:
        envelopes = []
        found, gone = await asyncio.to_thread(_read_waiting, mailbox, ids, room)
        for message_id in gone:
            # Claimed meanwhile, and possibly requeued; or removed by another process, and then it is no longer waiting.
            if mailbox.has(message_id) and NEW not in mailbox.maildir.whereabouts(message_id):
                mailbox.forget(message_id)
        for message in found:
            if isinstance(message, BadFile):
                await self._dead_letter_writer.quarantine(mailbox, message)
                mailbox.forget(message.message_id)
            else:
                self._replies.handed(mailbox.subject, message.envelope)
                envelopes.append(message.envelope)
        return envelopes

    @staticmethod
    def _take(mailbox: Mailbox, ids: Iterable[str] | None) -> Iterator[StoredMessage | BadFile]:
        """Claim messages one by one, each when the iterator advances."""
        try:
            if ids is None:
                while (oldest := mailbox.claim_next()) is not None:
                    yield oldest
            else:
                for message_id in ids:
                    if mailbox.has(message_id) and (taken := mailbox.take(message_id)) is not None:
                        yield taken
        except OSError as error:
            raise storage_error("claim in", mailbox.maildir.path, error) from error

    async def _begin(self, mailbox: Mailbox, taken: StoredMessage | BadFile) -> Envelope | None:
        """Return the envelope of a claimed message; quarantine a malformed one and dead-letter an expired one."""
        self._recorder.pressure_cleared(mailbox)
        if isinstance(taken, BadFile):
            await self._dead_letter_writer.quarantine(mailbox, taken)
            return None
        if taken.probe:
            self._breakers.release(mailbox.hash)  # a pull consumer has no handler to probe
        now = self._clock.now_ms()
        if now > taken.envelope.budget.ttl:
            await self._dead_letter_writer.dead_letter_or_retry(
                mailbox, taken, code=Code.EXPIRED, reason="message expired (TTL)"
            )
            self._settled(taken, False)
            return None
        try:
            self._handling.begin(mailbox, taken)
        except OSError as error:
            raise storage_error("claim in", mailbox.maildir.path, error) from error
        self._taken.add(taken)
        self._replies.handed(mailbox.subject, taken.envelope)
        taken.delivery.claimed_ms = float(now)
        self._recorder.claimed(taken.delivery)
        return taken.envelope


def is_answer(envelope: Envelope, message_id: str) -> bool:
    """Return True if a message answers another: it is its child, or names it as `correlationId`."""
    if envelope.parent_id == message_id:
        return True
    payload = envelope.payload
    return isinstance(payload, dict) and payload.get("correlationId") == message_id


def _not_claimed(mailbox: Mailbox, message_id: str) -> NotFound:
    return NotFound(f"{message_id} is not claimed in {mailbox.subject}", what=message_id)


def _read_waiting(
    mailbox: Mailbox, message_ids: list[str], room: int | None
) -> tuple[list[StoredMessage | BadFile], list[str]]:
    """Read waiting messages, at most `room` bytes; return them, and the ids that were not found. Blocks."""
    found: list[StoredMessage | BadFile] = []
    gone: list[str] = []
    size = 0
    for message_id in message_ids:
        try:
            message = mailbox.read(NEW, message_id)
        except FileNotFoundError:
            gone.append(message_id)
            continue
        if isinstance(message, StoredMessage):
            size += len(message.data)
            if room is not None and found and size > room:
                break
        found.append(message)
    return found, gone
