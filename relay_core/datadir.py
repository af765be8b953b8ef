"""The data directory: private, writable, and used by one process at a time."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from filelock import FileLock, Timeout

from relay_core.errors import StorageError
from relay_core.files import fsync_directory, is_full, storage_error
from relay_core.places import data_path


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
        self._lock = FileLock(str(self.lock_file), timeout=0, mode=0o600, thread_local=False)

    def acquire(self) -> None:
        """Make the directory if needed and take its lock.

        Raises:
            StorageError: if it is not private, not writable, or another process uses it.
        """
        try:
            self._make()
            self._check_private()
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
            return int(self.lock_file.read_text())
        except (OSError, ValueError):
            return None

    def _make(self) -> None:
        """Make the directory and those above it, if they are not there, and make each of them last."""
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        with suppress(FileExistsError):  # what is there is looked at next
            self.path.mkdir(mode=0o700, parents=True)
        for path in missing:
            fsync_directory(path.parent)

    def _check_private(self) -> None:
        found = self.path.stat()
        if not stat.S_ISDIR(found.st_mode):
            raise StorageError(f"{self.path} is not a directory", code="insecure_data_dir", path=str(self.path))
        if found.st_uid != os.geteuid():
            raise StorageError(
                f"{self.path} belongs to uid {found.st_uid}, not to uid {os.geteuid()}: choose another --data-dir",
                code="insecure_data_dir",
                path=str(self.path),
            )
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            if self.mailboxes.exists():
                raise StorageError(
                    f"{self.path} holds messages and is open to other users (mode {mode:04o}): run "
                    f"'chmod 700 {self.path}' and look at who may have read it",
                    code="insecure_data_dir",
                    path=str(self.path),
                )
            self.path.chmod(0o700)  # nothing in it yet: a plain mkdir made it

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
