"""What is known of a subject while it is being typed: how it may go on, and who would get the message."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from textual.suggester import Suggester

from relay_core.live_state import LiveMailbox, LiveState
from relay_core.subjects import is_pattern, is_subject, matches_pattern
from relay_tui.lines import Line, line
from relay_tui.safe import clean
from relay_tui.views.states import share_of
from relay_tui.words import plural

_NAMED = 4


class Known(Suggester):
    """Complete a name from those that there are now."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        super().__init__(use_cache=False, case_sensitive=False)
        self._names = names

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first name that begins so."""
        begun = sorted(name for name in self._names() if name.casefold().startswith(value) and is_subject(name))
        return begun[0] if value and begun else None


def known_subjects(state: LiveState) -> list[str]:
    """Return the subjects that have a mailbox somebody may write to."""
    return [one.subject for one in state.mailboxes.values() if one.registered and one.kind == "endpoint"]


def known_names(state: LiveState) -> list[str]:
    """Return everybody who has sent something, or has a mailbox."""
    return [*dict.fromkeys([*state.senders, *known_subjects(state)])]


def receivers(subject: str, state: LiveState) -> Line:
    """Return who would get a message with this subject, as far as mailboxes tell."""
    if not subject:
        return line(("  type a subject; → completes it from the known endpoints", "dim"))
    if is_pattern(subject):
        return _broadcast(subject, state)
    for hash, mailbox in state.mailboxes.items():
        if mailbox.subject == subject and mailbox.registered:
            return _one(hash, mailbox, state)
    begun = sorted(name for name in known_subjects(state) if name.startswith(subject))
    if begun:
        return line(("  goes on as ", "dim"), _names(begun))
    return line(
        ("  ▲ no mailbox has this subject", "warn"), (": unless an adapter takes it, it is a dead letter", "dim")
    )


def _one(hash: str, mailbox: LiveMailbox, state: LiveState) -> Line:
    breaker = state.breakers.get(hash)
    is_shut = breaker is not None and breaker.state == "OPEN"
    waiting = f"{plural(mailbox.depth, 'message')} waiting, {share_of(mailbox.pressure):.0%} full"
    return line(
        ("  ● ", "ok"),
        f"{waiting}, {plural(mailbox.consumers, 'consumer')}",
        ("  ✗ its breaker is open", "bad") if is_shut else ("", ""),
    )


def _broadcast(pattern: str, state: LiveState) -> Line:
    found = sorted(name for name in known_subjects(state) if matches_pattern(name, pattern))
    count = plural(len(found), "mailbox", "mailboxes")
    return line((f"  ▲ a broadcast to {count}", "warn"), (": " if found else "", ""), _names(found))


def _names(names: list[str]) -> str:
    shown = ", ".join(clean(name) for name in names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
