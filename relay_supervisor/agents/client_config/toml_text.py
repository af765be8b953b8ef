"""Add a table at the end of a TOML text, or take it out, and leave every other byte as it is.

A table is found by its header line. Whether the result says what was meant is for the caller to check (`tomllib`): a
text in which the table is written in another way is one to be changed by hand.
"""

from __future__ import annotations

import json
from typing import Any


def put(text: str, name: str, table: dict[str, Any]) -> str:
    """Return the text with a table, in the place of the one with this name, or at the end; those below it stay."""
    newline = "\r\n" if "\r\n" in text else "\n"
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in plain.items())]
    block = newline.join(lines) + newline
    found = _find(text, name)
    if found is not None:
        return text[: found[0]] + block + text[found[1] :]
    before = text if not text or text.endswith("\n") else text + newline
    return before + (newline if before else "") + block


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def take(text: str, name: str) -> str:
    """Return the text without a table, nor the empty line before it."""
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
    """Return where a table begins and ends; what stands between it and the next one belongs to that one."""
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
