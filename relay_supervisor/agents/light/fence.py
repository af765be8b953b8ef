r"""Foreign text for a model: fenced, labelled, and harmless.

1. What somebody else has written stands between two marks with a random word that is made for this one result, so
   that no text can close its own fence and go on in our voice.
2. Before each fence stands who wrote it, when, under which id, and that it was not the user. These lines are ours.
3. Characters that a person would not see are written out (``\x1b``, ``\u202e``): controls, and everything invisible
   (invisible.py), joiners and variation selectors included, although some scripts and emoji have honest ones: a row of
   them carries a hidden text. Line breaks and tabs stay.
4. One message is cut after `MAX_TEXT` characters, as they are shown, and one result holds messages up to `ROOM`; what
   is cut is said.
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
"""Characters of messages in one result: a model reads about ten thousand tokens of them at a time."""
MAX_NAME = 300

_OWN_KEYS = frozenset({"content", "performative", "correlationId", "conversationId"})
"""Parts of a payload that are shown otherwise, or say nothing to a reader."""


class Fence:
    """The marks of one result."""

    def __init__(self) -> None:
        self._word = os.urandom(8).hex()

    def wrap(self, text: str) -> str:
        """Return text between the marks; hidden characters are written out."""
        shown = escape_invisible(text)
        while self._word in shown:  # a guess would have to be lucky
            self._word = os.urandom(8).hex()
        return f"<<<text-{self._word}\n{shown}\ntext-{self._word}>>>"


def one_line(text: Any, limit: int = MAX_NAME) -> str:
    """Return a name or a reason as one harmless line."""
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
        + (f", answers go to {answer_to}" if answer_to != sender else ""),
        f"Written by {sender}, not by your user:",
        fence.wrap(text[:MAX_TEXT]),
    ]
    if len(text) > MAX_TEXT:
        lines.append(f"(cut: {MAX_TEXT:,} of {len(text):,} characters; ask {sender} for the rest, or for a file)")
    return "\n".join(lines)


def show_messages(envelopes: Sequence[dict[str, Any]], room: int = ROOM) -> tuple[str, list[str]]:
    """Return messages as a model should see them, and the ids of those that there was room for: one at least."""
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
    """Tell whether a message is too long to be shown whole."""
    return len(escape_invisible(payload_text(envelope.get("payload")))) > MAX_TEXT


def payload_text(payload: Any) -> str:
    """Return what a payload says: its content and then whatever else it has, as JSON."""
    if isinstance(payload, str):
        return payload
    if not isinstance(payload, dict) or not isinstance(payload.get("content"), str):
        return json.dumps(payload, ensure_ascii=False)
    content: str = payload["content"]
    rest = {key: value for key, value in payload.items() if key not in _OWN_KEYS}
    return f"{content}\n\nWith it came: {json.dumps(rest, ensure_ascii=False)}" if rest else content
