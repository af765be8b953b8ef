"""Text from outside, made fit for a terminal: everything a stranger may have written passes here before it is shown.

Payloads, reasons, errors, notes and job output can hold bytes that a terminal obeys. Nothing here knows of markup:
widgets take the result with `markup=False`.

Rules:

1. Every character of a cleaned text is printable and has a width; a cleaned text is one line; cleaning it again
   changes nothing.
2. Nothing vanishes silently. Control characters appear as their pictures (␛ ␊ ␡), everything else that is invisible,
   reorders the line or is no character at all (bidi controls, zero-width, tags, C1, surrogates, private use,
   unassigned) as `‹U+202E›`. Two exceptions, which change no meaning: spaces of any kind become plain spaces, and what
   only changes the look of the emoji before it (variation selectors, joiners, skin tones) is left out, because
   terminals disagree about its width.
3. Combining marks stay with their letter, at most three on one; a longer run ends in `�`, and a mark with nothing
   before it stands on `◌`, so that it cannot reach into the cell beside the text.
4. The work is bounded by `limit`, not by the text: a line of 4 MiB costs no more than a line of `limit`.
5. `pretty_json` loses nothing: what is not safe to show is a numeric escape, so an editor can open the text and
   `json.loads` gives the payload back.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, Literal
from unicodedata import category

from relay_core.invisible import is_invisible

MARKS_ON_ONE = 3

_Kind = Literal["plain", "space", "mark", "look", "odd"]

_SELECTORS = frozenset("\ufe0e\ufe0f")
_OTHER_EMOJI = frozenset("0123456789#*\u203c\u2049\u3030\u303d")
_JOINERS = frozenset("\u200d\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")
_NOT_ASCII = re.compile(r"[^\n -~]+")


def clean(text: str, limit: int = 500) -> str:
    """Return the text as one printable line of at most `limit` characters, `…` last if it was longer."""
    head = text[: limit + 1]
    if not (head.isascii() and head.isprintable()):
        # A character can be left out, at most some for each that is kept.
        head = "".join(_shown(text[: limit * 4]))
        if len(text) > limit * 4:
            head += "…"
    return head if len(head) <= limit else head[: limit - 1] + "…"


def clean_lines(text: str, limit_lines: int, limit: int = 500) -> list[str]:
    """Return the text as at most `limit_lines` clean lines, the last one counting what was left out."""
    lines = text.removesuffix("\n").split("\n", limit_lines)
    if len(lines) > limit_lines:
        # The last piece is all the rest, so it stands for one line more than its newlines; one line makes room.
        left_out = lines[-1].count("\n") + 2
        lines = lines[: limit_lines - 1]
        return [*(clean(line.removesuffix("\r"), limit) for line in lines), f"… {left_out} more lines"]
    return [clean(line.removesuffix("\r"), limit) for line in lines]


def pretty_json(payload: Any) -> str:
    """Return the payload as indented JSON in which every character that is not safe to show is an escape."""
    return _NOT_ASCII.sub(_escaped, json.dumps(payload, indent=2, ensure_ascii=False))


def _shown(text: str) -> list[str]:
    out: list[str] = []
    marks = 0  # combining marks that stand at the end of `out`
    looks = 0  # characters left out since the last one that was kept
    for char in text:
        kind = _kind(char)
        if kind == "mark":
            marks += 1
            if not out:
                out.append("◌")
            if marks <= MARKS_ON_ONE:
                out.append(char)
            elif marks == MARKS_ON_ONE + 1:
                out.append("�")
            continue
        if kind == "look" and out and looks < MARKS_ON_ONE and _has_looks(out[-1][-1]):
            looks += 1
            continue
        marks = 0
        looks = looks if kind == "look" else 0
        if kind == "plain":
            out.append(char)
        elif kind == "space":
            out.append(" ")
        else:
            out.append(_named(char))
    return out


def _has_looks(char: str) -> bool:
    """Tell whether a character can be an emoji: a symbol, or what keycaps and a few others are made of."""
    return category(char)[0] == "S" or char in _OTHER_EMOJI


def _named(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"‹U+{code:04X}›"


def _escaped(found: re.Match[str]) -> str:
    # A run starts after a quote, an escape or an ASCII character; only the last can carry a combining mark.
    before = found.string[found.start() - 1 : found.start()]
    marks = 0 if before.isalnum() else MARKS_ON_ONE
    out: list[str] = []
    for char in found.group():
        kind = _kind(char)
        marks = marks + 1 if kind == "mark" else 0
        if kind == "plain" or (kind == "mark" and marks <= MARKS_ON_ONE):
            out.append(char)
        else:
            out.append(json.dumps(char)[1:-1])
            # What comes next stands behind an escape, which is no letter.
            marks = MARKS_ON_ONE
    return "".join(out)


@lru_cache(maxsize=8192)
def _kind(char: str) -> _Kind:
    if char in _SELECTORS or char in _JOINERS:
        return "look"
    if is_invisible(char):
        return "odd"
    kind = category(char)
    if kind == "Zs":
        return "space"
    # The vowels and final consonants of conjoining Hangul draw into the syllable before them.
    if kind[0] == "M" or "\u1161" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7fb":
        return "mark" if kind != "Cn" else "odd"
    return "plain" if char.isprintable() else "odd"
