"""Do to a file in a project what `editing.py` does to its text.

1. A file is replaced in one step, and keeps its mode. Between the reading and the step it must not have changed.
2. A link that stays within the project is followed; one that leads out of it is not: that file is somebody else's.
3. What is read-only, no file, too large or not UTF-8 is left alone. There is no backup: what was put in can be taken
   out again (`relay agent rm --write`), and nothing else is changed.
4. A file that does not name a subject has nothing of it, however it is written: there is nothing to say about it.
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

MOST_BYTES = 2 * 1024 * 1024


class Outcome(NamedTuple):
    """What became of a file."""

    file: str
    state: Literal["made", "changed", "same", "removed", "by hand"]
    places: list[str]
    reason: str | None = None
    replaced: Sequence[str] = ()
    """The subjects that had the place until now."""

    @property
    def text(self) -> str:
        """What to tell people."""
        if self.state == "by hand":
            return f"{self.file}: not touched: {self.reason}"
        instead = f" (in the place of {', '.join(self.replaced)})" if self.replaced else ""
        words = {
            "made": f"made, with {', '.join(self.places)}",
            "changed": f"changed: {', '.join(self.places)}{instead}",
            "same": "as it should be",
            "removed": "removed: nothing else was in it",
        }
        return f"{self.file}: {words[self.state]}"


def put_into(root: Path, file: File) -> Outcome:
    """Put what an agent needs into one of its files."""
    return change(root, file, lambda text: put(file, text))


def take_out_of(root: Path, file: File, subject: str, *, write: bool = True) -> Outcome:
    """Take what is there for a subject out of a file, or only find out where it is."""
    if not _names(root / file.name, subject):
        return Outcome(file.name, "same", [])
    return change(root, file, lambda text: take(file, text, subject), write=write)


def change(root: Path, file: File, edit: Callable[[str], Edited], *, write: bool = True) -> Outcome:
    """Replace a file's text by what an edit makes of it, or say why not."""
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
        path.chmod(mode)  # the umask may have taken something away
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
        raise ByHand(f"it leads to {path}, outside of {root}")
    return path


def _read(path: Path) -> tuple[bytes | None, int]:
    try:
        about = path.stat()
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        return None, 0o666 & ~umask
    if not stat.S_ISREG(about.st_mode):
        raise ByHand("it is no file")
    if about.st_size > MOST_BYTES:
        raise ByHand(f"it has {about.st_size} bytes, more than any configuration")
    if not about.st_mode & 0o200 or not os.access(path, os.W_OK):
        raise ByHand("it is read-only")
    return path.read_bytes(), stat.S_IMODE(about.st_mode)


def _check(path: Path, before: bytes | None) -> None:
    if (path.read_bytes() if path.exists() else None) != before:
        raise ByHand("somebody else is changing it")


def _names(path: Path, subject: str) -> bool:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
            return False
        return re.search(rb"(?<![\w.-])%s(?![\w.-])" % re.escape(subject).encode(), path.read_bytes()) is not None
    except OSError:
        return False
