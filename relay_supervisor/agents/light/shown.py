"""Which messages a session has been shown: a file of ids for each agent and session.

1. The files are in ``$XDG_STATE_HOME/relay/hooks`` (or ``~/.local/state/relay/hooks``), private to the user.
2. A file is replaced atomically.
3. An unreadable file counts as empty: showing a message twice does less harm than never showing it.
4. A file that is seven days old is removed when another session writes.
"""

from __future__ import annotations

import os
from binascii import crc32

KEPT_SECS = 7 * 24 * 3600
MAX_IDS = 5000
"""The newest ids are kept."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_MAX_NAME = 80


class Shown:
    """The messages that a session has seen."""

    def __init__(self, subject: str, session: str) -> None:
        self._directory = _directory()
        self._path = os.path.join(self._directory, f"{_name(subject)}@{_name(session or 'none')}")

    def read(self) -> list[str]:
        """Return the ids, oldest first."""
        try:
            with open(self._path, encoding="ascii") as file:
                return file.read().split()
        except (OSError, ValueError):
            return []

    def write(self, ids: list[str]) -> None:
        """Replace the ids; an `OSError` means that they were not stored."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        temporary = f"{self._path}.{os.getpid()}~"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write("\n".join(ids[-MAX_IDS:]) + "\n")
            os.replace(temporary, self._path)
        except OSError:
            os.unlink(temporary)
            raise
        self._remove_old()

    def _remove_old(self) -> None:
        newest = os.stat(self._path).st_mtime  # written just now, by the file system's clock
        with os.scandir(self._directory) as entries:
            for entry in entries:
                try:
                    if entry.stat(follow_symlinks=False).st_mtime < newest - KEPT_SECS:
                        os.unlink(entry.path)
                except OSError:
                    continue  # another session has removed it


def _directory() -> str:
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.expanduser("~/.local/state")
    return os.path.join(state, "relay", "hooks")


def _name(text: str) -> str:
    """Return a unique file name for a text: the text itself if it is a valid name."""
    if len(text) <= _MAX_NAME and not text.startswith(".") and _PLAIN.issuperset(text.replace(".", "")):
        return text
    data = text.encode(errors="replace")
    return f"{data[:32].hex()}-{len(data)}-{crc32(data):08x}"
