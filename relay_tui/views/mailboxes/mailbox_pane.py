"""An open mailbox: its oldest waiting messages, and the message under the cursor.

1. Peeking claims no message.
2. The messages are loaded again when the mailbox has changed, one request at a time and at most one a second. The
   cursor stays on its message while that is waiting.
"""

from __future__ import annotations

import asyncio

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical

from relay_core.messages.envelope import Envelope
from relay_core.protocol.live_state import LiveMailbox
from relay_core.text.sanitize import clean
from relay_core.text.units import ago, number, plural
from relay_tui.live.store import Store
from relay_tui.shell.host import host_of
from relay_tui.views.excerpt import excerpt, excerpt_lines
from relay_tui.views.mailboxes.mail import COLUMNS, PEEKED, Mail, mail_by_id, mail_rows, message_lines
from relay_tui.views.states import mailbox_state
from relay_tui.widgets.styled_lines import Line, Lines, line
from relay_tui.widgets.table import LiveTable

_REFRESH_SECS = 1.0


class MessagePane(Lines, can_focus=True):
    """The message under the cursor; it can be focused and scrolled."""

    def on_focus(self, event: events.Focus) -> None:
        self.show([_message_title(focused=True), *self.lines[1:]])

    def on_blur(self, event: events.Blur) -> None:
        self.show([_message_title(focused=False), *self.lines[1:]])


class MailboxPane(Vertical):
    """The messages of one mailbox."""

    DEFAULT_CSS = """
    MailboxPane { display: none; }
    MailboxPane #mailbox-title { height: 2; }
    MailboxPane LiveTable { height: 2fr; }
    MailboxPane MessagePane { height: 3fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.key: str | None = None
        """The hash of the open mailbox."""
        self._mail: dict[str, Mail] = {}
        self._is_loaded = False
        self._loaded_for: LiveMailbox | None = None
        self._loaded_at = 0.0
        self._is_loading = False
        self._body: list[Line] = []
        self._body_of: tuple[str, int] = ("", 0)

    def compose(self) -> ComposeResult:
        yield Lines(id="mailbox-title")
        yield LiveTable(COLUMNS, id="mail")
        yield MessagePane()

    @property
    def message(self) -> Envelope | None:
        """The message under the cursor."""
        mail = self._mail.get(self.query_one(LiveTable).key or "")
        return mail.envelope if mail is not None else None

    @property
    def _store(self) -> Store:
        return host_of(self.app).store

    def open(self, key: str) -> None:
        """Open a mailbox."""
        self.key = key
        self._mail, self._loaded_for, self._is_loaded = {}, None, False
        self.query_one(LiveTable).set_rows([])
        self.query_one(MessagePane).show([])
        self.display = True
        self.query_one(LiveTable).focus()

    def close(self) -> None:
        """Close the mailbox."""
        self.key = None
        self.display = False

    def draw(self) -> None:
        """Draw the mailbox, and load its messages again if it has changed."""
        store = self._store
        box = store.state.mailboxes.get(self.key or "")
        self.query_one("#mailbox-title", Lines).show(_title(box, store))
        if box is None:
            return
        now = store.clock.monotonic()
        is_due = self._loaded_for is None or now - self._loaded_at >= _REFRESH_SECS
        if box is not self._loaded_for and not self._is_loading and is_due:
            self._loaded_for, self._loaded_at, self._is_loading = box, now, True
            host_of(self.app).tasks.start(self._load(box.subject), doing=f"loading {clean(box.subject)}")
        self._show()

    async def _load(self, subject: str) -> None:
        key = self.key
        try:
            messages = await self._store.client.inbox(subject, PEEKED)
        finally:
            self._is_loading = False
        mail = await asyncio.to_thread(mail_by_id, messages)  # 50 bodies of a mebibyte each
        if key == self.key:
            self._mail, self._is_loaded = mail, True
            self._show()

    def _show(self) -> None:
        rows = mail_rows(self._mail.values(), self._store.now_ms())
        self.query_one(LiveTable).set_rows(rows, empty="no messages are waiting" if self._is_loaded else "loading …")
        self.show_message()

    def show_message(self) -> None:
        """Show the message under the cursor."""
        pane, message = self.query_one(MessagePane), self.message
        if message is None:
            pane.show([])
            return
        width = pane.content_size.width
        if self._body_of != (message.id, width):
            self._body_of, self._body = (message.id, width), excerpt_lines(excerpt(message.payload), width)
            pane.go_to(0)
        title = _message_title(focused=pane.has_focus)
        pane.show([title, *message_lines(message, self._store.now_ms(), self._body, width)])


def _message_title(*, focused: bool) -> Line:
    hint = " j k scroll it" if focused else " tab to scroll it"
    return line(("▶ " if focused else "  ", "mark"), ("Message", "title"), (hint, "dim"))


def _title(box: LiveMailbox | None, store: Store) -> list[Line]:
    if box is None:
        return [line((" this mailbox is gone; esc goes back", "warn"))]
    facts = [
        f"{number(box.depth)} waiting",
        f"oldest {ago(box.oldest_at, store.now_ms())}" if box.oldest_at is not None else "",
        f"{box.claimed} claimed",
        f"{number(box.failed)} failed",
        plural(box.consumers, "consumer"),
        box.kind,
        "" if box.registered else "not registered",
    ]
    word, style = mailbox_state(box, store.warning_at)
    cut = f"  showing the oldest {PEEKED}" if box.depth > PEEKED else ""
    head = line((f" {clean(box.subject)}", "title"), (f"  {word}", style), (cut, "dim"))
    return [head, line((" " + " · ".join(filter(None, facts)), "dim"), (f"  {clean(box.degraded or '')}", "bad"))]
