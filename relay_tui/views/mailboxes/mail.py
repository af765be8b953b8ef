"""The waiting messages of a mailbox, peeked at: a row for each, and one of them in full."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from relay_core.messages.envelope import Envelope
from relay_core.text.sanitize import clean
from relay_core.text.units import about, plural
from relay_tui.views.facts import envelope_facts, instant, wrapped_facts
from relay_tui.widgets.styled_lines import BLANK, Line
from relay_tui.widgets.table import Column, Row

PEEKED = 50
"""Messages that are peeked at, oldest first."""
_PREVIEW = 200

COLUMNS = (
    Column("AGE", 5, right=True),
    Column("FROM", 24),
    Column("ID", 26, from_width=100),
    Column("HOPS", 5, right=True, from_width=76),
    Column("BODY"),
)


class Mail(NamedTuple):
    """A waiting message, with the cells that are computed once."""

    envelope: Envelope
    created: int | None
    preview: str


def mail_by_id(messages: Iterable[Envelope]) -> dict[str, Mail]:
    """Return messages as they are shown, by id."""
    return {message.id: Mail(message, instant(message.created_at), preview(message)) for message in messages}


def mail_rows(mail: Iterable[Mail], now_ms: int) -> list[Row]:
    """Return a row for each message."""
    return [
        Row(
            message.id,
            (
                about((now_ms - created) / 1000 if created is not None else None),
                clean(message.sender),
                (message.id, "dim"),
                f"{message.budget.hop_count}/{message.budget.max_hops}",
                body,
            ),
        )
        for message, created, body in mail
    ]


def preview(message: Envelope) -> str:
    """Return the start of a body as one line, without formatting the rest."""
    text = ""
    for part in islice(json.JSONEncoder(ensure_ascii=False).iterencode(message.payload), _PREVIEW):
        text += part[:_PREVIEW]
        if len(text) >= _PREVIEW:
            break
    return clean(text, _PREVIEW)


def message_lines(message: Envelope, now_ms: int, body: Sequence[Line], width: int) -> Iterator[Line]:
    """Yield a message in full."""
    facts = [("id", message.id), *envelope_facts(message, now_ms)]
    if message.replays:
        facts.append(("replayed", plural(message.replays, "time")))
    yield from wrapped_facts(facts, width)
    yield BLANK
    yield from body
