"""A segment that is no longer needed becomes the next one.

Overwriting written blocks costs less than filling a new file with zeros first: no space is allocated, the pages are
often still in memory, and fdatasync has no metadata to write.

1. The old lines never count again: the checksum of a line is seeded with its segment's number, and numbers only grow. A
   start removes the spare (``journal/{sequence}.spare``), which may come from a backup that was copied while the file
   was in use.
2. The first byte of a new segment is zero until its first line is written, and a zero byte follows its last line: that
   is where its lines end. After a power loss the zero may be missing; then rule 1 alone decides.
3. A file with a second name is not reused: it may belong to a backup.
4. One spare at most. It is the first to be removed when the disk is full.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from relay_core.journal.segment import numbered_files

MIN_BYTES = 1024 * 1024
"""A shorter file is not worth reusing."""
_REOPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_SUFFIX = ".spare"
_CHUNK = 1024 * 1024


class SpareSegments:
    """The spare segment of one journal. Any thread may use it; each step is one change of a name."""

    def __init__(self, journal: Path) -> None:
        self.is_used = True
        """Set to False after a failed sync: the journal then writes to new files only."""
        self._journal = journal

    def all(self) -> list[tuple[int, Path]]:
        """Return the spares and their sequence numbers."""
        return numbered_files(self._journal, _SUFFIX)

    def add(self, path: Path) -> None:
        """Make a segment that is no longer needed the spare, or remove it if there is one already.

        Raises:
            OSError: if it can be neither renamed nor removed.
        """
        if self.is_used and not self.all():
            with suppress(OSError):
                if path.stat().st_size >= MIN_BYTES:
                    os.rename(path, self._journal / f"{path.stem}{_SUFFIX}")
                    return
        path.unlink(missing_ok=True)

    def take(self, path: Path) -> int | None:
        """Give the spare the name of a new segment; return its descriptor, or None if there is no spare."""
        for _, spare in self.all():
            if not self.is_used:
                break
            with suppress(OSError):  # evicted meanwhile, or unusable
                if (fd := _reuse(spare, path)) is not None:
                    return fd
            with suppress(OSError):
                os.unlink(spare)
        return None

    def evict(self) -> bool:
        """Remove the spare; return False if there is none."""
        for _, spare in self.all():
            with suppress(OSError):
                os.unlink(spare)
                return True
        return False


def _reuse(spare: Path, path: Path) -> int | None:
    """Rename a spare and return its descriptor, or None if it has a second name."""
    fd = os.open(spare, _REOPEN)
    try:
        if os.fstat(fd).st_nlink == 1:
            os.pwrite(fd, b"\0", 0)
            os.link(spare, path)  # unlike rename it never overwrites
            os.unlink(spare)
            _read_ahead(fd)
            return os.dup(fd)
        return None
    finally:
        os.close(fd)


def _read_ahead(fd: int) -> None:
    """Ask for the pages of a file: overwriting a part of one that is not in memory would wait for the disk."""
    if hasattr(os, "posix_fadvise"):
        for offset in range(0, os.fstat(fd).st_size, _CHUNK):
            os.posix_fadvise(fd, offset, _CHUNK, os.POSIX_FADV_WILLNEED)
