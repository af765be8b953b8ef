"""Lines of a name and a value, for details. Texts are sanitised before they get here, except by `wrapped_facts`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

from relay_core.clock import parse_iso
from relay_core.messages.envelope import Envelope
from relay_core.text.sanitize import clean
from relay_core.text.units import ago, date_time, plural, time_until
from relay_tui.views.wrap import chopped
from relay_tui.widgets.styled_lines import Line, Piece, line

NAME_WIDTH = 12
_MOST_LINES = 4
_MOST_CHARS = 2000


def fact(name: str, *pieces: str | Piece) -> Line:
    """Return a name and its value."""
    return line((f" {name}".ljust(NAME_WIDTH), "dim"), *pieces)


def long_fact(name: str, text: str, style: str, width: int) -> Iterator[Line]:
    """Yield a name and a long value, wrapped between words and cut."""
    room = max(width - NAME_WIDTH - 1, 20)
    for at, part in enumerate(wrap(text, room, max_lines=_MOST_LINES, placeholder=" …", break_on_hyphens=False)):
        yield fact("" if at else name, (part, style))


def wrapped_facts(facts: Iterable[tuple[str, str]], width: int) -> Iterator[Line]:
    """Yield names and values, sanitised and wrapped: nothing is cut off at the right."""
    for name, text in facts:
        for at, part in enumerate(chopped(clean(text, _MOST_CHARS), max(width - NAME_WIDTH, 10))):
            yield fact("" if at else name, part)


def envelope_facts(envelope: Envelope, now_ms: int) -> Iterator[tuple[str, str]]:
    """Yield the fields of a message, without its id and its payload."""
    budget, created = envelope.budget, instant(envelope.created_at)
    yield "from", envelope.sender
    yield "to", envelope.subject
    for name, value in (
        ("reply to", envelope.reply_to),
        ("parent", envelope.parent_id),
        ("trace", envelope.trace_id),
        ("replay of", envelope.replay_of),
        ("origin", envelope.origin),
    ):
        if value is not None:
            yield name, value
    expiry = "expired" if budget.ttl <= now_ms else f"expires {time_until(budget.ttl, now_ms)}"
    yield "created", f"{date_time(created)}Z, {ago(created, now_ms)}; {expiry}"
    calls = plural(budget.call_budget_remaining, "call")
    chain = f"; via {' → '.join(budget.ancestor_chain)}" if budget.ancestor_chain else ""
    yield "budget", f"hop {budget.hop_count} of {budget.max_hops}, {calls} left{chain}"


def instant(text: str) -> int | None:
    """Return a timestamp in milliseconds, or None if the text is not one: any process may have written it."""
    try:
        return parse_iso(text)
    except (ValueError, OverflowError):
        return None
