"""Markdown as Telegram's HTML, one part at a time.

Written by hand: what Telegram can show is seven tags, and a markdown library would render a hundred constructs that
would have to be taken out again.

1. Bold, italic, strike-through, code, code blocks and links become tags; headings become bold. All else stays
   as it was written, escaped: lists and tables read well as they are.
2. Tags are always closed in the order in which they were opened, for any text. A mark without its partner is text.
3. Emphasis ends on its line. Within code nothing is a mark.
4. A link goes to http, https or tg; any other stays the text it was.
5. The time it takes grows with the length of the text alone: a mark that has found no partner is not looked for again.
"""

from __future__ import annotations

import re
from html import escape

from relay_supervisor.adapters.telegram.splitting import LINES, Fence, open_fence

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


def to_html(text: str) -> str:
    """Return markdown as Telegram's HTML."""
    done: list[str] = []
    fence: Fence | None = None
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


def _block(fence: Fence, lines: list[str]) -> str:
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
