"""Which dead letters are meant: one meaning, held against a file or asked of the index.

1. `accepts` and `where` select the same: a test holds one to the other. What is no message has no sender and no
   body, and its mailbox's subject for a subject, as its row in the index has.
2. "In any case" is A to Z for a text of ASCII, as SQLite's own functions have it; any other text is compared by
   Python's lower case, in the index too.
3. The index cannot see a body: `where` then selects more than is meant, and the files decide (`needs_files`).
4. A file may have been damaged since its row was written. The index may say where to look only if no damaged record
   is meant (`can_be_damaged`); what it finds is read again and held against `accepts`.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from relay_core.deadletters import DAMAGED, Code, DeadLetter, DeadLetterFilter
from relay_core.filter_language import BODY, FAILED, Term
from relay_core.subjects import is_pattern, matches_pattern

_COLUMNS = {"to": "target_subject", "from": "sender", "id": "message_id"}
_FAILED_MS = "CAST(ifnull(handled_ms, sent_ms) AS INTEGER)"
_LONGEST_TEXT = 4000
"""That SQLite is asked for: nothing in the index is so long."""
_INT64 = 2**63 - 1
_NAMES = 2
"""Ids that one dead letter has: the message's, and that of this copy."""
_KEY = "message_id || '/' || target"

Sql = tuple[str, list[Any]]
"""A condition and its values."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The dead letters that are meant at an instant."""

    terms: tuple[Term, ...] = ()
    ids: frozenset[str] | None = None
    """Messages, or copies of them as ``ID/HASH``."""
    exclude: bool = False
    """Whether the terms and ids are turned round, all of them together."""
    only: frozenset[str] | None = None
    """Ids that are meant beside all that."""
    failed_before: int | None = None
    """An instant that is meant beside all that."""
    not_ids: frozenset[str] = frozenset()
    """Ids that are not meant: ``!id=`` as one term, since there may be thousands."""

    @classmethod
    def of(
        cls,
        filter: DeadLetterFilter | None,
        now_ms: int,
        *,
        only: Iterable[str] | None = None,
        failed_before: int | None = None,
    ) -> Selection:
        """Return what a filter means now, narrowed to ids and to what failed before an instant, if given."""
        filter = filter or DeadLetterFilter()
        terms = filter.terms
        return cls(
            tuple(_instant(term, now_ms) if term.field == "age" else term for term in terms if not _is_left_out(term)),
            frozenset(filter.ids) if filter.ids is not None else None,
            filter.exclude,
            frozenset(only) if only is not None else None,
            failed_before,
            frozenset(str(term.value) for term in terms if _is_left_out(term)),
        )

    @property
    def needs_files(self) -> bool:
        """Whether only the files can tell."""
        return any(term.field == BODY for term in self.terms)

    def accepts(self, letter: DeadLetter, endpoint_subject: str, failed_ms: int) -> bool:
        """Tell whether a dead letter is meant."""
        if self.only is not None and not _is_among(letter, self.only):
            return False
        if self.failed_before is not None and failed_ms >= self.failed_before:
            return False
        inner = (
            (self.ids is None or _is_among(letter, self.ids))
            and not _is_among(letter, self.not_ids)
            and all(_holds(term, letter, endpoint_subject, failed_ms) != term.negated for term in self.terms)
        )
        return inner != self.exclude

    def where(self, db: sqlite3.Connection) -> Sql:
        """Return the condition over the index's deliveries; `db` is taught the functions it needs."""
        _teach(db)
        inner = [_sql(term) for term in self.terms if term.field != BODY and not _is_id(term)]
        inner.append(_sql_ids([term for term in self.terms if _is_id(term)]))
        if self.ids is not None:
            inner.append(_among(self.ids))
        if self.not_ids:
            inner.append(_not(_among(self.not_ids)))
        if self.exclude:
            # Turned round, a body that nobody looked at may let everything in.
            inner = [] if self.needs_files else [_not(_all(inner))]
        if self.only is not None:
            inner.append(_among(self.only))
        if self.failed_before is not None:
            inner.append((f"{_FAILED_MS} < ?", [_number(self.failed_before)]))
        return _all(inner)

    def accepts_mailbox(self, subject: str, hash: str) -> bool:
        """Tell whether any dead letter of a mailbox can be meant."""
        return self.exclude or all(
            _fits_target(term, subject, hash) != term.negated for term in self.terms if term.field == "to"
        )

    @property
    def can_be_damaged(self) -> bool:
        """Whether a record that cannot be read may be among them."""
        verdicts = [_holds_for_damaged(term) for term in self.terms]
        if self.exclude:
            return self.ids is not None or bool(self.not_ids) or not all(verdict is True for verdict in verdicts)
        return not any(verdict is False for verdict in verdicts)


