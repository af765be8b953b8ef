"""Add a table to a TOML text, or remove it, and keep every other byte.

A table is found by its header line. The caller checks the result with `tomllib`: a table in another notation is not
found and must be changed by hand.
"""

from __future__ import annotations

import json
from typing import Any


def put(text: str, name: str, table: dict[str, Any]) -> str:
    """Replace the table with this name, or append it; its subtables stay."""
    newline = "\r\n" if "\r\n" in text else "\n"
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    values = {key: json.dumps(value, ensure_ascii=False, default=str) for key, value in plain.items()}
    lines = [f"[{name}]", *(f"{key} = {value}" for key, value in values.items())]
    block = newline.join(lines) + newline
    found = _find(text, name)
    if found is not None:
        return text[: found[0]] + block + text[found[1] :]
    before = text if not text or text.endswith("\n") else text + newline
    return before + (newline if before else "") + block


def take(text: str, name: str) -> str:
    """Remove a table and the empty line before it."""
    found = _find(text, name)
    if found is None:
        return text
    before, after = text[: found[0]], text[found[1] :]
    for gap in ("\r\n\r\n", "\n\n"):
        if before.endswith(gap):
            before = before[: -len(gap) // 2]
            break
    return before + after


def _find(text: str, name: str) -> tuple[int, int] | None:
    """Return where a table begins and ends; comments before the next table belong to that one."""
    at, begin, end = 0, -1, -1
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if begin >= 0 and bare.startswith("["):
            break
        if begin < 0 and bare.partition("#")[0].strip() == f"[{name}]":
            begin = at
        at += len(line)
        if begin >= 0 and bare and not bare.startswith("#"):
            end = at
    return None if begin < 0 else (begin, end)
