"""The rows of the list of dead letters: summaries alone, as many as have been asked for, newest first.

1. Rows are in the order of their keys (``ID/HASH``), largest first, as the supervisor has them: a key is found by
   halving, and no index is kept beside them. 100,000 rows take some tens of megabytes.
2. A page from the supervisor is the truth about its stretch of the list: `put` takes it in the place of whatever was
   held there, so rows that came or went elsewhere in the list need no word about them.
3. `cursor` is where the supervisor goes on; None once everything is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from relay_core.deadletters import DeadLetterSummary
from relay_core.protocol import DeadLetterSummaries
from relay_tui.safe import clean
from relay_tui.table import Column, Row
from relay_tui.words import about

COLUMNS = (
    Column("AGE", 5, right=True),
    Column("CODE", 15),
    Column("TARGET"),
    Column("FROM", 24, from_width=100),
    Column("REASON"),
    Column("REPLAYS", 7, right=True, from_width=90),
)
_LONGEST_REASON = 240
"""Of what is held for the list; the whole of it is in the letter."""


class Held(NamedTuple):
    """What is held of one dead letter."""

    target: str
    subject: str
    sender: str
    code: str
    reason: str
    failed_at: float
    replays: int
    size: int
    partial: bool


class LetterRows:
    """The rows that are held; see the module."""

    def __init__(self) -> None:
        self.cursor: str | None = None
        self.now_ms = 0
        """What ages are counted from."""
        self._keys: list[str] = []
        self._held: list[Held] = []
        self._texts: dict[str, str] = {}
        """One copy of every text that many rows share."""

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, at: int) -> Row:
        held = self._held[at]
        cells = (
            (about((self.now_ms - held.failed_at) / 1000), "dim"),
            (f"▲ {clean(held.code, 40)}" if held.partial else clean(held.code, 40), "warn"),
            clean(held.target),
            (clean(held.sender), "dim"),
            clean(held.reason.partition("\n")[0]),
            f"↻ {held.replays}" if held.replays else ("–", "dim"),
        )
        return Row(self._keys[at], cells)

    def find(self, key: str) -> int | None:
        """Return where a key is."""
        at = self.place(key)
        return at if at < len(self._keys) and self._keys[at] == key else None

    def get(self, key: str | None) -> Held | None:
        """Return what is held of a dead letter."""
        at = self.find(key) if key is not None else None
        return self._held[at] if at is not None else None

    def place(self, key: str) -> int:
        """Return how many rows stand before a key, whether it is there or not."""
        low, high = 0, len(self._keys)
        while low < high:
            middle = (low + high) // 2
            if self._keys[middle] > key:
                low = middle + 1
            else:
                high = middle
        return low

    def key_before(self, at: int) -> str | None:
        """Return the key of the row before a position, which is where a page from there begins."""
        return self._keys[at - 1] if 0 < at <= len(self._keys) else None

    def is_beyond(self, key: str) -> bool:
        """Tell whether all rows that are held stand behind a key."""
        return not self._keys or self._keys[0] < key

    def put(self, page: DeadLetterSummaries, *, after: str | None) -> None:
        """Take a page, which begins after a key, in the place of what was held of its stretch."""
        start = self._end_of(after)
        stop = self._end_of(page.cursor) if page.cursor is not None else len(self._keys)
        self._keys[start:stop] = [row.cursor for row in page.rows]
        self._held[start:stop] = self._compact(page.rows)
        if start + len(page.rows) == len(self._keys):  # nothing is held beyond it
            self.cursor = page.cursor

    def _end_of(self, key: str | None) -> int:
        """Return how many rows stand up to a key, that one included."""
        if key is None:
            return 0
        at = self.place(key)
        return at + (at < len(self._keys) and self._keys[at] == key)

    def _compact(self, rows: Sequence[DeadLetterSummary]) -> list[Held]:
        known = self._texts
        return [
            Held(
                known.setdefault(row.endpoint_subject, row.endpoint_subject),
                known.setdefault(row.subject, row.subject),
                known.setdefault(row.sender, row.sender),
                known.setdefault(row.code, row.code),
                row.reason[:_LONGEST_REASON],
                row.failed_at,
                row.replays,
                row.size,
                row.partial,
            )
            for row in rows
        ]


def first_rows(page: DeadLetterSummaries) -> LetterRows:
    """Return rows that begin with a page."""
    rows = LetterRows()
    rows.put(page, after=None)
    rows.cursor = page.cursor
    return rows
