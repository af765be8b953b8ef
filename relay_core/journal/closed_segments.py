"""Closed journal segments, kept as a history of earlier publishes.

A checkpoint moves a segment from ``journal/`` to ``journal/kept/``: its files are on disk, so no start repeats its ops.
Rebuilding a lost index reads these segments once (`JournalHistory`).

1. They are the first files to be given up: removed, oldest first, when they exceed the configured age or size, when
   they would take more than half of the free space, and when a write finds the disk full. One that exceeds the size,
   and one that is not kept at all, may become the next segment (spare_segments.py); one that is too old may not.
2. No error here fails a checkpoint after the Maildir is durable: a segment that cannot be kept is removed.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from relay_core.clock import SystemClock
from relay_core.journal.segment import segments
from relay_core.journal.spare_segments import SpareSegments

logger = logging.getLogger(__name__)

KEEP_BYTES = 64 * 1024 * 1024
KEEP_SECS = 7 * 86_400.0
_CHUNK = 1024 * 1024


class ClosedSegments:
    """The closed segments of one journal."""

    def __init__(self, journal: Path) -> None:
        self.directory = journal / "kept"
        self.spares = SpareSegments(journal)
        self.max_bytes = KEEP_BYTES
        self.max_secs = KEEP_SECS

    def segments(self) -> list[tuple[int, Path]]:
        """Return the closed segments, oldest first."""
        return segments(self.directory)

    def add(self, path: Path) -> None:
        """Keep a closed segment whose files are on disk, truncated to its lines.

        Raises:
            OSError: if it could be neither kept nor removed.
        """
        try:
            if self.max_bytes and (end := _end_of_lines(path)):
                os.truncate(path, end)
                self.directory.mkdir(mode=0o700, exist_ok=True)
                os.rename(path, self.directory / path.name)
                return
        except OSError as error:
            logger.warning("journal: %s is not kept: %s", path.name, error)
        self.spares.add(path)

    def expire(self) -> int:
        """Remove the oldest segments until age and total size are within the limits; return how many."""
        before = SystemClock().now_ms() / 1000 - self.max_secs  # file times are the machine's
        kept = []
        for _, path in self.segments():
            try:
                kept.append((path, path.stat()))
            except FileNotFoundError:
                continue  # evicted meanwhile
        if not kept:
            return 0
        disk = os.statvfs(self.directory)
        room = min(self.max_bytes, disk.f_bavail * disk.f_frsize // 2)
        size = sum(status.st_size for _, status in kept)
        removed = 0
        for path, status in kept:
            is_old = status.st_mtime < before
            if size <= room and not is_old:
                break
            if is_old or room < self.max_bytes:
                path.unlink(missing_ok=True)
            else:
                self.spares.add(path)
            size -= status.st_size
            removed += 1
        return removed

    def evict_oldest(self) -> bool:
        """Remove the spare or the oldest segment because the disk is full; return False if there is none."""
        if self.spares.evict():
            return True
        for _, path in self.segments():
            try:
                path.unlink()
            except OSError:
                continue
            logger.warning("the disk is full: removed %s, which is needed only to rebuild a lost index", path)
            return True
        return False


def _end_of_lines(path: Path) -> int:
    """Return the length of a segment's lines: a zero byte or the end of the file follows them."""
    with path.open("rb") as file:
        length = 0
        while chunk := file.read(_CHUNK):
            end = chunk.find(b"\0")  # no line has one
            if end >= 0:
                return length + end
            length += len(chunk)
        return length
