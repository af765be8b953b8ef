"""The recipients of a subject while it is being typed, and completions for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from textual.suggester import Suggester

from relay_core.messages.subjects import is_pattern, is_subject, matches_pattern
from relay_core.protocol.live_state import LiveMailbox, LiveState
from relay_core.text.sanitize import clean
from relay_core.text.units import plural
from relay_tui.views.states import share_of
from relay_tui.widgets.styled_lines import Line, line

_NAMED = 4


class NameSuggester(Suggester):
    """Complete a subject from those that exist now."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        super().__init__(use_cache=False, case_sensitive=False)
        self._names = names

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first name with this prefix."""
        matches = sorted(name for name in self._names() if name.casefold().startswith(value) and is_subject(name))
        return matches[0] if value and matches else None


def endpoint_subjects(state: LiveState) -> list[str]:
    """Return the subjects of the registered endpoints."""
    return [box.subject for box in state.mailboxes.values() if box.registered and box.kind == "endpoint"]


def sender_names(state: LiveState) -> list[str]:
    """Return the senders of the current window and the endpoints."""
    return [*dict.fromkeys([*state.senders, *endpoint_subjects(state)])]


def recipients_line(subject: str, state: LiveState) -> Line:
    """Return which mailboxes would receive a message with this subject."""
    if not subject:
        return line(("  type a subject; → completes it from the known endpoints", "dim"))
    if is_pattern(subject):
        return _broadcast(subject, state)
    for hash, mailbox in state.mailboxes.items():
        if mailbox.subject == subject and mailbox.registered:
            return _mailbox_line(hash, mailbox, state)
    matches = sorted(name for name in endpoint_subjects(state) if name.startswith(subject))
    if matches:
        return line(("  completes to ", "dim"), _names(matches))
    return line(
        ("  ▲ no mailbox has this subject", "warn"), (": unless an adapter accepts it, it becomes a dead letter", "dim")
    )


def _mailbox_line(hash: str, mailbox: LiveMailbox, state: LiveState) -> Line:
    breaker = state.breakers.get(hash)
    is_open = breaker is not None and breaker.state == "OPEN"
    waiting = f"{plural(mailbox.depth, 'message')} waiting, {share_of(mailbox.pressure):.0%} full"
    return line(
        ("  ● ", "ok"),
        f"{waiting}, {plural(mailbox.consumers, 'consumer')}",
        ("  ✗ its breaker is open", "bad") if is_open else ("", ""),
    )


def _broadcast(pattern: str, state: LiveState) -> Line:
    matches = sorted(name for name in endpoint_subjects(state) if matches_pattern(name, pattern))
    count = plural(len(matches), "mailbox", "mailboxes")
    return line((f"  ▲ a broadcast to {count}", "warn"), (": " if matches else "", ""), _names(matches))


def _names(names: list[str]) -> str:
    shown = ", ".join(clean(name) for name in names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
