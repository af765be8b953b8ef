"""Pictures of the dashboard as text: what stands on every line, and in which style, so that a change can be read.

Not pytest-textual-snapshot: it holds pytest below 9, and its pictures cannot be read in a diff.

A frame is the lines of the screen, then for each line its runs of style, then what the letters of the runs mean.
``RELAY_FRAMES=write pytest tests/tui/test_frames.py`` writes them anew; look at the diff before you commit it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from string import ascii_letters

from rich.style import Style
from textual.strip import Strip

KEPT = Path(__file__).with_name("frames")

_ID = re.compile(r"\b(01[0-9A-HJKMNP-TV-Z]{8})([0-9A-HJKMNP-TV-Z]{1,16})")
_PLACE = re.compile(r"/tmp/relay-[a-z0-9_]{8}")
_LATER = re.compile(r"in +[0-9]+[smhd]")


def frame_of(strips: list[Strip]) -> str:
    """Return the screen as text."""
    names: dict[str, str] = {}
    texts = [_steady(strip.text) for strip in strips]
    styles = [" ".join(_runs(strip, names)) for strip in strips]
    legend = [f"{letter} = {style}" for style, letter in names.items()]
    return "\n".join([*(text.rstrip() for text in texts), "---", *styles, "---", *legend, ""])


def check_frame(name: str, frame: str) -> str | None:
    """Compare a frame with the one that is kept; return how they differ."""
    path = KEPT / f"{name}.txt"
    if os.environ.get("RELAY_FRAMES") == "write":
        KEPT.mkdir(exist_ok=True)
        path.write_text(frame)
    kept = path.read_text() if path.exists() else ""
    if kept == frame:
        return None
    return "\n".join(difflib.unified_diff(kept.splitlines(), frame.splitlines(), name, "now", lineterm="", n=1))


def _steady(text: str) -> str:
    """Return a line without what is different in every run: the random part of ids, and the scheduler's times."""
    text = _ID.sub(lambda found: found[1] + "·" * len(found[2]), text)
    text = _PLACE.sub("/tmp/relay-somehere", text)
    return _LATER.sub(lambda found: "#" * len(found[0]), text)


def _runs(strip: Strip, names: dict[str, str]) -> Iterator[str]:
    for style, segments in groupby(strip, key=lambda segment: segment.style or Style()):
        name = str(Style(color=style.color, bgcolor=style.bgcolor) + _attributes(style))
        letter = names.setdefault(name, ascii_letters[len(names) % len(ascii_letters)])
        yield f"{sum(segment.cell_length for segment in segments)}{letter}"


def _attributes(style: Style) -> Style:
    return Style(bold=style.bold, dim=style.dim, italic=style.italic, underline=style.underline, reverse=style.reverse)
