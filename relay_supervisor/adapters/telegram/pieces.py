"""What a payload becomes in a chat: texts in parts, and files. Pure.

1. A text of more than 20 parts goes as a file. A part of which nothing would show, such as a fence alone, does not go.
2. What is not of the standard shape is shown as the JSON it is.
3. With one message go ten files at most.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from relay_core.payload import Attachment, StandardPayload
from relay_supervisor.adapters.telegram.formatting import to_html
from relay_supervisor.adapters.telegram.splitting import LIMIT, split, units

MAX_PARTS = 20
MAX_FILES = 10

Document = tuple[str, bytes, str]
"""A file's name, bytes and type."""


@dataclass(frozen=True, slots=True)
class Text:
    """One part of a text, and the same without tags."""

    html: str
    plain: str


Piece = Text | Document | Attachment
"""One Telegram message; an attachment is a file that has not been read yet."""


def cut(text: str) -> list[Text] | list[Document]:
    """Return a text as messages of Telegram."""
    if units(text) <= MAX_PARTS * LIMIT:
        texts = [Text(to_html(part.text), part.text) for part in split(text) if part.text.strip()]
        shown = [one for one in texts if one.html.strip()] or texts
        if len(shown) <= MAX_PARTS:
            return shown
    return [("message.md", text.encode(), "text/markdown")]


def read_payload(payload: Any) -> StandardPayload:
    """Return a payload in the standard shape; what is not of that shape is shown as it is."""
    if isinstance(payload, dict) and "content" in payload:
        try:
            return StandardPayload.model_validate(payload)
        except ValidationError:
            pass  # a shape of somebody's own that happens to have a content
    if isinstance(payload, str):
        return StandardPayload(content=payload)
    shown = json.dumps(payload, indent=2, ensure_ascii=False)
    return StandardPayload(content=f"```json\n{shown}\n```")
