"""The rows of a waterfall, formatted for the width of the table when they are visible."""

from __future__ import annotations

from collections.abc import Sequence

from relay_core.text.sanitize import clean
from relay_core.text.units import format_duration
from relay_tui.views.traces.status import status_label
from relay_tui.views.traces.waterfall import Node, Times, Waterfall
from relay_tui.widgets.styled_lines import Piece
from relay_tui.widgets.table import Column, Row

_STATUS, _TOOK = 10, 7
_GUIDES = 16
"""The longest tree guide, in characters; deeper rows show their depth."""


class SpanRows:
    """The rows of a waterfall; implements `Rows`."""

    def __init__(self, waterfall: Waterfall, width: int, now_ms: float) -> None:
        self._waterfall = waterfall
        self._name = min(max(width * 3 // 10, 20), 48)
        self._bar = max(width - 2 - (self._name + 1) - (_STATUS + 1) - (_TOOK + 1) - 1, 8)
        self._now_ms = now_ms

    def columns(self) -> Sequence[Column]:
        """Return the columns; the title of the bars is the time axis."""
        return (
            Column("TARGET", self._name),
            Column("STATUS", _STATUS),
            Column(self._axis(), self._bar),
            Column("TOOK", _TOOK, right=True),
        )

    def _axis(self) -> str:
        total = (self._waterfall.end(self._now_ms) - self._waterfall.begin) / 1000
        ends = f"+{format_duration(total)}"
        middle = f"+{format_duration(total / 2)}"
        left = "0".ljust(self._bar // 2) + middle
        return left.ljust(self._bar - len(ends)) + ends if len(left) + len(ends) < self._bar else "0 … " + ends

    def __len__(self) -> int:
        return len(self._waterfall.nodes)

    def __getitem__(self, at: int) -> Row:
        node = self._waterfall.nodes[at]
        span = node.span
        mark, style = status_label(span.status)
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
        """Return the position of a span."""
        return self._waterfall.find(key)

    def _took(self, node: Node) -> Piece:
        times = Times.of(node.span)
        if times.ended is None:
            return (f"{format_duration((self._now_ms - times.sent) / 1000)}…"[:_TOOK], "dim")
        return (format_duration((times.ended - times.sent) / 1000), "")


def _guide(node: Node) -> str:
    if len(node.guide) <= _GUIDES:
        return node.guide
    return f"…{node.depth} " + node.guide[-2:]
