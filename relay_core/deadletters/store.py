"""Dead letters on disk: read, list, purge.

1. The files in ``failed/`` are authoritative. The index returns summaries, and finds candidates where that is sound
   (selection.py); files that are read are checked against the filter again.
2. Only a list of keys grows with the number of dead letters: files are read in batches, on a thread.
3. A search in bodies reads files for a bounded time per call, newest first, and returns a cursor to continue.
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
"""Codes of dead letters whose consumer may have finished the message anyway."""

_BATCH = 200
"""Files read at a time, to bound memory and time on the thread."""
_SORTED = 4000
"""Keys sorted at a time: a sort holds the GIL."""
_SEARCH_ROWS = 2000
_SEARCH_SECS = 0.05
"""The limit of one search in bodies."""


class DeadLetterStore:
    """Find dead letters, and remove them."""

    def __init__(self, mailboxes: Mailboxes, commits: Commits, index: Index, recorder: Recorder, clock: Clock) -> None:
        self._mailboxes = mailboxes
        self._commits = commits
        self._index = index
        self._recorder = recorder
        self._clock = clock
        self.in_replay: set[tuple[str, str]] = set()
        """(message, mailbox) of dead letters that are being replayed."""

    async def all(
        self, endpoint: str | None = None, *, filter: DeadLetterFilter | None = None, include_partial: bool = False
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first; of one endpoint (subject or hash) if given."""
        selection = self.select(filter)
        keys = await self.keys(selection)
        if endpoint is not None:
            mailbox = self._mailboxes.find(endpoint)
            keys = [key for key in keys if mailbox is not None and key[1] == mailbox.hash]
        batches = self.read(keys, selection)
        return [letter async for batch in batches for letter in batch if include_partial or not letter.partial]

    def select(
        self,
        filter: DeadLetterFilter | None,
        *,
        ids: Iterable[str] | None = None,
        older_than_ms: int | None = None,
    ) -> Selection:
        """Return a selection, evaluated now."""
        return Selection.of(filter, self._clock.now_ms(), only=ids, failed_before=older_than_ms)

    async def keys(self, selection: Selection) -> list[Key]:
        """Return the keys of possibly selected files, oldest first, as of now."""
        if not selection.can_be_damaged and not self._index.dirty:
            with suppress(sqlite3.Error, OSError):
                return await self._index.run(lambda db: dead_letter_keys(db, selection))
        boxes = [box for box in self._mailboxes if box.dead and selection.accepts_mailbox(box.subject, box.hash)]
        return await asyncio.to_thread(_list_boxes, boxes, selection)

    async def read(
        self,
        keys: list[Key],
        selection: Selection | None = None,
        *,
        plan: ReplayPlan | None = None,
    ) -> AsyncIterator[list[DeadLetter]]:
        """Yield the dead letters with these keys that are selected and, with a plan, in it, in batches, in order."""
        for start in range(0, len(keys), _BATCH):
            yield await asyncio.to_thread(self._read_batch, keys[start : start + _BATCH], selection, plan)

    def _read_batch(
        self, keys: list[Key], selection: Selection | None, plan: ReplayPlan | None = None
    ) -> list[DeadLetter]:
        letters = []
        for message_id, target in keys:
            mailbox = self._mailboxes.get(target)
            letter = self._read(mailbox, message_id) if mailbox is not None else None
            if mailbox is None or letter is None:
                continue  # replayed or purged meanwhile
            if plan is not None and not plan.froze(letter):
                continue  # it was replayed and has failed again
            if selection is None or selection.accepts(letter, mailbox.subject, parse_iso(letter.failed_at)):
                letters.append(letter)
        return letters

    async def page(
        self, filter: DeadLetterFilter | None = None, *, after: str | None = None, limit: int = 100
    ) -> tuple[list[DeadLetterSummary], int | None, str | None]:
        """Return a page of summaries, newest first, the total, and the cursor of the next page, if any.

        Bodies are searched in the files for a bounded time: the page then has the matches so far, and no total.
        """
        selection = self.select(filter)
        if selection.needs_files:
            return await self._search_bodies(selection, after, limit)

        def query(db: sqlite3.Connection) -> tuple[list[DeadLetterSummary], int]:
            rows = dead_letter_page(db, selection, after=after, limit=limit + 1)
            if after is None and len(rows) <= limit:
                return rows, len(rows)
            return rows, count_dead_letters(db, selection)

        rows, total = await self._index.run(query)
        return rows[:limit], total, rows[limit - 1].cursor if len(rows) > limit else None

    async def _search_bodies(
        self, selection: Selection, after: str | None, limit: int
    ) -> tuple[list[DeadLetterSummary], None, str | None]:
        candidates = await self._index.run(lambda db: dead_letter_page(db, selection, after=after, limit=_SEARCH_ROWS))
        rows, checked = await asyncio.to_thread(self._check_bodies, candidates, selection, limit)
        more = checked < len(candidates) or checked == _SEARCH_ROWS
        return rows, None, candidates[checked - 1].cursor if more else None

    def _check_bodies(
        self, candidates: list[DeadLetterSummary], selection: Selection, limit: int
    ) -> tuple[list[DeadLetterSummary], int]:
        """Return the first candidates whose files are selected, and how many were checked. Blocks."""
        until = self._clock.monotonic() + _SEARCH_SECS
        found: list[DeadLetterSummary] = []
        for checked, row in enumerate(candidates, 1):
            if self._read_batch([(row.message_id, row.endpoint_hash)], selection):
                found.append(row)
            if len(found) == limit or self._clock.monotonic() > until:
                return found, checked
        return found, len(candidates)

    async def browse(
        self,
        filter: DeadLetterFilter | None = None,
        *,
        after: str | None = None,
        limit: int = 100,
        room: int,
    ) -> tuple[list[DeadLetter], int, str | None]:
        """Return dead letters after a cursor, newest first, the total, and the cursor of the next page, if any.

        A page has at most `room` bytes, but at least one dead letter.
        """
        selection = self.select(filter)
        if selection.needs_files:
            newest: deque[DeadLetter] = deque(maxlen=limit + 1)
            total: int | None = 0
            async for batch in self.read(await self.keys(selection), selection):
                total = (total or 0) + len(batch)
                newest.extend(letter for letter in batch if after is None or letter.cursor < after)
            letters = list(newest)[::-1][:limit]
            cursor = letters[-1].cursor if len(newest) > limit else None
        else:
            page, total, cursor = await self.page(filter, after=after, limit=limit)
            keys = [(row.message_id, row.endpoint_hash) for row in page]
            letters = await asyncio.to_thread(self._read_batch, keys, None)
        fitting, _ = await asyncio.to_thread(_take_fitting, letters, room, False)
        if len(fitting) < len(letters):
            cursor = fitting[-1].cursor
        return fitting, total or 0, cursor

    async def export(
        self,
        keys: list[Key],
        selection: Selection,
        *,
        after: str | None,
        limit: int,
        room: int,
        plan: ReplayPlan | None = None,
    ) -> tuple[list[DeadLetter], str | None]:
        """Return dead letters after a cursor, in the order of their keys, and the cursor of the next page, if any.

        With a plan, only those that it has frozen.
        """
        if after is not None:
            message_id, _, target = after.partition("/")
            keys = keys[bisect_right(keys, (message_id, target)) :]
        letters: list[DeadLetter] = []
        async for batch in self.read(keys, selection, plan=plan):
            fitting, used = await asyncio.to_thread(_take_fitting, batch[: limit - len(letters)], room, bool(letters))
            letters += fitting
            room -= used
            if len(fitting) < len(batch):
                return letters, letters[-1].cursor
        return letters, None

    async def groups(self) -> list[DeadLetterGroup]:
        """Return the dead letters by code and target, partial ones separately, largest group first."""
        return await self._index.run(dead_letter_groups)

    def find(self, message_id: str, endpoint: str | None = None) -> tuple[Mailbox, DeadLetter]:
        """Return a dead letter and its mailbox. Blocks.

        Raises:
            NotFound: if there is none with this id.
        """
        mailboxes = self._mailboxes if endpoint is None else [self._mailboxes.find(endpoint)]
        for mailbox in mailboxes:
            if mailbox is not None and mailbox.dead:
                letter = self._read(mailbox, message_id)
                if letter is not None:
                    return mailbox, letter
        raise NotFound(f"no dead letter {message_id}: it was replayed or purged, or never was one", what=message_id)

    async def purge(self, keys: list[Key], selection: Selection, plan: ReplayPlan | None = None) -> int:
        """Remove the dead letters with these keys that are selected and, with a plan, in it; return how many."""
        purged = 0
        async for batch in self.read(keys, selection, plan=plan):
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
        """Remove a dead letter and record it; return False if it is already gone.

        Raises:
            OSError: if it cannot be removed; it stays then.
        """
        key = (letter.message_id, mailbox.hash)
        if key in self.in_replay or FAILED not in mailbox.maildir.whereabouts(letter.message_id):
            return False  # replayed meanwhile: the journal must not record that it is gone
        with self._commits.removing(mailbox.hash, letter.message_id):
            with suppress(OSError):
                mailbox.maildir.remove_original(letter.message_id)  # first: without its record it would look orphaned
            if not mailbox.maildir.remove(FAILED, letter.message_id):
                return False
        mailbox.dead -= 1
        self._recorder.removed(self.delivery(mailbox, letter, status))
        return True

    async def complete_late(self, mailbox: Mailbox, message_id: str) -> bool:
        """Remove the dead letter of a message that its consumer has finished after all; return False if there is none.

        Raises:
            StorageError: if it cannot be removed.
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
        """Return the delivery that a dead letter belongs to."""
        return dead_delivery(
            letter, target=mailbox.hash, kind=mailbox.about.kind, target_subject=mailbox.subject, status=status
        )

    def _read(self, mailbox: Mailbox, message_id: str) -> DeadLetter | None:
        if not is_ulid(message_id):
            return None  # not a file of the bus
        try:
            data = mailbox.maildir.read(FAILED, message_id, limit=mailbox.read_limit + _RECORD_ROOM)
            letter = decode_dead_letter(message_id, data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            return damaged_letter(message_id, mailbox.hash, error)
        if letter.endpoint_hash != mailbox.hash:
            letter = letter.model_copy(update={"endpoint_hash": mailbox.hash})  # the directory decides
        return letter


def _list_boxes(boxes: list[Mailbox], selection: Selection) -> list[Key]:
    """Return the keys in these mailboxes, limited to the selected ids, oldest first. Blocks."""
    keys = [(message_id, mailbox.hash) for mailbox in boxes for message_id in mailbox.maildir.ids(FAILED)]
    ids = selection.only if selection.only is not None else None if selection.exclude else selection.ids
    if ids is not None:
        keys = [key for key in keys if key[0] in ids or f"{key[0]}/{key[1]}" in ids]
    return _in_order(keys)


def _in_order(keys: list[Key]) -> list[Key]:
    """Sort keys in slices: a single sort would hold the GIL for too long."""
    slices = [sorted(keys[start : start + _SORTED]) for start in range(0, len(keys), _SORTED)]
    return slices[0] if len(slices) == 1 else list(heapq.merge(*slices))


def _take_fitting(letters: list[DeadLetter], room: int, has_some: bool) -> tuple[list[DeadLetter], int]:
    """Return the first letters that fit into `room` bytes, and their size; the first of a page always fits."""
    used = 0
    for position, letter in enumerate(letters):
        size = len(orjson.dumps(letter.to_wire()))
        if (position or has_some) and used + size > room:
            return letters[:position], used
        used += size
    return letters, used
