"""Traces: messages as they come, a search among them, and the whole conversation of one as a waterfall.

1. The list follows what is new, with its cursor on no row, until the operator moves in it; then it stands still and
   says how much is newer. `g` follows again.
2. A message opens as the waterfall of its conversation (waterfall.py); the span under the cursor is told in full
   below it. Enter goes into what followed from a message, or to the message that it is an edited copy of; escape
   comes back, step by step.
3. What is on the screen is asked for again every other second at most, and less often the longer an answer takes.
   What cannot be asked is said in the line above; the rows stay.
"""

from __future__ import annotations

from collections.abc import Coroutine
from shlex import quote
from typing import Any

from textual.app import ComposeResult

from relay_core.errors import RelayError
from relay_core.ids import is_ulid
from relay_core.protocol import Traces as TracesPage
from relay_tui.actions import action
from relay_tui.lines import Lines, line
from relay_tui.safe import clean
from relay_tui.table import LiveTable
from relay_tui.view import NOTHING_SELECTED, View
from relay_tui.views.traces.list import COLUMNS, TraceList
from relay_tui.views.traces.open import OpenTrace, ask_trace
from relay_tui.views.traces.pane import TracePane
from relay_tui.views.traces.query import SUGGESTIONS, QueryError, TraceQuery, parse_query
from relay_tui.views.traces.words import DEAD

_PAGE = 100
_AGAIN_SECS = 1.5
_SHARE = 30.0
"""How many times longer than an answer took is waited before the next question."""
_OPEN = "-open"