def columns_where(db: sqlite3.Connection, terms: Iterable[Term]) -> Sql:
    """Return the condition that all of some terms hold; `db` is taught the functions it needs."""
    _teach(db)
    return _all([_sql(term) for term in terms])


def _teach(db: sqlite3.Connection) -> None:
    db.create_function("any_case", 1, str.lower, deterministic=True)
    db.create_function("fits", 2, _Fits(), deterministic=True)


def _holds(term: Term, letter: DeadLetter, endpoint_subject: str, failed_ms: int) -> bool:
    """Tell whether what a term says holds, whether it is negated or not."""
    envelope, value = letter.envelope, term.value
    match term.field:
        case "reason":
            return _compare(term, letter.code) or _compare(term, letter.reason)
        case "code":
            return _compare(term, letter.code)
        case "to":
            return _fits_target(term, endpoint_subject, letter.endpoint_hash)
        case "from":
            return _fits_subject(term, envelope.sender if envelope is not None else "")
        case "subject":
            return _fits_subject(term, envelope.subject if envelope is not None else endpoint_subject)
        case "id":
            return _is_among(letter, {value}) if term.op == "=" else _compare(term, letter.message_id)
        case "replays":
            return _compare_numbers(term, letter.replays)
        case "partial":
            return letter.partial == (value == "yes")
        case "failed":
            return _compare_numbers(term, failed_ms)
        case _:
            return envelope is not None and _compare(term, orjson.dumps(envelope.payload).decode())


def _holds_for_damaged(term: Term) -> bool | None:
    """Tell whether a term holds for every damaged record (True) or for none (False)."""
    match term.field:
        case "code":
            held: bool | None = _compare(term, Code.MALFORMED)
        case "reason":
            held = _compare(term, Code.MALFORMED) or (
                None if term.op == "~" or str(term.value).startswith(DAMAGED) else False
            )
        case "replays":
            held = _compare_numbers(term, 0)
        case "partial":
            held = term.value == "no"
        case "from":
            held = _fits_subject(term, "")
        case "body":
            held = False
        case _:
            held = None
    return held if held is None else held != term.negated


def _sql(term: Term) -> Sql:
    match term.field:
        case "reason":
            found = _any([_sql_text("code", term), _sql_text("reason", term)])
        case "to" if term.op == "=" and not is_pattern(str(term.value)):
            found = ("(target_subject = ? OR target = ?)", [_text(term), _text(term)])
        case "to" | "from" | "subject" if term.op == "=" and is_pattern(str(term.value)):
            found = _sql_pattern(_COLUMNS.get(term.field, term.field), _text(term))
        case "id" if term.op == "=":
            found = (f"(message_id = ? OR {_KEY} = ?)", [_text(term), _text(term)])
        case "replays":
            found = (f"replays {term.op} ?", [_number(term.value)])
        case "partial":
            found = (f"status {'=' if term.value == 'yes' else '!='} 'partial_failure'", [])
        case "failed":
            found = (f"{_FAILED_MS} {term.op} ?", [_number(term.value)])
        case _:
            found = _sql_text(_COLUMNS.get(term.field, term.field), term)
    return _not(found) if term.negated else found


def _sql_ids(terms: list[Term]) -> Sql:
    """Return that a message has every id of some terms: its own, and that of its copy, but no third."""
    ids = {str(term.value) for term in terms}
    return ("false", []) if len(ids) > _NAMES else _all([_sql(Term("id", "=", one)) for one in sorted(ids)])


