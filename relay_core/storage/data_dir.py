"""The data directory: private, writable, and used by one process at a time.

1. The directory belongs to the user and is not a link. Every directory above it belongs to the user or to root, and
   others cannot write to it unless it is sticky like /tmp: else they could replace the data directory.
2. The files in it belong to the user and are not links, too: files placed by others are not used.
3. A directory that others can enter and that holds messages is refused. One without messages is made private if every
   file in it belongs to the user, has one name and is not writable by others; else they may have planted it.
4. It stays the same directory while it is in use: after a swap nothing is read from the other one.
"""

from __future__ import annotations

import logging
import os
import shlex
import stat
from contextlib import suppress

from filelock import FileLock, Timeout

from relay_core.errors import StorageError
from relay_core.paths import data_path
from relay_core.storage.atomic_file import fsync_directory, is_full, storage_error
from relay_core.storage.trusted_file import UntrustedFile, check_owner, check_path, check_tree, read_trusted

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
    "schedule-state.json",
    "tokens.json",
)
_DERIVED = ("index.db", "index.db-shm", "index.db-wal")
_SHORT = 64


class DataDir:
    """The paths of a bus's files, and the lock on their directory."""

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
        """Device and inode, once it is acquired."""
        self._lock = FileLock(str(self.lock_file), timeout=0, mode=0o600, thread_local=False)

    def acquire(self) -> None:
        """Create the directory if needed and take its lock.

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
        """Release the lock; the file stays."""
        self._lock.release(force=True)

    def holder(self) -> int | None:
        """Return the pid of the process that holds (or last held) the lock."""
        try:
            return int(read_trusted(self.lock_file, limit=_SHORT))
        except (OSError, ValueError):
            return None

    def check(self) -> None:
        """Check that the directory is still the one that was acquired, and that others cannot swap it.

        Raises:
            StorageError: with the code `insecure_data_dir`, if not; it names the path and a command to run.
        """
        try:
            check_path(self.path.parent)
            found = self.path.lstat()
        except UntrustedFile as error:
            raise self._insecure(f"{error}. Otherwise others could replace {self.path}") from error
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
                f"{self.path} is not the directory that was opened at the start: restore that one, or restart"
            )
        if self._identity is not None and found.st_mode & 0o022:
            raise self._insecure(
                f"others can write to {self.path} (mode {stat.S_IMODE(found.st_mode):04o}): inspect its contents with "
                f"'ls -la {self._quoted}', then run 'chmod 700 {self._quoted}'"
            )
        self._identity = identity

    def check_contents(self) -> None:
        """Check that the files read by name belong to the user and are not links.

        Raises:
            StorageError: with the code `insecure_data_dir`, if not; it names the path.
        """
        try:
            for name in _USED:
                check_owner(self.path / name)
        except UntrustedFile as error:
            raise self._insecure(str(error)) from error

    def read(self, path: str | os.PathLike[str], *, private: bool = False) -> bytes:
        """Return the bytes of an operator's file, like `read_trusted`, after checking the directory.

        Raises:
            UntrustedFile: if another user may have placed or changed it.
        """
        try:
            self.check()
        except StorageError as error:
            raise UntrustedFile(error.message) from error
        return read_trusted(path, private=private)

    def _make(self) -> None:
        """Create the directory and its parents, if they do not exist, durably."""
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        for path in reversed(missing):
            with suppress(FileExistsError):  # it is checked next
                path.mkdir(mode=0o700)
        for path in missing:
            fsync_directory(path.parent)

    def _check_private(self) -> None:
        found = self.path.lstat()
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or not mode & 0o077:
            return  # `check` reports these
        if self.mailboxes.exists():
            raise self._insecure(
                f"{self.path} holds messages and is open to other users (mode {mode:04o}): run "
                f"'chmod 700 {self._quoted}' and find out who may have read it"
            )
        try:
            check_tree(self.path)
        except UntrustedFile as error:
            raise self._insecure(
                f"{self.path} was open to other users (mode {mode:04o}), and its contents cannot be trusted: {error}. "
                f"Inspect it with 'ls -laR {self._quoted}', remove files that are not yours, and run "
                f"'chmod -R go-rwx {self._quoted}'"
            ) from error
        self.path.chmod(0o700)

    def _drop_planted_index(self) -> None:
        """Remove an index that is a link or another user's: it is derived data, and rebuilt."""
        for name in _DERIVED:
            try:
                check_owner(self.path / name)
            except UntrustedFile as error:
                logger.warning("the index is rebuilt: %s", error)
                (self.path / name).unlink()

    @property
    def _quoted(self) -> str:
        return shlex.quote(str(self.path))

    def _insecure(self, message: str) -> StorageError:
        return StorageError(message, code="insecure_data_dir", path=str(self.path))

    def _write_pid(self) -> None:
        # Written in place, not replaced: the lock is on this file. On a full disk the lock works without the pid.
        fd = os.open(self.lock_file, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(fd, f"{os.getpid()}\n".encode())
        except OSError as error:
            if not is_full(error):
                raise
        finally:
            os.close(fd)
