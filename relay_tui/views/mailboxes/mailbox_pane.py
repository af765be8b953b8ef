"""A mailbox that is open: the mail that waits in it, and the message under the cursor.

1. Looking takes nothing: no message is claimed. At most 50 are asked for, the oldest.
2. What is shown follows the mailbox: it is asked for again when the mailbox has changed, one question at a time, at
   most once a second. The cursor stays on its message for as long as that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical

from relay_core.messages.envelope import Envelope
from relay_core.protocol.live_state import LiveMailbox
from relay_core.text.sanitize import clean
from relay_core.text.units import ago, number, plural
from relay_tui.live.store import Store
from relay_tui.views.mailboxes.mail import COLUMNS, PEEKED, Mail, body_lines, mail_of, mail_rows, message_lines
from relay_tui.views.states import mailbox_state
from relay_tui.widgets.styled_lines import Line, Lines, line
from relay_tui.widgets.table import LiveTable

_CALM_SECS = 1.0


class StartTask(Protocol):
    """How work that waits is begun."""

    def __call__(self, work: Coroutine[Any, Any, None], *, doing: str) -> None:
        """Begin it."""


class MessagePane(Lines, can_focus=True):
    """The message under the cursor; with the focus it can be scrolled."""

    def on_focus(self, event: events.Focus) -> None:
        self.show([_message_title(focused=True), *self.lines[1:]])

    def on_blur(self, event: events.Blur) -> None:
        self.show([_message_title(focused=False), *self.lines[1:]])


class MailboxPane(Vertical):
    """The mail of one mailbox."""

    DEFAULT_CSS = """
    MailboxPane { display: none; }
    MailboxPane #mailbox-title { height: 2; }
    MailboxPane LiveTable { height: 2fr; }
    MailboxPane MessagePane { height: 3fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.key: str | None = None
        """The hash of the mailbox that is open."""
        self._mail: dict[str, Mail] = {}
        self._answered = False
        self._seen: LiveMailbox | None = None
        self._asked_at = 0.0
        self._asking = False
        self._body: list[str] = []
        self._body_of: tuple[str, int] = ("", 0)

    def compose(self) -> ComposeResult:
        yield Lines(id="mailbox-title")
        yield LiveTable(COLUMNS, id="mail")
        yield MessagePane()

    @property
    def message(self) -> Envelope | None:
        """The message under the cursor."""
        found = self._mail.get(self.query_one(LiveTable).key or "")
        return found.envelope if found is not None else None

    def open(self, key: str) -> None:
        """Look into a mailbox."""
        self.key = key
        self._mail, self._seen, self._answered = {}, None, False
        self.query_one(LiveTable).set_rows([])
        self.query_one(MessagePane).show([])
        self.display = True
        self.query_one(LiveTable).focus()

    def close(self) -> None:
        """Look at no mailbox any more."""
        self.key = None
        self.display = False

    def draw(self, store: Store, start: StartTask) -> None:
        box = store.state.mailboxes.get(self.key or "")
        self.query_one("#mailbox-title", Lines).show(_title(box, store))
        if box is None:
            return
        now = store.clock.monotonic()
        if box is not self._seen and not self._asking and (self._seen is None or now - self._asked_at >= _CALM_SECS):
            self._seen, self._asked_at, self._asking = box, now, True
            start(self._ask(store, box.subject), doing=f"look into {clean(box.subject)}")
        self._show(store)

    async def _ask(self, store: Store, subject: str) -> None:
        key = self.key
        try:
            found = await store.client.inbox(subject, PEEKED)
        finally:
            self._asking = False
        mail = await asyncio.to_thread(_seen, found)  # 50 bodies of a mebibyte each
        if key == self.key:
            self._mail, self._answered = mail, True
            self._show(store)

    def _show(self, store: Store) -> None:
        rows = mail_rows(self._mail.values(), store.now_ms())
        self.query_one(LiveTable).set_rows(rows, empty="no mail waits here" if self._answered else "looking …")
        self.show_message(store)

    def show_message(self, store: Store) -> None:
        """Show the message under the cursor."""
        shown = self.query_one(MessagePane)
        message = self.message
        if message is None:
            shown.show([])
            return
        width = shown.content_size.width
        if self._body_of != (message.id, width):
            self._body_of, self._body = (message.id, width), body_lines(message, width)
            shown.go_to(0)
        title = _message_title(focused=shown.has_focus)
        shown.show([title, *message_lines(message, store.now_ms(), self._body)])


def _seen(found: Sequence[Envelope]) -> dict[str, Mail]:
    return {one.id: mail_of(one) for one in found}


def _message_title(*, focused: bool) -> Line:
    hint = " j k scroll it" if focused else " tab to scroll it"
    return line(("▶ " if focused else "  ", "mark"), ("Message", "title"), (hint, "dim"))


def _title(box: LiveMailbox | None, store: Store) -> list[Line]:
    if box is None:
        return [line((" this mailbox is gone; esc leads back", "warn"))]
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
    cut = f"  the oldest {PEEKED} are shown" if box.depth > PEEKED else ""
    head = line((f" {clean(box.subject)}", "title"), (f"  {word}", style), (cut, "dim"))
    return [head, line((" " + " · ".join(filter(None, facts)), "dim"), (f"  {clean(box.degraded or '')}", "bad"))]
