"""The data directory: private, writable, and used by one process at a time.

1. The directory is the user's own and no link. Every directory above it belongs to the user or to root, and others
   cannot write to it unless it is sticky as /tmp is: else they could put another in its place.
2. What lies in it is the user's own and no link, too: what others have placed there is not used.
3. One that others can enter and that holds messages is refused. One without messages is closed to others if all that
   is in it is the user's own, has one name and cannot be written by others; else they may have planted it.
4. It stays the same directory while it is used: after a swap nothing is read from the other one.
"""

from __future__ import annotations

import logging
import os
import shlex
import stat
from contextlib import suppress

from filelock import FileLock, Timeout

from relay_core.errors import StorageError
from relay_core.files import fsync_directory, is_full, storage_error
from relay_core.own_files import Unreadable, check_all_own, check_own, check_way, read_own
from relay_core.places import data_path

logger = logging.getLogger(__name__)

_USED = (
    "access-rules.json",
    "adapters",
    "adapters.json",
    "agents",
    "agents.json",
    "config.json",
    "conversations.json",
    "events",
    "journal",
    "mailboxes",
    "operator.token",
    "relay.lock",
    "reports",
    "relay.sock.lock",
    "tokens.json",
)
_DERIVED = ("index.db", "index.db-shm", "index.db-wal")
_SHORT = 64


class DataDir:
    """Where a bus keeps everything, and the lock on it."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = data_path(path)
        self.config = self.path / "config.json"
        self.access_rules = self.path / "access-rules.json"
        self.adapters = self.path / "adapters.json"
        self.conversations = self.path / "conversations.json"
        self.mailboxes = self.path / "mailboxes"
        self.journal = self.path / "journal"
        self.index = self.path / "index.db"
        self.events = self.path / "events"
        self.reports = self.path / "reports"
        self.lock_file = self.path / "relay.lock"
        self._identity: tuple[int, int] | None = None
        """Device and inode, once it is in use."""
        self._lock = FileLock(str(self.lock_file), timeout=0, mode=0o600, thread_local=False)

    def acquire(self) -> None:
        """Make the directory if needed and take its lock.

        Raises:
            StorageError: if it is not private, not writable, or another process uses it.
        """
        try:
            self._make()
            self._identity = None
            self._check_private()
            self.check()
            self.check_contents()
            self._drop_planted_index()
            self._lock.acquire()
            self._write_pid()
        except Timeout:
            holder = self.holder()
            raise StorageError(
                f"{self.path} is in use by process {holder or 'unknown'}: stop it first, or choose another --data-dir",
                code="data_dir_in_use",
                path=str(self.path),
                pid=holder,
            ) from None
        except OSError as error:
            self.release()
            raise storage_error("use", self.path, error) from error

    def release(self) -> None:
        """Let go of the lock; the file stays."""
        self._lock.release(force=True)

    def holder(self) -> int | None:
        """Return the pid of the process that holds (or last held) the lock."""
        try:
            return int(read_own(self.lock_file, limit=_SHORT))
        except (OSError, ValueError):
            return None

    def check(self) -> None:
        """Check that the directory is still the one that was acquired, and that others cannot swap it.

        Raises:
            StorageError: with the code `insecure_data_dir`, if not; it names the path and what to run.
        """
        try:
            check_way(self.path.parent)
            found = self.path.lstat()
        except Unreadable as error:
            raise self._insecure(f"{error}. Others could put another directory in the place of {self.path}") from error
        except OSError as error:
            raise storage_error("use", self.path, error) from error
        if stat.S_ISLNK(found.st_mode):
            raise self._insecure(
                f"{self.path} is a symbolic link: name the directory itself with --data-dir {self.path.resolve()}"
            )
        if not stat.S_ISDIR(found.st_mode):
            raise self._insecure(f"{self.path} is not a directory")
        if found.st_uid != os.geteuid():
            raise self._insecure(
                f"{self.path} belongs to uid {found.st_uid}, not to uid {os.geteuid()}: choose another --data-dir"
            )
        identity = found.st_dev, found.st_ino
        if self._identity not in (None, identity):
            raise self._insecure(
                f"{self.path} is another directory than at the start: put the old one back, or restart"
            )
        if self._identity is not None and found.st_mode & 0o022:
            raise self._insecure(
                f"others can write to {self.path} (mode {stat.S_IMODE(found.st_mode):04o}): look at what is in it with "
                f"'ls -la {self._quoted}', then run 'chmod 700 {self._quoted}'"
            )
        self._identity = identity

    def check_contents(self) -> None:
        """Check that what is read here by name is the user's own and no link.

        Raises:
            StorageError: with the code `insecure_data_dir`, if not; it names the path.
        """
        try:
            for name in _USED:
                check_own(self.path / name)
        except Unreadable as error:
            raise self._insecure(str(error)) from error

    def read(self, path: str | os.PathLike[str], *, private: bool = False) -> bytes:
        """Return the bytes of an operator's file in this directory, as `read_own`, if it is still the same directory.

        Raises:
            Unreadable: if another user can have placed or changed it.
        """
        try:
            self.check()
        except StorageError as error:
            raise Unreadable(error.message) from error
        return read_own(path, private=private)

    def _make(self) -> None:
        """Make the directory and those above it, if they are not there, and make each of them last."""
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        for path in reversed(missing):
            with suppress(FileExistsError):  # what is there is looked at next
                path.mkdir(mode=0o700)
        for path in missing:
            fsync_directory(path.parent)

    def _check_private(self) -> None:
        found = self.path.lstat()
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or not mode & 0o077:
            return  # `check` says what is wrong
        if self.mailboxes.exists():
            raise self._insecure(
                f"{self.path} holds messages and is open to other users (mode {mode:04o}): run "
                f"'chmod 700 {self._quoted}' and look at who may have read it"
            )
        try:
            check_all_own(self.path)
        except Unreadable as error:
            raise self._insecure(
                f"{self.path} was open to other users (mode {mode:04o}), and what is in it cannot be trusted: {error}. "
                f"Look at it with 'ls -laR {self._quoted}', remove what is not yours, and run "
                f"'chmod -R go-rwx {self._quoted}'"
            ) from error
        self.path.chmod(0o700)

    def _drop_planted_index(self) -> None:
        """Remove an index that is a link or another user's: it is derived, and built again."""
        for name in _DERIVED:
            try:
                check_own(self.path / name)
            except Unreadable as error:
                logger.warning("the index is rebuilt: %s", error)
                (self.path / name).unlink()

    @property
    def _quoted(self) -> str:
        return shlex.quote(str(self.path))

    def _insecure(self, message: str) -> StorageError:
        return StorageError(message, code="insecure_data_dir", path=str(self.path))

    def _write_pid(self) -> None:
        # In place, not replaced: the lock is on this very file. Without its pid the lock is as good.
        fd = os.open(self.lock_file, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(fd, f"{os.getpid()}\n".encode())
        except OSError as error:
            if not is_full(error):
                raise
        finally:
            os.close(fd)