class Traces(View):
    """Messages, newest first, and the conversation of one."""

    NAME = "traces"
    HELP = (
        "What became of every message. Search (/): an id or its beginning, subject= subject~ from= from~ status= "
        "since=10m. A message opens as its conversation: ░ is waiting, █ is handling, on one axis of time. "
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
        self._list = TraceList(TraceQuery())
        self._text = ""
        """The search as it was typed."""
        self._wanted = 0
        """Counts what was asked to be opened, so that a late answer opens nothing."""
        self._asking: set[str] = set()
        self._due = 0.0
        self._problem: str | None = None

    def compose(self) -> ComposeResult:
        """Lay out the list, and the conversation that takes its place."""
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
        """The table that keys move in: the one that is shown."""
        return self._messages if self._pane.trace is None else self._pane.table

    def _take_focus(self) -> None:
        if self.dashboard.view is self and not self.dashboard.prompt.is_open:
            self.dashboard.desk.set_focus(self.table)

    def draw(self) -> None:
        """Show what is known, and ask for what is new."""
        note = self._pane.note()
        if self._pane.trace is None:
            empty = (
                "nothing found: esc clears the search"
                if self._text
                else "no message has been sent yet: publish one with 7"
            )
            self._messages.set_rows(self._list, empty=empty if self._list.is_begun else "looking…")
            following = self._messages.is_following
            note = self._list.note(following=following, looking="more" in self._asking, search=self._text)
        else:
            self._pane.draw()
        if self._problem is not None:
            note = line((f" ✗ {clean(self._problem)}", "bad"))
        self.query_one("#trace-note", Lines).show([note])
        if self.store.is_live and self.store.clock.monotonic() >= self._due:
            self._ask("new", self._refresh())

    def on_live_table_moved(self) -> None:
        """Say whether what is new is still followed."""
        if not self.dashboard.paused:
            self.draw()

    # Asking

    def _ask(self, what: str, question: Coroutine[Any, Any, None]) -> None:
        """Ask the bus, unless the same is being asked."""
        if what in self._asking:
            question.close()
            return
        self._asking.add(what)
        self.start(self._answered(what, question), doing="asking for traces")

    async def _answered(self, what: str, question: Coroutine[Any, Any, None]) -> None:
        clock = self.store.clock
        asked = clock.monotonic()
        try:
            await question
            self._problem = None
        except RelayError as error:
            self._problem = str(error)
        finally:
            self._asking.discard(what)
            now = clock.monotonic()
            self._due = now + max(_AGAIN_SECS, (now - asked) * _SHARE)
        self.dashboard.draw()

    async def _refresh(self) -> None:
        trace, found = self._pane.trace, self._list
        if trace is not None:
            spans = await ask_trace(self.client, trace.message_id)
            if spans and self._pane.trace is trace:
                self._pane.trace = OpenTrace(trace.message_id, spans, trace.root)
            return
        page = await self._page(found, None)
        if found is not self._list:
            return
        if self._messages.is_following or not found.is_begun:
            is_first = not found.is_begun
            found.follow(page)
            self._messages.set_rows(found)
            if is_first and not page.complete:
                self._ask("more", self._more(found))
        else:
            found.stand_still(page)

    async def _more(self, found: TraceList) -> None:
        """Add the next page, however far back the bus has to look for it."""
        added = 0
        while found is self._list and found.cursor is not None and added < _PAGE:
            added += found.extend(await self._page(found, found.cursor))
            self._messages.set_rows(self._list)

    async def _page(self, found: TraceList, cursor: str | None) -> TracesPage:
        params = found.query.params(self.store.clock.now_ms())
        return await self.client.search_traces(**params, cursor=cursor, limit=_PAGE)

    def on_live_table_reached(self, event: LiveTable.Reached) -> None:
        """Ask for more when the end comes into sight."""
        if event.table is self._messages and self._list.cursor is not None and self.store.is_live:
            self._ask("more", self._more(self._list))

    def on_live_table_chosen(self, event: LiveTable.Chosen) -> None:
        """Open what was double-clicked."""
        self.open()

    def move_to_top(self) -> None:
        """Go to the first row; in the list, follow what is new again."""
        if self._pane.trace is not None:
            super().move_to_top()
            return
        self._messages.follow()
        self._due = 0.0
        self.draw()

    # Going in and out

    def opened(self, argument: str) -> None:
        """Open the trace of a message, or search for a text."""
        self._close()
        if is_ulid(argument.strip()):
            self._open_message(argument.strip())
        else:
            self._search(argument)

    def _open_message(self, message_id: str) -> None:
        self._wanted += 1
        self.start(self._open(message_id, self._wanted), doing=f"opening {clean(message_id)}")

    async def _open(self, message_id: str, wanted: int) -> None:
        spans = await ask_trace(self.client, message_id)
        if wanted != self._wanted:
            return
        if not spans:
            self.dashboard.tell(f"nothing is known of {message_id}: it never was, or it is older than traces are kept")
            return
        self.add_class(_OPEN)
        self._pane.go_into(OpenTrace(message_id, spans), message_id)
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

    @action(
        "open", "Open the message's conversation; in it, go into what followed from a message", "enter", label="open"
    )
    def open(self) -> None:
        """Open what is under the cursor."""
        trace, span, message_id = self._pane.trace, self._pane.span, self._message_id
        if message_id is None:
            self.dashboard.tell(NOTHING_SELECTED)
            return
        if trace is None:
            self._open_message(message_id)
        elif trace.waterfall.children(message_id) and trace.root != message_id:
            self._pane.go_into(trace.part(message_id), message_id)
            self.draw()
        elif span is not None and span.replay_of is not None:
            self._open_message(span.replay_of)
        else:
            self.dashboard.tell("nothing followed from this message")

    @action("back", "Come back from the trace; in the list, forget the search", "escape", label="back")
    def back(self) -> None:
        """Come back, one step."""
        self._wanted += 1
        if self._pane.step_back():
            self.draw()
        elif self._pane.trace is not None:
            self._close()
            self.draw()
        elif self._text:
            self._search("")

    @action("search", "Search: an id, subject= subject~ from= from~ status= since=10m", "/", label="search")
    def search(self) -> None:
        """Let a search be typed."""

        def typed(text: str | None) -> None:
            if text is not None:
                self._close()
                self._search(text)
            self._take_focus()

        self.dashboard.prompt.open("/", typed, initial=self._text, suggestions=SUGGESTIONS)

    def _search(self, text: str) -> None:
        try:
            query = parse_query(text)
        except QueryError as error:
            self.dashboard.tell(str(error), "warning")
            return
        self._text = " ".join(text.split())
        self._list = TraceList(query)
        self._messages.follow()
        self._problem, self._due = None, 0.0
        self._asking.discard("new")  # what is being asked is about another search
        self.draw()

    @action("parent", "Go to the message that this one followed from", "u", label="parent")
    def go_to_parent(self) -> None:
        """Go to the parent."""
        trace, message_id = self._pane.trace, self._message_id
        if message_id is None:
            self.dashboard.tell(NOTHING_SELECTED)
            return
        row = self._list.get(message_id) if trace is None else self._pane.span
        parent = row.parent_id if row is not None else None
        if parent is None:
            self.dashboard.tell("this message has no parent: it came from outside")
        elif trace is None:
            self._open_message(parent)
        elif trace.root is not None and trace.waterfall.first(parent) is None:
            self._pane.look_at(trace.part(None), parent)
            self.draw()
        elif (node := trace.waterfall.first(parent)) is not None:
            self._pane.table.go_to_key(node.key)
        else:
            self.dashboard.tell(f"nothing is known of the parent {parent} any more")

    @action("to-dead-letter", "Go to its dead letter", "d", label="dead letter")
    async def go_to_dead_letter(self) -> None:
        """Go to the dead letter of the message under the cursor."""
        message_id = self._message_id
        if message_id is None:
            self.dashboard.tell(NOTHING_SELECTED)
            return
        row = self._list.get(message_id) if self._pane.trace is None else self._pane.span
        if row is not None and row.status in DEAD:
            await self.dashboard.goto("dead-letters", f"id={message_id}")
        else:
            self.dashboard.tell("this message is no dead letter")

    @action("copy", "Copy the message's id", "y", label="copy id")
    def copy_id(self) -> None:
        """Copy the id."""
        if self._message_id is not None:
            self.dashboard.copy(self._message_id, "the message's id")
        else:
            self.dashboard.tell(NOTHING_SELECTED)

    @action("copy-command", "Copy as a command: relay trace ID", "Y")
    def copy_command(self) -> None:
        """Copy what shows the same in a shell."""
        if self._message_id is not None:
            self.dashboard.copy(f"relay trace {quote(self._message_id)}", "the command")
        else:
            self.dashboard.tell(NOTHING_SELECTED)
