"""Closed segments of the journal that are kept for what they tell of earlier publishes.

A checkpoint moves a segment from ``journal/`` to ``journal/kept/``: its files are on disk, so no start carries out its
ops again. An index that was lost reads these segments once (past.py).

1. They are the first to go. They are removed, oldest first, when they are older or larger than the configuration says,
   when they would take more than half of the free space, and when a write finds the disk full.
2. Nothing here fails a checkpoint that has made the Maildir last: a segment that cannot be kept is removed.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from relay_core.clock import SystemClock

logger = logging.getLogger(__name__)

KEEP_BYTES = 64 * 1024 * 1024
KEEP_SECS = 7 * 86_400.0
_CHUNK = 1024 * 1024


class Kept:
    """The closed segments below one journal."""

    def __init__(self, journal: Path) -> None:
        self.directory = journal / "kept"
        self.max_bytes = KEEP_BYTES
        self.max_secs = KEEP_SECS

    def segments(self) -> list[tuple[int, Path]]:
        """Return the segments that are kept, oldest first."""
        return segments(self.directory)

    def take(self, path: Path) -> None:
        """Keep a closed segment whose files are on disk, cut to its lines.

        Raises:
            OSError: if it could be neither kept nor removed.
        """
        try:
            if self.max_bytes and _cut(path):
                self.directory.mkdir(mode=0o700, exist_ok=True)
                os.rename(path, self.directory / path.name)
                return
        except OSError as error:
            logger.warning("journal: %s is not kept: %s", path.name, error)
        path.unlink(missing_ok=True)

    def forget(self) -> int:
        """Remove segments that are too old, or too large together, oldest first; return how many."""
        before = SystemClock().now_ms() / 1000 - self.max_secs  # file times are the machine's
        found = []
        for _, path in self.segments():
            try:
                about = path.stat()
            except FileNotFoundError:
                continue  # it gave way meanwhile
            found.append((path, about.st_size, about.st_mtime))
        if not found:
            return 0
        disk = os.statvfs(self.directory)
        room = min(self.max_bytes, disk.f_bavail * disk.f_frsize // 2)
        size = sum(one for _, one, _ in found)
        removed = 0
        for path, length, modified in found:
            if size <= room and modified >= before:
                break
            path.unlink(missing_ok=True)
            size -= length
            removed += 1
        return removed

    def give_way(self) -> bool:
        """Remove the oldest segment, since the disk is full; return False if there is none."""
        for _, path in self.segments():
            try:
                path.unlink()
            except OSError:
                continue
            logger.warning("the disk is full: removed %s, which only a lost index would have needed", path)
            return True
        return False


def segments(directory: Path) -> list[tuple[int, Path]]:
    """Return the segments in a directory, oldest first."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((int(name[:-4]), directory / name) for name in names if name.endswith(".log") and name[:-4].isdigit())


def _cut(path: Path) -> int:
    """Cut off the zeros that lines to come would have overwritten; return the length of what is left."""
    with path.open("r+b") as file:
        length = 0
        while chunk := file.read(_CHUNK):
            end = chunk.find(b"\0")  # no line has one
            if end >= 0:
                length += end
                file.truncate(length)
                break
            length += len(chunk)
        return length
