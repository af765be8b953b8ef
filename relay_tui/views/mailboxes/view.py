"""Mailboxes and senders: depth, age and pressure, rate limits, and the messages of an open mailbox (mailbox_pane.py).

Ten thousand mailboxes cost no more than the visible ones and one sort a second (ranking.py).
"""

from __future__ import annotations

import shlex

from textual.app import ComposeResult
from textual.containers import Vertical

from relay_core.messages.delivery import TargetKind
from relay_core.protocol.live_state import LiveMailbox, LiveSender
from relay_core.text.sanitize import clean
from relay_core.text.units import plural
from relay_tui.shell.actions import action
from relay_tui.shell.view import View
from relay_tui.views.mailboxes.mailbox_pane import MailboxPane
from relay_tui.views.mailboxes.ranking import Ranking
from relay_tui.views.mailboxes.rows import BOX_COLUMNS, SENDER_COLUMNS, SORTS, box_row, by_count, sender_row
from relay_tui.widgets.dialogs import Ask
from relay_tui.widgets.styled_lines import Line, Lines, line
from relay_tui.widgets.table import LiveTable


class Mailboxes(View):
    """All mailboxes, and all senders of the current rate window."""

    NAME = "mailboxes"
    HELP = (
        "EMPTY IN is estimated from the last half minute. Enter peeks at the waiting messages of a mailbox without "
        "claiming any. Senders are sorted by messages; RESETS is when the next message is accepted."
    )
    DEFAULT_CSS = """
    #boxes-title, #senders-title { height: 1; }
    Mailboxes #boxes { height: 2fr; }
    Mailboxes #senders { height: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._sort = "pressure"
        self._part = ""
        self._awaited: str | None = None
        """A mailbox that was just registered: the cursor goes there."""
        self._senders_shown: tuple[object, ...] = ()
        self._boxes = Ranking[LiveMailbox](lambda _, box: box.subject, lambda key: box_row(self.store, key))
        self._senders = Ranking[LiveSender](lambda name, _: name, lambda name: sender_row(self.store, name))

    def compose(self) -> ComposeResult:
        with Vertical(id="mailbox-lists"):
            yield Lines(id="boxes-title")
            yield LiveTable(BOX_COLUMNS, id="boxes")
            yield Lines(id="senders-title")
            yield LiveTable(SENDER_COLUMNS, id="senders", empty="no sender in the current window")
        yield MailboxPane()

    @property
    def _pane(self) -> MailboxPane:
        return self.query_one(MailboxPane)

    @property
    def _box_table(self) -> LiveTable:
        return self.query_one("#boxes", LiveTable)

    @property
    def _sender_table(self) -> LiveTable:
        return self.query_one("#senders", LiveTable)

    @property
    def table(self) -> LiveTable | None:
        """The table in which keys move."""
        focused = self.app.focused
        if isinstance(focused, LiveTable) and focused.display and self in focused.ancestors:
            return focused
        return self._pane.query_one(LiveTable) if self._pane.key is not None else self._box_table

    def draw(self) -> None:
        if self._pane.key is not None:
            self._pane.draw()
            return
        state = self.store.state
        now = self.store.clock.monotonic()
        boxes = self._boxes.rows(state.mailboxes, SORTS[self._sort], self._part, now)
        empty = "no endpoint is registered yet: N registers one"
        if self._part:
            empty = f"no subject contains {clean(self._part)!r}: esc shows all"
        self._box_table.set_rows(boxes, empty=empty)
        shown = (state.at // 1000, self._part, len(state.senders))
        if shown != self._senders_shown:  # counts change all the time: once a second is enough
            self._senders_shown = shown
            self._sender_table.set_rows(self._senders.rows(state.senders, by_count, self._part, now))
        self.query_one("#boxes-title", Lines).show([self._boxes_title(len(boxes))])
        senders_title = line((" Senders ", "title"), (f" {len(state.senders):,}, by messages", "dim"))
        self.query_one("#senders-title", Lines).show([senders_title])
        if self._awaited is not None and self._box_table.go_to_key(self._awaited):
            self._awaited = None

    def on_live_table_moved(self, event: LiveTable.Moved) -> None:
        if event.table.id == "mail" and type(event) is LiveTable.Moved:
            self._pane.show_message()

    def on_live_table_chosen(self, event: LiveTable.Chosen) -> None:
        self.open_mailbox()

    def open_argument(self, argument: str) -> None:
        """Go to a mailbox, by hash or subject, or to a sender: ``sender:NAME``."""
        self._close_pane()
        self._part = ""
        self.draw()
        kind, _, name = argument.partition(":")
        if kind == "sender":
            self._sender_table.go_to_key(name)
            self._sender_table.focus()
            return
        self._box_table.focus()
        subjects = {box.subject: key for key, box in self.store.state.mailboxes.items()}
        self._box_table.go_to_key(subjects.get(argument, argument))

    def _boxes_title(self, shown: int) -> Line:
        total = len(self.store.state.mailboxes)
        count = f"{shown:,} of {total:,}" if self._part else f"{total:,}"
        part = f"  /{clean(self._part)}" if self._part else ""
        return line((" Mailboxes ", "title"), (f" {count}, by {self._sort}", "dim"), (part, "accent"))

    # Actions

    @action("open", "Peek at the waiting messages of the mailbox", "enter", label="open")
    def open_mailbox(self) -> None:
        key = self._box_table.key
        if self._pane.key is None and self.table is self._box_table and key is not None:
            self.query_one("#mailbox-lists").display = False
            self._pane.open(key)
            self.draw()

    @action("back", "Close the mailbox, or clear the filter", "escape", label="back")
    def back(self) -> None:
        if self._pane.key is not None:
            self._close_pane()
            self._box_table.focus()
        else:
            self._part = ""
        self.draw()

    def _close_pane(self) -> None:
        self._pane.close()
        self.query_one("#mailbox-lists").display = True

    @action("sort", "Sort by pressure, depth, oldest or name", "o", label="sort", argument="[by]")
    def sort(self, by: str | None = None) -> None:
        names = list(SORTS)
        if by is not None and by not in names:
            self.dashboard.toast(f"there is no sort order {by}: {', '.join(names)}", "warning")
            return
        self._sort = by or names[(names.index(self._sort) + 1) % len(names)]
        self.draw()

    @action("filter", "Filter by a part of the subject", "/", label="filter")
    def filter(self) -> None:
        before = self._part
        table = self.table

        def done(text: str | None) -> None:
            self._filter_by(before if text is None else text)
            if table is not None:
                table.focus()

        if self._pane.key is None:
            self.dashboard.prompt.open("/", done, initial=before, typed=self._filter_by)

    def _filter_by(self, part: str) -> None:
        self._part = part.strip()
        self.draw()

    @action("trace", "Go to the trace of the message", "t", label="trace")
    async def trace(self) -> None:
        await self.goto_selected("traces", self._message_id)

    @action("copy", "Copy the message's id, or the subject", "y")
    def copy(self) -> None:
        if self._pane.key is not None:
            self.copy_text(self._message_id, "the id")
        else:
            self.copy_text(self._subject(), "the subject")

    @action("copy-command", "Copy the command that shows it", "Y")
    def copy_command(self) -> None:
        command: str | None = "relay senders"
        if self._pane.key is not None:
            command = self._message_id and f"relay trace {shlex.quote(self._message_id)}"
        elif self.table is not self._sender_table:
            subject = self._subject()
            command = subject and f"relay inbox {shlex.quote(subject)}"
        self.copy_text(command, "the command")

    @property
    def _message_id(self) -> str | None:
        """The message under the cursor of the open mailbox."""
        message = self._pane.message if self._pane.key is not None else None
        return message.id if message is not None else None

    def _subject(self) -> str | None:
        """Return the sender or the mailbox's subject under the cursor."""
        if self.table is self._sender_table:
            return self._sender_table.key
        box = self._box()
        return box.subject if box is not None else None

    def _box(self) -> LiveMailbox | None:
        """Return the open mailbox, or the one under the cursor."""
        return self.store.state.mailboxes.get(self._pane.key or self._box_table.key or "")

    @action("register", "Register an endpoint", "N", changes=True, label="register")
    async def register(self) -> None:
        subject = await self.app.push_screen_wait(
            Ask("Register an endpoint", ["It gets a durable mailbox. Which subject?"])
        )
        if subject is not None:
            endpoint = await self.store.act(self.client.register_endpoint(subject))
            self._awaited = endpoint.hash
            self.dashboard.toast(f"{clean(endpoint.subject)} is registered")
            self.draw()

    @action("unregister", "Unregister the endpoint; its messages stay", "U", changes=True, label="unregister")
    async def unregister(self) -> None:
        box = self._box() if self.table is not self._sender_table else None
        if box is None:
            return
        name = clean(box.subject)
        if not box.registered or box.kind != TargetKind.ENDPOINT:
            self.dashboard.toast(f"{name} is not a registered endpoint", "warning")
            return
        stays = f"{plural(box.depth, 'message')} and {plural(box.failed, 'dead letter')} in it stay on disk."
        if await self.confirm(f"Unregister {name}?", ["No more messages are routed to it.", stays], word="unregister"):
            await self.store.act(self.client.unregister_endpoint(box.subject))
            self.dashboard.toast(f"{name} is unregistered; its messages stay")
