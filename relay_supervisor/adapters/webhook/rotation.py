"""Two secrets while one takes the other's place: the previous one works for 24 hours after the change.

1. The change is noticed when an adapter starts with another current secret than the last time. What is kept of the
   secrets are salted hashes. Without any record (the very first start) the change is now.
2. The time that the previous secret has been in use is counted, and only ever grows: by the wall clock or the
   monotonic one, whichever has moved on further, and by the wall clock while nothing ran. A clock that is put back
   therefore never prolongs it by more than what was not written down yet (an hour at most).
3. A record that is gone or cannot be read is like none: the 24 hours begin anew. It is replaced as a whole, so a
   kill cannot damage it.
4. The previous secret is the one that was current before the change, no other: one whose day is over does not come
   back because another change begins a day of its own. Where no change was seen (the first record) any other is taken
   for it, within the 24 hours.
5. An adapter that was replaced by one with a newer secret leaves the record alone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from hmac import compare_digest, digest
from pathlib import Path
from typing import Annotated, Self

import orjson
from pydantic import Field

from relay_core.clock import Clock, iso, sleep
from relay_core.errors import StorageError
from relay_core.messages.base import WireModel
from relay_core.storage.atomic_file import atomic_write

OVERLAP_MS = 24 * 3600 * 1000
_SAVE_SECS = 3600.0


class _Record(WireModel):
    """What is on disk."""

    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    before: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """The hash of the secret before, with the same salt; None in the first record."""
    changed_at: str
    """For people."""
    used_ms: Annotated[int, Field(ge=0)]
    saved_ms: int

    @classmethod
    def read(cls, path: Path) -> Self | None:
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            return None

    def is_of(self, key: bytes) -> bool:
        return compare_digest(self.fingerprint, _fingerprint(self.salt, key))

    def follows(self, key: bytes) -> bool:
        return self.before is None or compare_digest(self.before, _fingerprint(self.salt, key))


class Rotation:
    """The keys that are good right now."""

    def __init__(self, path: Path, current: bytes, previous: bytes | None, clock: Clock) -> None:
        self._path = path
        self._current = current
        self._previous = previous
        self._is_stranger = False
        """Whether the previous secret was named but is not the one that was in use before."""
        self._clock = clock
        self._used_before = 0
        self._record: _Record
        self._wall = clock.now_ms()
        self._monotonic = clock.monotonic()

    @classmethod
    async def open(cls, path: Path, current: bytes, previous: bytes | None, clock: Clock) -> Self:
        """Notice a change since the last time.

        Raises:
            StorageError: if it cannot be written down.
        """
        rotation = cls(path, current, previous, clock)
        await asyncio.to_thread(rotation._notice)
        return rotation

    def keys(self) -> tuple[bytes, ...]:
        """Return the current key, and the previous one while it still works."""
        if self._previous is not None and self._used_ms() >= OVERLAP_MS:
            self._previous = None
        return (self._current,) if self._previous is None else (self._current, self._previous)

    async def keep(self, logger: logging.Logger, part: str) -> None:
        """Write down from time to time how long the previous secret has been in use, until it ends."""
        if self._is_stranger:
            logger.warning(
                "%s: previousSecret is not the secret that was in use before this one, so it does not work; "
                "remove it from the config, or put the right one there",
                part,
            )
            return
        while len(self.keys()) > 1:
            left = (OVERLAP_MS - self._used_ms()) / 1000
            await sleep(self._clock, min(_SAVE_SECS, max(left, 0.001)))
            await self.save()
        await self.save()  # its end above all must not be forgotten
        logger.warning("%s: the previous secret no longer works; remove previousSecret from the config", part)

    async def save(self) -> None:
        """Write down how long the previous secret has been in use."""
        with suppress(StorageError):  # what is not written down is counted again after a restart
            await asyncio.to_thread(self._save)

    def _notice(self) -> None:
        record, now = _Record.read(self._path), self._clock.now_ms()
        if record is not None and record.is_of(self._current):
            self._used_before = record.used_ms + max(now - record.saved_ms, 0)
            self._record = record
        else:
            salt = record.salt if record is not None else secrets.token_hex(16)
            self._record = _Record(
                salt=salt,
                fingerprint=_fingerprint(salt, self._current),
                before=record.fingerprint if record is not None else None,
                changed_at=iso(now),
                used_ms=0,
                saved_ms=now,
            )
        if self._previous is not None and not self._record.follows(self._previous):
            self._previous, self._is_stranger = None, True
        self._write()

    def _save(self) -> None:
        on_disk = _Record.read(self._path)
        if on_disk is None or on_disk.fingerprint == self._record.fingerprint:
            self._write()

    def _write(self) -> None:
        now = {"used_ms": self._used_ms(), "saved_ms": self._clock.now_ms()}
        self._record = self._record.model_copy(update=now)
        atomic_write(self._path, orjson.dumps(self._record.to_wire()))

    def _used_ms(self) -> int:
        wall = self._clock.now_ms() - self._wall
        monotonic = round((self._clock.monotonic() - self._monotonic) * 1000)
        return self._used_before + max(wall, monotonic, 0)


def _fingerprint(salt: str, key: bytes) -> str:
    return digest(bytes.fromhex(salt), key, "sha256").hex()
