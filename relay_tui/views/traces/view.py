"""Traces: recent messages, a search among them, and the conversation of one message as a waterfall.

1. The list follows the newest messages, with its cursor on no row, until the operator moves in it; then it stands still
   and counts the newer ones. `g` follows again.
2. A message opens as the waterfall of its conversation (waterfall.py); the span under the cursor is shown in full below
   it. Enter opens the part that followed from a message, or the original of an edited copy; escape goes back step by
   step.
"""

from __future__ import annotations

from shlex import quote

from textual.app import ComposeResult

from relay_core.messages.delivery import Span, TraceSummary
from relay_core.messages.filter_language import FilterError
from relay_core.messages.ids import is_ulid
from relay_core.text.sanitize import clean
from relay_tui.shell.actions import action
from relay_tui.shell.view import NOTHING_SELECTED, View
from relay_tui.views.traces.feed import TraceFeed
from relay_tui.views.traces.open_trace import OpenTrace, fetch_spans
from relay_tui.views.traces.pane import TracePane
from relay_tui.views.traces.query import SUGGESTIONS
from relay_tui.views.traces.status import DEAD
from relay_tui.views.traces.trace_list import COLUMNS
from relay_tui.widgets.styled_lines import Lines, line
from relay_tui.widgets.table import LiveTable

_OPEN = "-open"


