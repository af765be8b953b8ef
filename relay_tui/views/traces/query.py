"""The search for traces: the filter language over the fields of a trace, as a request to the bus.

1. A word of three or more characters that can be the prefix of a message id is one; ``id=`` makes it explicit. A word
   with a dot is part of a subject.
2. ``subject=`` and ``from=`` match exactly, or by pattern; ``subject~`` and ``from~`` match a part.
3. ``status=failed`` is the worst status of the message's targets. ``age<10m`` and ``age>1h`` limit its age.
4. The bus cannot negate a criterion, and knows one of each kind: the last one typed counts.

No I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from relay_core.messages.delivery import TraceSearch
from relay_core.messages.filter_language import BODY, TRACE_FIELDS, FilterError, Term, parse_filter
from relay_core.messages.subjects import is_pattern
from relay_core.records.trace_search import MESSAGE_STATUSES

_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{2,25}")
_LABELS = {"waiting": "new", "claimed": "cur", "no_match": "no_subscriber"}
"""The screen's labels of statuses that have another name on the bus."""
SUGGESTIONS = ("status=failed", "status=refused", "status=no_subscriber", "subject~", "from~", "age<10m", "id=")


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """The criteria of a search; all that are given must match."""

    id: str | None = None
    subject: str | None = None
    sender: str | None = None
    status: str | None = None
    max_age_ms: int | None = None
    min_age_ms: int | None = None
    whole: frozenset[str] = frozenset()
    """Which of subject and sender must match exactly; the bus matches a part."""

    def request(self, now_ms: int, cursor: str | None, limit: int) -> TraceSearch:
        """Return the request for a page."""
        return TraceSearch(
            id=self.id,
            subject=self.subject,
            sender=self.sender,
            status=self.status,
            since=now_ms - self.max_age_ms if self.max_age_ms is not None else None,
            until=now_ms - self.min_age_ms if self.min_age_ms is not None else None,
            cursor=cursor,
            limit=limit,
        )

    def matches(self, subject: str, sender: str) -> bool:
        """Return True if a row of the bus matches the exact criteria too."""
        return ("subject" not in self.whole or subject == self.subject) and (
            "sender" not in self.whole or sender == self.sender
        )


def parse_query(text: str) -> TraceQuery:
    """Parse a search.

    Raises:
        FilterError: if the text is not a valid search.
    """
    query = TraceQuery()
    for term in parse_filter(text, TRACE_FIELDS):
        if term.negated:
            raise FilterError("a search for traces cannot exclude anything: leave out the '!'", term.position)
        query = _with(query, term)
    return query


def _with(query: TraceQuery, term: Term) -> TraceQuery:
    value = str(term.value)
    match term.field:
        case "id":
            if not _ID.fullmatch(value):
                raise FilterError(f"{value!r} is not the prefix of a message id such as 01KA5Q…", term.position)
            return replace(query, id=value.upper())
        case "subject":
            return replace(query, subject=value, whole=_whole(query, "subject", term))
        case "from":
            return replace(query, sender=value, whole=_whole(query, "sender", term))
        case "status":
            status = _LABELS.get(value.lower(), value.lower())
            if status not in MESSAGE_STATUSES:
                known = ", ".join(sorted(MESSAGE_STATUSES))
                raise FilterError(f"no status {value!r}: there are {known}", term.position)
            return replace(query, status=status)
        case "age" if term.op == ">":
            return replace(query, min_age_ms=int(term.value))
        case "age" | "since":
            return replace(query, max_age_ms=int(term.value))
    assert term.field == BODY
    if _ID.fullmatch(value):
        return replace(query, id=value.upper())
    if "." in value:
        return replace(query, subject=value, whole=query.whole - {"subject"})
    raise FilterError(
        f"{value!r} is not the prefix of a message id: write subject~{value} or from~{value}", term.position
    )


def _whole(query: TraceQuery, name: str, term: Term) -> frozenset[str]:
    return query.whole | {name} if term.op == "=" and not is_pattern(str(term.value)) else query.whole - {name}
