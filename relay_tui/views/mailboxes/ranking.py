"""The order of live rows, of which there may be ten thousand: sorted when they have changed, and made when looked at.

1. Nothing is sorted while every row is the one it was. Rows are models that are replaced when they change, so that
   is seen by a look at each, which costs a fiftieth of a sort.
2. They are sorted at most once a second, unless some came or went or another order was asked for: an order that
   changes five times a second cannot be read. What is in a row is always as it is now.
3. Rows of the same rank are in the order of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from relay_tui.widgets.table import KeyedRows, Row

V = TypeVar("V")

_CALM_SECS = 1.0


class Ranking(Generic[V]):
    """The rows of one table, in an order that is kept for as long as it holds."""

    def __init__(self, name_of: Callable[[str, V], str], row_of: Callable[[str], Row]) -> None:
        self._name_of = name_of
        self._row_of = row_of
        self._values: list[V] = []
        self._how: tuple[object, ...] = ()
        self._sorted_at = 0.0
        self._names: list[tuple[str, str]] = []
        self._ranked = KeyedRows([], row_of)

    def rows(self, rows: Mapping[str, V], rank: Callable[[V], Any] | None, part: str, now: float) -> KeyedRows:
        """Return the rows whose name has a part, by rank; without one, by name."""
        values = list(rows.values())
        if self._how == (rank, part):
            if values == self._values:
                return self._ranked
            if len(values) == len(self._values) and 0 <= now - self._sorted_at < _CALM_SECS:
                return self._ranked
        self._values, self._how, self._sorted_at = values, (rank, part), now
        if len(self._names) != len(rows) or any(key not in rows for _, key in self._names):
            self._names = sorted((self._name_of(key, value), key) for key, value in rows.items())
        part = part.lower()
        order = [key for name, key in self._names if part in name.lower()]
        if rank is not None:
            order.sort(key=lambda key: rank(rows[key]))
        if order != self._ranked.keys:
            self._ranked = KeyedRows(order, self._row_of)
        return self._ranked
