"""How much space a journal takes, read from its directory: also without a running bus."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from relay_core.journal.closed_segments import ClosedSegments
from relay_core.journal.segment import segments


class JournalUsage(NamedTuple):
    """The files of a journal."""

    bytes: int
    """Of the segments that a start would read."""
    kept_bytes: int
    """Of the closed segments."""
    closed_ms: int | None
    """When the newest closed segment was closed, in epoch milliseconds; None if there is none."""


def read_usage(directory: Path) -> JournalUsage:
    """Return how much space the journal in a directory takes."""
    closed = _stat_all(ClosedSegments(directory).segments())
    return JournalUsage(
        sum(size for size, _ in _stat_all(segments(directory))),
        sum(size for size, _ in closed),
        max((changed_ms for _, changed_ms in closed), default=None),
    )


def _stat_all(found: list[tuple[int, Path]]) -> list[tuple[int, int]]:
    """Return the size and the time of the last change of each segment that still exists."""
    status = []
    for _, path in found:
        try:
            stat = path.stat()
        except OSError:
            continue  # checkpointed or evicted meanwhile
        status.append((stat.st_size, round(stat.st_mtime * 1000)))
    return status
