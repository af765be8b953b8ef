"""A long text in parts that Telegram accepts, cut before it is formatted.

1. The source of a part has at most 4,000 UTF-16 units, Telegram's unit, so that it also fits when it must be sent as
   plain text. Formatting only removes characters.
2. Cuts are at line ends; within a line that is too long, at a space; within a word only if it is longer than a part.
3. A code fence that is cut is closed in one part and opened again, with its language, in the next.
4. Nothing is lost: the sources of the parts, joined, are the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LIMIT = 4000
LINES = re.compile(r"[^\n]*\n|[^\n]+")
_OPEN = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})[ \t]*(\S*)")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,32}")
_LONGEST_MARK = 16
_LONGEST_FENCE_LINE = 200


@dataclass(frozen=True, slots=True)
class CodeFence:
    """An open code block."""

    mark: str
    language: str

    @property
    def opening(self) -> str:
        """Return the line that opens it again."""
        return f"{self.mark}{self.language}\n"

    def closed_by(self, line: str) -> bool:
        """Return True if a line closes it."""
        bare = line.strip()
        if len(bare) < len(self.mark) or bare.strip(self.mark[0]) or len(line) > _LONGEST_FENCE_LINE:
            return False
        return len(line) - len(line.lstrip(" ")) <= 3


@dataclass(frozen=True, slots=True)
class TextPart:
    """One part of a text."""

    text: str
    source: str
    """The part of the text that it represents, without the fences that a cut added."""


def units(text: str) -> int:
    """Return the length of a text in Telegram's units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def open_fence(line: str) -> CodeFence | None:
    """Return the code block that a line opens, if any."""
    found = _OPEN.match(line.rstrip("\n")) if len(line) <= _LONGEST_FENCE_LINE else None
    if found is None or len(found[1]) > _LONGEST_MARK:
        return None
    return CodeFence(found[1], found[2] if _LANGUAGE.fullmatch(found[2]) else "")


def split(text: str, limit: int = LIMIT) -> list[TextPart]:
    """Return a text in parts."""
    parts: list[TextPart] = []
    fence: CodeFence | None = None
    opening, source, size = "", "", 0  # of the current part

    def finish() -> None:
        nonlocal opening, source, size
        if source:
            closing = ""
            if fence is not None:
                closing = fence.mark if source.endswith("\n") else f"\n{fence.mark}"
            parts.append(TextPart(opening + source + closing, source))
        opening = fence.opening if fence is not None else ""
        source, size = "", units(opening)

    for line in LINES.findall(text):
        after = _after(fence, line)
        # Room is kept for the mark that closes the fence, in case this line is the last of its part. The line that
        # closes it needs none; otherwise it would be left for a part with nothing but fences.
        room = limit - (1 + len(after.mark) if after is not None else 0)
        if size + units(line) > room:
            finish()
        for piece in _cut(line, room - size):
            if size + units(piece) > room:
                finish()
            source += piece
            size += units(piece)
        fence = after
    # A fence that the text leaves open is closed too.
    finish()
    return [part for part in parts if part.source]


def _after(fence: CodeFence | None, line: str) -> CodeFence | None:
    if fence is None:
        return open_fence(line)
    return None if fence.closed_by(line) else fence


def _cut(line: str, room: int) -> Iterator[str]:
    """Yield a line in pieces of limited size."""
    at = 0
    while at < len(line):
        piece = line[at : at + room]
        while (over := units(piece) - room) > 0:
            piece = piece[: -max(over // 2, 1)]
        if at + len(piece) < len(line) and (space := piece.rfind(" ", len(piece) // 2)) > 0:
            piece = piece[: space + 1]
        yield piece
        at += len(piece)
