"""Untrusted text made safe for a terminal or a page.

Payloads, reasons, errors, notes and job output can hold characters that a terminal obeys. Every such text passes
through here before people see it. Markup is not handled: widgets take the result with `markup=False`, the report
escapes it.

Rules:

1. Every character of a clean text is printable and has a width; a clean text is one line; cleaning is idempotent.
2. Nothing disappears silently. Control characters appear as their pictures (␛ ␊ ␡), every other character that is
   invisible, reorders the line or is not a character (bidi controls, zero-width, tags, C1, surrogates, private use,
   unassigned) as `‹U+202E›`. Two exceptions change no meaning: spaces of any kind become plain spaces, and modifiers of
   the preceding emoji (variation selectors, joiners, skin tones) are dropped, because terminals disagree about their
   width.
3. A letter keeps at most three combining marks; a longer run ends in `�`. A mark without a letter gets a `◌`, so it
   cannot reach into the neighbouring cell.
4. The work is bounded by `limit`, not by the text: a line of 4 MiB costs no more than a line of `limit`.
5. `pretty_json` loses nothing: unsafe characters become numeric escapes, so `json.loads` returns the payload.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, Literal
from unicodedata import category

from relay_core.text.invisible import is_invisible

MAX_MARKS = 3

_Kind = Literal["plain", "space", "mark", "modifier", "unsafe"]

_SELECTORS = frozenset("\ufe0e\ufe0f")
_OTHER_EMOJI = frozenset("0123456789#*\u203c\u2049\u3030\u303d")
_JOINERS = frozenset("\u200d\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")
_NOT_ASCII = re.compile(r"[^\n -~]+")


def clean(text: str, limit: int | None = 500) -> str:
    """Return the text as one printable line of at most `limit` characters, ending in `…` if it was longer."""
    head = text if limit is None else text[: limit + 1]
    if not (head.isascii() and head.isprintable()):
        # At most MAX_MARKS characters are dropped for each one kept.
        bound = len(text) if limit is None else limit * 4
        head = "".join(_cleaned(text[:bound]))
        if len(text) > bound:
            head += "…"
    return head if limit is None or len(head) <= limit else head[: limit - 1] + "…"


def clean_lines(text: str, limit_lines: int, limit: int = 500) -> list[str]:
    """Return the text as at most `limit_lines` clean lines, the last one counting the omitted lines."""
    lines = text.removesuffix("\n").split("\n", limit_lines)
    omitted = 0
    if len(lines) > limit_lines:
        # The last piece is the whole rest; one more line makes room for the count.
        omitted = lines[-1].count("\n") + 2
        lines = lines[: limit_lines - 1]
    cleaned = [clean(line.removesuffix("\r"), limit) for line in lines]
    return [*cleaned, f"… {omitted} more lines"] if omitted else cleaned


def pretty_json(payload: Any) -> str:
    """Return the payload as indented JSON in which every unsafe character is escaped."""
    return _NOT_ASCII.sub(_json_escaped, json.dumps(payload, indent=2, ensure_ascii=False))


def _cleaned(text: str) -> list[str]:
    out: list[str] = []
    marks = 0  # combining marks at the end of `out`
    dropped = 0  # modifiers dropped since the last character that was kept
    for char in text:
        kind = _kind(char)
        if kind == "mark":
            marks += 1
            if not out:
                out.append("◌")
            if marks <= MAX_MARKS:
                out.append(char)
            elif marks == MAX_MARKS + 1:
                out.append("�")
            continue
        if kind == "modifier" and out and dropped < MAX_MARKS and _may_be_emoji(out[-1][-1]):
            dropped += 1
            continue
        marks = 0
        dropped = dropped if kind == "modifier" else 0
        if kind == "plain":
            out.append(char)
        elif kind == "space":
            out.append(" ")
        else:
            out.append(_named(char))
    return out


def _may_be_emoji(char: str) -> bool:
    return category(char)[0] == "S" or char in _OTHER_EMOJI


def _named(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"‹U+{code:04X}›"


def _json_escaped(run: re.Match[str]) -> str:
    # A run starts after a quote, an escape or an ASCII character; only the last can carry a combining mark.
    before = run.string[run.start() - 1 : run.start()]
    marks = 0 if before.isalnum() else MAX_MARKS
    out: list[str] = []
    for char in run.group():
        kind = _kind(char)
        marks = marks + 1 if kind == "mark" else 0
        if kind == "plain" or (kind == "mark" and marks <= MAX_MARKS):
            out.append(char)
        else:
            out.append(json.dumps(char)[1:-1])
            marks = MAX_MARKS  # an escape cannot carry a mark
    return "".join(out)


@lru_cache(maxsize=8192)
def _kind(char: str) -> _Kind:
    if char in _SELECTORS or char in _JOINERS:
        return "modifier"
    if is_invisible(char):
        return "unsafe"
    kind = category(char)
    if kind == "Zs":
        return "space"
    # The vowels and final consonants of conjoining Hangul draw into the preceding syllable.
    if kind[0] == "M" or "\u1161" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7fb":
        return "mark" if kind != "Cn" else "unsafe"
    return "plain" if char.isprintable() else "unsafe"
