"""The ids of accepted messages, on disk for as long as a signature is valid, so that none is accepted twice.

1. A signature is valid for five minutes before and after its time, so an id is kept for at least ten minutes.
2. Ids are kept in two generations. After ten minutes the younger one becomes the older one, and the older one is
   dropped as a whole: nothing is rewritten, and there are never more than two files.
3. The age of a generation is measured by the monotonic clock, so a wall clock that jumps ahead drops nothing. Ids from
   before a restart are dated by the wall clock, and count as new.
4. The ids of a message are written in one append after it was published. A line starts with the line end, so one that
   a kill or a full disk truncated damages no other.
5. Nothing is synced, so a power failure can lose the last writes. The bus stores dedupe ids as durably as messages, but
   only the newest of all senders (`limits.dedupeEntries`, 65,536): those are still known there, older ones that were
   lost here are not.
6. With two schemes a message may arrive by both at the same time: `lock` serialises them.
7. Ids are never dropped early to make room: `is_full` means that no more messages can be accepted for now.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Self
from weakref import WeakValueDictionary

from relay_core.clock import Clock
from relay_core.messages.ids import is_ulid
from relay_core.storage.atomic_file import atomic_write
from relay_supervisor.adapters.webhook.config import LONGEST_TOLERANCE_SECS

GENERATION_SECS = 2 * LONGEST_TOLERANCE_SECS
MOST_IDS = 200_000
"""Per generation: 333 a second for ten minutes."""

_KEY_CHARS = 32
_KEY = re.compile(f"[0-9a-f]{{{_KEY_CHARS}}}")
_NUMBER = re.compile(r"[0-9]{1,15}")


class Replays:
    """Remember the ids of accepted messages."""

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
        """Read the recorded ids; raises StorageError."""
        await asyncio.to_thread(self._load)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close_file()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def is_full(self) -> bool:
        """Return True if no more ids can be recorded for now."""
        self._rotate()
        return len(self._young) >= self._limit

    def find(self, id: str) -> str | None:
        """Return the message that was accepted under an id, if there is one."""
        self._rotate()
        key = _key(id)
        return self._young.get(key) or self._old.get(key)

    def lock(self, content: str) -> asyncio.Lock:
        """Return the lock for requests with the same content."""
        return self._locks.setdefault(content, asyncio.Lock())

    def record(self, message_id: str, *ids: str) -> OSError | None:
        """Record the ids of a message; after an error they are known only until the process ends."""
        self._rotate()
        keys = [_key(id) for id in ids]
        self._young.update(dict.fromkeys(keys, message_id))
        lines = "".join(f"\n{self._clock.now_ms()} {key} {message_id}" for key in keys).encode()
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(self._young_path, flags, 0o600)
            while lines:  # a disk that fills up writes a part without an error before it fails
                lines = lines[os.write(self._file, lines) :]
        except OSError as error:
            return error
        return None

    def _rotate(self) -> None:
        if self._clock.monotonic() - self._since < GENERATION_SECS:
            return
        self._old, self._young = self._young, {}
        self._since = self._clock.monotonic()
        self._close_file()
        with suppress(OSError):  # at worst a file keeps ids that are no longer needed
            os.replace(self._young_path, self._old_path)

    def _load(self) -> None:
        lines: dict[str, str] = {}
        for path in (self._old_path, self._young_path):
            with suppress(FileNotFoundError):
                lines |= self._read(path)
        # Each with its original time: repeated restarts must not keep an id forever.
        atomic_write(self._young_path, "".join(f"\n{line}" for line in lines.values()).encode(), sync=False)
        self._old_path.unlink(missing_ok=True)

    def _read(self, path: Path) -> dict[str, str]:
        lines = {}
        oldest = self._clock.now_ms() - GENERATION_SECS * 1000
        for line in path.read_bytes().decode("ascii", "replace").split("\n"):
            recorded, _, rest = line.partition(" ")
            key, _, message_id = rest.partition(" ")
            valid = _NUMBER.fullmatch(recorded) and _KEY.fullmatch(key) and is_ulid(message_id)
            if valid and int(recorded) >= oldest:
                self._young[key] = message_id
                lines[key] = line
        return lines

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _key(id: str) -> str:
    return sha256(id.encode()).hexdigest()[:_KEY_CHARS]
