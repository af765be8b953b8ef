"""One mailbox on disk: ``tmp/ new/ cur/ failed/`` and the moves between them.

Rules:

1. A message is complete before it has a name in ``new/``: its bytes are written to an unnamed file (``O_TMPFILE``; a
   file in ``tmp/`` if the file system has none), then linked in. ``link`` never overwrites, and causes no
   ``IN_MOVED_TO``, so our own deliveries never wake the watch for dropped files (dropped_files.py).
2. ``new/`` → ``cur/`` by rename is the claim. Of two claimants exactly one succeeds.
3. Out of ``cur/`` a message is removed (complete), or first written to ``failed/`` and then removed (dead-lettered): a
   crash in between leaves it in both, never in neither. A message whose handling has not begun is linked back into
   ``new/`` and then removed (unclaim); after a crash in between, the one in ``new/`` counts.
4. Reading trusts nothing: no links, no special files, no other owner, no more bytes than allowed. An unreadable file is
   moved to ``failed/`` by rename, unopened.
5. A message that is in the journal and has no file yet is `pending`. Every method treats it as if it were in ``new/``
   or ``cur/``; `write_pending` makes its file, in the directory where it belongs by then, unless it has ended. The
   event loop and the threads that write files share `pending`: a file gets its name, and a pending message moves or
   ends, under one lock.

Failure cases: a disk that fills up during a write leaves nothing in ``new/`` (the unnamed file vanishes with its
descriptor, the one in ``tmp/`` is removed). A crash leaves at most a file in ``tmp/``, swept at the next start.

Everything here is synchronous and takes tens of microseconds in the page cache, less than a hop to a thread
(docs/performance.md). The journal is responsible for fsync, not this module.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Protocol

from relay_core.storage.atomic_file import fsync_directory, write_all
from relay_core.storage.trusted_file import UntrustedFile, check_owner, read_regular_file

NEW, CUR, FAILED, TMP = "new", "cur", "failed", "tmp"
STATES = (NEW, CUR, FAILED)
ANY_SIZE = 1 << 40
"""A limit for `Maildir.read` that no file exceeds."""

_CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNNAMED = getattr(os, "O_TMPFILE", 0) | os.O_WRONLY | os.O_CLOEXEC


class HasData(Protocol):
    """A message that can be encoded."""

    @property
    def data(self) -> bytes:
        """Return the bytes of its file."""
        ...


class PendingFile:
    """A message that is in the journal and has no file yet."""

    __slots__ = ("message", "state")

    def __init__(self, message: HasData) -> None:
        self.message = message
        self.state = NEW
        """``new`` or ``cur``."""


class Maildir:
    """The directories of one mailbox."""

    __slots__ = ("_lock", "_unnamed", "cur", "failed", "new", "path", "pending", "problem", "tmp")

    def __init__(self, path: Path, *, unnamed: bool = True) -> None:
        self.path = path
        self.tmp = f"{path}/tmp/"
        self.new = f"{path}/new/"
        self.cur = f"{path}/cur/"
        self.failed = f"{path}/failed/"
        self.pending: dict[str, PendingFile] = {}
        """By message id."""
        self.problem: str | None = None
        """Why the last pending message could not be written."""
        self._lock = threading.Lock()
        self._unnamed = unnamed and bool(getattr(os, "O_TMPFILE", 0))

    def create(self, *, sync: bool) -> None:
        """Create the directories, and make them durable if `sync`.

        Raises:
            NotADirectoryError: if a link or another user's directory is in the way.
        """
        for path in (str(self.path), self.tmp, self.new, self.cur, self.failed):
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                _check_directory(path.rstrip("/"))
                if not os.path.isdir(path):
                    raise
        if sync:
            fsync_directory(self.path)
            fsync_directory(self.path.parent)

    def write(self, message_id: str, data: bytes) -> None:
        """Write a message to ``new/``.

        Raises:
            FileExistsError: if the message exists already; it is not changed.
            OSError: if the write fails; nothing is left behind.
        """
        with _WholeFile(self, message_id, data) as file:
            file.link(self.new)

    def hold(self, message_id: str, message: HasData) -> None:
        """Add a message that is in the journal and has no file yet."""
        self.pending[message_id] = PendingFile(message)

    def write_pending(self, message_id: str) -> None:
        """Give a pending message its file; do nothing if it is not pending any more.

        Raises:
            FileExistsError: if another file has its name.
            OSError: if the write fails; it stays pending.
        """
        pending = self.pending.get(message_id)
        if pending is None:
            return
        with _WholeFile(self, message_id, pending.message.data) as file, self._lock:
            if self.pending.get(message_id) is pending:
                file.link(self.new if pending.state == NEW else self.cur)
                del self.pending[message_id]

    def _move_pending(self, message_id: str, old: str, new: str) -> bool | None:
        """Move a pending message to another state; return False if it is elsewhere, None if it is not pending."""
        with self._lock:
            pending = self.pending.get(message_id)
            if pending is None:
                return None
            if pending.state != old:
                return False
            pending.state = new
            return True

    def _drop_pending(self, message_id: str, state: str) -> bool:
        with self._lock:
            pending = self.pending.get(message_id)
            if pending is None or pending.state != state:
                return False
            del self.pending[message_id]
            return True

    def claim(self, message_id: str) -> bool:
        """Move a message to ``cur/``; return False if another process has claimed it.

        Raises:
            OSError: if the rename fails; the message stays where it is.
        """
        if message_id in self.pending and (moved := self._move_pending(message_id, NEW, CUR)) is not None:
            return moved
        name = f"{message_id}.json"
        try:
            os.rename(self.new + name, self.cur + name)
        except FileNotFoundError:
            if os.path.lexists(self.new + name):
                raise  # it is cur/ that is missing
            return False
        return True

    def unclaim(self, message_id: str) -> bool:
        """Move a claimed message back to ``new/``; return False if it is gone, or if ``new/`` has it already."""
        if message_id in self.pending and (moved := self._move_pending(message_id, CUR, NEW)) is not None:
            return moved
        name = f"{message_id}.json"
        try:
            os.link(self.cur + name, self.new + name)
        except (FileNotFoundError, FileExistsError):
            return False
        os.unlink(self.cur + name)
        return True

    def complete(self, message_id: str) -> bool:
        """Remove a claimed message; return False if it does not exist."""
        return self.remove(CUR, message_id)

    def remove(self, state: str, message_id: str) -> bool:
        """Remove a message; return False if it does not exist."""
        if message_id in self.pending and self._drop_pending(message_id, state):
            return True
        try:
            os.unlink(f"{self.path}/{state}/{message_id}.json")
        except FileNotFoundError:
            return False
        return True

    def move_to_failed(self, message_id: str, record: bytes) -> None:
        """Write a message's record to ``failed/`` and remove the message from ``new/`` and ``cur/``."""
        self.write_failed(message_id, record)
        self.remove(CUR, message_id)
        self.remove(NEW, message_id)

    def write_failed(self, message_id: str, record: bytes) -> None:
        """Write a record to ``failed/``, replacing an older one of the same message."""
        tmp = f"{self.tmp}{message_id}.failed"  # another thread may be writing the message to tmp/ now
        _write_file(tmp, record)
        os.rename(tmp, f"{self.failed}{message_id}.json")

    def quarantine(self, state: str, name: str, message_id: str) -> None:
        """Move a file that must not be opened to ``failed/{message_id}.original``."""
        os.rename(f"{self.path}/{state}/{name}", f"{self.failed}{message_id}.original")

    def has_original(self, message_id: str) -> bool:
        """Return True if a file was quarantined under this id."""
        return os.path.lexists(f"{self.failed}{message_id}.original")

    def remove_original(self, message_id: str) -> None:
        """Remove a quarantined file of any kind; a directory with its contents."""
        path = f"{self.failed}{message_id}.original"
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            shutil.rmtree(path)

    def read(self, state: str, message_id: str, *, limit: int) -> bytes:
        """Return a message's bytes.

        Raises:
            FileNotFoundError: if it does not exist.
            UntrustedFile: if it is a link, a special file, another user's or longer than `limit`.
        """
        pending = self.pending.get(message_id)
        if pending is not None and pending.state == state:
            return pending.message.data
        return read_regular_file(f"{self.path}/{state}/{message_id}.json", limit=limit)

    def whereabouts(self, message_id: str) -> set[str]:
        """Return the states a message is in: one, none, or two after a crash between two steps."""
        pending = self.pending.get(message_id)
        states = {state for state in STATES if os.path.lexists(f"{self.path}/{state}/{message_id}.json")}
        return states if pending is None else states | {pending.state}

    def names(self, state: str) -> list[str]:
        """Return the names of the message files in a state, unordered."""
        try:
            return [name for name in os.listdir(f"{self.path}/{state}") if not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def ids(self, state: str) -> list[str]:
        """Return the ids of the messages in a state, oldest first."""
        return sorted(name[:-5] for name in self.names(state) if name.endswith(".json"))

    def claimed(self) -> list[str]:
        """Return the ids of the claimed messages, with or without a file, oldest first."""
        pending = [id for id, message in list(self.pending.items()) if message.state == CUR]
        return sorted({*self.ids(CUR), *pending})

    def sweep(self, *, older_than: float) -> int:
        """Remove files in ``tmp/`` that were last written before a time (epoch seconds); return how many."""
        swept = 0
        for name in self.names(TMP):
            path = self.tmp + name
            try:
                if os.lstat(path).st_mtime < older_than:
                    os.unlink(path)
                    swept += 1
            except OSError:
                continue  # gone meanwhile, or a directory: not ours to remove
        return swept

    def destroy(self) -> None:
        """Remove the directories and endpoint.json.

        Raises:
            OSError: if a directory is not empty; all of them are kept.
        """
        try:
            for path in (self.tmp, self.new, self.cur, self.failed):
                os.rmdir(path)
        except OSError:
            self.create(sync=False)
            raise
        (self.path / "endpoint.json").unlink(missing_ok=True)
        os.rmdir(self.path)


class _WholeFile:
    """A complete file that has no name in the mailbox yet; unless it is linked, nothing is left of it."""

    __slots__ = ("_box", "_data", "_fd", "_id")

    def __init__(self, box: Maildir, message_id: str, data: bytes) -> None:
        self._box = box
        self._id = message_id
        self._data = data
        self._fd = -1

    def __enter__(self) -> _WholeFile:
        if self._box._unnamed:
            try:
                self._fd = os.open(self._box.tmp, _UNNAMED, 0o600)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                    raise
                self._box._unnamed = False
        try:
            if self._fd >= 0:
                write_all(self._fd, self._data)
            else:
                _write_file(self._tmp, self._data)
        except OSError:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd < 0:
            os.unlink(self._tmp)
        self._close()

    def link(self, directory: str) -> None:
        """Give it its name in a directory."""
        name = f"{directory}{self._id}.json"
        if self._fd < 0:
            os.link(self._tmp, name)
            return
        try:
            # With src_dir_fd Python uses linkat, the only call that follows this link.
            os.link(f"/proc/self/fd/{self._fd}", name, src_dir_fd=self._fd, follow_symlinks=True)
        except FileNotFoundError:
            if not os.path.isdir(directory):
                raise
            self._box._unnamed = False  # no /proc here
            self._close()
            _write_file(self._tmp, self._data)
            os.link(self._tmp, name)

    @property
    def _tmp(self) -> str:
        return f"{self._box.tmp}{self._id}.json"

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _check_directory(path: str) -> None:
    try:
        check_owner(path)
    except UntrustedFile as error:
        raise NotADirectoryError(errno.ENOTDIR, str(error), path) from error


def _write_file(path: str, data: bytes) -> None:
    try:
        fd = os.open(path, _CREATE, 0o600)
    except FileExistsError:  # left by a killed process
        os.unlink(path)
        fd = os.open(path, _CREATE, 0o600)
    try:
        write_all(fd, data)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
