"""The journal: where a message lands, and what makes it durable.

Every transaction is one line here. With ``durability: "fsync"`` a group of lines is made durable by one ``fdatasync``;
with ``"os"`` a line is given to the kernel. A file is made later, for messages that have to rest (file_writer.py), and
a restart makes the files that are missing. The format is described in segment.py.

Rules:

1. Append before the files change; sync before the append counts.
2. A failed fdatasync poisons its segment: it is never synced again, and later lines go to a new one.
3. Space for a transaction's amendment, and for the ends of messages, is reserved before the transaction is written, by
   writing zeros, unless the file was a segment before (spare_segments.py). Never through a mapping: on a full disk that
   would kill the process with SIGBUS.
4. A segment leaves the journal only when it holds the only copy of nothing: all of its messages have ended or are
   files, and those are on disk (``syncfs``; with ``"os"`` the files are enough). It is then kept for a while as
   `ClosedSegments`, for a lost index.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, Literal, ParamSpec, TypeVar

from relay_core.journal.closed_segments import ClosedSegments
from relay_core.journal.segment import FRAME_BYTES, HEADER, frame_lines, segment_path, segments
from relay_core.storage.atomic_file import fsync_directory, is_full

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Durability = Literal["fsync", "os"]

SEGMENT_BYTES = 16 * 1024 * 1024
_FDATASYNC: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
_AHEAD = 1024 * 1024
_AHEAD_ON_LOOP = 64 * 1024
"""With ``os`` the event loop writes the zeros. More would take too much of a small disk."""
_ZEROS = memoryview(bytes(_AHEAD))
_SPARED = 4
"""Space is reserved ahead only if the disk has several times as much free."""
_ROOM_FOR_ENDS = 32 * 1024
"""Reserved for ends of messages: on a full disk those free space."""
_OPEN = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def _evicts(method: Callable[Concatenate[Journal, P], T]) -> Callable[Concatenate[Journal, P], T]:
    """On a full disk, evict the oldest closed segment and retry, until none is left."""

    @wraps(method)
    def call(self: Journal, /, *args: P.args, **named: P.kwargs) -> T:
        while True:
            try:
                return method(self, *args, **named)
            except OSError as error:
                if not is_full(error) or not self.closed.evict_oldest():
                    raise

    return call


class Journal:
    """The present segment, and the older ones that are still needed."""

    def __init__(
        self,
        directory: Path,
        durability: Durability,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        fdatasync: Callable[[int], None] = _FDATASYNC,
    ) -> None:
        self.directory = directory
        self.closed = ClosedSegments(directory)
        self.durability = durability
        self._segment_bytes = segment_bytes
        self._fdatasync = fdatasync
        self._lock = threading.Lock()
        self._sequence = 0
        self._fd = -1
        self._is_closed = False
        self._offset = 0
        self._filled = 0
        self._held = 0
        self._owed: list[bytes] = []

    def open(self, after: int = 0) -> None:
        """Start a new segment with a number above all existing ones, and above `after`.

        On a full disk the next append tries again.
        """
        self.directory.mkdir(mode=0o700, exist_ok=True)
        if self.durability == "fsync":
            fsync_directory(self.directory.parent)
        while self.closed.spares.evict():
            pass
        with self._lock:
            existing = segments(self.directory) + self.closed.segments()
            self._sequence = max([after, *(sequence for sequence, _ in existing)])
            try:
                self._next_segment()
            except OSError as error:
                if not is_full(error):
                    raise

    def close(self) -> None:
        """Stop writing; segments stay for the next start unless they were checkpointed."""
        with self._lock:
            self._leave_segment()
            self._is_closed = True

    def append(self, lines: Sequence[bytes], *, hold: int | None = None) -> None:
        """Write lines to the segment; they survive kill -9, but not yet a power loss.

        With `hold` that many bytes behind them are kept from other appends, until `amend` uses them or `release` frees
        them, and some space is left that only appends without `hold` use. Lines that `amend` could not write go first.

        Raises:
            OSError: if the write fails; none of the lines counts.
        """
        while True:  # not @_evicts: this is called for every message
            try:
                with self._lock:
                    room = self._held if hold is None else hold + _ROOM_FOR_ENDS
                    self._append([*self._owed, *lines] if self._owed else lines, room)
                    self._owed = []
                    if hold is not None:
                        self._held = hold
                    return
            except OSError as error:
                if not is_full(error) or not self.closed.evict_oldest():
                    raise

    def amend(self, lines: Iterable[bytes]) -> None:
        """Write the outcome of journaled transactions, in the space reserved for it.

        Never fails: lines that cannot be written now go before the next ones.
        """
        lines = list(lines)
        with self._lock:
            self._held = max(0, self._held - sum(len(line) + FRAME_BYTES for line in lines))
            try:
                self._append([*self._owed, *lines], self._held)
                self._owed = []
            except OSError as error:
                logger.error("journal: %d lines are postponed: %s", len(lines), error)
                self._owed += lines

    def release(self) -> None:
        """Release the space held by `append`."""
        with self._lock:
            self._held = 0

    def _append(self, lines: Sequence[bytes], room: int) -> None:
        if self._fd < 0:
            if self._is_closed:
                raise OSError(errno.EBADF, "the journal is closed")
            self._next_segment()  # the last attempt failed
        offset = self._offset
        data = frame_lines(lines if offset else [HEADER, *lines], self._sequence)
        end = offset + len(data)
        if end + room > self._filled:
            self._fill_ahead(end, room)
        if end < self._filled:
            data += b"\0"  # what follows may be lines of an older segment
        try:
            self._put(data)
        except OSError:
            os.ftruncate(self._fd, offset)
            self._filled = offset
            raise
        self._offset = end

    def _put(self, data: bytes) -> None:
        written = os.pwrite(self._fd, data, self._offset)
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], self._offset + written)

    def sync(self) -> None:
        """Make every appended line durable.

        Raises:
            OSError: if the sync failed; the segment is never synced again and a new one is started.
        """
        with self._lock:
            fd = os.dup(self._fd)
        try:
            self._fdatasync(fd)
        except OSError:
            self.closed.spares.is_used = False
            with self._lock:
                self._leave_segment()
                self._next_segment()
            raise
        finally:
            os.close(fd)

    def make_room(self) -> bool:
        """Free space after a write found the disk full; return False if there is none to free.

        First the unreserved space ahead of the lines, then the oldest closed segment.
        """
        with self._lock:
            end = self._offset + self._held + _ROOM_FOR_ENDS
            if self._fd >= 0 and self._filled > end:
                os.ftruncate(self._fd, end)
                self._filled = end
                return True
        return self.closed.evict_oldest()

    @property
    def sequence(self) -> int:
        """Return the number of the present segment; 0 before the first."""
        return self._sequence

    @property
    def full(self) -> bool:
        """Return True if the segment has reached its size."""
        return self._offset >= self._segment_bytes

    @_evicts
    def rotate(self) -> bool:
        """Start a new segment, and sync the remaining lines of the old one; return False if that sync failed.

        The lock is not held during a sync: the event loop appends lines, too.
        """
        with self._lock:
            sequence = self._sequence + 1
        path = segment_path(self.directory, sequence)
        fd = self._open_segment(path)
        try:
            if self.durability == "fsync":
                fsync_directory(self.directory)
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        with self._lock:
            old, self._fd = self._fd, fd
            self._sequence = sequence
            self._offset = 0
            self._filled = os.fstat(fd).st_size
        if old >= 0:
            try:
                if self.durability == "fsync":
                    self._fdatasync(old)
            except OSError as error:
                logger.error("journal: the last lines of a segment may not survive a power loss: %s", error)
                return False
            finally:
                os.close(old)
        return True

    def checkpoint(self, present: int, *, closing: bool = False) -> None:
        """Make the Maildir durable (with fsync), then close the segments before `present`.

        With `closing` all segments: nothing is appended any more.

        Raises:
            OSError: if the sync failed; the segments stay.
        """
        if closing:
            self.close()
        old = [path for sequence, path in segments(self.directory) if sequence < present or closing]
        if old:
            if self.durability == "fsync":
                sync_file_system(self.directory)
            for path in old:
                self.closed.add(path)
        self.closed.expire()

    @_evicts
    def _next_segment(self) -> None:
        fd = self._open_segment(segment_path(self.directory, self._sequence + 1))
        self._sequence += 1
        self._leave_segment()
        try:
            if self.durability == "fsync":
                fsync_directory(self.directory)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        self._offset = 0
        self._filled = os.fstat(fd).st_size

    def _open_segment(self, path: Path) -> int:
        """Return the file of a new segment: the spare one, or an empty one."""
        fd = self.closed.spares.take(path)
        return os.open(path, _OPEN, 0o600) if fd is None else fd

    def _leave_segment(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _fill_ahead(self, end: int, room: int) -> None:
        """Write zeros until `room` bytes after `end` are on disk, and some more if there is plenty of space."""
        # Overwriting existing blocks saves fdatasync a metadata commit for the file's size.
        filled = self._filled
        ahead = _AHEAD if self.durability == "fsync" else _AHEAD_ON_LOOP
        disk = os.fstatvfs(self._fd)
        if disk.f_bavail * disk.f_frsize > _SPARED * ahead:  # message files need the last free space more
            with suppress(OSError):
                self._fill(end + ahead)
        try:
            self._fill(end + room)  # on a nearly full disk: only the bytes needed, or an error
        except OSError:
            os.ftruncate(self._fd, filled)
            self._filled = filled
            raise

    def _fill(self, end: int) -> None:
        while end > self._filled:
            self._filled += os.pwrite(self._fd, _ZEROS[: end - self._filled], self._filled)


def sync_file_system(path: Path) -> None:
    """Sync the file system that holds `path`.

    Raises:
        OSError: if any of it could not be written.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:
            os.sync()
        elif syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(fd)
