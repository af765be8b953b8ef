"""Phrases of the report: lists, reason codes, and untrusted names cut to fit a sentence or a command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from relay_core.text.units import format_duration, format_value

_WORD = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)
_CODES = {
    "max_hops": "too many hops",
    "cycle": "a loop was stopped",
    "call_budget": "call budget spent",
    "no_match": "no endpoint matched",
}


def shown(value: Any, unit: str) -> str:
    """Return a value with its unit, in the spaced style of prose."""
    return format_value(value, unit, spaced=True)


def duration(seconds: float) -> str:
    """Return a duration in the spaced style of prose."""
    return format_duration(seconds, spaced=True)


def listed(parts: Sequence[str]) -> str:
    """Return parts as a sentence lists them: ``a, b and c``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def short(text: Any, limit: int) -> str:
    """Return an untrusted text as one line of at most `limit` characters."""
    joined = " ".join(str(text).split())
    return joined if len(joined) <= limit else joined[: limit - 1].rstrip() + "…"


def word(name: Any) -> str | None:
    """Return a name that is safe to put into a command line, or None."""
    return name if isinstance(name, str) and _WORD.fullmatch(name) else None


def code_words(code: Any) -> str:
    """Return a reason code in words."""
    return _CODES.get(str(code), str(code).replace("_", " ")) if code is not None else "no reason"
