"""Whether the receiver has said that it wants no more messages (410); on disk, so that a restart does not forget it.

1. What is kept is a hash of the URL: another URL is another receiver.
2. It ends when an operator has the adapter made anew, by ``relay adapters reload`` or a change of its entry in
   adapters.json. Either puts a new adapter in the place of one that runs, and then both have this object in common
   (`AdapterContext.share`): an adapter that finds it in use is a replacement. One that is the first to use it comes
   from a start of the process, or from ``enable`` after ``disable``, and tells nothing about the receiver. (The
   supervisor replaces by itself only what is in ``error``, which a webhook never is once it has started.)
3. An adapter that has been replaced has no say any more: its last answer may be from before the mending.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self

from relay_core.storage.atomic_file import atomic_write, storage_error


class Gone:
    """Remember that a receiver is gone."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "gone"
        self._user: object = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def begin(self, user: object, url: str | None) -> bool:
        """Tell a new user whether the receiver at its URL is gone; what does not hold for it is forgotten.

        Raises:
            StorageError: if the disk refuses.
        """
        replaces = self._user is not None
        is_gone = await asyncio.to_thread(self._check, None if replaces else url)
        self._user = user
        return is_gone

    async def mark(self, user: object, url: str) -> None:
        """Remember that the receiver at a URL is gone.

        Raises:
            StorageError: if the disk refuses.
        """
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
