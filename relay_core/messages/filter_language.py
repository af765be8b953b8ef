r"""The language of dead-letter filters: what an operator types, as terms that can be held against a dead letter.

1. Terms are separated by spaces, and all of them must hold. A leading `!` turns one round.
2. ``FIELD=TEXT`` is the whole of a field, ``FIELD~TEXT`` a part of it in any case (`FIELDS`). The subjects in `to`,
   `from` and `subject` may be patterns after ``=``; `to` and `id` know a target by its hash as well.
3. ``age>1h`` failed longer ago, ``age<10m`` sooner; ``replays>0`` was replayed before (``<`` and ``=`` too).
   ``partial=yes`` is the kept copy of a target that failed while others took the message, ``partial=no`` is not.
4. Everything else is part of the body, the payload's JSON text, in any case.
5. There may be 200 terms, and any number of ids beside them.
6. A text with spaces stands in double quotes; inside them ``\"`` and ``\\`` are a quote and a backslash.

`parse_filter` and `render_filter` are each other's opposite. What is wrong with a text is a `FilterError`, which
says where and what would be right. The module is pure; what the terms mean is in selection.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

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
"""Every field, and its operators."""

BODY = "body"
"""The field of a term without one."""
FAILED = "failed"
"""The field of an instant (in ms), which the language itself has not: ages become instants when they are asked."""

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGE = re.compile(r"(\d{1,15})(ms|s|m|h|d|w)")
_COUNT = re.compile(r"\d{1,9}")
_HEAD = re.compile(r"([A-Za-z_]+)([=~<>])")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"', re.DOTALL)
_BARE = re.compile(r'[^\s"]+')
_SPACE = re.compile(r"\s*")

MAX_TERMS = 200
"""Of one filter; ids cost next to nothing and do not count."""


class FilterError(ValueError):
    """A text that is no filter: where it goes wrong, and what would be right."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (at character {position + 1})")
        self.position = position
        """Counted from 0."""


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: a field (or the body), an operator, and what to compare with."""

    field: str
    op: str
    value: str | int
    """A text; for `age` milliseconds, for `replays` a number."""
    negated: bool = False

    def __str__(self) -> str:
        """Return the term as an operator would type it."""
        if self.field == BODY:
            text = _quoted(str(self.value), bare=not _HEAD.match(str(self.value)))
        elif self.field == "age":
            text = f"age{self.op}{_age_text(int(self.value))}"
        else:
            text = f"{self.field}{self.op}{_quoted(str(self.value))}"
        return f"!{text}" if self.negated else text


def parse_filter(text: str) -> tuple[Term, ...]:
    """Return the terms of a filter, none for an empty one.

    Raises:
        FilterError: if the text is no filter.
    """
    terms: list[Term] = []
    weighty = 0
    at = _skip_space(text, 0)
    while at < len(text):
        began = at
        term, at = _parse_term(text, at)
        terms.append(term)
        weighty += not (term.field == "id" and term.op == "=")
        if weighty > MAX_TERMS:
            raise FilterError(f"more than {MAX_TERMS} terms beside id=: leave some out", began)
        after = _skip_space(text, at)
        if after == at < len(text):
            raise FilterError('a quoted text ends at its quote: put a space after it, or \\" inside it', at)
        at = after
    return tuple(terms)


def render_filter(terms: Iterable[Term]) -> str:
    """Return terms as an operator would type them."""
    return " ".join(map(str, terms))


def _parse_term(text: str, at: int) -> tuple[Term, int]:
    negated = text[at] == "!"
    if negated:
        at += 1
        if at == len(text) or text[at].isspace():
            raise FilterError("nothing follows '!': write the term right behind it, like !code=timeout", at - 1)
    head = _HEAD.match(text, at)
    if head is None:
        value, end = _parse_value(text, at, "a word")
        return Term(BODY, "~", value, negated), end
    field, op = head[1].lower(), head[2]
    if field not in FIELDS:
        known = ", ".join(FIELDS)
        raise FilterError(f"no field {head[1]!r}: there are {known}; put quotes around a text to look for it", at)
    if op not in FIELDS[field]:
        right = " or ".join(f"{field}{one}" for one in FIELDS[field])
        raise FilterError(f"{field!r} does not go with {op!r}: write {right}", at + len(head[1]))
    value, end = _parse_value(text, head.end(), f"{field}{op}")
    if field == "age":
        found = _AGE.fullmatch(value)
        if found is None:
            raise FilterError(f"{value!r} is no age: write it like 90s, 10m, 2h or 7d", head.end())
        return Term(field, op, int(found[1]) * _UNIT_MS[found[2]], negated), end
    if field == "replays":
        if _COUNT.fullmatch(value) is None:
            raise FilterError(f"{value!r} is no number: write it like replays>0", head.end())
        return Term(field, op, int(value), negated), end
    if field == "partial":
        if value.lower() not in ("yes", "no"):
            raise FilterError(f"{value!r} is neither yes nor no: write partial=yes or partial=no", head.end())
        value = value.lower()
    return Term(field, op, value, negated), end


def _parse_value(text: str, at: int, before: str) -> tuple[str, int]:
    if at == len(text) or text[at].isspace():
        raise FilterError(f"nothing follows {before}: write a text, with quotes if it has spaces", at)
    if text[at] == '"':
        quoted = _QUOTED.match(text, at)
        if quoted is None:
            raise FilterError('the quote is not closed: end it with " (and write \\" and \\\\ inside it)', at)
        if not quoted[1]:
            raise FilterError("the quotes are empty: leave the term out, or write a text into them", at)
        return re.sub(r"\\(.)", r"\1", quoted[1], flags=re.DOTALL), quoted.end()
    bare = _BARE.match(text, at)
    assert bare is not None  # neither space nor quote stands here
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


def _age_text(ms: int) -> str:
    unit = next(unit for unit in ("w", "d", "h", "m", "s", "ms") if ms % _UNIT_MS[unit] == 0)
    return f"{ms // _UNIT_MS[unit]}{unit}"
