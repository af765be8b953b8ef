"""The messages that a search has found, newest first, and the number of newer ones.

1. While the operator follows it, the list is the newest page.
2. While it stands still, rows keep their positions and are updated in place; newer messages are only counted.
3. Further pages continue where the last one ended; a page that the supervisor cut short tells how far it has searched.

Message ids sort by time, which tells newer from older. No I/O: the feed makes the requests.
"""

from __future__ import annotations

from collections.abc import Iterable

from relay_core.messages.delivery import TracePage, TraceSummary
from relay_core.text.sanitize import clean
from relay_core.text.units import clock_time, format_duration, number
from relay_tui.views.traces.query import TraceQuery
from relay_tui.views.traces.status import OPEN, status_label
from relay_tui.widgets.styled_lines import Line, Piece, line
from relay_tui.widgets.table import Column, Row

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
    """The rows of the table; implements `Rows`."""

    def __init__(self, query: TraceQuery) -> None:
        self.query = query
        self.newer = 0
        """The number of messages that are newer than the list."""
        self.more_newer = False
        """Whether `newer` is a lower bound."""
        self.cursor: str | None = None
        """Where the next page starts; None at the end."""
        self.is_begun = False
        """Whether a page has arrived."""
        self._rows: list[TraceSummary] = []
        self._at: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: int) -> Row:
        return _row(self._rows[at])

    def find(self, key: str) -> int | None:
        """Return the position of a message."""
        return self._at.get(key)

    def get(self, key: str | None) -> TraceSummary | None:
        """Return a message of the list."""
        at = self._at.get(key or "")
        return self._rows[at] if at is not None else None

    def follow(self, page: TracePage) -> None:
        """Replace the rows by the newest page."""
        found = self._matching(page.rows)
        if page.complete or not self.is_begun:
            self._set(found)
            self.cursor = page.cursor
        else:
            # The supervisor stopped searching before it reached the rows of the list.
            last = found[-1].message_id if found else None
            self._set([*found, *(row for row in self._rows if last is None or row.message_id < last)])
        self.newer, self.more_newer, self.is_begun = 0, False, True

    def stand_still(self, page: TracePage) -> None:
        """Update the rows in place, and count the newer ones."""
        found = self._matching(page.rows)
        for row in found:
            if (at := self._at.get(row.message_id)) is not None:
                self._rows[at] = row
        newest = self._rows[0].message_id if self._rows else ""
        self.newer = sum(row.message_id > newest for row in found)
        self.more_newer = bool(found) and self.newer == len(found) and page.cursor is not None

    def extend(self, page: TracePage) -> int:
        """Add the next page; return the number of new rows."""
        found = [row for row in self._matching(page.rows) if row.message_id not in self._at]
        self._set([*self._rows, *found])
        self.cursor = page.cursor
        return len(found)

    def note(self, *, following: bool, looking: bool, search: str) -> Line:
        """Return the line above the list."""
        state: Piece = ("  ■ standing still", "dim")
        if following:
            state = ("  ● following", "ok")
        elif self.newer:
            state = (f"  ▲ {self.newer}{'+' if self.more_newer else ''} newer: press g", "warn")
        typed: Line = ((" /", "mark"), (clean(search), "strong")) if search else ()
        return line(
            (" messages, newest first", "title"), *typed, state, ("  searching further back…" if looking else "", "dim")
        )

    def _matching(self, rows: Iterable[TraceSummary]) -> list[TraceSummary]:
        return [row for row in rows if self.query.matches(row.subject, row.sender)]

    def _set(self, rows: list[TraceSummary]) -> None:
        self._rows = rows
        self._at = {row.message_id: at for at, row in enumerate(rows)}


def _row(found: TraceSummary) -> Row:
    took: Piece = ("…" if found.status in OPEN else "–", "dim")
    if found.total_us is not None:
        took = (
            (format_duration(found.total_us / 1e6), "") if found.total_us else ("<1ms", "")
        )  # the index counts milliseconds
    replays = f" ↻{found.replays}" if found.replays else ""
    return Row(
        found.message_id,
        (
            (clock_time(found.sent_at), "dim"),
            status_label(found.status),
            ("↳ " if found.parent_id else "") + clean(found.subject) + replays,
            clean(found.sender),
            number(found.targets),
            took,
            (clean(found.code or ""), "warn"),
            (clean(found.message_id), "dim"),
        ),
    )
