"""The language of the search for messages: what an operator types after `/` on the traces screen.

1. Terms are separated by spaces, and all of them must hold.
2. A word that could be the beginning of a message id is one (three letters at least); ``id=`` says so outright.
3. ``subject=`` and ``from=`` are the whole of it, or a pattern; ``subject~`` and ``from~`` a part, in any case.
   A word with a dot in it is part of a subject.
4. ``status=failed`` is the worst of what became of the message; ``since=10m`` bounds how long ago it was sent.

What is wrong with a text is a `QueryError`, which says what would be right. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from relay_core.subjects import is_pattern
from relay_core.trace_search import MESSAGE_STATUSES

_HEAD = re.compile(r"([A-Za-z_]+)([=~])(.*)")
_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{2,25}")
_AGE = re.compile(r"(\d{1,7})(s|m|h|d|w)")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_WORDS = {"waiting": "new", "claimed": "cur", "nobody": "no_subscriber"}
"""What the screen calls a status that has another name on the bus."""
SUGGESTIONS = ("status=failed", "status=refused", "status=no_subscriber", "subject~", "from~", "since=10m", "id=")


class QueryError(ValueError):
    """A text that is no search, and what would be right."""


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """Which messages are looked for; every part given must hold."""

    id: str | None = None
    subject: str | None = None
    sender: str | None = None
    status: str | None = None
    since_ms: int | None = None
    """How long ago at most."""
    whole: tuple[str, ...] = ()
    """Which of subject and sender are the whole text, where the bus would look for a part."""

    def params(self, now_ms: int) -> dict[str, Any]:
        """Return what to ask the bus for, now."""
        since = now_ms - self.since_ms if self.since_ms is not None else None
        return {
            "id": self.id,
            "subject": self.subject,
            "sender": self.sender,
            "status": self.status,
            "since": since,
        }

    def takes(self, subject: str, sender: str) -> bool:
        """Tell whether a row that the bus has found is meant."""
        return ("subject" not in self.whole or subject == self.subject) and (
            "sender" not in self.whole or sender == self.sender
        )


def parse_query(text: str) -> TraceQuery:
    """Return what a text looks for.

    Raises:
        QueryError: if it is no search.
    """
    query = TraceQuery()
    for word in text.split():
        query = _with(query, word)
    return query


def _with(query: TraceQuery, word: str) -> TraceQuery:
    head = _HEAD.fullmatch(word)
    if head is None:
        if _ID.fullmatch(word):
            return replace(query, id=word.upper())
        if "." in word:
            return replace(query, subject=word)
        raise QueryError(f"{word!r} begins no message id: write subject~{word}, from~{word} or status=failed")
    field, op, value = head[1].lower(), head[2], head[3]
    if not value:
        raise QueryError(f"nothing follows {field}{op}")
    if op == "~" and field not in ("subject", "from"):
        raise QueryError(f"{field!r} goes with = only: write {field}={value}")
    match field:
        case "id":
            if not _ID.fullmatch(value):
                raise QueryError(f"{value!r} begins no message id: they look like 01KA5Q…")
            return replace(query, id=value.upper())
        case "subject" | "from":
            name = "subject" if field == "subject" else "sender"
            whole = (*query.whole, name) if op == "=" and not is_pattern(value) else query.whole
            query = replace(query, whole=whole)
            return replace(query, subject=value) if name == "subject" else replace(query, sender=value)
        case "status":
            status = _WORDS.get(value.lower(), value.lower())
            if status not in MESSAGE_STATUSES:
                raise QueryError(f"no status {value!r}: there are {', '.join(sorted(MESSAGE_STATUSES))}")
            return replace(query, status=status)
        case "since":
            age = _AGE.fullmatch(value)
            if age is None:
                raise QueryError(f"{value!r} is no age: write it like 90s, 10m, 2h or 7d")
            return replace(query, since_ms=int(age[1]) * _UNIT_MS[age[2]])
    raise QueryError(f"no field {head[1]!r}: there are id, subject, from, status, since")
