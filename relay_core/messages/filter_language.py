r"""The filter language for dead letters and traces, parsed into terms.

1. Terms are separated by spaces, and all of them must hold. A leading `!` negates a term.
2. ``FIELD=TEXT`` matches a whole field, ``FIELD~TEXT`` a part of it, ignoring case (`FIELDS`, `TRACE_FIELDS`). After
   ``=``, subjects in `to`, `from` and `subject` may be patterns; `to` and `id` also accept a target's hash.
3. ``age>1h`` failed more than an hour ago, ``age<10m`` less than ten minutes ago; ``replays>0`` was replayed before
   (``<`` and ``=`` too). ``partial=yes`` selects copies of targets that failed while others accepted the message.
4. Any other word matches part of the body, the payload's JSON text, ignoring case. The search for traces, which have no
   body, gives it another meaning.
5. A filter may have 200 terms, and any number of ids in addition.
6. A text with spaces is written in double quotes; inside them ``\"`` and ``\\`` are a quote and a backslash.

`render_filter` is the inverse of `parse_filter`. A `FilterError` says where a text is wrong and how to correct it. The
module is pure; records/selection.py evaluates the terms for dead letters.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from relay_core.text.units import parse_duration, typed_duration

FIELDS = {
    "reason": "=~",
    "code": "=~",
    "to": "=~",
    "from": "=~",
    "subject": "=~",
    "id": "=~",
    "age": "<>",
    "replays": "<>=",
    "partial": "=",
}
"""Every field of a dead letter with its operators."""
TRACE_FIELDS = {"id": "=", "subject": "=~", "from": "=~", "status": "=", "age": "<>", "since": "="}
"""Every field of a trace with its operators; ``since=10m`` is short for ``age<10m``."""

BODY = "body"
"""The field of a bare word."""
FAILED = "failed"
"""The time of failure in ms. The language has no such field: an age becomes a time when it is evaluated."""

_AGES = ("age", "since")
_COUNT = re.compile(r"\d{1,9}")
_HEAD = re.compile(r"([A-Za-z_]+)([=~<>])")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"', re.DOTALL)
_BARE = re.compile(r'[^\s"]+')
_SPACE = re.compile(r"\s*")

MAX_TERMS = 200
"""Without ids, which cost next to nothing."""


class FilterError(ValueError):
    """An invalid filter: the position, and how to correct it."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (at character {position + 1})")
        self.position = position
        """Counted from 0."""


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: a field (or the body), an operator and a value."""

    field: str
    op: str
    value: str | int
    """A text; for `age` and `since` milliseconds, for `replays` a number."""
    negated: bool = False
    position: int = dataclasses.field(default=0, compare=False)
    """Where it begins in the text, counted from 0."""

    def __str__(self) -> str:
        """Return the term as an operator would type it."""
        if self.field == BODY:
            text = _quoted(str(self.value), bare=not _HEAD.match(str(self.value)))
        elif self.field in _AGES:
            text = f"{self.field}{self.op}{typed_duration(int(self.value))}"
        else:
            text = f"{self.field}{self.op}{_quoted(str(self.value))}"
        return f"!{text}" if self.negated else text


def parse_filter(text: str, fields: Mapping[str, str] = FIELDS) -> tuple[Term, ...]:
    """Return the terms of a filter over some fields, none for an empty filter.

    Raises:
        FilterError: if the text is not a valid filter.
    """
    terms: list[Term] = []
    counted = 0
    at = _skip_space(text, 0)
    while at < len(text):
        start = at
        term, at = _parse_term(text, at, fields)
        terms.append(term)
        counted += not (term.field == "id" and term.op == "=")
        if counted > MAX_TERMS:
            raise FilterError(f"more than {MAX_TERMS} terms besides id=: leave some out", start)
        after = _skip_space(text, at)
        if after == at < len(text):
            raise FilterError('a quoted text ends at its quote: put a space after it, or \\" inside it', at)
        at = after
    return tuple(terms)


def render_filter(terms: Iterable[Term]) -> str:
    """Return terms as an operator would type them."""
    return " ".join(map(str, terms))


def _parse_term(text: str, at: int, fields: Mapping[str, str]) -> tuple[Term, int]:
    start = at
    negated = text[at] == "!"
    if negated:
        at += 1
        if at == len(text) or text[at].isspace():
            raise FilterError("nothing follows '!': write the term directly after it, like !code=timeout", start)
    head = _HEAD.match(text, at)
    if head is None:
        value, end = _parse_value(text, at, "a word")
        return Term(BODY, "~", value, negated, start), end
    field, op = head[1].lower(), head[2]
    if field not in fields:
        known = ", ".join(fields)
        raise FilterError(f"no field {head[1]!r}: the fields are {known}; quote a text to search for it", at)
    if op not in fields[field]:
        valid = " or ".join(f"{field}{known_op}" for known_op in fields[field])
        raise FilterError(f"{field!r} does not accept {op!r}: write {valid}", at + len(head[1]))
    value, end = _parse_value(text, head.end(), f"{field}{op}")
    if field in _AGES:
        age_ms = parse_duration(value)
        if age_ms is None:
            raise FilterError(f"{value!r} is not an age: write it like 90s, 10m, 2h or 7d", head.end())
        return Term(field, op, age_ms, negated, start), end
    if field == "replays":
        if _COUNT.fullmatch(value) is None:
            raise FilterError(f"{value!r} is not a number: write it like replays>0", head.end())
        return Term(field, op, int(value), negated, start), end
    if field == "partial":
        if value.lower() not in ("yes", "no"):
            raise FilterError(f"{value!r} is neither yes nor no: write partial=yes or partial=no", head.end())
        value = value.lower()
    return Term(field, op, value, negated, start), end


def _parse_value(text: str, at: int, before: str) -> tuple[str, int]:
    if at == len(text) or text[at].isspace():
        raise FilterError(f"nothing follows {before}: write a text, with quotes if it has spaces", at)
    if text[at] == '"':
        quoted = _QUOTED.match(text, at)
        if quoted is None:
            raise FilterError('the quote is not closed: end it with " (and write \\" and \\\\ inside it)', at)
        if not quoted[1]:
            raise FilterError("the quotes are empty: leave the term out, or write a text inside them", at)
        return re.sub(r"\\(.)", r"\1", quoted[1], flags=re.DOTALL), quoted.end()
    bare = _BARE.match(text, at)
    assert bare is not None  # the next character is neither a space nor a quote
    if bare.end() < len(text) and text[bare.end()] == '"':
        raise FilterError("a quote in the middle of a word: put the whole text into quotes", bare.end())
    return bare[0], bare.end()


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _quoted(text: str, *, bare: bool = True) -> str:
    if bare and _BARE.fullmatch(text) and not text.startswith("!"):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
