"""The part of the traces screen that shows one conversation: its waterfall, and the span under the cursor in full.

1. The conversation is an `OpenTrace`; when it is refreshed, the cursor stays on its span.
2. Opening a part, or another message, pushes the current one on a stack; `step_back` restores it with its cursor.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widget import Widget

from relay_core.messages.delivery import Span
from relay_core.text.sanitize import clean
from relay_core.text.units import format_duration, plural
from relay_tui.shell.host import host_of
from relay_tui.views.facts import NAME_WIDTH
from relay_tui.views.traces.detail import span_lines
from relay_tui.views.traces.open_trace import MOST_SPANS, OpenTrace
from relay_tui.views.traces.spans import SpanRows
from relay_tui.views.wrap import wrapped
from relay_tui.widgets.styled_lines import Line, Lines, Piece, line, width_of
from relay_tui.widgets.table import LiveTable


class TracePane(Widget):
    """A conversation."""

    DEFAULT_CSS = """
    TracePane { layout: vertical; height: 1fr; }
    TracePane Lines { height: 11; }
    """

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.trace: OpenTrace | None = None
        self._stack: list[tuple[OpenTrace, str | None]] = []
        self._columns: object = None

    def compose(self) -> ComposeResult:
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
        """The time that open bars grow to: in whole seconds, since each step repaints all of them."""
        return host_of(self.app).store.now_ms() // 1000 * 1000

    def show(self, trace: OpenTrace, at: str | None) -> None:
        """Show a conversation, with the cursor on a message or a row."""
        self.trace = trace
        self.draw()
        node = trace.waterfall.first(at or "")
        self.table.go_to_key(node.key if node is not None else at or "")

    def open(self, trace: OpenTrace, at: str) -> None:
        """Show another conversation or part; `step_back` returns to the current one."""
        if self.trace is not None:
            self._stack.append((self.trace, self.table.key))
        self.show(trace, at)

    def step_back(self) -> bool:
        """Return to the previous conversation; False if there is none."""
        if not self._stack:
            return False
        self.show(*self._stack.pop())
        return True

    def close(self) -> None:
        """Close the conversation."""
        self.trace = None
        self._stack.clear()

    def draw(self) -> None:
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
            lines = span_lines(span, self.trace.waterfall, self._now_ms)
            self.query_one(Lines).show(wrapped(lines, self.app.size.width, NAME_WIDTH))

    def on_live_table_moved(self, event: LiveTable.Moved) -> None:
        event.stop()
        self._draw_span()

    def note(self) -> Line:
        """Return the line above the waterfall."""
        if self.trace is None:
            return ()
        waterfall = self.trace.waterfall
        messages = len({node.span.message_id for node in waterfall.nodes})
        took = format_duration((waterfall.end(self._now_ms) - waterfall.begin) / 1000)
        is_cut = len(self.trace.spans) >= MOST_SPANS
        cut: Piece = (f"  ▲ only the first {MOST_SPANS:,}", "warn") if is_cut else ("", "")
        note = line(
            (f" {clean(self.trace.root or self.trace.message_id)}", "title"),
            ("  its descendants: " if self.trace.root else "  its conversation: ", "dim"),
            f"{plural(len(waterfall.nodes), 'span')} of {plural(messages, 'message')} in {took}",
            cut,
        )
        legend: Piece = ("  ░ waiting █ handling", "dim")
        return (*note, legend) if width_of([*note, legend]) <= self.app.size.width else note
