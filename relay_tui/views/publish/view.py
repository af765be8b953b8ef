"""Publish: write a message, check it while it is typed, send it, and explain the outcome.

1. While a field has the focus it gets the printable keys; keys with ctrl and function keys still run actions. Escape
   leaves the field.
2. The draft is the content of the fields: it survives other screens, lost connections and failed sends. A send whose
   outcome is unknown is repeated with the same dedupe id, so the message is published once.
3. The message that is sent is the draft at the moment the key was pressed.
"""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

from textual.app import ComposeResult
from textual.widget import Widget

from relay_core.clock import iso
from relay_core.errors import RelayError, SupervisorUnavailable
from relay_core.messages.subjects import is_pattern
from relay_core.text.sanitize import clean, clean_lines
from relay_tui.shell.actions import action
from relay_tui.shell.view import View
from relay_tui.views.publish.draft import Draft, DraftError, budget_of, check_names
from relay_tui.views.publish.form import FIELDS, PublishForm
from relay_tui.views.publish.outcome import Outcome, explain
from relay_tui.views.publish.recipients import recipients_line
from relay_tui.views.publish.saved_drafts import (
    SavedDraft,
    history_path,
    read_history,
    read_templates,
    remember,
    templates_path,
)
from relay_tui.views.wrap import wrapped
from relay_tui.widgets.dialogs import Picker
from relay_tui.widgets.styled_lines import BLANK, Line, line
from relay_tui.widgets.table import Column

_SENDER = "relay.human.operator"
_POLL_SECS = 0.5
_POLL_LIMIT_SECS = 60.0
_BODY_LIMIT = 1 << 20


