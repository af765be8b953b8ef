"""The rows of the list of dead letters: the summaries that are loaded, newest first.

1. Rows are sorted by key (``ID/HASH``), largest first, as the supervisor sorts them: a key is found by binary search,
   without an index. 100,000 rows take some tens of megabytes.
2. A page from the supervisor is authoritative for its range of keys: `put` replaces the rows of that range, so
   additions and removals need no messages of their own.
3. `cursor` is where the next page starts; None once all rows are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from relay_core.messages.dead_letter import DeadLetterSummary
from relay_core.protocol.deadletters import DeadLetterSummaries
from relay_core.text.sanitize import clean
from relay_core.text.units import about
from relay_tui.widgets.table import Column, Row

COLUMNS = (
    Column("AGE", 5, right=True),
    Column("CODE", 15),
    Column("TARGET"),
    Column("FROM", 24, from_width=100),
    Column("REASON"),
    Column("REPLAYS", 7, right=True, from_width=90),
)
_LONGEST_REASON = 240
"""The part of a reason that a row keeps, in characters."""


class LetterRow(NamedTuple):
    """The summary of one dead letter."""

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
    """The rows that are loaded."""

    def __init__(self) -> None:
        self.cursor: str | None = None
        self.now_ms = 0
        """The time that ages count from."""
        self._keys: list[str] = []
        self._letters: list[LetterRow] = []
        self._texts: dict[str, str] = {}
        """Interned texts: many rows share them."""

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, at: int) -> Row:
        letter = self._letters[at]
        cells = (
            (about((self.now_ms - letter.failed_at) / 1000), "dim"),
            (f"▲ {clean(letter.code, 40)}" if letter.partial else clean(letter.code, 40), "warn"),
            clean(letter.target),
            (clean(letter.sender), "dim"),
            clean(letter.reason.partition("\n")[0]),
            f"↻ {letter.replays}" if letter.replays else ("–", "dim"),
        )
        return Row(self._keys[at], cells)

    def find(self, key: str) -> int | None:
        """Return the position of a key."""
        at = self.place(key)
        return at if at < len(self._keys) and self._keys[at] == key else None

    def get(self, key: str | None) -> LetterRow | None:
        """Return the row of a key."""
        at = self.find(key) if key is not None else None
        return self._letters[at] if at is not None else None

    def place(self, key: str) -> int:
        """Return how many rows are before a key, whether it is loaded or not."""
        low, high = 0, len(self._keys)
        while low < high:
            middle = (low + high) // 2
            if self._keys[middle] > key:
                low = middle + 1
            else:
                high = middle
        return low

    def key_before(self, at: int) -> str | None:
        """Return the key of the row before a position, after which a page from there starts."""
        return self._keys[at - 1] if 0 < at <= len(self._keys) else None

    def is_beyond(self, key: str) -> bool:
        """Return True if every row is behind a key."""
        return not self._keys or self._keys[0] < key

    def put(self, page: DeadLetterSummaries, *, after: str | None) -> None:
        """Replace the rows of a page's range; the page starts after a key."""
        start = self._end_of(after)
        stop = self._end_of(page.cursor) if page.cursor is not None else len(self._keys)
        self._keys[start:stop] = [row.cursor for row in page.rows]
        self._letters[start:stop] = self._compact(page.rows)
        if start + len(page.rows) == len(self._keys):  # it is the last page that is loaded
            self.cursor = page.cursor

    def _end_of(self, key: str | None) -> int:
        """Return how many rows there are up to and including a key."""
        if key is None:
            return 0
        at = self.place(key)
        return at + (at < len(self._keys) and self._keys[at] == key)

    def _compact(self, rows: Sequence[DeadLetterSummary]) -> list[LetterRow]:
        intern = self._texts.setdefault
        return [
            LetterRow(
                intern(row.endpoint_subject, row.endpoint_subject),
                intern(row.subject, row.subject),
                intern(row.sender, row.sender),
                intern(row.code, row.code),
                row.reason[:_LONGEST_REASON],
                row.failed_at,
                row.replays,
                row.size,
                row.partial,
            )
            for row in rows
        ]


def first_rows(page: DeadLetterSummaries) -> LetterRows:
    """Return rows that start with a page."""
    rows = LetterRows()
    rows.put(page, after=None)
    rows.cursor = page.cursor
    return rows
