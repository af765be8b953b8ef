"""Filter terms as SQL conditions over the index's deliveries.

A condition is a string and its values; the functions it uses must be registered first (`register_functions`).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from typing import Any

import orjson

from relay_core.messages.filter_language import Term
from relay_core.messages.subjects import is_pattern, matches_pattern

_COLUMNS = {"to": "target_subject", "from": "sender", "id": "message_id"}
FAILED_MS = "CAST(ifnull(handled_ms, sent_ms) AS INTEGER)"
_LONGEST_TEXT = 4000
"""Longest text passed to SQLite: nothing in the index is that long."""
_INT64 = 2**63 - 1
_NAMES = 2
"""Ids that one dead letter has: the message's, and that of this copy."""
_KEY = "message_id || '/' || target"

Sql = tuple[str, list[Any]]
"""A condition and its values."""


def columns_where(db: sqlite3.Connection, terms: Iterable[Term]) -> Sql:
    """Return the condition that all terms hold; registers the functions it needs."""
    register_functions(db)
    return all_of([term_sql(term) for term in terms])


def register_functions(db: sqlite3.Connection) -> None:
    """Register the functions that conditions use."""
    db.create_function("any_case", 1, str.lower, deterministic=True)
    db.create_function("fits", 2, _Fits(), deterministic=True)


def term_sql(term: Term) -> Sql:
    """Return the condition that a term holds."""
    match term.field:
        case "reason":
            condition = _any([_sql_text("code", term), _sql_text("reason", term)])
        case "to" if term.op == "=" and not is_pattern(str(term.value)):
            condition = ("(target_subject = ? OR target = ?)", [_text(term), _text(term)])
        case "to" | "from" | "subject" if term.op == "=" and is_pattern(str(term.value)):
            condition = _sql_pattern(_COLUMNS.get(term.field, term.field), _text(term))
        case "id" if term.op == "=":
            condition = (f"(message_id = ? OR {_KEY} = ?)", [_text(term), _text(term)])
        case "replays":
            condition = (f"replays {term.op} ?", [sql_number(term.value)])
        case "partial":
            condition = (f"status {'=' if term.value == 'yes' else '!='} 'partial_failure'", [])
        case "failed":
            condition = (f"{FAILED_MS} {term.op} ?", [sql_number(term.value)])
        case _:
            condition = _sql_text(_COLUMNS.get(term.field, term.field), term)
    return negate(condition) if term.negated else condition


def ids_sql(terms: list[Term]) -> Sql:
    """Return the condition that a dead letter has every id of these terms; it has at most two."""
    ids = {str(term.value) for term in terms}
    return ("false", []) if len(ids) > _NAMES else all_of([term_sql(Term("id", "=", id)) for id in sorted(ids)])


def _sql_text(column: str, term: Term) -> Sql:
    text = _text(term)
    if term.op == "=":
        return f"{column} = ?", [text]
    if text.isascii():
        escaped = re.sub(r"([%_\\])", r"\\\1", text)
        return rf"{column} LIKE ? ESCAPE '\'", [f"%{escaped}%"]
    return f"instr(any_case({column}), ?) > 0", [text.lower()]


def _sql_pattern(column: str, pattern: str) -> Sql:
    """Return a pattern as a GLOB, which is faster than `fits`, if a GLOB can express it."""
    tokens = pattern.split(".")
    if ">" in tokens[:-1] or (tokens[-1] == ">" and "*" in tokens):
        return f"fits({column}, ?)", [pattern]
    glob = ".".join("?*" if token in ("*", ">") else re.sub(r"([*?[])", r"[\1]", token) for token in tokens)
    if tokens[-1] == ">":
        return f"{column} GLOB ?", [glob]
    # A subject with no more dots than the pattern leaves none for a wildcard to match.
    return f"({column} GLOB ? AND {column} NOT GLOB ?)", [glob, ".".join("*" * (len(tokens) + 1))]


def all_of(conditions: list[Sql]) -> Sql:
    """Return the condition that all of these hold."""
    return " AND ".join(sql for sql, _ in conditions) or "true", _values(conditions)


def _any(conditions: list[Sql]) -> Sql:
    return f"({' OR '.join(sql for sql, _ in conditions)})", _values(conditions)


def _values(conditions: list[Sql]) -> list[Any]:
    return [value for _, values in conditions for value in values]


def negate(condition: Sql) -> Sql:
    """Return the condition that another does not hold."""
    return f"NOT ifnull({condition[0]}, false)", condition[1]


def among(ids: frozenset[str]) -> Sql:
    """Return the condition that a dead letter has one of these ids."""
    wanted = orjson.dumps([id.encode(errors="replace").decode() for id in ids]).decode()
    chosen = "(SELECT value FROM json_each(?))"
    return f"(message_id IN {chosen} OR {_KEY} IN {chosen})", [wanted, wanted]


def _text(term: Term) -> str:
    """Return a term's text for SQLite, truncated: a longer text matches nothing anyway."""
    return clean_text(str(term.value)[:_LONGEST_TEXT])


def sql_number(value: Any) -> int:
    """Return a number clamped to SQLite's range; no value is outside it."""
    return min(max(int(value), -_INT64), _INT64)


def clean_text(text: str) -> str:
    """Return a text without invalid Unicode and NUL, which match nothing anyway."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


class _Fits:
    """`fits(subject, pattern)` for SQLite, cached: it asks for the same few subjects again and again."""

    def __init__(self) -> None:
        self._cache: dict[tuple[str, str], bool] = {}

    def __call__(self, subject: str, pattern: str) -> bool:
        key = (subject, pattern)
        fits = self._cache.get(key)
        if fits is None:
            fits = self._cache[key] = bool(subject) and matches_pattern(subject, pattern)
        return fits