class Publish(View):
    """A message to write, and the outcome of the last one."""

    NAME = "publish"
    HELP = (
        "Write a message and send it with ctrl+s. A field keeps the keys that are typed in it: esc leaves the field. "
        "The body is JSON; f2 sends it as plain text instead. ctrl+t: templates, ctrl+r: history."
    )

    def __init__(self) -> None:
        super().__init__()
        self._outcome: Outcome | None = None
        self._unsure: tuple[Draft, str] | None = None
        """A send whose outcome is unknown, and its dedupe id."""
        self._replaced: Draft | None = None
        """The draft that a template or an older message has replaced."""
        self._is_sending = False
        self._sent_at = 0.0
        self._poll_at = 0.0
        """When the outcome is queried again."""

    def compose(self) -> ComposeResult:
        latest = next(iter(read_history(history_path())), None)
        sender = latest.draft.sender if latest is not None else _SENDER
        yield PublishForm(sender, lambda: self.store.state, self._body_limit)

    @property
    def _form(self) -> PublishForm:
        return self.query_one(PublishForm)

    @property
    def draft(self) -> Draft:
        """The message as it is written now."""
        return self._form.draft

    def _body_limit(self) -> int:
        limit = self.store.config.get("limits", {}).get("maxPayloadBytes")
        return limit if isinstance(limit, int) else _BODY_LIMIT

    def open_argument(self, argument: str) -> None:
        self._form.set_subject(clean(argument.strip()))

    # Showing

    def on_publish_form_changed(self) -> None:
        self.draw()

    def draw(self) -> None:
        if not self.is_mounted or not self._form.is_mounted:
            return
        self._form.show(lambda width: wrapped(self._result_lines(), width), self.area.width)
        if self._outcome is not None and self._outcome.is_open and self.store.is_live:
            now = self.store.clock.monotonic()
            if self._poll_at <= now < self._sent_at + _POLL_LIMIT_SECS:
                self._poll_at = now + _POLL_SECS
                self.start(self._poll(self._outcome), doing="querying the outcome")

    async def _poll(self, outcome: Outcome) -> None:
        """Query the outcome at each target."""
        outcome.spans = await self.client.trace(str(outcome.message_id))
        self.dashboard.draw()

    def _result_lines(self) -> Iterator[Line]:
        if self._is_sending:
            yield line((" ◌ sending…", "accent"))
        elif self._outcome is not None:
            yield from explain(self._outcome, self.store.state, self.store.now_ms())
        elif self.dashboard.read_only:
            yield line((" read-only: nothing can be sent from here", "warn"))
        else:
            yield line((" ctrl+s sends it; the outcome is shown here", "dim"))
            yield BLANK
            yield line((" ctrl+t: templates   ctrl+r: history", "dim"))

    # Sending

    @action("send", "Publish the message", "ctrl+s", changes=True, label="send")
    async def send(self) -> None:
        draft, checked = self.draft, self._form.checked
        if self._is_sending:
            return
        try:
            check_names(draft)
            budget = budget_of(draft, self.store.clock.now_ms())
            if checked.problem is not None:
                kind = "text" if draft.as_text else "JSON"
                raise DraftError(f"the body is not valid {kind}: {checked.problem}", "body")
        except DraftError as error:
            label = f"{FIELDS[error.field][0]}: " if error.field in FIELDS else ""
            self.dashboard.toast(f"{label}{error}", "warning")
            self.dashboard.focus_widget(self._form.field(error.field))
            return
        if is_pattern(draft.subject) and not await self._confirm(draft):
            return
        self._is_sending = True
        self.draw()
        try:
            self._outcome = await self._publish(draft, checked.payload, budget)
        finally:
            self._is_sending = False
            self._sent_at = self._poll_at = self.store.clock.monotonic()
            self.draw()
        self._remember(draft, checked.payload, self._outcome)

    async def _confirm(self, draft: Draft) -> bool:
        recipients = "".join(text for text, _ in recipients_line(draft.subject, self.store.state)).strip()
        return await self.confirm(f"Publish to all of {clean(draft.subject)}?", [recipients], word="publish")

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
            remember(history_path(), draft, payload, at=at, outcome=outcome.summary)
        except OSError as error:
            self.dashboard.toast(f"it is published, but not in the history: {error}", "warning")

    # Templates and history

    @action("templates", "Start from a template", "ctrl+t", label="templates")
    async def choose_template(self) -> None:
        templates, problems = read_templates(templates_path())
        for problem in problems[:3]:
            self.dashboard.toast(f"template {problem}", "warning")
        await self._choose(f"Templates (yours: {templates_path()})", templates)

    @action("history", "Start from a message that was published before", "ctrl+r", label="history")
    async def choose_from_history(self) -> None:
        drafts = read_history(history_path())
        if self._replaced is not None:
            drafts = [SavedDraft(self._replaced.subject, "the draft that was here before", self._replaced), *drafts]
        await self._choose("Published before", drafts)

    async def _choose(self, title: str, drafts: list[SavedDraft]) -> None:
        def preview(at: int) -> list[Line]:
            return [line((f"  {text}", "dim")) for text in clean_lines(drafts[at].draft.body, 8)]

        rows = [(saved.title, (saved.note, "dim")) for saved in drafts]
        columns = [Column("WHAT"), Column("ABOUT")]
        chosen = await self.app.push_screen_wait(
            Picker(clean(title), columns, rows, empty="nothing has been published yet", verb="use it", preview=preview)
        )
        if chosen is not None:
            self._replaced = self.draft
            self._form.load(drafts[chosen].draft)

    # Keys

    @action("trace", "Go to the trace of the published message", "t", keys=("ctrl+o",), label="trace")
    async def go_to_trace(self) -> None:
        if self._outcome is None or self._outcome.message_id is None:
            self.dashboard.toast("nothing has been published from here yet")
            return
        await self.dashboard.goto("traces", self._outcome.message_id)

    @property
    def first_focus(self) -> Widget | None:
        """The field that had the focus last."""
        return self._form.last_field

    @action("leave-field", "Leave the field, so that keys run actions", "escape", label="leave field")
    def leave_field(self) -> None:
        self.dashboard.focus_widget(None)

    @action("edit", "Return to the field that was left", "enter")
    def edit(self) -> None:
        if self.screen.focused is None:
            self.dashboard.focus_widget(self._form.last_field)

    @action("as-text", "Send the body as plain text, or as JSON", "f2", label="as text")
    def toggle_text(self) -> None:
        self._form.toggle_text()
