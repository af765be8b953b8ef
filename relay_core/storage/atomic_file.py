"""Replace a file atomically: a reader sees the old bytes or the new ones, never a mixture.

1. The new bytes go to a temporary file in the same directory: newly created (O_EXCL), never through a link
   (O_NOFOLLOW), private from the start.
2. It is fsynced before the rename: after a power loss the name must not lead to empty blocks.
3. The rename is the commit; the directory's fsync makes it durable.

Failure cases: until the rename, any failure (including a full disk) removes the temporary file and leaves the old one
unchanged. A failed fsync of the directory is an error although the new bytes are in place: they may not survive a power
loss. A process killed in between leaves `.{name}.*.tmp` behind.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Protocol

from relay_core.errors import StorageError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class FileReader(Protocol):
    """Reads an operator's file: `read_trusted`, or `DataDir.read`, which checks its directory first."""

    def __call__(self, path: Path, *, private: bool = False) -> bytes:
        """Return the file's bytes."""
        ...


def atomic_write(path: Path, data: bytes, mode: int = 0o600, *, sync: bool = True) -> None:
    """Replace a file's bytes atomically and durably; blocks.

    Raises:
        StorageError: with the code `storage_full`, retryable, if the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{token_hex(8)}.tmp")
    try:
        try:
            _write(temporary, data, mode, sync=sync)
            os.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        if sync:
            fsync_directory(path.parent)
    except OSError as error:
        raise storage_error("write", path, error) from error


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data, in several parts if the kernel takes less at once."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def is_full(error: OSError) -> bool:
    """Return True if an error means that the disk or the quota is full."""
    return error.errno in _FULL


def storage_error(verb: str, path: Path, error: OSError) -> StorageError:
    """Return a StorageError for an error of the operating system."""
    full = is_full(error)
    return StorageError(
        f"cannot {verb} {path}: {error.strerror or error}" + ("; free some space and try again" if full else ""),
        path=str(path),
        retryable=full,
        code="storage_full" if full else "",
    )


def _write(path: Path, data: bytes, mode: int, *, sync: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        write_all(descriptor, data)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
