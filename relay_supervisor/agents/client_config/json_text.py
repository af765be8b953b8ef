"""Change one place of a JSON text and keep every other byte.

1. The text is valid JSON. A place is a path of keys; `APPEND` is the place after a list's last item.
2. A new value is indented like its surroundings. Removing a value also removes its comma and the containers that become
   empty: removing what was added restores the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

APPEND = -1

Path = Sequence[str | int]

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_LINE = 120
_FIRST_INDENT = re.compile(r"\s*[{]\s*\n([ \t]+)\S")


class _Entry(NamedTuple):
    key: str | int
    begin: int
    value: int
    end: int


def put(text: str, path: Path, value: Any) -> str:
    """Set the value at a place, creating the containers on the path."""
    start = _skip(text, 0)
    for depth, key in enumerate(path):
        entries, close = _entries(text, start)
        found = _find(entries, key)
        if found is None:
            return _insert(text, entries, (start, close), path[depth:], value, depth + 1)
        if depth == len(path) - 1:
            return text[: found.value] + _dump(text, value, depth + 1) + text[found.end :]
        start = found.value
    raise ValueError("the path is empty")


def take(text: str, path: Path) -> str:
    """Remove the value at a place, and the containers that become empty."""
    start = _skip(text, 0)
    found: list[tuple[list[_Entry], _Entry]] = []
    for key in path:
        entries, _ = _entries(text, start)
        entry = _find(entries, key)
        if entry is None:
            return text
        found.append((entries, entry))
        start = entry.value
    entries, entry = next((level for level in reversed(found) if len(level[0]) > 1), found[0])
    at = entries.index(entry)
    if at > 0:
        return text[: entries[at - 1].end] + text[entry.end :]
    if len(entries) > 1:
        return text[: entry.begin] + text[entries[1].begin :]
    start = _skip(text, 0)
    return text[: start + 1] + text[_entries(text, start)[1] :]


def _insert(text: str, entries: list[_Entry], ends: tuple[int, int], path: Path, value: Any, depth: int) -> str:
    newline, unit = _style(text)
    start, close = ends
    entry = _entry(text, path, value, depth)
    if not entries:
        body = f"{newline}{unit * depth}{entry}{newline}{unit * (depth - 1)}"
        return text[: start + 1] + body + text[close:]
    last = entries[-1]
    line = text[text.rfind("\n", 0, last.begin) + 1 : last.begin]
    indent = unit * depth if line.strip() else line
    return text[: last.end] + f",{newline}{indent}{entry}" + text[last.end :]


def _entry(text: str, path: Path, value: Any, depth: int) -> str:
    """Return the text of a new entry: the value, inside the containers on the rest of the path."""
    newline, unit = _style(text)
    label = "" if path[0] == APPEND else f"{json.dumps(path[0], ensure_ascii=False)}: "
    if len(path) == 1:
        return label + _dump(text, value, depth)
    opening, closing = "[]" if path[1] == APPEND else "{}"
    inner = _entry(text, path[1:], value, depth + 1)
    return f"{label}{opening}{newline}{unit * (depth + 1)}{inner}{newline}{unit * depth}{closing}"


def _dump(text: str, value: Any, depth: int) -> str:
    """Return a value as JSON: on one line if it fits, otherwise one line per part."""
    newline, unit = _style(text)
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(unit) * depth + len(line) < _LINE:
        return line
    inner = newline + unit * (depth + 1)
    if isinstance(value, list):
        parts = [_dump(text, part, depth + 1) for part in value]
    else:
        parts = [f"{json.dumps(key)}: {_dump(text, part, depth + 1)}" for key, part in value.items()]
    return line[0] + inner + f",{inner}".join(parts) + newline + unit * depth + line[-1]


def _style(text: str) -> tuple[str, str]:
    indent = _FIRST_INDENT.match(text)
    return ("\r\n" if "\r\n" in text else "\n"), (indent[1] if indent else "  ")


def _entries(text: str, start: int) -> tuple[list[_Entry], int]:
    """Return the entries of an object or a list, and the position of its end."""
    found: list[_Entry] = []
    is_object = text[start] == "{"
    at = _skip(text, start + 1)
    while text[at] not in "}]":
        begin, key = at, len(found)
        if is_object:
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)  # past the colon
        _, end = _DECODER.raw_decode(text, at)
        found.append(_Entry(key, begin, at, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found, at


def _find(entries: list[_Entry], key: str | int) -> _Entry | None:
    return next((entry for entry in entries if entry.key == key), None)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at
