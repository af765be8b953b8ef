"""What `doctor` looks at: one walk through the data directory, and who holds it.

1. Nothing is changed, not even a lock is taken: whoever holds it is read from the kernel's list.
2. Nothing is raised for what others do meanwhile: a file that vanishes was not there.
3. A large data directory is looked at in part: the first `SURVEYED` names.
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
from relay_core.storage.data_dir import DataDir
from relay_supervisor.server.socket_server import PATH_MAX

Level: TypeAlias = Literal["ok", "warn", "fail"]
Finding: TypeAlias = tuple[Level, str, str | None]
"""How it stands, what was found, and what repairs it."""

SURVEYED = 50_000
OLD_MS = 36 * 3_600_000
"""Age at which a file in tmp/ has no writer any more."""


@dataclass
class Survey:
    """What one walk through the data directory saw."""

    names: int = 0
    mailboxes: int = 0
    open_to_others: list[Path] = field(default_factory=list)
    foreign: list[Path] = field(default_factory=list)
    leftovers: list[Path] = field(default_factory=list)
    newest_ms: int = 0
    newest: Path | None = None


@dataclass(frozen=True)
class Place:
    """Where to look, and what several checks need to know."""

    data: DataDir
    socket: Path
    now_ms: int
    survey: Survey
    holder: int | None
    """The process that holds the lock now."""


def lock_holder(lock_file: Path) -> int | None:
    """Return the process that holds the lock, without touching it."""
    noted = DataDir(lock_file.parent).holder()
    try:
        found = lock_file.stat()
        locks = Path("/proc/locks").read_text()
    except OSError:  # no lock file, or no such list on this system: the pid in the file must do
        return noted if noted is not None and is_alive(noted) else None
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in locks.splitlines():
        # Such as "1: FLOCK  ADVISORY  WRITE 812 fe:00:4711 0 EOF"; a waiting one has "->" second.
        words = line.split()
        if len(words) < 6 or words[1] != "FLOCK":
            continue
        pid, file = int(words[4]), words[5]
        # Some file systems (btrfs, overlay) go by another device there than in stat.
        if file == device or (pid == noted and file.endswith(f":{found.st_ino}")):
            return pid
    return None


def is_alive(pid: int) -> bool:
    """Tell whether there is such a process."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def look_around(root: Path, survey: Survey, now_ms: int) -> None:
    """Walk through the data directory, as far as it can be read."""
    for where, directories, files in os.walk(root, onerror=None):
        directory = Path(where)
        survey.mailboxes += len(directories) if directory == root / "mailboxes" else 0
        for name in directories + files:
            if survey.names >= SURVEYED:
                return
            survey.names += 1
            _note(directory / name, survey, now_ms)


def _note(path: Path, survey: Survey, now_ms: int) -> None:
    try:
        found = path.lstat()
    except OSError:
        return  # taken meanwhile
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
    """Tell whether somebody listens on a socket."""
    if len(os.fsencode(path)) > PATH_MAX:
        return False
    with sockets.socket(sockets.AF_UNIX) as client:
        client.settimeout(2)
        try:
            client.connect(str(path))
        except OSError as error:
            return isinstance(error, TimeoutError | BlockingIOError)  # its queue is full: somebody has it open
        return True


def existing(path: Path) -> Path:
    """Return the path, or the nearest directory above it that is there."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def shell(path: Path) -> str:
    """Quote a path for a command."""
    return shlex.quote(str(path))
