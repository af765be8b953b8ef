"""A message that is being written: what its fields hold, and whether they can be sent as they are.

1. A body is JSON. Text that is not JSON is sent only if the operator says so (`as_text`), and then as a JSON string.
2. An empty field of the budget asks for nothing: the bus's own limits hold. A TTL is a duration here; the bus is told
   the instant.
3. What is wrong is said before anything is sent, with the line where it is. Pure.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from relay_core.errors import InvalidPayload, InvalidSubject
from relay_core.payload import encode_payload
from relay_core.subjects import validate_subject
from relay_tui.safe import clean

_TTL = re.compile(r"(\d{1,7})\s*(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class DraftError(ValueError):
    """Why a draft cannot be sent, and which field it is about."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Draft:
    """The fields as they were typed."""

    subject: str = ""
    sender: str = ""
    reply_to: str = ""
    max_hops: str = ""
    calls: str = ""
    ttl: str = ""
    body: str = ""
    as_text: bool = False


class Checked(NamedTuple):
    """What a body is."""

    payload: Any
    size: int
    problem: str | None = None


def check_body(text: str, *, as_text: bool, limit: int) -> Checked:
    """Tell what a body is, and what is wrong with it."""
    try:
        payload = text if as_text else json.loads(text, parse_constant=_no_number)
        return Checked(payload, len(encode_payload(payload, limit=limit)))
    except json.JSONDecodeError as error:
        if not text.strip():
            return Checked(None, 0, "empty: write JSON, such as null")
        return Checked(None, 0, f"line {error.lineno}, column {error.colno}: {clean(error.msg)}")
    except (InvalidPayload, ValueError) as error:
        return Checked(None, 0, clean(str(error)))
    except RecursionError:
        return Checked(None, 0, "nested too deeply")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def check_names(draft: Draft) -> None:
    """Check who sends what to whom.

    Raises:
        DraftError: for the first field that cannot be used.
    """
    for field, text, needed in (
        ("subject", draft.subject, True),
        ("sender", draft.sender, True),
        ("reply_to", draft.reply_to, False),
    ):
        if not text and not needed:
            continue
        try:
            validate_subject(text, allow_wildcards=field == "subject")
        except InvalidSubject as error:
            raise DraftError(clean(str(error)), field) from None


def budget_of(draft: Draft, now_ms: int) -> dict[str, Any] | None:
    """Return what to ask of the bus's limits, or None for nothing.

    Raises:
        DraftError: if a field cannot be used.
    """
    asked: dict[str, Any] = {}
    for field, name, text in (("max_hops", "maxHops", draft.max_hops), ("calls", "callBudgetRemaining", draft.calls)):
        if text:
            if not re.fullmatch(r"[0-9]{1,6}", text):
                raise DraftError(f"{clean(text)!r} is no number", field)
            asked[name] = int(text)
    if draft.ttl:
        found = _TTL.fullmatch(draft.ttl)
        if found is None:
            raise DraftError(f"{clean(draft.ttl)!r} is no duration: write it like 30s, 10m or 1h", "ttl")
        asked["ttl"] = now_ms + int(found[1]) * _UNIT_MS[found[2]]
    return asked or None
