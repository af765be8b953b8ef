"""The session id of an agent, on disk: written atomically, so a kill leaves the old id or the new one.

A session belongs to the directory in which it was started, and is not resumed in another one. An unreadable file
counts as none: the agent starts a new session.
"""

from __future__ import annotations

import re
from pathlib import Path

import orjson

from relay_core.storage.atomic_file import atomic_write, storage_error

_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class SessionMemory:
    """The session id of one agent; the methods block."""

    def __init__(self, directory: Path, agent: str, cwd: Path) -> None:
        self._path = directory / f"session-{agent}.json"
        self._cwd = str(cwd)

    def load(self) -> str | None:
        """Return the session to resume, if there is one."""
        try:
            kept = orjson.loads(self._path.read_bytes())
            session_id, cwd = kept["sessionId"], kept["cwd"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if cwd != self._cwd or not isinstance(session_id, str) or not _SESSION_ID.fullmatch(session_id):
            return None
        return session_id

    def save(self, session_id: str) -> None:
        """Save a session id; raises StorageError."""
        atomic_write(self._path, orjson.dumps({"sessionId": session_id, "cwd": self._cwd}))

    def forget(self) -> None:
        """Remove the session id; raises StorageError."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error("remove", self._path, error) from error
