"""The file of the index: opening it, and replacing it when it is damaged or missing.

1. An index that is found damaged, deleted or replaced while in use is rebuilt from the Maildir and from its readable
   rows. One that cannot be opened at all is quarantined beside it (``.damaged``, or ``.schemaN`` of a newer Relay).
2. A rebuild happens in ``index.db.new``, which is renamed into place.
3. A locked index is not damaged: the next use tries again.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from relay_core.records.schema import NewerSchema, connect, migrate

logger = logging.getLogger(__name__)

Rebuild = Callable[[sqlite3.Connection, sqlite3.Connection | None], None]
"""Fill an empty database from the Maildir and from the old one, if it can still be read."""

_DAMAGED = ("malformed", "not a database", "corrupt", "no such table", "no such column", "no such index")
_FILES = ("", "-wal", "-shm")


class IndexFile:
    """The connection to index.db. After `open` only the index's thread uses it."""

    def __init__(
        self, path: Path, rebuild: Rebuild, *, on_incomplete: Callable[[], None], on_complete: Callable[[], None]
    ) -> None:
        self.path = path
        self.db: sqlite3.Connection | None = None
        self._rebuild = rebuild
        self._on_incomplete = on_incomplete
        self._on_complete = on_complete
        self._inode = 0
        self._damaged = False

    def open(self) -> None:
        """Open index.db; start an empty one if it is damaged, and continue without if it is locked."""
        try:
            self._connect()
        except (sqlite3.Error, OSError) as error:
            self.reset(error)

    def close(self) -> None:
        """Checkpoint and close the database."""
        if self.db is not None:
            try:
                self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                logger.warning("index: %s", error)
            self._disconnect()

    def reset(self, error: Exception) -> None:
        """Quarantine an unusable index and start an empty one; a locked one is only waited for."""
        self._on_incomplete()
        if not _is_damage(error):
            logger.warning("index.db cannot be used now (%s); the bus continues without it", error)
            return
        try:
            self._quarantine(error)
            self._connect()
        except (sqlite3.Error, OSError) as again:
            logger.error("index.db cannot be used (%s); the bus continues without it", again)

    def note_damage(self, error: sqlite3.Error) -> bool:
        """Return True if an error means that the index must be rebuilt, which the next `healthy` does."""
        self._damaged = self._damaged or _is_damage(error)
        return self._damaged

    def healthy(self) -> sqlite3.Connection:
        """Return the database, rebuilt if it is damaged or was deleted or replaced.

        Raises:
            sqlite3.Error, OSError: if it cannot be opened now.
        """
        if self.db is None:
            self._reopen()
        elif self._damaged:
            logger.error("index.db is damaged: rebuilding it")
            self.replace()
        elif not self._is_in_place():
            logger.error("index.db was removed while in use: rebuilding it")
            self.replace()
        assert self.db is not None
        return self.db

    def replace(self) -> None:
        """Build a new index beside the old one and rename it into place."""
        fresh = Path(f"{self.path}.new")
        for suffix in _FILES:
            Path(f"{fresh}{suffix}").unlink(missing_ok=True)
        self._on_incomplete()
        db = connect(str(fresh))
        try:
            migrate(db)
            self._rebuild(db, self.db)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("PRAGMA journal_mode = DELETE")
        finally:
            db.close()
        self._disconnect()
        if os.path.isdir(self.path):
            self._quarantine(sqlite3.DatabaseError("not a database but a directory"))
        for suffix in ("-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        os.replace(fresh, self.path)
        self._connect()
        self._on_complete()

    def _connect(self) -> None:
        with suppress(FileNotFoundError):
            if not os.path.isfile(self.path) or os.path.islink(self.path):
                os.lstat(self.path)
                raise sqlite3.DatabaseError("not a database but a directory, a link or a device")
            os.chmod(self.path, 0o600)  # a read-only file would open, and then refuse every row
        db = connect(str(self.path))
        try:
            migrate(db)
            self._inode = os.stat(self.path).st_ino
            for suffix in _FILES:
                if os.path.exists(f"{self.path}{suffix}"):
                    os.chmod(f"{self.path}{suffix}", 0o600)
        except (sqlite3.Error, OSError):
            db.close()
            raise
        self.db = db
        self._damaged = False

    def _disconnect(self) -> None:
        if self.db is not None:
            self.db.close()
            self.db = None

    def _reopen(self) -> None:
        """Open an index that could not be opened before."""
        if os.path.lexists(self.path):
            try:
                return self._connect()
            except (sqlite3.Error, OSError) as error:
                if not _is_damage(error):
                    raise
                self._quarantine(error)
        self.replace()

    def _quarantine(self, error: Exception) -> None:
        """Move an unusable index out of the way; the Maildir has all messages."""
        suffix = f".schema{error.version}" if isinstance(error, NewerSchema) else ".damaged"
        logger.error("index.db cannot be used (%s): quarantined as index.db%s and rebuilt", error, suffix)
        self._disconnect()
        for name in _FILES:
            quarantined = f"{self.path}{suffix}{name}"
            if os.path.isdir(quarantined) and not os.path.islink(quarantined):
                shutil.rmtree(quarantined)
            with suppress(FileNotFoundError):
                if os.path.isdir(f"{self.path}{name}"):
                    Path(quarantined).unlink(missing_ok=True)
                os.replace(f"{self.path}{name}", quarantined)

    def _is_in_place(self) -> bool:
        try:
            return os.stat(self.path).st_ino == self._inode
        except OSError:
            return False


def _is_damage(error: Exception) -> bool:
    if isinstance(error, OSError | NewerSchema):
        return True  # not our file to open or to write
    return any(word in str(error) for word in _DAMAGED)
