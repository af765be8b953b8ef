"""The rows of a waterfall: made when they are in sight, for the width that there is."""

from __future__ import annotations

from collections.abc import Sequence

from relay_tui.lines import Piece
from relay_tui.safe import clean
from relay_tui.table import Column, Row
from relay_tui.views.traces.waterfall import Node, Times, Waterfall
from relay_tui.views.traces.words import status_piece
from relay_tui.words import lasting

_STATUS, _TOOK = 10, 7
_GUIDES = 16
"""Characters of guides that are shown; deeper rows say how deep they are."""


class SpanRows:
    """A waterfall as the table wants it."""

    def __init__(self, waterfall: Waterfall, width: int, now_ms: float) -> None:
        self._waterfall = waterfall
        self._name = min(max(width * 3 // 10, 20), 48)
        self._bar = max(width - 2 - (self._name + 1) - (_STATUS + 1) - (_TOOK + 1) - 1, 8)
        self._now_ms = now_ms

    def columns(self) -> Sequence[Column]:
        """Return the columns; the one of the bars is headed by the axis."""
        return (
            Column("TARGET", self._name),
            Column("STATUS", _STATUS),
            Column(self._axis(), self._bar),
            Column("TOOK", _TOOK, right=True),
        )

    def _axis(self) -> str:
        total = (self._waterfall.end(self._now_ms) - self._waterfall.begin) / 1000
        ends = f"+{lasting(total)}"
        middle = f"+{lasting(total / 2)}"
        left = "0".ljust(self._bar // 2) + middle
        return left.ljust(self._bar - len(ends)) + ends if len(left) + len(ends) < self._bar else "0 … " + ends

    def __len__(self) -> int:
        return len(self._waterfall.nodes)

    def __getitem__(self, at: int) -> Row:
        node = self._waterfall.nodes[at]
        span = node.span
        mark, style = status_piece(span.status)
        return Row(
            node.key,
            (
                _guide(node) + clean(span.target_subject) + (f" ↻{span.replays}" if span.replays else ""),
                (mark, style),
                (self._waterfall.bar(span, self._bar, self._now_ms), style),
                self._took(node),
            ),
        )

    def find(self, key: str) -> int | None:
        """Return where a span is."""
        return self._waterfall.find(key)

    def _took(self, node: Node) -> Piece:
        times = Times.of(node.span)
        if times.ended is None:
            return (f"{lasting((self._now_ms - times.sent) / 1000)}…"[:_TOOK], "dim")
        return (lasting((times.ended - times.sent) / 1000), "")


def _guide(node: Node) -> str:
    if len(node.guide) <= _GUIDES:
        return node.guide
    return f"…{node.depth} " + node.guide[-2:]
