"""Dead letters on disk: read, list, purge.

1. The files in ``failed/`` are the truth. The index answers where only a summary is asked for, and says where to look
   where that is sound (selection.py); what is then read is held against the filter again.
2. Nothing here grows with the number of dead letters but a list of keys: files are read in batches, on a thread.
3. A search for a body looks into files as far as one call may take, newest first, and says where to go on.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import sqlite3
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

import orjson

from relay_core.clock import Clock, parse_iso
from relay_core.errors import NotFound
from relay_core.journal.commit import Commits
from relay_core.messages.dead_letter import (
    Code,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterSummary,
    damaged_letter,
    dead_delivery,
    decode_dead_letter,
)
from relay_core.messages.delivery import Delivery, Status
from relay_core.messages.ids import is_ulid
from relay_core.messages.replay_plan import Key, ReplayPlan
from relay_core.records.index import Index
from relay_core.records.queries import count_dead_letters, dead_letter_groups, dead_letter_keys, dead_letter_page
from relay_core.records.recorder import Recorder
from relay_core.records.selection import Selection
from relay_core.storage.atomic_file import storage_error
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.mailboxes import Mailboxes
from relay_core.storage.maildir import FAILED

logger = logging.getLogger(__name__)

_RECORD_ROOM = 64 * 1024

LATE_CODES = frozenset({Code.INTERRUPTED, Code.DISCONNECTED, Code.TIMEOUT})
"""Codes of dead letters whose consumer may have finished the message all the same."""

_BATCH = 200
"""Files that are read at a time, so that neither memory nor the event loop feels how many there are."""
_SORTED = 4000
"""Keys that are sorted at a time, on a thread: the event loop waits for as long as that takes."""
_LOOK_ROWS = 2000
_LOOK_SECS = 0.05
"""How far one call looks for a body."""


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
        meant = self.select(filter)
        keys = await self.keys(meant)
        if endpoint is not None:
            mailbox = self._mailboxes.find(endpoint)
            keys = [key for key in keys if mailbox is not None and key[1] == mailbox.hash]
        batches = self.read(keys, meant)
        return [letter async for batch in batches for letter in batch if include_partial or not letter.partial]

    def select(
        self,
        filter: DeadLetterFilter | None,
        *,
        ids: Iterable[str] | None = None,
        older_than_ms: int | None = None,
    ) -> Selection:
        """Return what is meant as things stand now."""
        return Selection.of(filter, self._clock.now_ms(), only=ids, failed_before=older_than_ms)

    async def keys(self, meant: Selection) -> list[Key]:
        """Return which files may be meant, oldest first; what fails later is not among them."""
        if not meant.can_be_damaged and not self._index.dirty:
            with suppress(sqlite3.Error, OSError):
                return await self._index.run(lambda db: dead_letter_keys(db, meant))
        boxes = [box for box in self._mailboxes if box.dead and meant.accepts_mailbox(box.subject, box.hash)]
        return await asyncio.to_thread(_list_boxes, boxes, meant)

    async def read(
        self,
        keys: list[Key],
        meant: Selection | None = None,
        *,
        plan: ReplayPlan | None = None,
    ) -> AsyncIterator[list[DeadLetter]]:
        """Yield what lies under these keys, is meant and, with a plan, frozen in it, in their order, batch by batch."""
        for start in range(0, len(keys), _BATCH):
            yield await asyncio.to_thread(self._read_batch, keys[start : start + _BATCH], meant, plan)

    def _read_batch(self, keys: list[Key], meant: Selection | None, plan: ReplayPlan | None = None) -> list[DeadLetter]:
        letters = []
        for message_id, target in keys:
            mailbox = self._mailboxes.get(target)
            letter = self._read(mailbox, message_id) if mailbox is not None else None
            if mailbox is None or letter is None:
                continue  # replayed or purged meanwhile
            if plan is not None and not plan.froze(letter):
                continue  # it was replayed and has failed again
            if meant is None or meant.accepts(letter, mailbox.subject, parse_iso(letter.failed_at)):
                letters.append(letter)
        return letters

    async def page(
        self, filter: DeadLetterFilter | None = None, *, after: str | None = None, limit: int = 100
    ) -> tuple[list[DeadLetterSummary], int | None, str | None]:
        """Return a page of summaries, newest first, the number of all, and where to go on, if there is more.

        A body is looked for in the files, as far as one call may take: the page then has what was found, and no number.
        """
        meant = self.select(filter)
        if meant.needs_files:
            return await self._look_for_bodies(meant, after, limit)

        def ask(db: sqlite3.Connection) -> tuple[list[DeadLetterSummary], int]:
            rows = dead_letter_page(db, meant, after=after, limit=limit + 1)
            if after is None and len(rows) <= limit:
                return rows, len(rows)
            return rows, count_dead_letters(db, meant)

        rows, total = await self._index.run(ask)
        return rows[:limit], total, rows[limit - 1].cursor if len(rows) > limit else None

    async def _look_for_bodies(
        self, meant: Selection, after: str | None, limit: int
    ) -> tuple[list[DeadLetterSummary], None, str | None]:
        candidates = await self._index.run(lambda db: dead_letter_page(db, meant, after=after, limit=_LOOK_ROWS))
        rows, looked = await asyncio.to_thread(self._holding, candidates, meant, limit)
        more = looked < len(candidates) or looked == _LOOK_ROWS
        return rows, None, candidates[looked - 1].cursor if more else None

    def _holding(
        self, candidates: list[DeadLetterSummary], meant: Selection, limit: int
    ) -> tuple[list[DeadLetterSummary], int]:
        """Return the first candidates whose files are meant, and how many were looked at. Blocks."""
        until = self._clock.monotonic() + _LOOK_SECS
        found: list[DeadLetterSummary] = []
        for looked, row in enumerate(candidates, 1):
            if self._read_batch([(row.message_id, row.endpoint_hash)], meant):
                found.append(row)
            if len(found) == limit or self._clock.monotonic() > until:
                return found, looked
        return found, len(candidates)

    async def browse(
        self,
        filter: DeadLetterFilter | None = None,
        *,
        after: str | None = None,
        limit: int = 100,
        room: int,
    ) -> tuple[list[DeadLetter], int, str | None]:
        """Return whole dead letters after a cursor, newest first: at most `room` bytes, but at least one.

        With them come the number of all, and the cursor of what follows, if anything does.
        """
        meant = self.select(filter)
        if meant.needs_files:
            newest: deque[DeadLetter] = deque(maxlen=limit + 1)
            total: int | None = 0
            async for batch in self.read(await self.keys(meant), meant):
                total = (total or 0) + len(batch)
                newest.extend(letter for letter in batch if after is None or letter.cursor < after)
            letters = list(newest)[::-1][:limit]
            cursor = letters[-1].cursor if len(newest) > limit else None
        else:
            page, total, cursor = await self.page(filter, after=after, limit=limit)
            keys = [(row.message_id, row.endpoint_hash) for row in page]
            letters = await asyncio.to_thread(self._read_batch, keys, None)
        fitting, _ = await asyncio.to_thread(_fitting, letters, room, False)
        if len(fitting) < len(letters):
            cursor = fitting[-1].cursor
        return fitting, total or 0, cursor

    async def export(
        self,
        keys: list[Key],
        meant: Selection,
        *,
        after: str | None,
        limit: int,
        room: int,
        plan: ReplayPlan | None = None,
    ) -> tuple[list[DeadLetter], str | None]:
        """Return whole dead letters after a cursor in the order of their keys, and the cursor of what follows.

        With a plan it is those that it froze.
        """
        if after is not None:
            message_id, _, target = after.partition("/")
            keys = keys[bisect_right(keys, (message_id, target)) :]
        letters: list[DeadLetter] = []
        async for batch in self.read(keys, meant, plan=plan):
            fitting, used = await asyncio.to_thread(_fitting, batch[: limit - len(letters)], room, bool(letters))
            letters += fitting
            room -= used
            if len(fitting) < len(batch):
                return letters, letters[-1].cursor
        return letters, None

    async def groups(self) -> list[DeadLetterGroup]:
        """Return the dead letters by code and target, partial ones apart, largest group first."""
        return await self._index.run(dead_letter_groups)

    def find(self, message_id: str, endpoint: str | None = None) -> tuple[Mailbox, DeadLetter]:
        """Return a dead letter and where it lies. Blocks.

        Raises:
            NotFound: if there is none with this id.
        """
        meant = self._mailboxes if endpoint is None else [self._mailboxes.find(endpoint)]
        for mailbox in meant:
            if mailbox is not None and mailbox.dead:
                letter = self._read(mailbox, message_id)
                if letter is not None:
                    return mailbox, letter
        raise NotFound(f"no dead letter {message_id}: it was replayed or purged, or never was one", what=message_id)

    async def purge(self, keys: list[Key], meant: Selection, plan: ReplayPlan | None = None) -> int:
        """Remove what lies under these keys, is meant and, with a plan, frozen in it. Return how many."""
        purged = 0
        async for batch in self.read(keys, meant, plan=plan):
            for letter in batch:
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
        with self._commits.removing(mailbox.hash, letter.message_id):
            with suppress(OSError):
                mailbox.maildir.remove_original(letter.message_id)  # first: without its record it would look orphaned
            if not mailbox.maildir.remove(FAILED, letter.message_id):
                return False
        mailbox.dead -= 1
        self._recorder.removed(self.delivery(mailbox, letter, status))
        return True

    async def complete_late(self, mailbox: Mailbox, message_id: str) -> bool:
        """End the dead letter of a message that its consumer had finished after all; return False if there is none.

        Raises:
            StorageError: if the disk refuses.
        """
        try:
            _, letter = await asyncio.to_thread(self.find, message_id, mailbox.hash)
        except NotFound:
            return False
        try:
            if letter.code not in LATE_CODES or not self.remove(mailbox, letter, Status.PURGED):
                return False
        except OSError as error:
            raise storage_error("complete a message in", mailbox.maildir.path, error) from error
        self._index.note(self.delivery(mailbox, letter, Status.DONE))  # for its trace
        return True

    @staticmethod
    def delivery(mailbox: Mailbox, letter: DeadLetter, status: str) -> Delivery:
        """Return the delivery a dead letter belongs to."""
        return dead_delivery(
            letter, target=mailbox.hash, kind=mailbox.about.kind, target_subject=mailbox.subject, status=status
        )

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


def _list_boxes(boxes: list[Mailbox], meant: Selection) -> list[Key]:
    """Return what lies in these mailboxes, but for what has another id, oldest first. Blocks."""
    keys = [(message_id, mailbox.hash) for mailbox in boxes for message_id in mailbox.maildir.ids(FAILED)]
    ids = meant.only if meant.only is not None else None if meant.exclude else meant.ids
    if ids is not None:
        keys = [key for key in keys if key[0] in ids or f"{key[0]}/{key[1]}" in ids]
    return _in_order(keys)


def _in_order(keys: list[Key]) -> list[Key]:
    """Sort keys, slice by slice: one sort of all of them would not let go of the interpreter."""
    slices = [sorted(keys[start : start + _SORTED]) for start in range(0, len(keys), _SORTED)]
    return slices[0] if len(slices) == 1 else list(heapq.merge(*slices))


def _fitting(letters: list[DeadLetter], room: int, has_some: bool) -> tuple[list[DeadLetter], int]:
    """Return the first letters that fit into so many bytes, and their size; one always does where there is none yet."""
    used = 0
    for position, letter in enumerate(letters):
        size = len(orjson.dumps(letter.to_wire()))
        if (position or has_some) and used + size > room:
            return letters[:position], used
        used += size
    return letters, used
