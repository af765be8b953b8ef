"""Pictures of the dashboard as text: what stands on every line, and in which style, so that a change can be read.

Not pytest-textual-snapshot: it holds pytest below 9, and its pictures cannot be read in a diff.

There is a file for each screen and size: the lines of the screen, then for each look the runs of style on each line
(`12a` is twelve columns in the style that the legend below calls a). All looks have the same lines.

``RELAY_FRAMES=write pytest tests/tui/test_frames.py`` writes them anew; look at the diff before you commit it.
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from secrets import token_hex
from string import ascii_letters

from rich.style import Style
from textual.strip import Strip

KEPT = Path(__file__).with_name("frames")

_ID = re.compile(r"\b(01[0-9A-HJKMNP-TV-Z]{8})([0-9A-HJKMNP-TV-Z]{1,16})")
_PLACE = re.compile(r"/tmp/relay-(?:[a-z0-9_]{8}|[a-f0-9]{4}/[a-f0-9]{3})(?![a-z0-9_])")
_HEAD = re.compile(r"^=== (.+)\n", re.MULTILINE)


def frame_of(strips: list[Strip], look: str) -> dict[str, str]:
    """Return the screen as text: its lines, and their styles in this look."""
    names: dict[str, str] = {}
    lines = [_steady(strip.text).rstrip() for strip in strips]
    runs = [" ".join(_runs(strip, names)) for strip in strips]
    legend = [f"{letter} = {style}" for style, letter in names.items()]
    return {"lines": "\n".join([*lines, ""]), look: "\n".join([*runs, *legend, ""])}


def check_frame(name: str, frame: dict[str, str]) -> str | None:
    """Compare a frame with the one that is kept; return how they differ."""
    kept = _read(KEPT / f"{name}.txt")
    told = [
        "\n".join(
            difflib.unified_diff(kept.get(part, "").splitlines(), now.splitlines(), part, "now", lineterm="", n=1)
        )
        for part, now in frame.items()
        if kept.get(part) != now
    ]
    return "\n".join([f"{name}:", *told]) if told else None


def keep_frame(name: str, frame: dict[str, str]) -> None:
    """Write a frame down, beside what is kept of its other looks."""
    KEPT.mkdir(exist_ok=True)
    path = KEPT / f"{name}.txt"
    parts = _read(path) | frame
    order = ["lines", *sorted(part for part in parts if part != "lines")]
    path.write_text("".join(f"=== {part}\n{parts[part]}" for part in order), encoding="utf-8")


def new_place() -> Path:
    """Make a directory whose path has always the same length, since it is shown: in the test command's, if there is."""
    if not re.fullmatch("/tmp/relay-[a-f0-9]{4}", tempfile.gettempdir()):
        return Path(tempfile.mkdtemp(prefix="relay-", dir="/tmp"))
    while True:
        place = Path(tempfile.gettempdir(), token_hex(2)[1:])
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
            return place


def are_written() -> bool:
    """Tell whether frames are to be written instead of compared."""
    return os.environ.get("RELAY_FRAMES") == "write"


def _read(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    _, *parts = _HEAD.split(path.read_text(encoding="utf-8"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _steady(text: str) -> str:
    """Return a line without what is different in every run: the random part of ids and of directories."""
    text = _ID.sub(lambda found: found[1] + "·" * len(found[2]), text)
    return _PLACE.sub("/tmp/relay-somehere", text)


def _runs(strip: Strip, names: dict[str, str]) -> Iterator[str]:
    for style, segments in groupby(strip, key=lambda segment: segment.style or Style()):
        name = str(Style(color=style.color, bgcolor=style.bgcolor) + _attributes(style))
        letter = names.setdefault(name, ascii_letters[len(names) % len(ascii_letters)])
        yield f"{sum(segment.cell_length for segment in segments)}{letter}"


def _attributes(style: Style) -> Style:
    return Style(bold=style.bold, dim=style.dim, italic=style.italic, underline=style.underline, reverse=style.reverse)
