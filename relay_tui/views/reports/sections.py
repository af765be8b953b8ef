"""A report of any shape as sections that are tables: made once when it is opened, from JSON that nobody vouches for.

1. An object is a section of facts: a row for each value that fits on a line, with its name. What is larger becomes a
   section of its own, named by the way to it (``latency / subjects``).
2. A list of objects is a section with a column for each key; an object of flat objects too, with its own keys as the
   first column. Any other list is a section of one column.
3. A column whose values are numbers, or texts that are, is numeric: right-aligned, and drawn as bars if there are at
   most 50 rows.
4. A row that names a message or a trace leads there; one that names a subject or a sender leads to their traces.
5. Texts are cleaned; depth, sections, rows, columns and cells are bounded. What was left out is said in a note.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay_core.text.sanitize import clean

MAX_SECTIONS = 200
MAX_ROWS = 2000
MAX_COLUMNS = 24
MAX_DEPTH = 6
BAR_ROWS = 50

_CELL = 120
_NAME = 40
_KEYS_FROM = 200
"""Rows that are looked at for the names of columns."""
_BRIEF_PARTS = 8
_BRIEF_DEPTH = 3
_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?([eE][+-]?\d{1,2})?")
_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_SUBJECT = re.compile(r"relay(\.[A-Za-z0-9_*>-]+)+")
_LEADS = {"subject": "subject", "endpoint": "subject", "sender": "from", "from": "from"}


@dataclass(frozen=True, slots=True)
class Section:
    """One table of a report; every text in it is safe to show."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    numeric: frozenset[int]
    """The columns that are numbers."""
    shares: dict[int, list[float]]
    """Of a numeric column that can be drawn: each row's part of the largest."""
    leads: list[str | None]
    """Where each row leads on the screen of traces."""
    sources: list[Any]
    """What each row was made of, as it came."""
    note: str = ""
    """What was left out."""
    about: str = ""
    """What the section says, in a sentence."""
    bar: int | None = None
    """The column that is drawn unless another is chosen."""
    told: list[tuple[str, str]] | None = None
    """What else there is to say about each row, and what to type about it."""
    styles: list[str] | None = None
    """Of each row's first column; else what leads somewhere stands out."""
    widest: int = 36
    """Of a column."""


def read_sections(report: Mapping[str, Any]) -> list[Section]:
    """Return a report's sections, the facts about all of it first."""
    found: list[Section] = []
    for section in _of_object("", report, 0):
        if len(found) == MAX_SECTIONS:
            found.append(_table("…", [""], [], [], note="more sections than can be listed were left out"))
            break
        found.append(section)
    return found


def _of_object(title: str, value: Mapping[str, Any], depth: int) -> Iterator[Section]:
    facts = {key: part for key, part in value.items() if not _is_large(part)}
    if facts or not value:
        pairs = list(facts.items())
        yield _table(
            title or "summary", ["", "value"], [list(pair) for pair in pairs], [dict([pair]) for pair in pairs]
        )
    for key, part in value.items():
        name = f"{title} / {clean(key, _NAME)}" if title else clean(key, _NAME)
        if key in facts:
            continue
        if isinstance(part, list):
            yield _of_list(name, part)
        elif all(_is_flat(one) for one in part.values()):
            yield _of_objects(name, list(part.values()), list(part))
        elif depth == MAX_DEPTH:
            yield _table(name, ["value"], [[part]], [part], note="what is further inside is not laid out")
        else:
            yield from _of_object(name, part, depth + 1)


def _of_list(title: str, value: Sequence[Any]) -> Section:
    if all(isinstance(one, dict) for one in value):
        return _of_objects(title, value)
    return _table(title, ["value"], [[one] for one in value[: MAX_ROWS + 1]], value, total=len(value))


