"""Secret rotation: the previous secret is valid for 24 hours after a change.

1. A change is noticed when an adapter starts with a different current secret. Only salted hashes of the secrets are
   stored. Without a record (the first start) the change is now.
2. The time that the previous secret has been in use is counted, and only grows: by the wall clock or the monotonic
   clock, whichever has advanced further, and by the wall clock while nothing ran. A clock that is set back therefore
   extends it by no more than the time since the last save (an hour at most).
3. A record that is missing or unreadable counts as none: the 24 hours start again. It is replaced atomically, so a kill
   cannot damage it.
4. The previous secret is the one that was current before the change: an expired one does not become valid again
   because of another change. If no change was seen (the first record), any other secret is accepted as the previous
   one, within the 24 hours.
5. An adapter that was replaced by one with a newer secret does not write the record.
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
    """The record on disk."""

    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    before: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """The hash of the previous secret, with the same salt; None in the first record."""
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
    """The keys that are valid now."""

    def __init__(self, path: Path, current: bytes, previous: bytes | None, clock: Clock) -> None:
        self._path = path
        self._current = current
        self._previous = previous
        self._is_unknown = False
        """True if the configured previous secret is not the one that was in use before."""
        self._clock = clock
        self._used_before = 0
        self._record: _Record
        self._wall = clock.now_ms()
        self._monotonic = clock.monotonic()

    @classmethod
    async def open(cls, path: Path, current: bytes, previous: bytes | None, clock: Clock) -> Self:
        """Load the record and notice a change; raises StorageError."""
        rotation = cls(path, current, previous, clock)
        await asyncio.to_thread(rotation._load)
        return rotation

    def keys(self) -> tuple[bytes, ...]:
        """Return the current key, and the previous one while it is valid."""
        if self._previous is not None and self._used_ms() >= OVERLAP_MS:
            self._previous = None
        return (self._current,) if self._previous is None else (self._current, self._previous)

    async def keep(self, logger: logging.Logger, part: str) -> None:
        """Save regularly how long the previous secret has been in use, until it expires."""
        if self._is_unknown:
            logger.warning(
                "%s: previousSecret is not the secret that was in use before this one, so it is not accepted; "
                "remove it from the config, or correct it",
                part,
            )
            return
        while len(self.keys()) > 1:
            left = (OVERLAP_MS - self._used_ms()) / 1000
            await sleep(self._clock, min(_SAVE_SECS, max(left, 0.001)))
            await self.save()
        await self.save()  # above all, the expiry must be on disk
        logger.warning("%s: the previous secret has expired; remove previousSecret from the config", part)

    async def save(self) -> None:
        """Save how long the previous secret has been in use."""
        with suppress(StorageError):  # unsaved time is counted again after a restart
            await asyncio.to_thread(self._save)

    def _load(self) -> None:
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
            self._previous, self._is_unknown = None, True
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
