"""The part of the traces screen that shows one conversation: its waterfall, and the span under the cursor in full.

1. What is looked at is an `OpenTrace`; when it is asked for again, the cursor stays on its span.
2. Going into a part of it, or on to another message, puts what was there behind; `step_back` brings it back with the
   cursor where it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.widget import Widget

from relay_core.delivery import Span
from relay_tui.lines import Line, Lines, Piece, line, width_of
from relay_tui.safe import clean
from relay_tui.table import LiveTable
from relay_tui.views.traces.detail import span_lines
from relay_tui.views.traces.open import MOST_SPANS, OpenTrace
from relay_tui.views.traces.spans import SpanRows
from relay_tui.views.wrap import wrapped
from relay_tui.words import lasting, plural

if TYPE_CHECKING:
    from relay_tui.app import Dashboard

_DETAIL_INDENT = 11


class TracePane(Widget):
    """A conversation."""

    DEFAULT_CSS = """
    TracePane { layout: vertical; height: 1fr; }
    TracePane Lines { height: 11; }
    """

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.trace: OpenTrace | None = None
        self._behind: list[tuple[OpenTrace, str | None]] = []
        self._columns: object = None

    def compose(self) -> ComposeResult:
        """Lay out the waterfall, and the room for one span."""
        yield LiveTable(())
        yield Lines()

    @property
    def table(self) -> LiveTable:
        """The waterfall."""
        return self.query_one(LiveTable)

    @property
    def span(self) -> Span | None:
        """The span under the cursor."""
        return self.trace.span(self.table.key) if self.trace is not None else None

    @property
    def _now_ms(self) -> int:
        """The time by which bars grow: in whole seconds, since each step paints all of them anew."""
        return cast("Dashboard", self.app).store.now_ms() // 1000 * 1000

    def look_at(self, trace: OpenTrace, at: str | None) -> None:
        """Show a conversation, with the cursor on a message or on a row."""
        self.trace = trace
        self.draw()
        node = trace.waterfall.first(at or "")
        self.table.go_to_key(node.key if node is not None else at or "")

    def go_into(self, trace: OpenTrace, at: str) -> None:
        """Show another one, from which `step_back` comes back to this."""
        self.put_behind()
        self.look_at(trace, at)

    def put_behind(self) -> None:
        """Remember what is shown for `step_back`."""
        if self.trace is not None:
            self._behind.append((self.trace, self.table.key))

    def step_back(self) -> bool:
        """Show what was there before; False if there was nothing."""
        if not self._behind:
            return False
        self.look_at(*self._behind.pop())
        return True

    def close(self) -> None:
        """Forget what was shown."""
        self.trace = None
        self._behind.clear()

    def draw(self) -> None:
        """Show how it stands now."""
        if self.trace is None:
            return
        rows = SpanRows(self.trace.waterfall, self.table.size.width or self.app.size.width, self._now_ms)
        columns = rows.columns()
        if columns != self._columns:
            self._columns = columns
            self.table.set_columns(columns)
        self.table.set_rows(rows)
        self._draw_span()

    def _draw_span(self) -> None:
        if self.trace is not None and (span := self.span) is not None:
            told = span_lines(span, self.trace.waterfall, self._now_ms)
            self.query_one(Lines).show(wrapped(told, self.app.size.width, _DETAIL_INDENT))

    def on_live_table_moved(self, event: LiveTable.Moved) -> None:
        """Tell of the span that the cursor is on."""
        event.stop()
        self._draw_span()

    def note(self) -> Line:
        """Return what is looked at, in one line."""
        if self.trace is None:
            return ()
        waterfall = self.trace.waterfall
        messages = len({node.span.message_id for node in waterfall.nodes})
        took = lasting((waterfall.end(self._now_ms) - waterfall.begin) / 1000)
        is_cut = len(self.trace.spans) >= MOST_SPANS
        cut: Piece = (f"  ▲ only the first {MOST_SPANS:,}", "warn") if is_cut else ("", "")
        told = line(
            (f" {clean(self.trace.root or self.trace.message_id)}", "title"),
            ("  what followed from it: " if self.trace.root else "  its conversation: ", "dim"),
            f"{plural(len(waterfall.nodes), 'span')} of {plural(messages, 'message')} in {took}",
            cut,
        )
        legend: Piece = ("  ░ waiting █ handling", "dim")
        return (*told, legend) if width_of([*told, legend]) <= self.app.size.width else told
