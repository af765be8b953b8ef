"""Which messages a session of an agent has been shown: a file of ids for each agent and session.

1. The files lie in ``$XDG_STATE_HOME/relay/hooks`` (or ``~/.local/state/relay/hooks``), for their user alone.
2. A file is replaced, never changed, so that a reader sees the old ids or the new ones.
3. A file that cannot be read counts as empty: what is shown twice does less harm than what is never shown.
4. What no session has touched for seven days is removed when another session writes.
"""

from __future__ import annotations

import os
from binascii import crc32

KEPT_SECS = 7 * 24 * 3600
MOST_IDS = 5000
"""More than these, and the oldest are forgotten."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_LONGEST = 80


class Shown:
    """What one session has seen."""

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
        """Keep these ids from now on.

        Raises:
            OSError: if they cannot be kept.
        """
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        aside = f"{self._path}.{os.getpid()}~"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write("\n".join(ids[-MOST_IDS:]) + "\n")
            os.replace(aside, self._path)
        except OSError:
            os.unlink(aside)
            raise
        self._remove_old()

    def _remove_old(self) -> None:
        newest = os.stat(self._path).st_mtime  # written just now: it says what time it is there
        with os.scandir(self._directory) as entries:
            for entry in entries:
                try:
                    if entry.stat(follow_symlinks=False).st_mtime < newest - KEPT_SECS:
                        os.unlink(entry.path)
                except OSError:
                    continue  # another session was quicker


def _directory() -> str:
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.expanduser("~/.local/state")
    return os.path.join(state, "relay", "hooks")


def _name(text: str) -> str:
    """Return a file name of its own for a text: the text itself if it can be one."""
    if len(text) <= _LONGEST and not text.startswith(".") and _PLAIN.issuperset(text.replace(".", "")):
        return text
    data = text.encode(errors="replace")
    return f"{data[:32].hex()}-{len(data)}-{crc32(data):08x}"
