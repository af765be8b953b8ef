"""A conversation as a waterfall: which message followed from which, and when each was waiting and handled.

1. A row is a span: one message at one target. What a message led to stands below it and one step further in; where it
   had several targets, below the one that sent it.
2. A message whose parent is not there is a beginning of its own. Parents that go in a circle (nothing on disk keeps
   a stranger from writing that) are cut where the circle begins: every span is there exactly once.
3. All bars have one time axis: from the first sending to the last thing that happened, or to now while something is
   under way. Times that are missing are left out, a time before its own sending counts as that, and a span that
   lies far from all others (a clock that is wrong by days) does not stretch the axis: its bar is an arrow.
4. Waiting and handling differ by character (`░`, `█`), and so does what ended at once (`▪`).

Pure, and made once for a conversation: a row is drawn only when it is in sight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from relay_core.delivery import Span
from relay_tui.views.traces.words import OPEN

WAITING, HANDLING, AT_ONCE, UNDER_WAY = "░", "█", "▪", "›"
_FAR_MS = 3 * 86_400_000.0
_LAST_MS = 1e15
"""Times beyond are no times, and counting with them would overflow."""


class Node(NamedTuple):
    """A row of the waterfall."""

    span: Span
    depth: int
    guide: str
    """What stands before its name: lines to where it comes from."""

    @property
    def key(self) -> str:
        """What the row is known by."""
        return f"{self.span.message_id}/{self.span.target}"


class Times(NamedTuple):
    """When a span began, was taken, and ended; in milliseconds, each not before the one before."""

    sent: float
    taken: float | None
    ended: float | None

    @classmethod
    def of(cls, span: Span) -> Times:
        """Return a span's times, put in order."""
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
    """The spans of a conversation in the order of its tree, on one axis."""

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
        """Return where the row with a key is."""
        return self._at.get(key)

    def first(self, message_id: str) -> Node | None:
        """Return the first row of a message."""
        at = self._first.get(message_id)
        return self.nodes[at] if at is not None else None

    def children(self, message_id: str) -> Sequence[str]:
        """Return the messages that followed from one."""
        return self._children.get(message_id, ())

    def end(self, now_ms: float) -> float:
        """Return where the axis ends."""
        return max(self._last, now_ms) if self.is_open else self._last

    def bar(self, span: Span, width: int, now_ms: float) -> str:
        """Return a span on the axis, in exactly so many characters."""
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
            body = WAITING * (right - left) + AT_ONCE
        elif taken is None:
            body = WAITING * (right - left + 1)
        else:
            body = WAITING * (taken - left) + HANDLING * (right - taken + 1)
        if times.ended is None:
            body = body[:-1] + UNDER_WAY if len(body) > 1 else body
        return (" " * left + body).ljust(width)

    def _walk(self, by_message: dict[str, list[Span]], root: str | None) -> Iterator[Node]:
        """Yield every span once, each followed by those that it led to."""
        below = self._below(by_message)
        begun: list[Span] = []
        if root in by_message:
            begun = by_message[root]
        else:
            begun += sorted(
                (span for id in by_message if self._parents[id] not in by_message for span in by_message[id]),
                key=_order,
            )
            # What is left goes in a circle, which has no beginning.
            begun += [span for spans in by_message.values() for span in spans]
        seen: set[int] = set()
        for first in begun:
            stack = [(first, 0, "", "")]
            while stack:
                span, depth, guide, beneath = stack.pop()
                if id(span) in seen:
                    continue
                seen.add(id(span))
                yield Node(span, depth, guide)
                led_to = below.get(id(span), ())
                for at, child in reversed(list(enumerate(led_to))):
                    turn, line = ("└ ", "  ") if at == len(led_to) - 1 else ("├ ", "│ ")
                    stack.append((child, depth + 1, beneath + turn, beneath + line))

    def _below(self, by_message: dict[str, list[Span]]) -> dict[int, list[Span]]:
        """Return what each span has led to: the messages that its target has sent, or the last one's if nobody did."""
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
    middle = median(one.sent for one in times)
    near = [one for one in times if abs(one.sent - middle) <= _FAR_MS]
    # With two that are far from each other neither is: then both count.
    near = near or list(times)
    begin = min(one.sent for one in near)
    return begin, max(max(one.ended or one.taken or one.sent for one in near), begin)
