"""The fields of the publish screen: what they hold is the draft, and the body is checked as it is typed.

Bodies are loaded into the editor only as `pretty_json`, wherever they come from: it is safe to show and lossless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from relay_core.protocol.live_state import LiveState
from relay_core.text.sanitize import pretty_json
from relay_core.text.units import plural
from relay_tui.views.publish.draft import BodyCheck, Draft, check_body
from relay_tui.views.publish.recipients import NameSuggester, endpoint_subjects, recipients_line, sender_names
from relay_tui.widgets.styled_lines import Line, Lines, line

if TYPE_CHECKING:
    from textual.widgets import TextArea

FIELDS = {
    "subject": ("to", "e.g. relay.agent.backend"),
    "sender": ("from", "e.g. relay.human.operator"),
    "reply_to": ("reply to", "none"),
    "max_hops": ("max hops", "default"),
    "calls": ("calls", "default"),
    "ttl": ("TTL", "e.g. 10m"),
}
"""The label and the placeholder of each field."""
_WIDE = 100


class PublishForm(Widget):
    """The fields, the body, and the area for the result."""

    DEFAULT_CSS = """
    PublishForm { layout: vertical; height: 1fr; }
    PublishForm Horizontal { height: 1; }
    PublishForm .label { width: 10; color: $text-muted; padding: 0 1 0 1; }
    PublishForm Input { border: none; height: 1; padding: 0 1; width: 1fr; background: $panel; }
    PublishForm Input:focus { border: none; background: $accent 25%; }
    PublishForm #publish-recipients { height: 1; }
    PublishForm #publish-check { height: 1; }
    PublishForm #publish-parts { height: 1fr; layout: vertical; }
    PublishForm #publish-parts.-wide { layout: horizontal; }
    PublishForm #publish-body { height: 1fr; width: 1fr; border: none; padding: 0 1; background: $panel; }
    PublishForm #publish-body:focus { border: none; background: $accent 12%; }
    PublishForm #publish-result { height: 9; width: 1fr; }
    PublishForm .-wide #publish-result { height: 1fr; }
    """

    class Changed(Message):
        """A field or the body was edited."""

    def __init__(self, sender: str, state: Callable[[], LiveState], body_limit: Callable[[], int]) -> None:
        super().__init__()
        self.checked = BodyCheck(None, 0, "empty")
        self._sender = sender
        self._state = state
        self._body_limit = body_limit
        self._as_text = False
        self._last_field = "subject"

    def compose(self) -> ComposeResult:
        from textual.widgets import TextArea  # slow to import, and used by no other screen

        def subjects() -> list[str]:
            return endpoint_subjects(self._state())

        with Horizontal():
            yield from self._field("subject", suggester=NameSuggester(subjects))
        yield Lines(id="publish-recipients")
        with Horizontal():
            names = NameSuggester(lambda: sender_names(self._state()))
            yield from self._field("sender", self._sender, suggester=names)
            yield from self._field("reply_to", suggester=NameSuggester(subjects))
        with Horizontal():
            for name in ("max_hops", "calls", "ttl"):
                yield from self._field(name)
        yield Lines(id="publish-check")
        with Container(id="publish-parts"):
            yield TextArea(pretty_json({"content": ""}), id="publish-body", soft_wrap=True, show_line_numbers=True)
            yield Lines(id="publish-result")

    def _field(self, name: str, value: str = "", **options: Any) -> Iterator[Static | Input]:
        label, placeholder = FIELDS[name]
        yield Static(label, classes="label", markup=False)
        yield Input(value, id=f"publish-{name}", placeholder=placeholder, compact=True, **options)

    def on_mount(self) -> None:
        """Check the initial body; stop cursors from blinking, since each blink is painted."""
        for field in self.query(Input):
            field.cursor_blink = False
        self._body.cursor_blink = False
        self._check()

    @property
    def _body(self) -> TextArea:
        return self.query_one("#publish-body")  # type: ignore[return-value]

    # The draft

    @property
    def draft(self) -> Draft:
        """The message as it is written now."""
        fields = {name: self.query_one(f"#publish-{name}", Input).value.strip() for name in FIELDS}
        return Draft(**fields, body=self._body.text, as_text=self._as_text)

    def load(self, draft: Draft) -> None:
        """Put a draft into the fields; subject and sender stay if it has none."""
        for name in FIELDS:
            value = getattr(draft, name)
            if value or name not in ("subject", "sender"):
                self.query_one(f"#publish-{name}", Input).value = value
        self._as_text = draft.as_text
        self._body.load_text(draft.body)
        self._check()

    def set_subject(self, subject: str) -> None:
        """Set the subject."""
        self.query_one("#publish-subject", Input).value = subject

    def toggle_text(self) -> None:
        """Switch the body between JSON and plain text."""
        self._as_text = not self._as_text
        self._check()

    def _check(self) -> None:
        self.checked = check_body(self._body.text, as_text=self._as_text, limit=self._body_limit())
        self.post_message(self.Changed())

    # Showing

    def show(self, result: Callable[[int], Iterator[Line]], width: int) -> None:
        """Show the recipients, the check of the body, and the result, which gets the width it has."""
        self.query_one("#publish-parts").set_class(width >= _WIDE, "-wide")
        subject = self.query_one("#publish-subject", Input).value.strip()
        self.query_one("#publish-recipients", Lines).show([recipients_line(subject, self._state())])
        self.query_one("#publish-check", Lines).show([self._check_line()])
        area = self.query_one("#publish-result", Lines)
        area.show(result(area.size.width))

    def _check_line(self) -> Line:
        kind = "text" if self._as_text else "JSON"
        if self.checked.problem is None:
            return line((f" body: ● valid {kind}, {plural(self.checked.size, 'byte')}", "ok"))
        hint = "" if self._as_text else "   f2 sends it as plain text"
        return line((f" body: ✗ invalid {kind}: {self.checked.problem}", "bad"), (hint, "dim"))

    # Typing

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Changed())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.screen.focus_next()

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        self._check()

    def field(self, name: str) -> Widget:
        """Return a field, or the body."""
        return self.query_one(f"#publish-{name}", Widget)

    @property
    def last_field(self) -> Widget:
        """The field that had the focus last, the subject at first."""
        return self.field(self._last_field)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self._last_field = (event.widget.id or "").removeprefix("publish-") or "subject"
