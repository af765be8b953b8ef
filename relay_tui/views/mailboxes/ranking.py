"""The order of up to ten thousand live rows: sorted when they change, formatted when they are visible.

1. Rows are sorted only if one has changed. Comparing all of them costs a fiftieth of a sort.
2. They are sorted at most once a second, unless rows came or went or the order was changed: an order that changes five
   times a second is unreadable. The content of a row is always current.
3. Rows of the same rank are sorted by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from relay_tui.widgets.table import KeyedRows, Row

V = TypeVar("V")

_SORT_SECS = 1.0


class Ranking(Generic[V]):
    """The sorted rows of one table."""

    def __init__(self, name_of: Callable[[str, V], str], row_of: Callable[[str], Row]) -> None:
        self._name_of = name_of
        self._row_of = row_of
        self._values: list[V] = []
        self._sorted_by: tuple[object, ...] = ()
        self._sorted_at = 0.0
        self._names: list[tuple[str, str]] = []
        self._ranked = KeyedRows([], row_of)

    def rows(self, rows: Mapping[str, V], rank: Callable[[V], Any] | None, part: str, now: float) -> KeyedRows:
        """Return the rows whose name contains `part`, sorted by `rank`, or by name if it is None."""
        values = list(rows.values())
        if self._sorted_by == (rank, part):
            if values == self._values:
                return self._ranked
            if len(values) == len(self._values) and 0 <= now - self._sorted_at < _SORT_SECS:
                return self._ranked
        self._values, self._sorted_by, self._sorted_at = values, (rank, part), now
        if len(self._names) != len(rows) or any(key not in rows for _, key in self._names):
            self._names = sorted((self._name_of(key, value), key) for key, value in rows.items())
        part = part.lower()
        order = [key for name, key in self._names if part in name.lower()]
        if rank is not None:
            order.sort(key=lambda key: rank(rows[key]))
        if order != self._ranked.keys:
            self._ranked = KeyedRows(order, self._row_of)
        return self._ranked
