"""The messages that a search has found so far, newest first, and how much newer there is.

1. While it is followed, the list is the newest page and nothing else: what is new is on top.
2. While it stands still, rows stay where they are: what became of them is kept up to date in place, and what is newer
   is only counted.
3. Further pages go on from where the last one ended; a page that the bus cut short says how far it has come.

Message ids sort as their times do, which is what tells newer from older. Pure: whoever has it asks the bus.
"""

from __future__ import annotations

from collections.abc import Iterable

from relay_core.delivery import TraceSummary
from relay_core.protocol import Traces
from relay_tui.lines import Line, Piece, line
from relay_tui.safe import clean
from relay_tui.table import Column, Row
from relay_tui.views.traces.query import TraceQuery
from relay_tui.views.traces.words import OPEN, status_piece
from relay_tui.words import clock_time, lasting, number

COLUMNS = (
    Column("SENT", 8),
    Column("STATUS", 10),
    Column("SUBJECT"),
    Column("FROM", from_width=76),
    Column("TARGETS", 7, right=True, from_width=100),
    Column("TOOK", 7, right=True),
    Column("WHY", 15, from_width=100),
    Column("MESSAGE", 26, from_width=136),
)


class TraceList:
    """Rows for the table; it is a `Rows`."""

    def __init__(self, query: TraceQuery) -> None:
        self.query = query
        self.newer = 0
        """How many newer messages there are than the list shows."""
        self.more_newer = False
        """Whether `newer` is only the least there are."""
        self.cursor: str | None = None
        """Where to go on, if anything is left to look through."""
        self.is_begun = False
        """Whether the bus has answered."""
        self._rows: list[TraceSummary] = []
        self._at: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: int) -> Row:
        return _row(self._rows[at])

    def find(self, key: str) -> int | None:
        """Return where a message is."""
        return self._at.get(key)

    def get(self, key: str | None) -> TraceSummary | None:
        """Return a message that is in the list."""
        at = self._at.get(key or "")
        return self._rows[at] if at is not None else None

    def follow(self, page: Traces) -> None:
        """Show what is newest."""
        found = self._meant(page.rows)
        if page.complete or not self.is_begun:
            self._set(found)
            self.cursor = page.cursor
        else:
            # The bus stopped looking before it came to the rows that are here.
            last = found[-1].message_id if found else None
            self._set([*found, *(row for row in self._rows if last is None or row.message_id < last)])
        self.newer, self.more_newer, self.is_begun = 0, False, True

    def stand_still(self, page: Traces) -> None:
        """Keep what is shown up to date, and count what is newer."""
        found = self._meant(page.rows)
        for row in found:
            if (at := self._at.get(row.message_id)) is not None:
                self._rows[at] = row
        newest = self._rows[0].message_id if self._rows else ""
        self.newer = sum(row.message_id > newest for row in found)
        self.more_newer = bool(found) and self.newer == len(found) and page.cursor is not None

    def extend(self, page: Traces) -> int:
        """Add the page that comes after; return how many rows it had."""
        found = [row for row in self._meant(page.rows) if row.message_id not in self._at]
        self._set([*self._rows, *found])
        self.cursor = page.cursor
        return len(found)

    def note(self, *, following: bool, looking: bool, search: str) -> Line:
        """Return what the list shows, in one line."""
        state: Piece = ("  ■ standing still", "dim")
        if following:
            state = ("  ● following", "ok")
        elif self.newer:
            state = (f"  ▲ {self.newer}{'+' if self.more_newer else ''} newer: press g", "warn")
        typed: Line = ((" /", "mark"), (clean(search), "strong")) if search else ()
        return line(
            (" messages, newest first", "title"), *typed, state, ("  looking further back…" if looking else "", "dim")
        )

    def _meant(self, rows: Iterable[TraceSummary]) -> list[TraceSummary]:
        return [row for row in rows if self.query.takes(row.subject, row.sender)]

    def _set(self, rows: list[TraceSummary]) -> None:
        self._rows = rows
        self._at = {row.message_id: at for at, row in enumerate(rows)}


def _row(found: TraceSummary) -> Row:
    took: Piece = ("…" if found.status in OPEN else "–", "dim")
    if found.total_us is not None:
        took = (lasting(found.total_us / 1e6), "") if found.total_us else ("<1ms", "")  # the index counts milliseconds
    replays = f" ↻{found.replays}" if found.replays else ""
    return Row(
        found.message_id,
        (
            (clock_time(found.sent_at), "dim"),
            status_piece(found.status),
            ("↳ " if found.parent_id else "") + clean(found.subject) + replays,
            clean(found.sender),
            number(found.targets),
            took,
            (clean(found.code or ""), "warn"),
            (clean(found.message_id), "dim"),
        ),
    )
