"""What a terminal was told, read byte by byte: everything that Textual does not send by itself is reported.

Rules, found by looking at what Textual 8.2 writes:

1. Before the first frame, modes are set; after the last, they are reset: exactly those that `_OPENING` and `_CLOSING`
   name. Between, none of them may come: a stranger's "leave the alternate screen" is no different from Textual's own.
2. A frame begins and ends by synchronised output, one after the other. It holds text, colours (true colours and
   attributes) and cursor positions within the screen. Numbers have no leading zeros. The shape of the mouse's pointer
   comes between frames.
3. A line break stands only at the end of a line of a frame, before the cursor goes to the next: text goes on behind a
   stranger's.
4. The clipboard is written only as often as the operator copied.
5. Everything else is foreign: other controls, C1 in UTF-8, other sequences, strings (titles, links, DCS, APC, PM),
   broken UTF-8, and characters that are invisible or that reorder the line.

A stream that ends inside a sequence has that sequence reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from unicodedata import category

_NUMBER = r"(?:0|[1-9]\d{0,3})"
_STYLES = r"(?:0|1|2|3|4|5|7|8|9|21|39|49|53|[34]8;2;{n};{n};{n})".replace("{n}", _NUMBER)
_COLOUR = re.compile(rf"\x1b\[{_STYLES}(?:;{_STYLES})*m")
_POSITION = re.compile(r"\x1b\[([1-9]\d{0,3});([1-9]\d{0,3})H")
_LINE_BREAK = re.compile(r"\r\n(?=\x1b\[[1-9]\d{0,3};[1-9]\d{0,3}H)")
_FRAME_BEGINS, _FRAME_ENDS = "\x1b[?2026h", "\x1b[?2026l"
_POINTER = re.compile(r"\x1b\]22;(?:default|pointer|text|grab|grabbing|help|wait|not-allowed|[a-z]{1,4}-resize)\x07")
_COPY = re.compile(r"\x1b\]52;c;[A-Za-z0-9+/=]*\x07")
_MODES = r"1000|1003|1015|1006|1004|1049|2004"
_OPENING = re.compile(rf"\x1b\[(?:\?(?:{_MODES})h|\?25l|\?7l|>25u|\?20(?:26|48)\$p)")
_CLOSING = re.compile(rf"\x1b\[(?:\?(?:{_MODES})l|\?25h|\?7h|<u)")
_END = "\x1b[?2004l\x1b[?7h"

# One whole sequence of any kind, for the report.
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|[\x90\x98\x9d\x9e\x9f][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x9b[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
    r"|.",
    re.DOTALL,
)
_INVISIBLE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_PLAIN = re.compile(r"[ -~]+")


@dataclass(frozen=True, slots=True)
class Foreign:
    """Something that Textual did not send by itself."""

    at: int
    """Where, in characters."""
    what: str
    before: str
    """What came just before, to find the place."""


def foreign(raw: bytes, size: tuple[int, int], *, copies: int = 0) -> list[Foreign]:
    """Return everything in a program's output that is not Textual's own."""
    # Broken UTF-8 becomes lone surrogates, which rule 5 reports.
    text = raw.decode(errors="surrogateescape")
    opened, closed = text.find(_FRAME_BEGINS), text.rfind(_END)
    found: list[Foreign] = []
    in_frame = False
    at = 0
    while at < len(text):
        if text.startswith(_FRAME_ENDS if in_frame else _FRAME_BEGINS, at):
            in_frame = not in_frame
            at += len(_FRAME_BEGINS)
            continue
        also = [] if in_frame else [_POINTER]
        if opened < 0 or at < opened:
            also.append(_OPENING)
        elif 0 <= closed <= at:
            also.append(_CLOSING)
        end = _own(text, at, size, also)
        if end is None and (copy := _COPY.match(text, at)) and copies > 0:
            copies -= 1
            end = copy.end()
        if end is None:
            match = _SEQUENCE.match(text, at)
            assert match is not None
            end = match.end()
            found.append(Foreign(at, match.group(), text[max(0, at - 40) : at]))
        at = end
    return found


def _own(text: str, at: int, size: tuple[int, int], also: list[re.Pattern[str]]) -> int | None:
    """Return where something of Textual's own ends, or None if this is nothing of it."""
    if plain := _PLAIN.match(text, at):
        return plain.end()
    if text[at] not in "\x1b\r":
        return at + 1 if category(text[at]) not in _INVISIBLE else None
    if match := _POSITION.match(text, at):
        row, column = int(match[1]), int(match[2])
        return match.end() if row <= size[1] and column <= size[0] else None
    for own in (_COLOUR, _LINE_BREAK, *also):
        if match := own.match(text, at):
            return match.end()
    return None
