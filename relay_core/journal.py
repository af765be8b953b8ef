"""The write-ahead journal: what makes an acknowledged publish last, before its files do.

With ``durability: "fsync"`` every change to a mailbox is first one line here, and a whole group of
lines is made durable by one ``fdatasync``; the files in the Maildir are then made without any, and
a restart completes them from the journal. With ``"os"`` only changes that must be atomic across
files are written (publishes with a dedupe id, replays), and nothing is synced.

A segment is ``journal/{sequence}.log``: lines of ``crc32-of-json SP json LF``, the checksum seeded
with the sequence so that stale bytes never pass for a record. A line is one transaction::

    {"id": ..., "sync": true, "ops": [[op, mailbox, message, data?], ...], "dedupe"?: ..., "result"?: {...}}
    {"done": id}             the files of a transaction without "sync" are all made

Ops: ``new`` (the message is in new/), ``again`` (the same, and no longer in failed/), ``failed``
(its record is in failed/ and nowhere else), ``gone`` (it is nowhere); and of a message in new/, ``begun`` (it was
claimed and is in cur/) and ``back`` (it was claimed and waits again).

Rules:

1. Append before the files change; sync before the append counts. Reading stops at the first bad
   line: what follows was never acknowledged.
2. A failed fdatasync poisons its segment: it is never synced again, and later lines go to a new one.
3. Room for what may have to be said of a transaction afterwards, and for the ends of messages, is taken before it is
   written, by writing zeros: never through a mapping, since a full disk would end the process with SIGBUS there.
4. A segment leaves the journal only after everything its lines say is on disk (``syncfs``; with ``"os"``
   the files are enough). It is kept for a while after that (kept.py): an index that is lost reads it.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec
from zlib import crc32

import orjson

from relay_core.files import fsync_directory, is_full
from relay_core.kept import Kept
from relay_core.kept import segments as segments

logger = logging.getLogger(__name__)

P = ParamSpec("P")

Durability = Literal["fsync", "os"]

SEGMENT_BYTES = 16 * 1024 * 1024
_FDATASYNC: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
_AHEAD = 1024 * 1024
_SPARED = 4
"""Room is taken ahead only where the disk has several times as much."""
_ROOM_FOR_ENDS = 32 * 1024
"""Kept free of changes with fsync: on a full disk the end of a message is what makes room."""
_ROOM_FOR_DONE = 256
_FRAME = 10
"""Bytes of a line that are not its JSON."""
_OPEN = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def _gives_way(method: Callable[Concatenate[Journal, P], None]) -> Callable[Concatenate[Journal, P], None]:
    """Try again without the oldest kept segment, and so on, if the disk is full."""

    @wraps(method)
    def call(self: Journal, /, *args: P.args, **named: P.kwargs) -> None:
        while True:
            try:
                return method(self, *args, **named)
            except OSError as error:
                if not is_full(error) or not self.kept.give_way():
                    raise

    return call


class Journal:
    """The segment being written, and the ones still needed."""

    def __init__(
        self,
        directory: Path,
        durability: Durability,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        fdatasync: Callable[[int], None] = _FDATASYNC,
    ) -> None:
        self.directory = directory
        self.kept = Kept(directory)
        self.durability = durability
        self._segment_bytes = segment_bytes
        self._fdatasync = fdatasync
        self._lock = threading.Lock()
        self._sequence = 0
        self._fd = -1
        self._closed = False
        self._offset = 0
        self._filled = 0
        self._held = 0
        self._for_ends = _ROOM_FOR_ENDS if durability == "fsync" else 0
        self._owed: list[bytes] = []

    def open(self, after: int = 0) -> None:
        """Start a new segment after the ones that are there, and after those that are known from elsewhere.

        On a full disk the next append tries again.
        """
        self.directory.mkdir(mode=0o700, exist_ok=True)
        if self.durability == "fsync":
            fsync_directory(self.directory.parent)
        with self._lock:
            there = segments(self.directory) + self.kept.segments()
            self._sequence = max((sequence for sequence, _ in there), default=0)
            self._sequence = max(self._sequence, after)
            try:
                self._next_segment()
            except OSError as error:
                if not is_full(error):
                    raise

    def close(self) -> None:
        """Stop writing; segments stay for the next start unless they were checkpointed."""
        with self._lock:
            self._leave_segment()
            self._closed = True

    @_gives_way
    def append(self, lines: Sequence[bytes], *, room: int = _ROOM_FOR_DONE, hold: int | None = None) -> None:
        """Write transactions to the segment; they last through kill -9, not yet through power loss.

        Behind them `room` is kept, so that there is always some for a ``done``, which itself needs none. With `hold` it
        is kept from other appends, too, until `amend` uses it or `release` gives it up; and some room is left that only
        appends without `hold` use. Lines that `amend` could not write go first.

        Raises:
            OSError: if the disk refuses; none of the lines counts.
        """
        with self._lock:
            self._append([*self._owed, *lines], max(room, self._held) if hold is None else hold + self._for_ends)
            self._owed = []
            if hold is not None:
                self._held = hold

    def amend(self, lines: Iterable[bytes]) -> None:
        """Write what has become of transactions that are in the journal, in the room that was kept for it.

        It never fails: if the disk refuses, the lines are written before the next ones.
        """
        lines = list(lines)
        with self._lock:
            self._held = max(0, self._held - sum(len(line) + _FRAME for line in lines))
            try:
                self._append([*self._owed, *lines], self._held)
                self._owed = []
            except OSError as error:
                logger.error("journal: %d lines have to wait: %s", len(lines), error)
                self._owed += lines

    def release(self) -> None:
        """Give up the room that was held."""
        with self._lock:
            self._held = 0

    def _append(self, lines: list[bytes], room: int) -> None:
        if self._fd < 0:
            if self._closed:
                raise OSError(errno.EBADF, "the journal is closed")
            self._next_segment()  # the disk refused the last one
        seed = self._sequence
        data = b"".join([b"%08x %s\n" % (crc32(line, seed), line) for line in lines])
        filled = self._filled
        try:
            self._fill_ahead(self._offset + len(data), room)
        except OSError:
            os.ftruncate(self._fd, filled)
            self._filled = filled
            raise
        try:
            self._put(data)
        except OSError:
            os.ftruncate(self._fd, self._offset)
            self._filled = self._offset
            raise
        self._offset += len(data)

    def _put(self, data: bytes) -> None:
        written = 0
        while written < len(data):
            written += os.pwrite(self._fd, data[written:] if written else data, self._offset + written)

    def sync(self) -> None:
        """Make every appended line last.

        Raises:
            OSError: if it failed; the segment is never synced again and a new one is begun.
        """
        with self._lock:
            fd = os.dup(self._fd)
        try:
            self._fdatasync(fd)
        except OSError:
            with self._lock:
                self._leave_segment()
                self._next_segment()
            raise
        finally:
            os.close(fd)

    @property
    def owes(self) -> bool:
        """Whether lines wait that `amend` could not write."""
        return bool(self._owed)

    def make_room(self) -> bool:
        """Give up room for a file that found the disk full; return False if there is none to give.

        First what lies ahead of the lines and is kept for none, then the oldest kept segment.
        """
        with self._lock:
            end = self._offset + self._held + self._for_ends
            if self._fd >= 0 and self._filled > end:
                os.ftruncate(self._fd, end)
                self._filled = end
                return True
        return self.kept.give_way()

    @property
    def sequence(self) -> int:
        """Return the number of the segment being written; 0 before the first."""
        return self._sequence

    @property
    def full(self) -> bool:
        """Whether the segment has reached its size."""
        return self._offset >= self._segment_bytes

    @_gives_way
    def rotate(self) -> None:
        """Begin a new segment. Lines of the old one that no sync has covered are synced.

        The lock is not held over a sync: the event loop appends lines, too.
        """
        with self._lock:
            sequence = self._sequence + 1
        path = self.directory / f"{sequence:016d}.log"
        fd = os.open(path, _OPEN, 0o600)
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
            self._offset = self._filled = 0
        if old >= 0:
            try:
                if self.durability == "fsync":
                    self._fdatasync(old)
            except OSError as error:
                logger.error("journal: the last lines of a segment may not outlast a power loss: %s", error)
            finally:
                os.close(old)

    def checkpoint(self, *, closing: bool = False) -> None:
        """Make the Maildir itself last, if fsync promises that, then set the segments before the present one aside.

        With `closing` the present one as well: nothing is appended any more.

        Raises:
            OSError: if it could not be made to last; the segments stay.
        """
        if closing:
            self.close()
        present = self._sequence
        old = [path for sequence, path in segments(self.directory) if sequence < present or closing]
        if old:
            if self.durability == "fsync":
                sync_file_system(self.directory)
            for path in old:
                self.kept.take(path)
        self.kept.forget()

    @_gives_way
    def _next_segment(self) -> None:
        fd = os.open(self.directory / f"{self._sequence + 1:016d}.log", _OPEN, 0o600)
        self._sequence += 1
        self._leave_segment()
        try:
            if self.durability == "fsync":
                fsync_directory(self.directory)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        self._offset = self._filled = 0

    def _leave_segment(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _fill_ahead(self, end: int, room: int) -> None:
        # Overwriting blocks that exist spares fdatasync a journal commit for the file's size, and makes
        # sure that a transaction whose line was taken finds room for its "done".
        need = end + room
        if need > self._filled:
            ahead = _AHEAD if self.durability == "fsync" else _AHEAD // 16
            disk = os.fstatvfs(self._fd)
            if disk.f_bavail * disk.f_frsize > _SPARED * ahead:  # the message's files need the last of a disk more
                with suppress(OSError):
                    self._filled += os.pwrite(self._fd, bytes(end + ahead - self._filled), self._filled)
            while need > self._filled:  # a nearly full disk: then just what is needed, or an error
                self._filled += os.pwrite(self._fd, bytes(need - self._filled), self._filled)


def read_segment(sequence: int, path: Path) -> Iterator[dict[str, Any]]:
    """Yield a segment's transactions up to the first bad line."""
    with path.open("rb") as file:
        # Up to the zeros that lines to come will overwrite: to read 16 MB of them was half of a start.
        while file.peek(1)[:1] not in (b"", b"\0"):
            line = file.readline()
            try:
                body = line[9:-1]
                if line[-1:] != b"\n" or int(line[:8], 16) != crc32(body, sequence):
                    return
                yield orjson.loads(body)
            except ValueError:
                return


def sync_file_system(path: Path) -> None:
    """Write everything of the file system that holds `path` to its disk.

    Raises:
        OSError: if the disk refused any of it.
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


def transaction(
    message_id: str,
    ops: Iterable[tuple[str, str, str, bytes | None]],
    *,
    sync: bool,
    dedupe: str | None = None,
    result: dict[str, Any] | None = None,
) -> bytes:
    """Return the line of a transaction."""
    record: dict[str, Any] = {
        "id": message_id,
        "ops": [
            [op, mailbox, message] if data is None else [op, mailbox, message, _on_one_line(data)]
            for op, mailbox, message, data in ops
        ],
    }
    if sync:
        record["sync"] = True
    if dedupe is not None:
        record["dedupe"] = dedupe
        record["result"] = result
    return orjson.dumps(record)


def _on_one_line(data: bytes) -> orjson.Fragment:
    # What we encode is one line already; a file that others dropped may be laid out as they like. In JSON no string
    # has a line end as it is.
    return orjson.Fragment(data.replace(b"\n", b" "))


def done(message_id: str) -> bytes:
    """Return the line that ends a transaction."""
    return orjson.dumps({"done": message_id})
