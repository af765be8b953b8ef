"""Publish: a message is written, checked while it is typed, sent, and what became of it is explained.

1. While a field has the focus its keys are its own; what is bound to ctrl or a function key works there too. Escape
   leaves the field, and the dashboard's keys work again.
2. The draft is what the fields hold: it survives other screens, lost connections and failed sends. A send whose outcome
   is unknown is repeated under the same dedupe id, so that the message goes out once.
3. Bodies come into the editor as `pretty_json` only, wherever they are from: it is safe, and loses nothing.
4. What is sent is the draft as it was when the key was pressed.
"""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.widget import Widget
from textual.widgets import Input, Static

from relay_core.clock import iso
from relay_core.errors import RelayError, SupervisorUnavailable
from relay_core.subjects import is_pattern
from relay_tui.actions import action
from relay_tui.dialogs import Confirm
from relay_tui.lines import BLANK, Line, Lines, line
from relay_tui.safe import clean, pretty_json
from relay_tui.view import View
from relay_tui.views.publish.choose import Choose
from relay_tui.views.publish.draft import Checked, Draft, DraftError, budget_of, check_body, check_names
from relay_tui.views.publish.known import Known, known_names, known_subjects, receivers
from relay_tui.views.publish.outcome import Outcome, explain
from relay_tui.views.publish.shelf import (
    Shelved,
    history_path,
    read_history,
    read_templates,
    remember,
    templates_path,
)
from relay_tui.views.wrap import wrapped
from relay_tui.words import plural

if TYPE_CHECKING:
    from textual.widgets import TextArea

_LABELS = {
    "subject": "to",
    "sender": "from",
    "reply_to": "reply to",
    "max_hops": "max hops",
    "calls": "calls",
    "ttl": "TTL",
}
_HINTS = {
    "subject": "e.g. relay.agent.backend",
    "sender": "e.g. relay.human.operator",
    "reply_to": "nobody",
    "max_hops": "the bus's",
    "calls": "the bus's",
    "ttl": "like 10m",
}
_WIDE = 100
_SENDER = "relay.human.operator"
_AGAIN_SECS = 0.5
_LEARN_SECS = 60.0
_MOST_BYTES = 1 << 20


