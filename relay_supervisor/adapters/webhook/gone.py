"""Remembers, across restarts, that a receiver has answered 410: it wants no more messages.

1. The file holds a hash of the URL: another URL is another receiver.
2. It is cleared when an operator restarts the adapter with ``relay adapters reload`` or by changing its entry in
   adapters.json. Both replace a running adapter, and adapter and replacement share this object
   (`AdapterContext.share`): an adapter that finds it in use is a replacement. The first user after a start of the
   process, or after ``disable`` and ``enable``, tells nothing about the receiver. (The supervisor itself replaces only
   adapters in ``error``, which a webhook never is once it has started.)
3. An adapter that has been replaced can no longer set it: its last response may predate the operator's repair.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

from relay_core.storage.atomic_file import atomic_write, storage_error


class Gone:
    """Remember that a receiver is gone."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "gone"
        self._user: object = None

    async def begin(self, user: object, url: str | None) -> bool:
        """Return True if the receiver at a new user's URL is gone, otherwise clear the file; raises StorageError."""
        replaces = self._user is not None
        is_gone = await asyncio.to_thread(self._check, None if replaces else url)
        self._user = user
        return is_gone

    async def mark(self, user: object, url: str) -> None:
        """Remember that the receiver at a URL is gone; raises StorageError."""
        if user is self._user:
            await asyncio.to_thread(atomic_write, self._path, _hash(url))

    def _check(self, url: str | None) -> bool:
        try:
            if url is not None and self._path.read_bytes() == _hash(url):
                return True
            self._path.unlink(missing_ok=True)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error("use", self._path, error) from error
        return False


def _hash(url: str) -> bytes:
    return sha256(url.encode()).hexdigest().encode()
