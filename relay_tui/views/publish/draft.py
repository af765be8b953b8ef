"""A message that is being written: the content of its fields, and whether it can be sent.

1. A body is JSON. Text that is not JSON is sent only if the operator chooses so (`as_text`), as a JSON string.
2. An empty budget field requests nothing: the limits of the bus apply. A TTL is a duration here and an instant on the
   bus.
3. Errors are shown before anything is sent, with their line. No I/O.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from relay_core.errors import InvalidPayload, InvalidSubject
from relay_core.messages.payload import encode_payload
from relay_core.messages.subjects import validate_subject
from relay_core.text.sanitize import clean
from relay_core.text.units import parse_duration


class DraftError(ValueError):
    """Why a draft cannot be sent, and the field at fault."""

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


class BodyCheck(NamedTuple):
    """The payload of a body and its size, or what is wrong with it."""

    payload: Any
    size: int
    problem: str | None = None


def check_body(text: str, *, as_text: bool, limit: int) -> BodyCheck:
    """Parse a body and check its size."""
    try:
        payload = text if as_text else json.loads(text, parse_constant=_no_number)
        return BodyCheck(payload, len(encode_payload(payload, limit=limit)))
    except json.JSONDecodeError as error:
        if not text.strip():
            return BodyCheck(None, 0, "empty: write JSON, e.g. null")
        return BodyCheck(None, 0, f"line {error.lineno}, column {error.colno}: {clean(error.msg)}")
    except (InvalidPayload, ValueError) as error:
        return BodyCheck(None, 0, clean(str(error)))
    except RecursionError:
        return BodyCheck(None, 0, "nested too deeply")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def check_names(draft: Draft) -> None:
    """Check subject, sender and reply-to.

    Raises:
        DraftError: for the first field that is not a valid subject.
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
    """Return the budget to request, or None if every field is empty.

    Raises:
        DraftError: if a field is not a number or a duration.
    """
    asked: dict[str, Any] = {}
    for field, name, text in (("max_hops", "maxHops", draft.max_hops), ("calls", "callBudgetRemaining", draft.calls)):
        if text:
            if not re.fullmatch(r"[0-9]{1,6}", text):
                raise DraftError(f"{clean(text)!r} is not a number", field)
            asked[name] = int(text)
    if draft.ttl:
        ttl_ms = parse_duration(draft.ttl)
        if ttl_ms is None:
            raise DraftError(f"{clean(draft.ttl)!r} is not a duration: write e.g. 30s, 10m or 1h", "ttl")
        asked["ttl"] = now_ms + ttl_ms
    return asked or None
