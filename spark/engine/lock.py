"""A lock on a directory, released when its descriptor is closed or its process and children end."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(directory: Path) -> Iterator[int]:
    """Hold a directory's lock, and return its descriptor; a child that inherits it keeps the lock.

    Raises:
        OSError: if another process holds the lock, or the directory belongs to another user.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)
