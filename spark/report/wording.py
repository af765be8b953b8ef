"""Phrases of the report: values with units, lists, reason codes, and untrusted names cut to fit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from relay_core.text import units

_WORD = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)
_CODES = {
    "max_hops": "too many hops",
    "cycle": "a loop was stopped",
    "call_budget": "call budget spent",
    "no_match": "no endpoint matched",
}

format_value = partial(units.format_value, spaced=True)
format_duration = partial(units.format_duration, spaced=True)


def join_words(parts: Sequence[str]) -> str:
    """Return parts as a sentence lists them: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def shorten(text: Any, limit: int) -> str:
    """Return an untrusted text as one line of at most `limit` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def safe_argument(name: Any) -> str | None:
    """Return a name that is safe in a command line, or None."""
    return name if isinstance(name, str) and _WORD.fullmatch(name) else None


def describe_code(code: Any) -> str:
    """Return a reason code in words."""
    return _CODES.get(str(code), str(code).replace("_", " ")) if code is not None else "no reason"