class Traces(View):
    """Messages, newest first, and the conversation of one."""

    NAME = "traces"
    HELP = (
        "What happened to every message. Search (/): an id or its prefix, subject= subject~ from= from~ status= "
        "age<10m. A message opens as its conversation: ░ is waiting, █ is handling, on one time axis. "
        "The list follows the newest until j picks a row, and again after g."
    )

    DEFAULT_CSS = """
    Traces #trace-note { height: 1; }
    Traces #trace-pane { display: none; }
    Traces.-open #trace-messages { display: none; }
    Traces.-open #trace-pane { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._feed = TraceFeed(self)
        self._wanted = 0
        """Counts the traces that were requested, so that a late answer opens nothing."""

    def compose(self) -> ComposeResult:
        yield Lines(id="trace-note")
        yield LiveTable(COLUMNS, id="trace-messages", follows=True)
        yield TracePane("trace-pane")

    # Showing

    @property
    def _messages(self) -> LiveTable:
        return self.query_one("#trace-messages", LiveTable)

    @property
    def _pane(self) -> TracePane:
        return self.query_one(TracePane)

    @property
    def table(self) -> LiveTable:
        """The table that is shown."""
        return self._messages if self._pane.trace is None else self._pane.table

    def _take_focus(self) -> None:
        if self.dashboard.view is self and not self.dashboard.prompt.is_open:
            self.dashboard.focus_widget(self.table)

    def draw(self) -> None:
        feed, note = self._feed, self._pane.note()
        if self._pane.trace is None:
            empty = "no match: esc clears the search" if feed.text else "no messages yet: publish one with 7"
            self._messages.set_rows(feed.list, empty=empty if feed.list.is_begun else "loading…")
            following = self._messages.is_following
            note = feed.list.note(following=following, looking=feed.is_loading_more, search=feed.text)
        else:
            self._pane.draw()
        if feed.problem is not None:
            note = line((f" ✗ {clean(feed.problem)}", "bad"))
        self.query_one("#trace-note", Lines).show([note])
        if feed.is_due:
            feed.refresh(self._refresh())

    async def _refresh(self) -> None:
        trace = self._pane.trace
        if trace is not None:
            spans = await fetch_spans(self.client, trace.message_id)
            if spans and self._pane.trace is trace:
                self._pane.trace = OpenTrace(trace.message_id, spans, trace.root)
        elif await self._feed.load_newest(following=self._messages.is_following):
            self._messages.set_rows(self._feed.list)

    def on_live_table_moved(self) -> None:
        """Show whether the newest messages are still followed."""
        if not self.dashboard.paused:
            self.draw()

    def on_live_table_near_end(self, event: LiveTable.NearEnd) -> None:
        if event.table is self._messages:
            self._feed.load_more()

    def on_live_table_chosen(self, event: LiveTable.Chosen) -> None:
        self.open()

    def move_to_top(self) -> None:
        """Go to the first row; in the list, follow the newest again."""
        if self._pane.trace is not None:
            super().move_to_top()
            return
        self._messages.follow()
        self._feed.refresh_soon()
        self.draw()

    # Opening and going back

    def open_argument(self, argument: str) -> None:
        """Open the trace of a message, or start a search."""
        self._close()
        if is_ulid(argument.strip()):
            self._open_message(argument.strip())
        else:
            self._search(argument)

    def _open_message(self, message_id: str) -> None:
        self._wanted += 1
        self.start(self._open(message_id, self._wanted), doing=f"opening {clean(message_id)}")

    async def _open(self, message_id: str, wanted: int) -> None:
        spans = await fetch_spans(self.client, message_id)
        if wanted != self._wanted:
            return
        if not spans:
            self.dashboard.toast(f"there is no trace of {message_id}: the id is wrong, or the trace has expired")
            return
        self.add_class(_OPEN)
        self._pane.open(OpenTrace(message_id, spans), message_id)
        self._take_focus()
        self.dashboard.draw()

    def _close(self) -> None:
        self._wanted += 1
        self._pane.close()
        self.remove_class(_OPEN)
        self._take_focus()

    @property
    def _message_id(self) -> str | None:
        """The message under the cursor."""
        key = self.table.key
        return key.partition("/")[0] if key is not None else None

    @property
    def _row(self) -> TraceSummary | Span | None:
        """The message or the span under the cursor."""
        return self._feed.list.get(self._message_id) if self._pane.trace is None else self._pane.span

    @action(
        "open", "Open the conversation of the message; there, the part that followed from one", "enter", label="open"
    )
    def open(self) -> None:
        trace, span, message_id = self._pane.trace, self._pane.span, self._message_id
        if message_id is None:
            self.dashboard.toast(NOTHING_SELECTED)
            return
        if trace is None:
            self._open_message(message_id)
        elif trace.waterfall.children(message_id) and trace.root != message_id:
            self._pane.open(trace.part(message_id), message_id)
            self.draw()
        elif span is not None and span.replay_of is not None:
            self._open_message(span.replay_of)
        else:
            self.dashboard.toast("nothing followed from this message")

    @action("back", "Go back from the trace; in the list, clear the search", "escape", label="back")
    def back(self) -> None:
        self._wanted += 1
        if self._pane.step_back():
            self.draw()
        elif self._pane.trace is not None:
            self._close()
            self.draw()
        elif self._feed.text:
            self._search("")

    @action("search", "Search: an id, subject= subject~ from= from~ status= age<10m", "/", label="search")
    def search(self) -> None:

        def typed(text: str | None) -> None:
            if text is not None:
                self._close()
                self._search(text)
            self._take_focus()

        self.dashboard.prompt.open("/", typed, initial=self._feed.text, suggestions=SUGGESTIONS)

    def _search(self, text: str) -> None:
        try:
            self._feed.search(text)
        except FilterError as error:
            self.dashboard.toast(str(error), "warning")
            return
        self._messages.follow()
        self.draw()

    @action("parent", "Go to the parent message", "u", label="parent")
    def go_to_parent(self) -> None:
        trace, row = self._pane.trace, self._row
        parent = row.parent_id if row is not None else None
        if row is None or parent is None:
            self.dashboard.toast(NOTHING_SELECTED if row is None else "this message has no parent")
        elif trace is None:
            self._open_message(parent)
        elif trace.root is not None and trace.waterfall.first(parent) is None:
            self._pane.show(trace.part(None), parent)
            self.draw()
        elif (node := trace.waterfall.first(parent)) is not None:
            self._pane.table.go_to_key(node.key)
        else:
            self.dashboard.toast(f"there is no trace of the parent {parent}")

    @action("to-dead-letter", "Go to its dead letter", "d", label="dead letter")
    async def go_to_dead_letter(self) -> None:
        row = self._row
        if row is not None and row.status not in DEAD:
            self.dashboard.toast("this message is not a dead letter")
        else:
            await self.goto_selected("dead-letters", f"id={row.message_id}" if row is not None else None)

    @action("copy", "Copy the message's id", "y", label="copy id")
    def copy_id(self) -> None:
        self.copy_text(self._message_id, "the message's id")

    @action("copy-command", "Copy the command: relay trace ID", "Y")
    def copy_command(self) -> None:
        self.copy_text(self._message_id and f"relay trace {quote(self._message_id)}", "the command")