def _of_objects(title: str, objects: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> Section:
    """Return objects as rows; `names` are theirs, if they have any."""
    keys = list(dict.fromkeys(key for one in objects[:_KEYS_FROM] for key in one))
    shown = keys[:MAX_COLUMNS]
    note = f"{len(keys) - len(shown)} more columns are left out" if len(keys) > len(shown) else ""
    some = objects[: MAX_ROWS + 1]
    rows = [[one.get(key) for key in shown] for one in some]
    if names is None:
        return _table(title, shown, rows, some, note=note, total=len(objects))
    sources = [{name: one} for name, one in zip(names, some, strict=False)]
    named = [[name, *row] for name, row in zip(names, rows, strict=False)]
    return _table(title, ["", *shown], named, sources, note=note, total=len(objects))


def _table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    sources: Sequence[Any],
    *,
    note: str = "",
    total: int | None = None,
) -> Section:
    total = total if total is not None else len(rows)
    rows, sources = rows[:MAX_ROWS], list(sources[:MAX_ROWS])
    if total > MAX_ROWS:
        note = "; ".join(filter(None, [f"{total - MAX_ROWS:,} more rows are left out", note]))
    numeric = {}
    for at in range(len(columns)):
        if (values := _numbers([row[at] for row in rows])) is not None:
            numeric[at] = values
    return Section(
        title=title,
        columns=tuple(clean(column, _NAME) for column in columns),
        rows=[tuple(_shown(value) for value in row) for row in rows],
        numeric=frozenset(numeric),
        shares={at: shares_of(values) for at, values in numeric.items()} if len(rows) <= BAR_ROWS else {},
        leads=[_lead(title, columns, row) for row in rows],
        sources=sources,
        note=note,
    )


def _is_large(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _is_flat(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and not any(map(_is_large, value.values()))


def _numbers(values: Sequence[Any]) -> list[float] | None:
    """Return a column as numbers, nothing counting as 0; None if it has anything else, or nothing at all."""
    found = [_number(value) for value in values if value is not None]
    if not found or None in found:
        return None
    return [_number(value) or 0.0 for value in values]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def shares_of(values: Sequence[float | None]) -> list[float]:
    """Return each value's part of the largest."""
    sizes = [abs(value or 0.0) for value in values]
    largest = max(sizes, default=0.0) or 1.0
    return [value / largest for value in sizes]


def _shown(value: Any) -> str:
    """Return a value as one short line."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return clean(f"{value:,}", _CELL)
        case float():
            return f"{value:,.2f}" if 10 <= abs(value) < 1e12 else f"{value:.4g}"
        case str():
            return clean(value, _CELL)
        case _:
            return clean(_brief(value, _BRIEF_DEPTH), _CELL)


def _brief(value: Any, depth: int) -> str:
    """Return the beginning of something nested, on one line."""
    if not isinstance(value, dict | list):
        return _shown(value)
    if depth == 0:
        return "{…}" if isinstance(value, dict) else "[…]"
    more = ", …" if len(value) > _BRIEF_PARTS else ""
    if isinstance(value, dict):
        pairs = list(zip(value, range(_BRIEF_PARTS), strict=False))
        return "{" + ", ".join(f"{clean(key, _NAME)}: {_brief(value[key], depth - 1)}" for key, _ in pairs) + more + "}"
    return "[" + ", ".join(_brief(one, depth - 1) for one in value[:_BRIEF_PARTS]) + more + "]"


def lead_of(named: Mapping[str, Any]) -> str | None:
    """Return where a row leads by the names in it."""
    texts = {key.replace("_", "").lower(): value for key, value in named.items() if isinstance(value, str)}
    for key in ("messageid", "traceid", "id", "value", ""):
        if _ID.fullmatch(texts.get(key, "")):
            return texts[key]
    for key, what in _LEADS.items():
        if _SUBJECT.fullmatch(texts.get(key, "")):
            return f"{what}={texts[key]}"
    return None


def _lead(title: str, columns: Sequence[str], row: Sequence[Any]) -> str | None:
    """Return what to look for on the screen of traces: a message, a trace, else a subject or a sender."""
    named = dict(zip(columns, row, strict=True))
    if columns[:2] == ["", "value"] and len(columns) == 2:  # a fact has its own name
        named = {str(row[0]): row[1]}
    if (lead := lead_of(named)) is not None:
        return lead
    name = row[0] if row else None
    if columns[:1] == [""] and isinstance(name, str) and _SUBJECT.fullmatch(name):
        return f"{'from' if 'sender' in title.lower() else 'subject'}={name}"
    return None
