"""Facts that several checks of `doctor` need: one walk through the data directory, and the holder of its lock.

1. Nothing is changed and no lock is taken: the holder of the lock is read from the kernel's list.
2. Concurrent changes raise nothing: a file that vanishes is skipped.
3. Of a large data directory only the first `SURVEYED` names are examined.
"""

from __future__ import annotations

import os
import shlex
import socket as sockets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from relay_core.messages.ids import is_ulid, ulid_ms
from relay_core.protocol.state import JournalState
from relay_core.storage.data_dir import DataDir
from relay_supervisor.server.socket_server import PATH_MAX

Level: TypeAlias = Literal["ok", "warn", "fail"]
Finding: TypeAlias = tuple[Level, str, str | None]
"""Level, description and repair."""

SURVEYED = 50_000
OLD_MS = 36 * 3_600_000
"""Age at which a file in tmp/ no longer has a writer."""


@dataclass
class Survey:
    """The results of the walk through the data directory."""

    names: int = 0
    mailboxes: int = 0
    open_to_others: list[Path] = field(default_factory=list)
    foreign: list[Path] = field(default_factory=list)
    leftovers: list[Path] = field(default_factory=list)
    newest_ms: int = 0
    newest: Path | None = None


@dataclass(frozen=True)
class Place:
    """The subject of the checks."""

    data: DataDir
    socket: Path
    now_ms: int
    survey: Survey
    holder: int | None
    """The process that holds the lock now."""
    journal: JournalState | None = None
    """What the running supervisor reports; None if none answers."""


def lock_holder(lock_file: Path) -> int | None:
    """Return the process that holds the lock, without taking the lock."""
    noted = DataDir(lock_file.parent).holder()
    try:
        found = lock_file.stat()
        locks = Path("/proc/locks").read_text()
    except OSError:  # no lock file, or no /proc/locks: rely on the pid in the file
        return noted if noted is not None and is_alive(noted) else None
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in locks.splitlines():
        # Such as "1: FLOCK  ADVISORY  WRITE 812 fe:00:4711 0 EOF"; a waiter has "->" as second word.
        words = line.split()
        if len(words) < 6 or words[1] != "FLOCK":
            continue
        pid, file = int(words[4]), words[5]
        # Some file systems (btrfs, overlay) have another device number here than in stat.
        if file == device or (pid == noted and file.endswith(f":{found.st_ino}")):
            return pid
    return None


def is_alive(pid: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, OverflowError):
        return False
    except (OSError, IndexError):  # another user's, or no /proc
        return True


def walk(root: Path, survey: Survey, now_ms: int) -> None:
    """Walk through the data directory, as far as it is readable."""
    for where, directories, files in os.walk(root, onerror=None):
        directory = Path(where)
        survey.mailboxes += len(directories) if directory == root / "mailboxes" else 0
        for name in directories + files:
            if survey.names >= SURVEYED:
                return
            survey.names += 1
            _examine(directory / name, survey, now_ms)


def _examine(path: Path, survey: Survey, now_ms: int) -> None:
    try:
        found = path.lstat()
    except OSError:
        return  # removed in the meantime
    if found.st_uid != os.geteuid():
        survey.foreign.append(path)
    if not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o077:
        survey.open_to_others.append(path)
    changed_ms = round(found.st_mtime * 1000)
    if path.parent.name == "tmp" and changed_ms < now_ms - OLD_MS:
        survey.leftovers.append(path)
    made_ms = max(changed_ms, ulid_ms(path.stem) if is_ulid(path.stem) else 0)
    if made_ms > survey.newest_ms:
        survey.newest_ms, survey.newest = made_ms, path


def listens(path: Path) -> bool:
    """Return True if a process listens on a socket."""
    if len(os.fsencode(path)) > PATH_MAX:
        return False
    with sockets.socket(sockets.AF_UNIX) as client:
        client.settimeout(2)
        try:
            client.connect(str(path))
        except OSError as error:
            return isinstance(error, TimeoutError | BlockingIOError)  # its queue is full, so a process has it open
        return True


def existing(path: Path) -> Path:
    """Return the path, or its nearest existing parent."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def shell(path: Path) -> str:
    """Quote a path for a command."""
    return shlex.quote(str(path))
