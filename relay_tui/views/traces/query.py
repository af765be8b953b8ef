"""The search language of the traces screen.

1. Terms are separated by spaces, and all of them must match.
2. A word of three or more characters that can be the prefix of a message id is one; ``id=`` makes it explicit.
3. ``subject=`` and ``from=`` match exactly, or by pattern; ``subject~`` and ``from~`` match a part, ignoring case.
   A word with a dot is part of a subject.
4. ``status=failed`` is the worst status of the message's targets; ``since=10m`` limits its age.

An invalid text raises `QueryError`, which tells what to write instead. No I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from relay_core.messages.delivery import TraceSearch
from relay_core.messages.subjects import is_pattern
from relay_core.records.trace_search import MESSAGE_STATUSES

_HEAD = re.compile(r"([A-Za-z_]+)([=~])(.*)")
_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{2,25}")
_AGE = re.compile(r"(\d{1,7})(s|m|h|d|w)")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_LABELS = {"waiting": "new", "claimed": "cur", "no_match": "no_subscriber"}
"""The screen's labels of statuses that have another name on the bus."""
SUGGESTIONS = ("status=failed", "status=refused", "status=no_subscriber", "subject~", "from~", "since=10m", "id=")


class QueryError(ValueError):
    """An invalid search; the message tells what to write instead."""


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """The criteria of a search; all that are given must match."""

    id: str | None = None
    subject: str | None = None
    sender: str | None = None
    status: str | None = None
    since_ms: int | None = None
    """The maximum age."""
    whole: tuple[str, ...] = ()
    """Which of subject and sender must match exactly; the bus matches a part."""

    def request(self, now_ms: int, cursor: str | None, limit: int) -> TraceSearch:
        """Return the request for a page."""
        since = now_ms - self.since_ms if self.since_ms is not None else None
        criteria = {"id": self.id, "subject": self.subject, "sender": self.sender, "status": self.status}
        return TraceSearch.model_validate({**criteria, "since": since, "cursor": cursor, "limit": limit})

    def matches(self, subject: str, sender: str) -> bool:
        """Return True if a row of the bus matches the exact criteria too."""
        return ("subject" not in self.whole or subject == self.subject) and (
            "sender" not in self.whole or sender == self.sender
        )


def parse_query(text: str) -> TraceQuery:
    """Parse a search.

    Raises:
        QueryError: if the text is not a valid search.
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
        raise QueryError(f"{word!r} is not the prefix of a message id: write subject~{word} or from~{word}")
    field, op, value = head[1].lower(), head[2], head[3]
    if not value:
        raise QueryError(f"nothing follows {field}{op}")
    if op == "~" and field not in ("subject", "from"):
        raise QueryError(f"{field!r} takes = only: write {field}={value}")
    match field:
        case "id":
            if not _ID.fullmatch(value):
                raise QueryError(f"{value!r} is not the prefix of a message id such as 01KA5Q…")
            return replace(query, id=value.upper())
        case "subject" | "from":
            name = "subject" if field == "subject" else "sender"
            whole = (*query.whole, name) if op == "=" and not is_pattern(value) else query.whole
            query = replace(query, whole=whole)
            return replace(query, subject=value) if name == "subject" else replace(query, sender=value)
        case "status":
            status = _LABELS.get(value.lower(), value.lower())
            if status not in MESSAGE_STATUSES:
                raise QueryError(f"no status {value!r}: there are {', '.join(sorted(MESSAGE_STATUSES))}")
            return replace(query, status=status)
        case "since":
            age = _AGE.fullmatch(value)
            if age is None:
                raise QueryError(f"{value!r} is not an age: write e.g. 90s, 10m, 2h or 7d")
            return replace(query, since_ms=int(age[1]) * _UNIT_MS[age[2]])
    raise QueryError(f"no field {head[1]!r}: there are id, subject, from, status, since")