def _sql_text(column: str, term: Term) -> Sql:
    text = _text(term)
    if term.op == "=":
        return f"{column} = ?", [text]
    if text.isascii():
        escaped = re.sub(r"([%_\\])", r"\\\1", text)
        return rf"{column} LIKE ? ESCAPE '\'", [f"%{escaped}%"]
    return f"instr(any_case({column}), ?) > 0", [text.lower()]


def _sql_pattern(column: str, pattern: str) -> Sql:
    """Return what a pattern says in SQLite's own, quicker words where that says the same."""
    tokens = pattern.split(".")
    if ">" in tokens[:-1] or (tokens[-1] == ">" and "*" in tokens):
        return f"fits({column}, ?)", [pattern]
    glob = ".".join("?*" if token in ("*", ">") else re.sub(r"([*?[])", r"[\1]", token) for token in tokens)
    if tokens[-1] == ">":
        return f"{column} GLOB ?", [glob]
    # With no more dots than the pattern has, none is left for a wildcard to swallow.
    return f"({column} GLOB ? AND {column} NOT GLOB ?)", [glob, ".".join("*" * (len(tokens) + 1))]


def _all(conditions: list[Sql]) -> Sql:
    return " AND ".join(sql for sql, _ in conditions) or "true", [one for _, values in conditions for one in values]


def _any(conditions: list[Sql]) -> Sql:
    joined = " OR ".join(sql for sql, _ in conditions)
    return f"({joined})", [one for _, values in conditions for one in values]


def _not(condition: Sql) -> Sql:
    return f"NOT ifnull({condition[0]}, false)", condition[1]


def _among(ids: frozenset[str]) -> Sql:
    wanted = orjson.dumps([one.encode(errors="replace").decode() for one in ids]).decode()
    chosen = "(SELECT value FROM json_each(?))"
    return f"(message_id IN {chosen} OR {_KEY} IN {chosen})", [wanted, wanted]


def _is_among(letter: DeadLetter, ids: Iterable[Any]) -> bool:
    return letter.message_id in ids or f"{letter.message_id}/{letter.endpoint_hash}" in ids


def _is_id(term: Term) -> bool:
    return term.field == "id" and term.op == "=" and not term.negated


def _is_left_out(term: Term) -> bool:
    return term.field == "id" and term.op == "=" and term.negated


def _compare(term: Term, text: str) -> bool:
    wanted = _clean(str(term.value))  # all of it: a body may be long
    if term.op == "=":
        return text == wanted
    if wanted.isascii():
        return wanted.lower().encode() in text.encode(errors="replace").lower()  # of bytes: A to Z alone
    return wanted.lower() in text.lower()


def _compare_numbers(term: Term, number: int) -> bool:
    wanted = int(term.value)
    return {"<": number < wanted, ">": number > wanted, "=": number == wanted}[term.op]


def _fits_target(term: Term, subject: str, hash: str) -> bool:
    return _fits_subject(term, subject) or (term.op == "=" and term.value == hash)


def _fits_subject(term: Term, subject: str) -> bool:
    if term.op == "=" and is_pattern(str(term.value)):
        return bool(subject) and matches_pattern(subject, str(term.value))
    return _compare(term, subject)


def _instant(term: Term, now_ms: int) -> Term:
    """Return an age as an instant: longer ago is before it."""
    return Term(FAILED, "<" if term.op == ">" else ">", now_ms - int(term.value), term.negated)


def _text(term: Term) -> str:
    """Return a term's text as SQLite can take it: what has no end fits nothing anyway."""
    return _clean(str(term.value)[:_LONGEST_TEXT])


def _clean(text: str) -> str:
    """Return a text without what is no Unicode, and without NUL, which fit nothing anyway."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def _number(value: Any) -> int:
    """Return a number as SQLite can take it: what lies beyond is beyond everything anyway."""
    return min(max(int(value), -_INT64), _INT64)


class _Fits:
    """`fits(subject, pattern)` for SQLite, which asks for the same few subjects over and over."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], bool] = {}

    def __call__(self, subject: str, pattern: str) -> bool:
        key = (subject, pattern)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = bool(subject) and matches_pattern(subject, pattern)
        return known
