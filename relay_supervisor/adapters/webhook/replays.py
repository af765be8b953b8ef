"""The ids of messages that were taken, so that none is taken twice; on disk, for the time a signature is good.

1. A signature is good for five minutes before and after its time, so an id is kept for at least ten minutes after it
   was taken.
2. Ids live in two generations. After ten minutes the younger one becomes the older one, and the older one is
   forgotten whole: nothing is ever rewritten, and there are never more than two files.
3. The age of a generation is measured by the monotonic clock: a wall clock that jumps ahead forgets nothing. Ids
   from before a restart are kept by the wall clock, and count as new ones.
4. The ids of a message are written in one append when it is in the bus's hands. A line begins with the line end, so
   that one that a kill or a full disk cut short spoils no other.
5. Nothing is synced, so a power loss can take what was written last. The bus keeps what it was given as dedupe id as
   durably as the messages, but only the newest ones of all its senders (`limits.dedupeEntries`, 65,536): those are
   still known there, older ones that were lost here are not.
6. With two schemes a message may come by either at the same time: `alone` lets one in after the other.
7. Of too many ids none is forgotten: `is_full` says that no more can be taken for now.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakValueDictionary

from relay_core.clock import Clock
from relay_core.messages.ids import is_ulid
from relay_core.storage.atomic_file import atomic_write
from relay_supervisor.adapters.webhook.config import LONGEST_TOLERANCE_SECS

GENERATION_SECS = 2 * LONGEST_TOLERANCE_SECS
MOST_IDS = 200_000
"""Of one generation: 333 a second for ten minutes."""

_KEY_CHARS = 32
_KEY = re.compile(f"[0-9a-f]{{{_KEY_CHARS}}}")
_NUMBER = re.compile(r"[0-9]{1,15}")


class Replays:
    """Remember what was taken."""

    def __init__(self, directory: Path, clock: Clock, *, limit: int = MOST_IDS) -> None:
        self._young_path = directory / "ids-young.log"
        self._old_path = directory / "ids-old.log"
        self._clock = clock
        self._limit = limit
        self._young: dict[str, str] = {}
        self._old: dict[str, str] = {}
        self._since = clock.monotonic()
        self._file: int | None = None
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __aenter__(self) -> Self:
        """Read what is known.

        Raises:
            StorageError: if the disk refuses.
        """
        await asyncio.to_thread(self._load)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_file()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def is_full(self) -> bool:
        """Tell whether no more ids can be kept for now."""
        self._grow_old()
        return len(self._young) >= self._limit

    def find(self, id: str) -> str | None:
        """Return the message that was taken under an id, if one was."""
        self._grow_old()
        key = _key(id)
        return self._young.get(key) or self._old.get(key)

    def alone(self, content: str) -> asyncio.Lock:
        """Return the lock of those who have the same content in hand."""
        return self._locks.setdefault(content, asyncio.Lock())

    def record(self, message_id: str, *ids: str) -> OSError | None:
        """Remember the ids of a message; an error means that they are known only until the process ends."""
        self._grow_old()
        keys = [_key(id) for id in ids]
        self._young.update(dict.fromkeys(keys, message_id))
        lines = "".join(f"\n{self._clock.now_ms()} {key} {message_id}" for key in keys).encode()
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(self._young_path, flags, 0o600)
            while lines:  # a disk that fills up takes a part without an error, and only then refuses
                lines = lines[os.write(self._file, lines) :]
        except OSError as error:
            return error
        return None

    def _grow_old(self) -> None:
        if self._clock.monotonic() - self._since < GENERATION_SECS:
            return
        self._old, self._young = self._young, {}
        self._since = self._clock.monotonic()
        self._close_file()
        with suppress(OSError):  # at worst a file has ids that are no longer needed
            os.replace(self._young_path, self._old_path)

    def _load(self) -> None:
        lines: dict[str, str] = {}
        for path in (self._old_path, self._young_path):
            with suppress(FileNotFoundError):
                lines |= self._read(path)
        # Each with its own time: restarts that follow one another closely must not keep an id for ever.
        atomic_write(self._young_path, "".join(f"\n{line}" for line in lines.values()).encode(), sync=False)
        self._old_path.unlink(missing_ok=True)

    def _read(self, path: Path) -> dict[str, str]:
        lines = {}
        oldest = self._clock.now_ms() - GENERATION_SECS * 1000
        for line in path.read_bytes().decode("ascii", "replace").split("\n"):
            recorded, _, rest = line.partition(" ")
            key, _, message_id = rest.partition(" ")
            good = _NUMBER.fullmatch(recorded) and _KEY.fullmatch(key) and is_ulid(message_id)
            if good and int(recorded) >= oldest:
                self._young[key] = message_id
                lines[key] = line
        return lines

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _key(id: str) -> str:
    return sha256(id.encode()).hexdigest()[:_KEY_CHARS]
