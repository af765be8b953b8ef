"""Apply the edits of `editing.py` to files in a project.

1. A file is replaced atomically and keeps its mode. It must not have changed since it was read.
2. A link within the project is followed; a link out of it is not, because that file may be shared.
3. A file that is read-only, not regular, too large or not UTF-8 is left alone. There is no backup: `relay agent rm
   --write` removes exactly what was added.
4. A file that does not contain a subject's name has no entry of it, whatever its format.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from relay_core.errors import StorageError
from relay_core.storage.atomic_file import atomic_write
from relay_supervisor.agents.client_config.catalog import File
from relay_supervisor.agents.client_config.editing import ByHand, Edited, put, take

MAX_BYTES = 2 * 1024 * 1024


class Outcome(NamedTuple):
    """The outcome of an edit."""

    file: str
    state: Literal["made", "changed", "same", "removed", "by hand"]
    places: list[str]
    reason: str | None = None
    replaced: Sequence[str] = ()
    """The subjects whose entries were replaced."""

    @property
    def text(self) -> str:
        """The outcome as a line for people."""
        if self.state == "by hand":
            return f"{self.file}: not changed: {self.reason}"
        replaced = f" (replaces {', '.join(self.replaced)})" if self.replaced else ""
        texts = {
            "made": f"created, with {', '.join(self.places)}",
            "changed": f"changed: {', '.join(self.places)}{replaced}",
            "same": "already up to date",
            "removed": "removed, since nothing else was in it",
        }
        return f"{self.file}: {texts[self.state]}"


def put_into(root: Path, file: File) -> Outcome:
    """Add our entries to a file."""
    return change(root, file, lambda text: put(file, text))


def take_out_of(root: Path, file: File, subject: str, *, write: bool = True) -> Outcome:
    """Remove a subject's entries from a file; without `write`, only find them."""
    if not _mentions(root / file.name, subject):
        return Outcome(file.name, "same", [])
    return change(root, file, lambda text: take(file, text, subject), write=write)


def change(root: Path, file: File, edit: Callable[[str], Edited], *, write: bool = True) -> Outcome:
    """Apply an edit to a file; an outcome `by hand` has the reason why that is not possible."""
    try:
        path = _resolve(root, file.name)
        before, mode = _read(path)
        edited = edit(before.decode() if before is not None else "")
        if not edited.places:
            return Outcome(file.name, "same", [])
        if not write:
            return Outcome(file.name, "changed", edited.places)
        if edited.empty:
            _check(path, before)
            path.unlink()
            return Outcome(file.name, "removed", edited.places)
        path.parent.mkdir(parents=True, exist_ok=True)
        _check(path, before)
        atomic_write(path, edited.text.encode(), mode)
        path.chmod(mode)  # the umask may have reduced it
        state: Literal["made", "changed"] = "made" if before is None else "changed"
        return Outcome(file.name, state, edited.places, replaced=edited.replaced)
    except (ByHand, StorageError) as error:
        return Outcome(file.name, "by hand", [], str(error))
    except UnicodeDecodeError:
        return Outcome(file.name, "by hand", [], "it is not UTF-8")
    except OSError as error:
        return Outcome(file.name, "by hand", [], error.strerror or str(error))


def _resolve(root: Path, name: str) -> Path:
    root = root.resolve()
    try:
        path = (root / name).resolve()
    except RuntimeError:  # only before Python 3.13
        raise ByHand("it is a link to itself") from None
    if not path.is_relative_to(root):
        raise ByHand(f"it is a link to {path}, outside of {root}")
    return path


def _read(path: Path) -> tuple[bytes | None, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        return None, 0o666 & ~umask
    if not stat.S_ISREG(status.st_mode):
        raise ByHand("it is not a regular file")
    if status.st_size > MAX_BYTES:
        raise ByHand(f"it is too large ({status.st_size} bytes)")
    if not status.st_mode & 0o200 or not os.access(path, os.W_OK):
        raise ByHand("it is read-only")
    return path.read_bytes(), stat.S_IMODE(status.st_mode)


def _check(path: Path, before: bytes | None) -> None:
    if (path.read_bytes() if path.exists() else None) != before:
        raise ByHand("another program is changing it: try again")


def _mentions(path: Path, subject: str) -> bool:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            return False
        return re.search(rb"(?<![\w.-])%s(?![\w.-])" % re.escape(subject).encode(), path.read_bytes()) is not None
    except OSError:
        return False
