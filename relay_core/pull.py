"""Pull consumers: look at the mail of a subject, wait for it, take it, and finish it.

1. Looking and waiting take nothing. A message is taken by a claim, which is the atomic step on disk, oldest first or by
   id, and must then be completed or failed. What a subscriber has in hand is that one's to finish. What nobody holds
   any more and the disk does not let be parked (parking.py) can be completed or failed here as well.
2. Whoever waits is told of what has arrived, not of what was there when it arrived: it looks again by itself.
3. A message that was parked because its consumer was gone (`interrupted`, `disconnected`, `timeout`) may have been
   handled all the same. A consumer that comes back and completes it although it is `late` is believed: the dead letter
   ends as done. A replay that was quicker wins, and the consumer learns that there is nothing left to complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from relay_core.deadletters import Code
from relay_core.delivery import Status
from relay_core.envelope import Envelope
from relay_core.errors import NotFound
from relay_core.files import storage_error
from relay_core.mailbox import BadFile, Item, Mailbox
from relay_core.maildir import NEW
from relay_core.subjects import subject_hash, validate_subject

if TYPE_CHECKING:
    from relay_core.bus import Bus

LATE_CODES = frozenset({Code.INTERRUPTED, Code.DISCONNECTED, Code.TIMEOUT})
"""Why a message is parked whose consumer may have finished it all the same."""

_LOOK_AT_ONCE = 100
"""Messages that are read at a time to see whether one is the answer."""


class Pull:
    """The mail of subjects, for whoever asks for it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._taken: set[Item] = set()
        """What has been claimed here, among all that is in somebody's hands."""

    async def peek(self, subject: str, limit: int, *, room: int | None = None, after: str = "") -> list[Envelope]:
        """Return the oldest waiting messages after an id; at most `room` bytes of them, but one at least."""
        mailbox = self._mailbox(subject)
        return await self._read(mailbox, mailbox.waiting(limit, after), room)

    async def wait(self, subject: str, limit: int, *, after: str = "", answer_to: str | None = None) -> list[str]:
        """Return the ids of waiting messages after an id, and only of the answers to a message if one is given.

        If there is none, it returns when there is.
        """
        mailbox = self._mailbox(subject)
        while True:
            arrival = mailbox.next_arrival()  # before looking, so that nothing is missed in between
            try:
                found = await self._look(mailbox, limit, after, answer_to)
                if found:
                    return found
                await arrival
            finally:
                arrival.cancel()

    async def claim(self, subject: str, limit: int = 1, *, ids: Iterable[str] | None = None) -> list[Envelope]:
        """Take the oldest waiting messages, or those with these ids that still wait."""
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
        """Finish a claimed message, or one that was parked meanwhile if it may be late; return whether it was."""
        bus, mailbox = self._bus, self._mailbox(subject)
        item = self._find(mailbox, message_id)
        if item is None and (waiting := await bus.parking.find(mailbox, message_id)) is not None:
            return self._complete_waiting(mailbox, waiting)
        if item is None:
            if late and await self._complete_late(mailbox, message_id):
                return True
            raise _not_claimed(mailbox, message_id)
        self._finish(mailbox, item)
        self._taken.discard(item)
        return False

    def _finish(self, mailbox: Mailbox, item: Item) -> None:
        bus = self._bus
        try:
            bus.commits.finish(mailbox.hash, mailbox.maildir, item.id)
        except OSError as error:
            raise storage_error("complete a message in", mailbox.maildir.path, error) from error
        del mailbox.claimed[item.id]
        item.delivery.status = Status.DONE
        item.delivery.code = item.delivery.reason = None
        item.delivery.handled_ms = float(bus.clock.now_ms())
        bus.recorder.handled(item.delivery)
        self._settled(item, True)

    def _complete_waiting(self, mailbox: Mailbox, item: Item) -> bool:
        """Finish a message that waits to be parked; it is late."""
        self._finish(mailbox, item)
        self._bus.parking.forget(mailbox, item.id)
        return True

    async def fail(self, subject: str, message_id: str, reason: str, code: str) -> None:
        """Make a dead letter of a claimed message."""
        mailbox = self._mailbox(subject)
        item = self._find(mailbox, message_id)
        if item is None:
            item = await self._bus.parking.find(mailbox, message_id)
            if item is None:
                raise _not_claimed(mailbox, message_id)
            error = await self._bus.parking.try_again(mailbox, message_id, code=code, reason=reason)
        else:
            del mailbox.claimed[message_id]  # at once: it is finished by one caller only
            self._taken.discard(item)
            error = await self._bus.parking.park(mailbox, item, code=code, reason=reason)
            if error is not None:
                mailbox.claimed[message_id] = item
                self._taken.add(item)
        if error is not None:
            raise storage_error("park a message in", mailbox.maildir.path, error) from error
        self._settled(item, False)

    def _settled(self, item: Item, handled: bool) -> None:
        """Tell a replay that waits for it how a message ended."""
        if (told := self._bus.handling.on_settled) is not None:
            told(item, handled)

    async def abandon(self, subject: str, message_id: str, reason: str, code: str) -> None:
        """Make a dead letter of a claimed message whose consumer is gone, as soon as the disk lets it."""
        mailbox = self._mailbox(subject)
        item = self._find(mailbox, message_id)
        if item is not None:  # else it was finished at the same moment
            del mailbox.claimed[message_id]
            self._taken.discard(item)
            await self._bus.parking.park_surely(mailbox, item, code=code, reason=reason)
            self._settled(item, False)

    def _mailbox(self, subject: str) -> Mailbox:
        validate_subject(subject)
        mailbox = self._bus.mailboxes.get(subject_hash(subject))
        if mailbox is None:
            raise NotFound(f"no mailbox for {subject}: register the endpoint first", what=subject)
        return mailbox

    def _find(self, mailbox: Mailbox, message_id: str) -> Item | None:
        """Return a message that a pull consumer has claimed."""
        item = mailbox.claimed.get(message_id)
        return item if item in self._taken else None

    async def _look(self, mailbox: Mailbox, limit: int, after: str, answer_to: str | None) -> list[str]:
        if answer_to is None:
            return mailbox.waiting(limit, after)
        found: list[str] = []
        while len(found) < limit and (ids := mailbox.waiting(_LOOK_AT_ONCE, after)):
            found += [one.id for one in await self._read(mailbox, ids) if is_answer(one, answer_to)]
            after = ids[-1]
        return found[:limit]

    async def _read(self, mailbox: Mailbox, ids: list[str], room: int | None = None) -> list[Envelope]:
        envelopes = []
        found, gone = await asyncio.to_thread(_read_waiting, mailbox, ids, room)
        for message_id in gone:
            # Claimed meanwhile, and perhaps back; or taken away by other hands, and then it waits no longer.
            if mailbox.has(message_id) and NEW not in mailbox.maildir.whereabouts(message_id):
                mailbox.forget(message_id)
        for one in found:
            if isinstance(one, BadFile):
                await self._bus.parking.set_aside(mailbox, one)
                mailbox.forget(one.message_id)
            else:
                self._bus.replies.handed(mailbox.subject, one.envelope)
                envelopes.append(one.envelope)
        return envelopes

    @staticmethod
    def _take(mailbox: Mailbox, ids: Iterable[str] | None) -> Iterator[Item | BadFile]:
        """Claim messages one after the other, each when it is asked for."""
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

    async def _begin(self, mailbox: Mailbox, taken: Item | BadFile) -> Envelope | None:
        """Hand out a claimed message, unless it is none or too old."""
        bus = self._bus
        bus.recorder.eased(mailbox)
        if isinstance(taken, BadFile):
            await bus.parking.set_aside(mailbox, taken)
            return None
        if taken.probe:
            bus.breakers.release(mailbox.hash)  # a pull consumer is no handler to be tried
        now = bus.clock.now_ms()
        if now > taken.envelope.budget.ttl:
            await bus.parking.park_surely(mailbox, taken, code=Code.EXPIRED, reason="message expired (TTL)")
            self._settled(taken, False)
            return None
        self._taken.add(taken)
        bus.commits.note_begun(mailbox.hash, taken.id)
        bus.replies.handed(mailbox.subject, taken.envelope)
        taken.delivery.claimed_ms = float(now)
        bus.recorder.claimed(taken.delivery)
        return taken.envelope

    async def _complete_late(self, mailbox: Mailbox, message_id: str) -> bool:
        """End a dead letter that its consumer had finished; False if there is none, or it failed by itself."""
        letters = self._bus.dead_letters
        try:
            _, letter = await asyncio.to_thread(letters.find, message_id, mailbox.hash)
        except NotFound:
            return False
        try:
            if letter.code not in LATE_CODES or not letters.remove(mailbox, letter, Status.PURGED):
                return False
        except OSError as error:
            raise storage_error("complete a message in", mailbox.maildir.path, error) from error
        self._bus.index.note(letters.delivery(mailbox, letter, Status.DONE))  # what its trace says from now on
        return True


def is_answer(envelope: Envelope, message_id: str) -> bool:
    """Tell whether a message answers another: it follows from it, or says that it belongs to it."""
    if envelope.parent_id == message_id:
        return True
    payload = envelope.payload
    return isinstance(payload, dict) and payload.get("correlationId") == message_id


def _not_claimed(mailbox: Mailbox, message_id: str) -> NotFound:
    return NotFound(f"{message_id} is not claimed in {mailbox.subject}", what=message_id)


def _read_waiting(mailbox: Mailbox, message_ids: list[str], room: int | None) -> tuple[list[Item | BadFile], list[str]]:
    """Return what waits under these ids, as far as there is room, and the ids under which nothing does. Blocks."""
    found: list[Item | BadFile] = []
    gone: list[str] = []
    size = 0
    for message_id in message_ids:
        try:
            one = mailbox.read(NEW, message_id)
        except FileNotFoundError:
            gone.append(message_id)
            continue
        if isinstance(one, Item):
            size += len(one.data)
            if room is not None and found and size > room:
                break
        found.append(one)
    return found, gone
