"""One dead letter to read: why it failed, what it says, where it was, and what can be done with it from here.

1. It is shown over the list, which stays as it is. What is done from here is done with this very letter: the screen
   answers with the word for it, and the view does it.
2. It may be replayed or purged by others while it is read: what was read stays, and acting on it says so.
3. Its keys are those of the list (the registry's, so the operator's own file holds here too, and --read-only).
4. A body of a mebibyte is written and compared once, beside the loop; each size of the screen costs what is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Literal, cast, get_args

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from relay_core.deadletters import DeadLetter
from relay_core.delivery import Span
from relay_core.envelope import Envelope
from relay_core.errors import NotFound, RelayError
from relay_tui.actions import key_of
from relay_tui.dialogs import Dialog
from relay_tui.lines import BLANK, Line, Lines, line
from relay_tui.safe import clean, pretty_json
from relay_tui.views.dead_letters.text import (
    Difference,
    body_lines,
    diff_lines,
    difference,
    error_lines,
    instant,
)
from relay_tui.views.excerpt import excerpt
from relay_tui.views.wrap import chopped
from relay_tui.words import ago, ahead, clock_time, date_time, lasting, plural

Next = Literal["plan", "edit", "purge", "trace", "mailbox", "copy", "copy-command"]
"""The names of the list's actions that are there for one letter too."""
_MOST_SPANS = 100
_STAGES = {
    "target": "its own copy: a replay goes back to it",
    "gate": "never reached: a replay goes to its subject",
}


class LetterScreen(Dialog[Next | None]):
    """One dead letter; answers with what is to be done with it."""

    DEFAULT_CSS = """
    LetterScreen > Vertical { width: 96%; height: 94%; }
    LetterScreen .title { height: 1; }
    LetterScreen Lines { height: 1fr; }
    """

    def __init__(self, key: str, title: str, *, before_edit: dict[str, str]) -> None:
        super().__init__()
        self._key = key
        self._title = title
        self._before_edit = before_edit
        """What edited copies said before, by their ids."""
        self._letter: DeadLetter | None = None
        self._spans: list[Span] = []
        self._body: list[str] = []
        self._difference: Difference | None = None
        self._problem: str | None = None

    def compose(self) -> ComposeResult:
        """Lay out the letter."""
        with Vertical():
            yield Static(self._title, classes="title", markup=False)
            yield Lines([line(("reading …", "dim"))])
            yield Static(self._hint(), classes="hint", markup=False)

    def _hint(self) -> str:
        here = {one.name: one for one in reversed(self.dashboard.registry.of("dead-letters"))}
        moves = [one.key for name in ("down", "up") if (one := here.get(name)) is not None and one.key]
        parts = [f"{' '.join(moves)}: move"] if moves else []
        shown = get_args(Next)[:-1]  # the last is for those who know it
        parts += [f"{one.key} {name}" for name in shown if (one := here.get(name)) is not None and one.key]
        return " · ".join([*parts, "esc close"])

    def on_mount(self) -> None:
        """Ask for the letter."""
        self.dashboard.start(self._read(), doing="reading the dead letter")

    async def _read(self) -> None:
        client = self.dashboard.store.client
        message_id, _, endpoint = self._key.partition("/")
        try:
            self._letter = await client.dead_letter(message_id, endpoint=endpoint)
        except NotFound:
            self._problem = "it is no dead letter any more: it was replayed or purged meanwhile"
        except RelayError as error:
            self._problem = str(error)
        else:
            if self._letter.envelope is not None:
                await self._write_out(self._letter.envelope)
        self._show()
        if self._letter is not None:
            self._spans = await client.trace(message_id)
            self._show()

    async def _write_out(self, envelope: Envelope) -> None:
        self._body = await asyncio.to_thread(excerpt, envelope.payload)
        if (before := self._before_edit.get(envelope.id)) is not None:
            after = await asyncio.to_thread(pretty_json, envelope.payload)
            self._difference = await asyncio.to_thread(difference, before, after)

    def _show(self) -> None:
        if self.is_mounted and self.is_attached:
            self.query_one(Lines).show(self._lines(max(self.query_one(Lines).size.width, 20)))

    def on_resize(self) -> None:
        """Break the lines anew."""
        self.call_after_refresh(self._show)

    def _lines(self, width: int) -> Iterator[Line]:
        if self._letter is None:
            yield line((self._problem or "reading …", "warn" if self._problem else "dim"))
            return
        letter, now = self._letter, self.dashboard.store.now_ms()
        failed = instant(letter.failed_at)
        yield line(("Why it failed  ", "title"), (clean(letter.code), "warn"), (f"  {ago(failed, now)}", "dim"))
        yield from error_lines(letter.reason, width)
        yield BLANK
        yield line(("Message", "title"))
        for name, text in _facts(letter, now):
            for at, part in enumerate(chopped(clean(text, 2000), max(width - 12, 10))):
                yield line((f"  {name if at == 0 else '':9} ", "dim"), part)
        yield from self._edit_lines(letter.envelope, width)
        yield BLANK
        yield line(("Body", "title"))
        if letter.envelope is None:
            yield line(("  the file was no message; its bytes lie beside the record in the mailbox", "warn"))
        else:
            yield from body_lines(self._body, width)
        if self._spans:
            yield BLANK
            yield line(("Trace  ", "title"), (plural(len(self._spans), "target"), "dim"))
            yield from _span_lines(self._spans[:_MOST_SPANS])

    def _edit_lines(self, envelope: Envelope | None, width: int) -> Iterable[Line]:
        if envelope is None or envelope.replay_of is None:
            return
        yield BLANK
        yield line(("Edited  ", "title"), (f"a copy of {clean(envelope.replay_of)}, which it has replaced", "dim"))
        if self._difference is None:
            yield line(("  it was not edited in this dashboard: what it said before is not kept", "dim"))
        else:
            yield from diff_lines(self._difference, width)

    def on_key(self, event: events.Key) -> None:
        """Move, close, or do something with it."""
        event.stop()
        lines = self.query_one(Lines)
        page = max(lines.size.height - 1, 1)
        key = key_of(event)
        found = self.dashboard.registry.by_key("dead-letters", key)
        name = found.name if found is not None else ""
        moves = {"down": 1, "up": -1, "page-down": page, "page-up": -page}
        if name in get_args(Next):
            self.dismiss(cast(Next, name))
        elif name in moves:
            lines.scroll_lines(moves[name])
        elif name in ("top", "bottom"):
            lines.scroll_to_line(0 if name == "top" else 1 << 60)
        elif key in ("escape", "q", "enter"):
            self.dismiss(None)
        elif key == "space":
            lines.scroll_lines(page)