class Publish(View):
    """A message to write, and what became of the last one."""

    NAME = "publish"
    HELP = (
        "Write a message and send it with ctrl+s. Fields keep the keys that are typed in them: esc leaves a field. "
        "The body is JSON; f2 sends it as plain text instead. ctrl+t: templates, ctrl+r: what was published before."
    )

    DEFAULT_CSS = """
    Publish Horizontal { height: 1; }
    Publish .label { width: 10; color: $text-muted; padding: 0 1 0 1; }
    Publish Input { border: none; height: 1; padding: 0 1; width: 1fr; background: $panel; }
    Publish Input:focus { border: none; background: $accent 25%; }
    Publish #publish-known { height: 1; }
    Publish #publish-check { height: 1; }
    Publish #publish-parts { height: 1fr; layout: vertical; }
    Publish #publish-parts.-wide { layout: horizontal; }
    Publish #publish-body { height: 1fr; width: 1fr; border: none; padding: 0 1; background: $panel; }
    Publish #publish-body:focus { border: none; background: $accent 12%; }
    Publish #publish-result { height: 9; width: 1fr; }
    Publish .-wide #publish-result { height: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._as_text = False
        self._checked = Checked(None, 0, "empty")
        self._outcome: Outcome | None = None
        self._unsure: tuple[Draft, str] | None = None
        """A send whose outcome is unknown, and its dedupe id."""
        self._set_aside: Draft | None = None
        """The draft that was there before another was taken up."""
        self._is_sending = False
        self._sent_at = 0.0
        self._learn_at = 0.0
        """When the bus is asked again what became of it."""
        self._last_field = "subject"

    def compose(self) -> ComposeResult:
        """Lay out the fields, the body, and the room for the result."""
        from textual.widgets import TextArea  # takes long to import, and no other screen needs it

        first = next(iter(read_history(history_path())), None)
        sender = first.draft.sender if first is not None else _SENDER
        with Horizontal():
            yield from self._field("subject", suggester=Known(lambda: known_subjects(self.store.state)))
        yield Lines(id="publish-known")
        with Horizontal():
            yield from self._field("sender", sender, suggester=Known(lambda: known_names(self.store.state)))
            yield from self._field("reply_to", suggester=Known(lambda: known_subjects(self.store.state)))
        with Horizontal():
            for name in ("max_hops", "calls", "ttl"):
                yield from self._field(name)
        yield Lines(id="publish-check")
        with Container(id="publish-parts"):
            yield TextArea(pretty_json({"content": ""}), id="publish-body", soft_wrap=True, show_line_numbers=True)
            yield Lines(id="publish-result")

    def _field(self, name: str, value: str = "", **options: Any) -> Iterator[Static | Input]:
        yield Static(_LABELS[name], classes="label", markup=False)
        yield Input(value, id=f"publish-{name}", placeholder=_HINTS[name], compact=True, **options)

    def on_mount(self) -> None:
        """Judge the body that is there; a cursor that blinks would be painted for ever."""
        for field in self.query(Input):
            field.cursor_blink = False
        self._body.cursor_blink = False
        self._check()

    # The draft

    @property
    def _body(self) -> TextArea:
        return self.query_one("#publish-body")  # type: ignore[return-value]

    @property
    def draft(self) -> Draft:
        """The message as it is written now."""
        fields = {name: self.query_one(f"#publish-{name}", Input).value.strip() for name in _LABELS}
        return Draft(**fields, body=self._body.text, as_text=self._as_text)

    def _take_up(self, draft: Draft) -> None:
        """Put a draft into the fields; what it leaves open stays, what it replaces can be had back."""
        self._set_aside = self.draft
        for name in _LABELS:
            value = getattr(draft, name)
            if value or name not in ("subject", "sender"):
                self.query_one(f"#publish-{name}", Input).value = value
        self._as_text = draft.as_text
        self._body.load_text(draft.body)
        self._check()

    def opened(self, argument: str) -> None:
        """Begin a message to a subject."""
        self.query_one("#publish-subject", Input).value = clean(argument.strip())

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say who would get it."""
        event.stop()
        self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go on to the next field with enter."""
        event.stop()
        self.screen.focus_next()

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Judge the body as it is typed."""
        event.stop()
        self._check()

    def _check(self) -> None:
        self._checked = check_body(self._body.text, as_text=self._as_text, limit=self._most_bytes)
        self.draw()

    @property
    def _most_bytes(self) -> int:
        found = self.store.config.get("limits", {}).get("maxPayloadBytes")
        return found if isinstance(found, int) else _MOST_BYTES

    # Showing

    def draw(self) -> None:
        """Show who would get it, what the body is, and what became of the last one."""
        if not self.is_mounted:
            return
        self.query_one("#publish-parts").set_class(self.room.width >= _WIDE, "-wide")
        subject = self.query_one("#publish-subject", Input).value.strip()
        self.query_one("#publish-known", Lines).show([receivers(subject, self.store.state)])
        self.query_one("#publish-check", Lines).show([self._check_line()])
        result = self.query_one("#publish-result", Lines)
        result.show(wrapped(self._result_lines(), result.size.width))
        if self._outcome is not None and self._outcome.is_open and self.store.is_live:
            now = self.store.clock.monotonic()
            if self._learn_at <= now < self._sent_at + _LEARN_SECS:
                self._learn_at = now + _AGAIN_SECS
                self.start(self._learn(self._outcome), doing="asking what became of it")

    def _check_line(self) -> Line:
        kind = "text" if self._as_text else "JSON"
        if self._checked.problem is None:
            return line((f" body: ● valid {kind}, {plural(self._checked.size, 'byte')}", "ok"))
        hint = "" if self._as_text else "   f2 sends it as plain text"
        return line((f" body: ✗ no {kind}: {self._checked.problem}", "bad"), (hint, "dim"))

    def _result_lines(self) -> Iterator[Line]:
        if self._is_sending:
            yield line((" ◌ sending…", "accent"))
        elif self._outcome is not None:
            yield from explain(self._outcome, self.store.state, self.store.now_ms())
        elif self.dashboard.read_only:
            yield line((" read-only: nothing can be sent from here", "warn"))
        else:
            yield line((" ctrl+s sends it; what became of it is shown here", "dim"))
            yield BLANK
            yield line((" ctrl+t: templates   ctrl+r: what was published before", "dim"))

    # Sending

    @action("send", "Publish the message", "ctrl+s", changes=True, label="send")
    async def send(self) -> None:
        """Publish the draft as it is now."""
        draft, checked = self.draft, self._checked
        if self._is_sending:
            return
        try:
            check_names(draft)
            budget = budget_of(draft, self.store.clock.now_ms())
            if checked.problem is not None:
                raise DraftError(f"the body is no {'text' if draft.as_text else 'JSON'}: {checked.problem}", "body")
        except DraftError as error:
            named = f"{_LABELS[error.field]}: " if error.field in _LABELS else ""
            self.dashboard.tell(f"{named}{error}", "warning")
            self.dashboard.desk.set_focus(self.query_one(f"#publish-{error.field}"))
            return
        if is_pattern(draft.subject) and not await self._confirm(draft):
            return
        self._is_sending = True
        self.draw()
        try:
            self._outcome = await self._publish(draft, checked.payload, budget)
        finally:
            self._is_sending = False
            self._sent_at = self._learn_at = self.store.clock.monotonic()
            self.draw()
        self._remember(draft, checked.payload, self._outcome)

    async def _confirm(self, draft: Draft) -> bool:
        told = "".join(text for text, _ in receivers(draft.subject, self.store.state)).strip()
        return await self.app.push_screen_wait(
            Confirm(f"Publish to all of {clean(draft.subject)}?", [told], word="publish")
        )

    async def _publish(self, draft: Draft, payload: Any, budget: dict[str, Any] | None) -> Outcome:
        dedupe_id = token_hex(16)
        if self._unsure is not None and self._unsure[0] == draft:
            dedupe_id = self._unsure[1]
        try:
            result = await self.client.publish(
                draft.subject,
                payload,
                sender=draft.sender,
                reply_to=draft.reply_to or None,
                budget=budget,
                dedupe_id=dedupe_id,
            )
        except SupervisorUnavailable as error:
            self._unsure = (draft, dedupe_id)
            return Outcome(draft, error=error)
        except RelayError as error:
            return Outcome(draft, error=error)
        self._unsure = None
        return Outcome(draft, result)

    def _remember(self, draft: Draft, payload: Any, outcome: Outcome) -> None:
        if outcome.result is None:
            return
        at = iso(self.store.clock.now_ms())
        try:
            remember(history_path(), draft, payload, at=at, outcome=outcome.in_short)
        except OSError as error:
            self.dashboard.tell(f"it is published, but not in the history: {error}", "warning")

    async def _learn(self, outcome: Outcome) -> None:
        """Ask what became of it at each target."""
        outcome.spans = await self.client.trace(str(outcome.message_id))
        self.dashboard.draw()

    # Where drafts come from

    @action("templates", "Begin from a template", "ctrl+t", label="templates")
    async def choose_template(self) -> None:
        """Take up a template."""
        found, problems = read_templates(templates_path())
        for problem in problems[:3]:
            self.dashboard.tell(f"template {problem}", "warning")
        await self._choose(f"Templates (yours: {templates_path()})", found)

    @action("history", "Take up what was published before", "ctrl+r", label="history")
    async def choose_from_history(self) -> None:
        """Take up an earlier publish."""
        found = read_history(history_path())
        if self._set_aside is not None:
            found = [Shelved(self._set_aside.subject, "the draft that was here before", self._set_aside), *found]
        await self._choose("Published before", found)

    async def _choose(self, title: str, found: list[Shelved]) -> None:
        chosen = await self.app.push_screen_wait(Choose(clean(title), found, empty="nothing has been published yet"))
        if chosen is not None:
            self._take_up(chosen)

    @action("trace", "Go to the trace of what was published", "t", keys=("ctrl+o",), label="trace")
    async def go_to_trace(self) -> None:
        """Go to the trace of the last publish."""
        if self._outcome is None or self._outcome.message_id is None:
            self.dashboard.tell("nothing has been published from here yet")
            return
        await self.dashboard.goto("traces", self._outcome.message_id)

    # Keys

    @property
    def first_focus(self) -> Widget | None:
        """The field that the operator was in, with the subject at first."""
        return self.query_one(f"#publish-{self._last_field}", Widget)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Remember which field is worked in."""
        self._last_field = (event.widget.id or "").removeprefix("publish-") or "subject"

    @action("leave-field", "Leave the field, so that the dashboard's keys work", "escape", label="leave field")
    def leave_field(self) -> None:
        """Give the keys back to the dashboard."""
        self.dashboard.desk.set_focus(None)

    @action("edit", "Go back to the field that was left", "enter")
    def edit(self) -> None:
        """Go on writing."""
        if self.screen.focused is None:
            self.dashboard.desk.set_focus(self.query_one(f"#publish-{self._last_field}"))

    @action("as-text", "Send the body as plain text, or as JSON again", "f2", label="as text")
    def toggle_text(self) -> None:
        """Say what the body is."""
        self._as_text = not self._as_text
        self._check()
