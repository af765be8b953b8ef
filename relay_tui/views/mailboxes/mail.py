"""The mail that waits in one mailbox, looked at without taking it: a row for each message, and all of one message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from relay_core.clock import parse_iso
from relay_core.messages.envelope import Envelope
from relay_core.text.sanitize import clean
from relay_core.text.units import about, date_time, plural, time_until
from relay_tui.views.excerpt import excerpt
from relay_tui.views.wrap import chopped
from relay_tui.widgets.styled_lines import BLANK, Line, line
from relay_tui.widgets.table import Column, Row

PEEKED = 50
"""Messages that are looked at, oldest first."""
_PREVIEW = 200

COLUMNS = (
    Column("AGE", 5, right=True),
    Column("FROM", 24),
    Column("ID", 26, from_width=100),
    Column("HOPS", 5, right=True, from_width=76),
    Column("BODY"),
)


class Mail(NamedTuple):
    """A message that waits, and what is computed once to show it."""

    envelope: Envelope
    made: int
    preview: str


def mail_of(message: Envelope) -> Mail:
    """Return a message as it is shown."""
    return Mail(message, parse_iso(message.created_at), preview(message))


def mail_rows(messages: Iterable[Mail], now_ms: int) -> list[Row]:
    """Return a row for each message."""
    return [
        Row(
            one.id,
            (
                about((now_ms - made) / 1000),
                clean(one.sender),
                (one.id, "dim"),
                f"{one.budget.hop_count}/{one.budget.max_hops}",
                beginning,
            ),
        )
        for one, made, beginning in messages
    ]


def preview(message: Envelope) -> str:
    """Return the beginning of a body as one line, without writing out the rest."""
    text = ""
    for part in islice(json.JSONEncoder(ensure_ascii=False).iterencode(message.payload), _PREVIEW):
        text += part[:_PREVIEW]
        if len(text) >= _PREVIEW:
            break
    return clean(text, _PREVIEW)


def message_lines(message: Envelope, now_ms: int, body: Sequence[str]) -> Iterator[Line]:
    """Yield all of a message: whom it is from and for, what it may still do, and its body."""
    budget = message.budget
    yield line(("  id        ", "dim"), message.id)
    yield line(("  from      ", "dim"), clean(message.sender))
    yield line(("  to        ", "dim"), clean(message.subject))
    for label, value in (
        ("reply to", message.reply_to),
        ("parent", message.parent_id),
        ("trace", message.trace_id),
        ("replay of", message.replay_of),
        ("origin", message.origin),
    ):
        if value is not None:
            yield line((f"  {label:10}", "dim"), clean(value))
    made = parse_iso(message.created_at)
    yield line(("  made      ", "dim"), f"{date_time(made)}Z, {about((now_ms - made) / 1000)} ago")
    if message.replays:
        yield line(("  replayed  ", "dim"), plural(message.replays, "time"))
    yield line(
        ("  budget    ", "dim"),
        f"hop {budget.hop_count} of {budget.max_hops}, {plural(budget.call_budget_remaining, 'call')} left, ",
        ("expired", "bad") if budget.ttl <= now_ms else (f"expires {time_until(budget.ttl, now_ms)}", ""),
    )
    if budget.ancestor_chain:
        yield line(("  chain     ", "dim"), clean(" → ".join(budget.ancestor_chain)))
    yield BLANK
    for text in body:
        yield line("  ", text)


def body_lines(message: Envelope, width: int) -> list[str]:
    """Return the beginning of a body as lines of JSON that fit into a width."""
    return [part for text in excerpt(message.payload) for part in chopped(text, max(width - 2, 8))]
