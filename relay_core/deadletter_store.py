"""Dead letters on disk: read, list, purge.

The files in ``failed/`` are the truth; the index answers where only a summary is asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

import orjson

from relay_core.clock import Clock, parse_iso
from relay_core.commit import Commits
from relay_core.deadletters import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterGroup,
    damaged_letter,
    dead_delivery,
    decode_dead_letter,
)
from relay_core.delivery import Delivery, Status
from relay_core.errors import NotFound
from relay_core.ids import is_ulid
from relay_core.index import Index
from relay_core.lookups import DeadLetterSummary, dead_letter_groups, dead_letter_page
from relay_core.mailbox import Mailbox
from relay_core.mailboxes import Mailboxes
from relay_core.maildir import FAILED
from relay_core.recorder import Recorder
from relay_core.subjects import subject_hash

logger = logging.getLogger(__name__)

_RECORD_ROOM = 64 * 1024

_Accepts = Callable[[DeadLetter, str, int], bool]
"""Whether a dead letter is meant, given its mailbox's subject and when it failed."""


class DeadLetterStore:
    """Find dead letters, and remove them."""

    def __init__(self, mailboxes: Mailboxes, commits: Commits, index: Index, recorder: Recorder, clock: Clock) -> None:
        self._mailboxes = mailboxes
        self._commits = commits
        self._index = index
        self._recorder = recorder
        self._clock = clock
        self.in_hand: set[tuple[str, str]] = set()
        """(message, mailbox) of dead letters that are being replayed right now."""

    async def all(
        self, endpoint: str | None = None, *, filter: DeadLetterFilter | None = None, include_partial: bool = False
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first; of one endpoint (subject or hash) if given."""
        boxes = [box for box in self._mailboxes if endpoint in (None, box.subject, box.hash) and box.dead]
        found = await asyncio.to_thread(self._read_boxes, boxes, _accepting(filter), include_partial)
        return sorted(found, key=lambda letter: (letter.message_id, letter.endpoint_hash))

    async def page(
        self, *, code: str | None = None, endpoint: str | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[list[DeadLetterSummary], int]:
        """Return a page of summaries, newest first, and the number of all."""
        target = self._target(endpoint)
        return await self._index.run(
            lambda db: dead_letter_page(db, code=code, target=target, after=after, limit=limit)
        )

    async def browse(
        self,
        filter: DeadLetterFilter | None = None,
        *,
        after: str | None = None,
        limit: int = 100,
        room: int,
        oldest_first: bool = False,
    ) -> tuple[list[DeadLetter], int, str | None]:
        """Return whole dead letters after a cursor, at most `room` bytes but at least one, newest first.

        With them come the number of all, and the cursor of what follows, if anything does.
        """
        if oldest_first or (filter is not None and not filter.is_indexed):
            letters = await self.all(filter=filter)
            total = len(letters)
            keys = [f"{letter.message_id}/{letter.endpoint_hash}" for letter in letters]
            if not oldest_first:
                letters, keys = letters[::-1], keys[::-1]
            if after is not None:
                beyond = [at for at, key in enumerate(keys) if (key > after if oldest_first else key < after)]
                letters = letters[beyond[0] :] if beyond else []
            more = len(letters) > limit
            letters = letters[:limit]
        else:
            filter = filter or DeadLetterFilter()
            page, total = await self.page(code=filter.code, endpoint=filter.endpoint, after=after, limit=limit + 1)
            more = len(page) > limit
            letters = await asyncio.to_thread(self._read_page, page[:limit])
        size = 0
        for position, letter in enumerate(letters):
            size += len(orjson.dumps(letter.to_wire()))
            if position and size > room:
                letters, more = letters[:position], True
                break
        cursor = f"{letters[-1].message_id}/{letters[-1].endpoint_hash}" if more and letters else None
        return letters, total, cursor

    def _read_page(self, page: list[DeadLetterSummary]) -> list[DeadLetter]:
        letters = []
        for summary in page:
            mailbox = self._mailboxes.get(summary.endpoint_hash)
            letter = self._read(mailbox, summary.message_id) if mailbox is not None else None
            if letter is not None:  # else it was replayed or purged meanwhile
                letters.append(letter)
        return letters

    async def groups(self) -> list[DeadLetterGroup]:
        """Return the dead letters by code and target, largest group first."""
        return await self._index.run(dead_letter_groups)

    def find(self, message_id: str, endpoint: str | None = None) -> tuple[Mailbox, DeadLetter]:
        """Return a dead letter and where it lies. Blocks.

        Raises:
            NotFound: if there is none with this id.
        """
        target = self._target(endpoint)
        for mailbox in self._mailboxes:
            if mailbox.dead and target in (None, mailbox.hash):
                letter = self._read(mailbox, message_id)
                if letter is not None:
                    return mailbox, letter
        raise NotFound(f"no dead letter {message_id}: it was replayed or purged, or never was one", what=message_id)

    async def purge(
        self,
        *,
        older_than_ms: int | None = None,
        ids: Iterable[str] | None = None,
        filter: DeadLetterFilter | None = None,
    ) -> int:
        """Remove dead letters; every condition given must hold. Return how many."""
        wanted = set(ids) if ids is not None else None
        accepts = _accepting(filter)

        def is_meant(letter: DeadLetter, subject: str, failed_ms: int) -> bool:
            if wanted is not None and letter.message_id not in wanted:
                return False
            if older_than_ms is not None and failed_ms >= older_than_ms:
                return False
            return accepts(letter, subject, failed_ms)

        purged = 0
        boxes = [box for box in self._mailboxes if box.dead]
        for letter in await asyncio.to_thread(self._read_boxes, boxes, is_meant, True):
            mailbox = self._mailboxes.get(letter.endpoint_hash)
            try:
                if mailbox is not None and self.remove(mailbox, letter, Status.PURGED):
                    purged += 1
                    if purged % 16 == 0:
                        await asyncio.sleep(0)
            except OSError as error:
                logger.error("%s cannot be purged: %s", letter.message_id, error)
        return purged

    def remove(self, mailbox: Mailbox, letter: DeadLetter, status: str) -> bool:
        """Remove one dead letter and write down why; False if it is gone already.

        Raises:
            OSError: if the disk refuses; it stays then.
        """
        key = (letter.message_id, mailbox.hash)
        if key in self.in_hand or FAILED not in mailbox.maildir.whereabouts(letter.message_id):
            return False  # replayed meanwhile: the journal must not say that it is gone
        self._commits.note_gone(mailbox.hash, letter.message_id)
        with suppress(OSError):
            mailbox.maildir.remove_original(letter.message_id)  # first: without its record it would look orphaned
        if not mailbox.maildir.remove(FAILED, letter.message_id):
            return False
        mailbox.dead -= 1
        self._recorder.removed(self.delivery(mailbox, letter, status))
        return True

    @staticmethod
    def delivery(mailbox: Mailbox, letter: DeadLetter, status: str) -> Delivery:
        """Return the delivery a dead letter belongs to."""
        return dead_delivery(
            letter, target=mailbox.hash, kind=mailbox.about.kind, target_subject=mailbox.subject, status=status
        )

    def _target(self, endpoint: str | None) -> str | None:
        if endpoint is None or self._mailboxes.get(endpoint) is not None:
            return endpoint
        return subject_hash(endpoint)

    def _read_boxes(self, boxes: list[Mailbox], accepts: _Accepts, include_partial: bool) -> list[DeadLetter]:
        letters = []
        for mailbox in boxes:
            for message_id in mailbox.maildir.ids(FAILED):
                letter = self._read(mailbox, message_id)
                if letter is None or (letter.partial and not include_partial):
                    continue
                if accepts(letter, mailbox.subject, parse_iso(letter.failed_at)):
                    letters.append(letter)
        return letters

    def _read(self, mailbox: Mailbox, message_id: str) -> DeadLetter | None:
        if not is_ulid(message_id):
            return None  # nothing that the bus has put there
        try:
            data = mailbox.maildir.read(FAILED, message_id, limit=mailbox.read_limit + _RECORD_ROOM)
            letter = decode_dead_letter(message_id, data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            return damaged_letter(message_id, mailbox.hash, error)
        if letter.endpoint_hash != mailbox.hash:
            letter = letter.model_copy(update={"endpoint_hash": mailbox.hash})  # where it lies decides
        return letter


def _accepting(filter: DeadLetterFilter | None) -> _Accepts:
    return filter.accepts if filter is not None else lambda letter, subject, failed_ms: True
