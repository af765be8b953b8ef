"""A JSON document of any shape as sections, which are tables. The document is untrusted.

1. An object is a section of facts: a row with name and value for each value that fits on a line. A larger value is
   another section, named by its path (``latency / subjects``).
2. A list of objects is a section with a column for each key; an object of flat objects likewise, with its keys as the
   first column. Any other list is a section of one column.
3. A column of numbers, or of texts that are numbers, is numeric: right-aligned, and drawn as bars if there are at most
   50 rows.
4. A row with the id of a message or a trace links to it; one with a subject or a sender links to their traces.
5. Texts are cleaned; depth, sections, rows, columns and cells are bounded. A note counts what was left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
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
"""Rows whose keys become columns."""
_BRIEF_PARTS = 8
_BRIEF_DEPTH = 3
_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?([eE][+-]?\d{1,2})?")
_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_SUBJECT = re.compile(r"relay(\.[A-Za-z0-9_*>-]+)+")
_LINKS = {"subject": "subject", "endpoint": "subject", "sender": "from", "from": "from"}


@dataclass(frozen=True, slots=True)
class Section:
    """A table of a report; its texts are safe to show."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    links: list[str | None]
    """The search for the traces screen, by row."""
    sources: list[Any]
    """The JSON value of each row."""
    numeric: frozenset[int] = frozenset()
    """The numeric columns."""
    shares: dict[int, list[float]] = field(default_factory=dict)
    """Of each column that can be drawn: the values relative to the largest."""
    note: str = ""
    """What was left out."""
    about: str = ""
    """A description of the section."""
    bar: int | None = None
    """The column that is drawn unless another is chosen."""
    explanations: list[tuple[str, str]] | None = None
    """A text and a command for each row."""
    styles: list[str] | None = None
    """The styles of the first column; otherwise links stand out."""
    widest: int = 36
    """The maximum width of a column."""


def read_sections(report: Mapping[str, Any]) -> list[Section]:
    """Return the sections of a report, its own facts first."""
    sections: list[Section] = []
    for section in _of_object("", report, 0):
        if len(sections) == MAX_SECTIONS:
            sections.append(_table("…", [""], [], [], note="the remaining sections are left out"))
            break
        sections.append(section)
    return sections


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
        elif all(map(_is_flat, part.values())):
            yield _of_objects(name, list(part.values()), list(part))
        elif depth == MAX_DEPTH:
            yield _table(name, ["value"], [[part]], [part], note="nested too deeply for tables")
        else:
            yield from _of_object(name, part, depth + 1)


def _of_list(title: str, value: Sequence[Any]) -> Section:
    if all(isinstance(item, dict) for item in value):
        return _of_objects(title, value)
    return _table(title, ["value"], [[item] for item in value[:MAX_ROWS]], value, total=len(value))


def _of_objects(title: str, objects: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> Section:
    """Return objects as rows, with their names if they have any."""
    keys = list(dict.fromkeys(key for item in objects[:_KEYS_FROM] for key in item))
    shown = keys[:MAX_COLUMNS]
    note = f"{len(keys) - len(shown)} more columns are left out" if len(keys) > len(shown) else ""
    first = objects[:MAX_ROWS]
    rows = [[item.get(key) for key in shown] for item in first]
    if names is None:
        return _table(title, shown, rows, first, note=note, total=len(objects))
    sources = [{name: item} for name, item in zip(names, first, strict=False)]
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
    parsed = {at: _numbers([row[at] for row in rows]) for at in range(len(columns))}
    numeric = {at: values for at, values in parsed.items() if values is not None}
    return Section(
        title=title,
        columns=tuple(clean(column, _NAME) for column in columns),
        rows=[tuple(_shown(value) for value in row) for row in rows],
        numeric=frozenset(numeric),
        shares={at: shares_of(values) for at, values in numeric.items()} if len(rows) <= BAR_ROWS else {},
        links=[_link(title, columns, row) for row in rows],
        sources=sources,
        note=note,
    )


def _is_large(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _is_flat(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and not any(map(_is_large, value.values()))


def _numbers(values: Sequence[Any]) -> list[float] | None:
    """Return a column as numbers, null as 0; None if it is empty or has other values."""
    numbers = [_number(value) for value in values if value is not None]
    if not numbers or None in numbers:
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
    """Return the values relative to the largest."""
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
    """Return the start of a nested value on one line."""
    if not isinstance(value, dict | list):
        return _shown(value)
    if depth == 0:
        return "{…}" if isinstance(value, dict) else "[…]"
    more = ", …" if len(value) > _BRIEF_PARTS else ""
    if isinstance(value, dict):
        pairs = islice(value.items(), _BRIEF_PARTS)
        return "{" + ", ".join(f"{clean(key, _NAME)}: {_brief(part, depth - 1)}" for key, part in pairs) + more + "}"
    return "[" + ", ".join(_brief(part, depth - 1) for part in value[:_BRIEF_PARTS]) + more + "]"


def link_of(named: Mapping[str, Any]) -> str | None:
    """Return the search for a row with named values: a message, a trace, else a subject or a sender."""
    texts = {key.replace("_", "").lower(): value for key, value in named.items() if isinstance(value, str)}
    for key in ("messageid", "traceid", "id", "value", ""):
        if _ID.fullmatch(texts.get(key, "")):
            return texts[key]
    for key, field_name in _LINKS.items():
        if _SUBJECT.fullmatch(texts.get(key, "")):
            return f"{field_name}={texts[key]}"
    return None


def _link(title: str, columns: Sequence[str], row: Sequence[Any]) -> str | None:
    named = dict(zip(columns, row, strict=True))
    if columns[:2] == ["", "value"] and len(columns) == 2:  # a fact has its own name
        named = {str(row[0]): row[1]}
    if (link := link_of(named)) is not None:
        return link
    name = row[0] if row else None
    if columns[:1] == [""] and isinstance(name, str) and _SUBJECT.fullmatch(name):
        return f"{'from' if 'sender' in title.lower() else 'subject'}={name}"
    return None
