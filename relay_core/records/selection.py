"""A selection of dead letters: one meaning, applied to a file or to the index.

1. `accepts` and `where` select the same dead letters; a test compares them. A damaged record has no sender and no body,
   and its mailbox's subject as subject, like its row in the index.
2. Case-insensitive means A to Z for ASCII text, as in SQLite; any other text is compared in Python's lower case, in the
   index too.
3. The index has no bodies: `where` then selects too many, and the files decide (`needs_files`).
4. A file may have been damaged since its row was written. The index is used only if no damaged record can be selected
   (`can_be_damaged`); the letters it finds are read again and checked with `accepts`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from relay_core.messages.dead_letter import DAMAGED, Code, DeadLetter, DeadLetterFilter
from relay_core.messages.filter_language import BODY, FAILED, Term
from relay_core.messages.subjects import is_pattern, matches_pattern
from relay_core.records.filter_sql import (
    FAILED_MS,
    Sql,
    all_of,
    among,
    clean_text,
    ids_sql,
    negate,
    register_functions,
    sql_number,
    term_sql,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """A filter evaluated at a point in time."""

    terms: tuple[Term, ...] = ()
    ids: frozenset[str] | None = None
    """Messages, or copies of them as ``ID/HASH``."""
    exclude: bool = False
    """Whether the terms and ids together are negated."""
    only: frozenset[str] | None = None
    """Ids that narrow the selection further."""
    failed_before: int | None = None
    """A time that narrows the selection further."""
    not_ids: frozenset[str] = frozenset()
    """Excluded ids: all ``!id=`` terms together, since there may be thousands."""

    @classmethod
    def of(
        cls,
        filter: DeadLetterFilter | None,
        now_ms: int,
        *,
        only: Iterable[str] | None = None,
        failed_before: int | None = None,
    ) -> Selection:
        """Evaluate a filter now, narrowed to ids and to failures before a time, if given."""
        filter = filter or DeadLetterFilter()
        terms = filter.terms
        return cls(
            tuple(
                _age_as_time(term, now_ms) if term.field == "age" else term
                for term in terms
                if not _is_excluded_id(term)
            ),
            frozenset(filter.ids) if filter.ids is not None else None,
            filter.exclude,
            frozenset(only) if only is not None else None,
            failed_before,
            frozenset(str(term.value) for term in terms if _is_excluded_id(term)),
        )

    @property
    def needs_files(self) -> bool:
        """Return True if only the files can decide."""
        return any(term.field == BODY for term in self.terms)

    def accepts(self, letter: DeadLetter, endpoint_subject: str, failed_ms: int) -> bool:
        """Return True if a dead letter is selected."""
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
        """Return the condition over the index's deliveries; registers the functions it needs in `db`."""
        register_functions(db)
        inner = [term_sql(term) for term in self.terms if term.field != BODY and not _is_id(term)]
        inner.append(ids_sql([term for term in self.terms if _is_id(term)]))
        if self.ids is not None:
            inner.append(among(self.ids))
        if self.not_ids:
            inner.append(negate(among(self.not_ids)))
        if self.exclude:
            # Negated, a term over bodies, which the index cannot evaluate, may select everything.
            inner = [] if self.needs_files else [negate(all_of(inner))]
        if self.only is not None:
            inner.append(among(self.only))
        if self.failed_before is not None:
            inner.append((f"{FAILED_MS} < ?", [sql_number(self.failed_before)]))
        return all_of(inner)

    def accepts_mailbox(self, subject: str, hash: str) -> bool:
        """Return True if any dead letter of a mailbox can be selected."""
        return self.exclude or all(
            _fits_target(term, subject, hash) != term.negated for term in self.terms if term.field == "to"
        )

    @property
    def can_be_damaged(self) -> bool:
        """Return True if a damaged record can be selected."""
        verdicts = [_holds_for_damaged(term) for term in self.terms]
        if self.exclude:
            return self.ids is not None or bool(self.not_ids) or not all(verdict is True for verdict in verdicts)
        return not any(verdict is False for verdict in verdicts)


def _holds(term: Term, letter: DeadLetter, endpoint_subject: str, failed_ms: int) -> bool:
    """Return True if a term holds, ignoring its negation."""
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
    """Return True if a term holds for every damaged record, False if for none, else None."""
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


def _is_among(letter: DeadLetter, ids: Iterable[Any]) -> bool:
    return letter.message_id in ids or f"{letter.message_id}/{letter.endpoint_hash}" in ids


def _is_id(term: Term) -> bool:
    return term.field == "id" and term.op == "=" and not term.negated


def _is_excluded_id(term: Term) -> bool:
    return term.field == "id" and term.op == "=" and term.negated


def _compare(term: Term, text: str) -> bool:
    wanted = clean_text(str(term.value))  # not truncated: a body may be long
    if term.op == "=":
        return text == wanted
    if wanted.isascii():
        return wanted.lower().encode() in text.encode(errors="replace").lower()  # bytes.lower() changes only A to Z
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


def _age_as_time(term: Term, now_ms: int) -> Term:
    """Return a term over the age as one over the time of failure."""
    return Term(FAILED, "<" if term.op == ">" else ">", now_ms - int(term.value), term.negated)
