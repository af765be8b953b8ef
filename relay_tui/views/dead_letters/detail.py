"""One dead letter: why it failed, its message, body and trace, and the actions on it.

1. It is shown over the list. An action here applies to this letter: the dialog answers with the name of the action, and
   the view runs it.
2. Another client may replay or purge it meanwhile: its content stays on the screen, and an action reports that it is
   gone.
3. Its keys are those of the list, from the registry: the operator's key file and --read-only apply.
4. A body of a mebibyte is formatted and compared once, in a thread; a resize costs only the visible part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Literal, cast, get_args

from textual import events
from textual.app import ComposeResult

from relay_core.errors import NotFound, RelayError
from relay_core.messages.dead_letter import DeadLetter
from relay_core.messages.delivery import Span
from relay_core.messages.envelope import Envelope
from relay_core.text.sanitize import clean, clean_lines, pretty_json
from relay_core.text.units import ago, clock_time, date_time, format_duration, plural
from relay_tui.shell.actions import key_of
from relay_tui.shell.host import Host
from relay_tui.views.dead_letters.difference import Difference, diff_lines, difference
from relay_tui.views.excerpt import excerpt, excerpt_lines
from relay_tui.views.facts import envelope_facts, instant, wrapped_facts
from relay_tui.views.wrap import chopped
from relay_tui.widgets.dialogs import Dialog
from relay_tui.widgets.styled_lines import BLANK, LAST, Line, Lines, line

Next = Literal["plan", "edit", "purge", "trace", "mailbox", "copy", "copy-command"]
"""The actions of the list that apply to a single letter."""
_MOST_SPANS = 100
_REASON_CHARS = 10_000
_STAGES = {
    "target": "the copy of this target: a replay requeues it there",
    "gate": "no target was reached: a replay publishes it again",
}


class LetterScreen(Dialog[Next | None]):
    """One dead letter; answers with the next action."""

    DEFAULT_CSS = """
    LetterScreen > Vertical { width: 96%; height: 94%; }
    LetterScreen .title { height: 1; }
    LetterScreen Lines { height: 1fr; }
    """

    def __init__(self, host: Host, key: str, title: str, *, originals: dict[str, str]) -> None:
        self._host = host
        super().__init__(title, hint=self._hint_text())
        self._key = key
        self._originals = originals
        """The bodies of edited copies before the edit, by id."""
        self._letter: DeadLetter | None = None
        self._spans: list[Span] = []
        self._body: list[str] = []
        self._difference: Difference | None = None
        self._problem: str | None = None

    def content(self) -> ComposeResult:
        yield Lines([line(("loading …", "dim"))])

    def _hint_text(self) -> str:
        actions = {action.name: action for action in reversed(self._host.registry.of("dead-letters"))}
        keys = {name: action.key for name, action in actions.items() if action.key}
        moves = [keys[name] for name in ("down", "up") if name in keys]
        parts = [f"{' '.join(moves)}: move"] if moves else []
        parts += [f"{keys[name]} {name}" for name in get_args(Next)[:-1] if name in keys]  # no space for the last
        return " · ".join([*parts, "esc close"])

    def on_mount(self) -> None:
        self._host.tasks.start(self._load(), doing="loading the dead letter")

    async def _load(self) -> None:
        client = self._host.store.client
        message_id, _, endpoint = self._key.partition("/")
        try:
            self._letter = await client.dead_letter(message_id, endpoint=endpoint)
        except NotFound:
            self._problem = "it is no longer a dead letter: it was replayed or purged meanwhile"
        except RelayError as error:
            self._problem = str(error)
        else:
            if self._letter.envelope is not None:
                await self._format(self._letter.envelope)
        self._show()
        if self._letter is not None:
            self._spans = await client.trace(message_id)
            self._show()

    async def _format(self, envelope: Envelope) -> None:
        self._body = await asyncio.to_thread(excerpt, envelope.payload)
        if (before := self._originals.get(envelope.id)) is not None:
            after = await asyncio.to_thread(pretty_json, envelope.payload)
            self._difference = await asyncio.to_thread(difference, before, after)

    def _show(self) -> None:
        if self.is_mounted and self.is_attached:
            self.query_one(Lines).show(self._lines(max(self.query_one(Lines).size.width, 20)))

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def _lines(self, width: int) -> Iterator[Line]:
        if self._letter is None:
            yield line((self._problem or "loading …", "warn" if self._problem else "dim"))
            return
        letter, now = self._letter, self._host.store.now_ms()
        failed = instant(letter.failed_at)
        yield line(("Why it failed  ", "title"), (clean(letter.code), "warn"), (f"  {ago(failed, now)}", "dim"))
        yield from reason_lines(letter.reason, width)
        yield BLANK
        yield line(("Message", "title"))
        yield from wrapped_facts(_facts(letter, now), width)
        yield from self._edit_lines(letter.envelope, width)
        yield BLANK
        yield line(("Body", "title"))
        if letter.envelope is None:
            yield line(("  the file was not a valid message; its bytes are beside the record in the mailbox", "warn"))
        else:
            yield from excerpt_lines(self._body, width)
        if self._spans:
            yield BLANK
            yield line(("Trace  ", "title"), (plural(len(self._spans), "target"), "dim"))
            yield from _span_lines(self._spans[:_MOST_SPANS])

    def _edit_lines(self, envelope: Envelope | None, width: int) -> Iterable[Line]:
        if envelope is None or envelope.replay_of is None:
            return
        yield BLANK
        yield line(("Edited  ", "title"), (f"a copy of {clean(envelope.replay_of)}, which it replaced", "dim"))
        if self._difference is None:
            yield line(("  it was not edited in this dashboard: the original body is not kept", "dim"))
        else:
            yield from diff_lines(self._difference, width)

    def take_key(self, event: events.Key) -> None:
        """Move, close, or answer with an action."""
        event.stop()
        lines = self.query_one(Lines)
        page = max(lines.size.height - 1, 1)
        key = key_of(event)
        action = self._host.registry.by_key("dead-letters", key)
        name = action.name if action is not None else ""
        moves = {"down": 1, "up": -1, "page-down": page, "page-up": -page}
        if name in get_args(Next):
            self.dismiss(cast(Next, name))
        elif name in moves:
            lines.move(moves[name])
        elif name in ("top", "bottom"):
            lines.go_to(0 if name == "top" else LAST)
        elif key in ("escape", "q", "enter"):
            self.dismiss(None)
        elif key == "space":
            lines.move(page)


def _facts(letter: DeadLetter, now: int) -> Iterator[tuple[str, str]]:
    yield "id", letter.message_id
    if letter.envelope is not None:
        yield from envelope_facts(letter.envelope, now)
    replays = "never replayed" if not letter.replays else f"replayed {plural(letter.replays, 'time')}"
    yield "failed", f"{date_time(instant(letter.failed_at))}Z, {replays}"
    yield "mailbox", f"{letter.endpoint_hash}, {_STAGES[letter.stage]}"
    if letter.partial:
        yield "partial", "other targets received the message: this is the failed target's copy"


def reason_lines(reason: str, width: int) -> list[Line]:
    """Return a reason or a stack trace, bounded, in lines that fit the width."""
    text = reason if len(reason) <= _REASON_CHARS else reason[:_REASON_CHARS] + "…"
    return [line((f"  {part}", "bad")) for row in clean_lines(text, 60, 2000) for part in chopped(row, width - 2)]


def _span_lines(spans: Iterable[Span]) -> Iterator[Line]:
    for span in spans:
        style = {"done": "ok", "failed": "bad", "no_subscriber": "bad"}.get(span.status, "")
        took = (span.handled_at or span.stored_at or span.sent_at) - span.sent_at
        yield line(
            (f"  {clock_time(span.sent_at, millis=True)} ", "dim"),
            (f"{clean(span.status, 14):14} ", style),
            clean(span.target_subject or span.target, 60),
            (f"  after {format_duration(took / 1000)}", "dim"),
        )
