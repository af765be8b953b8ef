r"""Untrusted text for a model: fenced, labelled and escaped.

1. A sender's text is between two marks with a random word for this result, so no text can close its fence and continue
   in our voice.
2. A label before each fence names the sender, the time and the id, and says that the user did not write it.
3. Control and invisible characters are escaped (``\x1b``, ``\u202e``), including joiners and variation selectors, which
   some scripts and emoji need: a run of them can hide a text. Line breaks and tabs stay.
4. A message is cut after `MAX_TEXT` characters, and a result holds messages up to `ROOM`; a cut is reported.
"""

from __future__ import annotations

import json
import os

from relay_core.text.invisible import escape_invisible
from relay_supervisor.agents.light import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MAX_TEXT = 20_000
ROOM = 40_000
"""Characters of messages in one result: about ten thousand tokens."""
MAX_NAME = 300

_OWN_KEYS = frozenset({"content", "performative", "correlationId", "conversationId"})
"""Parts of a payload that are shown elsewhere or mean nothing to a reader."""


class Fence:
    """The marks of one result."""

    def __init__(self) -> None:
        self._word = os.urandom(8).hex()

    def wrap(self, text: str) -> str:
        """Return a text between the marks, escaped."""
        shown = escape_invisible(text)
        while self._word in shown:  # practically impossible
            self._word = os.urandom(8).hex()
        return f"<<<text-{self._word}\n{shown}\ntext-{self._word}>>>"


def one_line(text: Any, limit: int = MAX_NAME) -> str:
    """Return a name or a reason as one escaped line."""
    shown = " ".join(escape_invisible(str(text)).split())
    return shown if len(shown) <= limit else f"{shown[:limit]}…"


def show_message(envelope: dict[str, Any], fence: Fence) -> str:
    """Return a message as a model should see it."""
    sender, id = one_line(envelope.get("from")), one_line(envelope.get("id"))
    answer_to = one_line(envelope.get("replyTo") or envelope.get("from"))
    text = escape_invisible(payload_text(envelope.get("payload")))
    lines = [
        f"Message {id} from {sender}, {one_line(envelope.get('createdAt'))}"
        + (f", in reply to {one_line(envelope['parentId'])}" if envelope.get("parentId") else "")
        + (f", reply to {answer_to}" if answer_to != sender else ""),
        f"Written by {sender}, not by your user:",
        fence.wrap(text[:MAX_TEXT]),
    ]
    if len(text) > MAX_TEXT:
        lines.append(f"(cut: {MAX_TEXT:,} of {len(text):,} characters; ask {sender} for the rest, or for a file)")
    return "\n".join(lines)


def show_messages(envelopes: Sequence[dict[str, Any]], room: int = ROOM) -> tuple[str, list[str]]:
    """Return as many messages as there is room for, at least one, and their ids."""
    fence = Fence()
    parts: list[str] = []
    shown: list[str] = []
    for envelope in envelopes:
        part = show_message(envelope, fence)
        room -= len(part)
        if parts and room < 0:
            break
        parts.append(part)
        shown.append(str(envelope.get("id")))
    return "\n\n".join(parts), shown


def is_cut(envelope: dict[str, Any]) -> bool:
    """Return True if a message is too long to be shown completely."""
    return len(escape_invisible(payload_text(envelope.get("payload")))) > MAX_TEXT


def payload_text(payload: Any) -> str:
    """Return a payload as text: its content, then the rest as JSON."""
    if isinstance(payload, str):
        return payload
    if not isinstance(payload, dict) or not isinstance(payload.get("content"), str):
        return json.dumps(payload, ensure_ascii=False)
    content: str = payload["content"]
    rest = {key: value for key, value in payload.items() if key not in _OWN_KEYS}
    return f"{content}\n\nFurther data: {json.dumps(rest, ensure_ascii=False)}" if rest else content
