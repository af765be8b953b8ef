"""A payload as Telegram messages: texts in parts, markdown as Telegram's HTML, and files. Pure.

Written by hand: Telegram supports seven tags, and a markdown library would render a hundred constructs to remove again.

1. Bold, italic, strike-through, code, code blocks and links become tags; headings become bold. Everything else stays
   as written, escaped: lists and tables are readable as they are.
2. Tags are always closed in the order in which they were opened, for any text. A mark without its partner is text.
3. Emphasis ends on its line. Within code nothing is a mark.
4. A link goes to http, https or tg; any other stays text.
5. The time is linear in the length of the text: a mark that has found no partner is not searched for again.
6. A text of more than 20 parts is sent as a file. A part that would show nothing, such as a fence alone, is skipped.
7. A payload that is not a StandardPayload is shown as JSON. A message carries at most ten files.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html import escape
from typing import Any

from pydantic import ValidationError

from relay_core.messages.payload import Attachment, StandardPayload
from relay_supervisor.adapters.telegram.splitting import LIMIT, LINES, CodeFence, open_fence, split, units

MAX_PARTS = 20
MAX_FILES = 10

Document = tuple[str, bytes, str]
"""A file's name, bytes and type."""

_DEEPEST = 8
_HEADING = re.compile(r"( {0,3})#{1,6}[ \t]+")
_INLINE = re.compile(
    r"""
      \\(?P<escaped>[\\`*_{}\[\]()\#+\-.!~>|])
    | (?<!`)(?P<code>`+)
    | \[(?P<label>[^\[\]\n]+)\]\((?P<url>(?:https?|tg)://[^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)\)
    | \*\*\*(?=[^\s*])(?P<both>[^*\n]*?[^\s*])\*\*\*(?!\*)
    | (?P<bold>\*\*)(?=[^\s*])
    | (?<!\w)(?P<bold2>__)(?=[^\s_])
    | (?P<strike>~~)(?=[^\s~])
    | \*(?=[^\s*])(?P<italic>[^*\n]*?[^\s*])\*(?!\*)
    | (?<!\w)_(?=[^\s_])(?P<italic2>[^_\n]*?[^\s_])_(?!\w)
    """,
    re.VERBOSE,
)
_CLOSERS = {
    "**": re.compile(r"(?<=\S)\*\*(?!\*)"),
    "__": re.compile(r"(?<=\S)__(?!\w)"),
    "~~": re.compile(r"(?<=\S)~~"),
}
_TAGS = {"bold": "b", "bold2": "b", "strike": "s", "italic": "i", "italic2": "i"}


@dataclass(frozen=True, slots=True)
class Text:
    """One part of a text, as HTML and as plain text."""

    html: str
    plain: str


Piece = Text | Document | Attachment
"""One Telegram message; an attachment is a file that has not been read yet."""


def cut(text: str) -> list[Text] | list[Document]:
    """Return a text as Telegram messages."""
    if units(text) <= MAX_PARTS * LIMIT:
        texts = [Text(to_html(part.text), part.text) for part in split(text) if part.text.strip()]
        shown = [part for part in texts if part.html.strip()] or texts
        if len(shown) <= MAX_PARTS:
            return shown
    return [("message.md", text.encode(), "text/markdown")]


def read_payload(payload: Any) -> StandardPayload:
    """Return a payload as a StandardPayload; others are shown as they are."""
    if isinstance(payload, dict) and "content" in payload:
        try:
            return StandardPayload.model_validate(payload)
        except ValidationError:
            pass  # another schema that also has a content
    if isinstance(payload, str):
        return StandardPayload(content=payload)
    shown = json.dumps(payload, indent=2, ensure_ascii=False)
    return StandardPayload(content=f"```json\n{shown}\n```")


def to_html(text: str) -> str:
    """Return markdown as Telegram's HTML."""
    done: list[str] = []
    fence: CodeFence | None = None
    code: list[str] = []
    for line in LINES.findall(text):
        if fence is not None:
            if fence.closed_by(line):
                done.append(_block(fence, code) + ("\n" if line.endswith("\n") else ""))
                fence = None
            else:
                code.append(line)
        elif (fence := open_fence(line)) is not None:
            code = []
        elif heading := _HEADING.match(line):
            inner = _inline(_title(line[heading.end() :]), 0)
            end = "\n" if line.endswith("\n") else ""
            done.append(f"{heading[1]}<b>{inner}</b>{end}" if inner else escape(line))
        else:
            done.append(_inline(line, 0))
    if fence is not None:
        done.append(_block(fence, code))
    return "".join(done)


def _block(fence: CodeFence, lines: list[str]) -> str:
    code = escape("".join(lines).removesuffix("\n"))
    if not code:
        return ""  # Telegram has no empty entities
    if fence.language:
        return f'<pre><code class="language-{escape(fence.language)}">{code}</code></pre>'
    return f"<pre>{code}</pre>"


def _title(text: str) -> str:
    """Return a heading's text without the marks that may close it."""
    bare = text.strip()
    title = bare.rstrip("#")
    return title.rstrip() if title != bare and title[-1:].isspace() else bare


def _inline(text: str, depth: int) -> str:
    if depth > _DEEPEST:
        return escape(text)
    done: list[str] = []
    single: set[str] = set()
    """Marks that have no partner in the rest of the text."""
    at = end = 0
    while found := _INLINE.search(text, at):
        kind = found.lastgroup or ""
        inner, at = found[kind], found.end()
        if kind in ("code", "bold", "bold2", "strike"):
            closer = _closer(text, found, single)
            if closer is None:
                at = found.end() if kind == "code" else found.start() + 1
                continue
            inner, at = text[found.end() : closer.start()], closer.end()
        done.append(escape(text[end : found.start()]))
        done.append(_render(kind, inner, found["label"], depth))
        end = at
    done.append(escape(text[end:]))
    return "".join(done)


def _closer(text: str, opener: re.Match[str], single: set[str]) -> re.Match[str] | None:
    """Return the partner of a mark."""
    mark = opener[opener.lastgroup or ""]
    if mark in single:
        return None
    pattern = _CLOSERS.get(mark) or re.compile(rf"(?<!`){mark}(?!`)")
    closer = pattern.search(text, opener.end() + 1)
    if closer is None:
        single.add(mark)
    return closer


def _render(kind: str, inner: str, label: str | None, depth: int) -> str:
    match kind:
        case "escaped":
            return escape(inner)
        case "code":
            bare = inner.strip()
            return f"<code>{escape(bare or inner)}</code>"
        case "url":
            return f'<a href="{escape(inner)}">{_inline(label or "", depth + 1)}</a>'
        case "both":
            return f"<b><i>{_inline(inner, depth + 1)}</i></b>"
        case _:
            tag = _TAGS[kind]
            return f"<{tag}>{_inline(inner, depth + 1)}</{tag}>"