def _facts(letter: DeadLetter, now: int) -> Iterator[tuple[str, str]]:
    envelope = letter.envelope
    yield "id", letter.message_id
    if envelope is not None:
        budget, created = envelope.budget, instant(envelope.created_at)
        yield "from", envelope.sender
        yield "to", envelope.subject
        yield "reply to", envelope.reply_to or "nobody"
        late = "expired" if budget.ttl <= now else f"expires {ahead(budget.ttl, now)}"
        yield "created", f"{date_time(created)}Z, {ago(created, now)}; {late}"
        calls = plural(budget.call_budget_remaining, "call")
        chain = f"; came by {' → '.join(budget.ancestor_chain)}" if budget.ancestor_chain else ""
        yield "budget", f"hop {budget.hop_count} of {budget.max_hops}, {calls} left{chain}"
        if envelope.parent_id is not None:
            yield "followed", envelope.parent_id
    replays = "never replayed" if not letter.replays else f"replayed {plural(letter.replays, 'time')}"
    yield "failed", f"{date_time(instant(letter.failed_at))}Z, {replays}"
    yield "mailbox", f"{letter.endpoint_hash}, {_STAGES[letter.stage]}"
    if letter.partial:
        yield "partial", "other targets took the message: this is the failed target's copy"


def _span_lines(spans: Iterable[Span]) -> Iterator[Line]:
    for span in spans:
        style = {"done": "ok", "failed": "bad", "no_subscriber": "bad"}.get(span.status, "")
        took = (span.handled_at or span.stored_at or span.sent_at) - span.sent_at
        yield line(
            (f"  {clock_time(span.sent_at, millis=True)} ", "dim"),
            (f"{clean(span.status, 14):14} ", style),
            clean(span.target_subject or span.target, 60),
            (f"  after {lasting(took / 1000)}", "dim"),
        )
