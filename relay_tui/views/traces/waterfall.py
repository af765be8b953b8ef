"""A conversation as a waterfall: which message followed from which, and when each was waiting and handled.

1. A row is a span: one message at one target. The children of a message are below it, indented; if it had several
   targets, below the one that sent them.
2. A message whose parent is missing is a root. A cycle of parents (a foreign writer can produce one) is cut where it is
   entered: every span appears exactly once.
3. All bars share one time axis: from the first send to the last event, or to now while a span is open. Missing times
   are skipped, a time before its own send counts as the send, and a span that is days away from all others (a wrong
   clock) does not stretch the axis: its bar is an arrow.
4. Waiting and handling differ by character (`░`, `█`), and so does an immediate end (`▪`).

No I/O. Built once for a conversation; rows are formatted when they are visible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from relay_core.messages.delivery import Span
from relay_tui.views.traces.status import OPEN

WAITING, HANDLING, IMMEDIATE, RUNNING = "░", "█", "▪", "›"
_FAR_MS = 3 * 86_400_000.0
_LAST_MS = 1e15
"""Times beyond are invalid, and arithmetic with them would overflow."""


class Node(NamedTuple):
    """A row of the waterfall."""

    span: Span
    depth: int
    guide: str
    """The tree lines before its name."""

    @property
    def key(self) -> str:
        """The key of the row."""
        return f"{self.span.message_id}/{self.span.target}"


class Times(NamedTuple):
    """When a span was sent, claimed and ended; in milliseconds and in this order."""

    sent: float
    taken: float | None
    ended: float | None

    @classmethod
    def of(cls, span: Span) -> Times:
        """Return the times of a span, in order."""
        sent, stored, claimed, end = (
            min(max(at, -_LAST_MS), _LAST_MS) if at is not None else None
            for at in (span.sent_at, span.stored_at, span.claimed_at, span.handled_at)
        )
        assert sent is not None
        taken = max(claimed, sent) if claimed is not None else None
        if end is None and span.status not in OPEN:
            end = next((at for at in (claimed, stored) if at is not None), sent)
        return cls(sent, taken, max(end, taken or sent) if end is not None else None)


class Waterfall:
    """The spans of a conversation in tree order, on one time axis."""

    def __init__(self, spans: Iterable[Span], root: str | None = None) -> None:
        by_message: dict[str, list[Span]] = defaultdict(list)
        for span in spans:
            by_message[span.message_id].append(span)
        self._parents = {id: found[0].parent_id for id, found in by_message.items()}
        self._children: dict[str, list[str]] = defaultdict(list)
        for id, parent in self._parents.items():
            if parent is not None and parent in by_message:
                self._children[parent].append(id)
        self.nodes: Sequence[Node] = list(self._walk(by_message, root))
        self._at = {node.key: at for at, node in enumerate(self.nodes)}
        self._first = {node.span.message_id: at for at, node in reversed(list(enumerate(self.nodes)))}
        self.is_open = any(node.span.status in OPEN for node in self.nodes)
        self.begin, self._last = _axis([Times.of(node.span) for node in self.nodes])

    def find(self, key: str) -> int | None:
        """Return the position of a key."""
        return self._at.get(key)

    def first(self, message_id: str) -> Node | None:
        """Return the first row of a message."""
        at = self._first.get(message_id)
        return self.nodes[at] if at is not None else None

    def children(self, message_id: str) -> Sequence[str]:
        """Return the children of a message."""
        return self._children.get(message_id, ())

    def end(self, now_ms: float) -> float:
        """Return the end of the axis."""
        return max(self._last, now_ms) if self.is_open else self._last

    def bar(self, span: Span, width: int, now_ms: float) -> str:
        """Return the bar of a span, in exactly `width` characters."""
        end = self.end(now_ms)
        times = Times.of(span)
        until = times.ended if times.ended is not None else max(now_ms, times.taken or times.sent)
        if until < self.begin:
            return "◂".ljust(width)
        if times.sent > end:
            return "▸".rjust(width)
        scale = width / (end - self.begin) if end > self.begin else 0.0

        def column(at: float) -> int:
            return min(max(int((at - self.begin) * scale), 0), width - 1)

        left, right = column(times.sent), column(until)
        taken = column(times.taken) if times.taken is not None else None
        if times.ended is not None and taken is None:
            body = WAITING * (right - left) + IMMEDIATE
        elif taken is None:
            body = WAITING * (right - left + 1)
        else:
            body = WAITING * (taken - left) + HANDLING * (right - taken + 1)
        if times.ended is None:
            body = body[:-1] + RUNNING if len(body) > 1 else body
        return (" " * left + body).ljust(width)

    def _walk(self, by_message: dict[str, list[Span]], root: str | None) -> Iterator[Node]:
        """Yield every span once, each followed by its children."""
        below = self._below(by_message)
        roots: list[Span] = []
        if root in by_message:
            roots = by_message[root]
        else:
            roots += sorted(
                (span for id in by_message if self._parents[id] not in by_message for span in by_message[id]),
                key=_order,
            )
            # The rest are cycles, which have no root.
            roots += [span for spans in by_message.values() for span in spans]
        seen: set[int] = set()
        for first in roots:
            stack = [(first, 0, "", "")]
            while stack:
                span, depth, guide, beneath = stack.pop()
                if id(span) in seen:
                    continue
                seen.add(id(span))
                yield Node(span, depth, guide)
                children = below.get(id(span), ())
                for at, child in reversed(list(enumerate(children))):
                    turn, line = ("└ ", "  ") if at == len(children) - 1 else ("├ ", "│ ")
                    stack.append((child, depth + 1, beneath + turn, beneath + line))

    def _below(self, by_message: dict[str, list[Span]]) -> dict[int, list[Span]]:
        """Return the messages that each span's target sent; the last span gets those without a target."""
        below: dict[int, list[Span]] = defaultdict(list)
        for parent, children in self._children.items():
            targets = {span.target_subject: span for span in by_message[parent]}
            for child in children:
                sender = targets.get(by_message[child][0].sender, by_message[parent][-1])
                below[id(sender)] += by_message[child]
        for spans in below.values():
            spans.sort(key=_order)
        return below


def _order(span: Span) -> tuple[float, str, str]:
    return span.sent_at, span.message_id, span.target


def _axis(times: Sequence[Times]) -> tuple[float, float]:
    if not times:
        return 0.0, 0.0
    middle = median(span.sent for span in times)
    near = [span for span in times if abs(span.sent - middle) <= _FAR_MS]
    near = near or list(times)  # two that are far from each other: neither is near the median
    begin = min(span.sent for span in near)
    return begin, max(max(span.ended or span.taken or span.sent for span in near), begin)
