"""Where events are read and reports are kept: a local directory, or a URI such as ``s3a://bucket/relay``.

Spark writes the large files; this is for the small ones around them, and for moving finished work into place.

1. A location is a path or a URI, and means the same here and to Spark: nothing in it is decoded (``file:///a%20b`` is
   the directory ``a%20b``). Names below it are relative, with ``/`` between their parts.
2. Unfinished work has a name that begins with ``.making-`` or ``.old-``, which Spark, globs and readers ignore.
3. A small file is written atomically: locally under a temporary name, fsynced, renamed; elsewhere in one put.
4. `swap` replaces a directory by a finished one. On a local Linux file system the two names are exchanged atomically,
   so that a reader, or a kill at any moment, finds the old one or the new one. Where that is not supported it takes two
   renames: a reader may find neither for a moment, and after a kill between them `mend` restores the old one. Elsewhere
   (object storage cannot rename) the files are copied, `report.json` last, then old files that the new directory lacks
   are removed: a reader of anything but `report.json` may see files of both.
5. Local files are private: directories 0700, files 0600, including those written by Spark (after `keep` or `swap`).
6. One run at a time: `lock` holds a lock file in a local location. Elsewhere there is no lock, and runs that share a
   URI must not overlap. `mend` removes the leftovers of killed runs, and must be called with the lock held.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec  # type: ignore[import-untyped]
from filelock import FileLock, Timeout

_MAKING = ".making-"
_OLD = ".old-"
_LAST = "report.json"
_CHUNK = 1 << 20
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM}
_SCHEME = re.compile(r"(file(?=:/)|[A-Za-z][A-Za-z0-9+.-]*(?=://)):", re.IGNORECASE)


class StorageError(Exception):
    """A location is unusable; the text says what to do."""


class Storage:
    """A location, local or remote."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        text = os.fspath(place)
        scheme = _SCHEME.match(text)
        self.path: Path | None = None
        """The directory, if the location is local."""
        if scheme is None or scheme[1].lower() == "file":
            path = text if scheme is None else "/" + text[5:].removeprefix("//localhost").lstrip("/")
            self.path = Path(path).absolute()
            self.root = str(self.path)
            self._fs = fsspec.filesystem("file")
            self._base = self.root
        else:
            self.root = text.rstrip("/")
            self._fs = _remote(scheme[1], text)
            self._base = self._fs._strip_protocol(text).rstrip("/")

    def below(self, name: str) -> Storage:
        """Return a location within this one."""
        return Storage(f"{self.root}/{name}")

    def uri(self, name: str = "") -> str:
        """Return the URI for Spark to write to; never a bare path, which a cluster may resolve in its own storage."""
        root = self.root if self.path is None else f"file://{self.root}"
        return f"{root}/{name}" if name else root

    def pattern(self, name: str = "") -> str:
        """Return the URI for Spark to read from, with the characters of globs escaped."""
        return re.sub(r"([\\{}\[\]*?])", r"\\\1", self.uri(name))

    def names(self, name: str = "") -> list[str]:
        """Return the names of the entries of a directory; none if it does not exist."""
        return sorted(self._listing(name))

    def sizes(self, name: str = "") -> dict[str, int]:
        """Return the files in a directory and their sizes."""
        found = self._listing(name)
        return {name: int(found[name]["size"]) for name in sorted(found) if found[name]["type"] == "file"}

    def files(self, name: str = "") -> list[str]:
        """Return all files below a directory, including hidden ones, relative to this location."""
        self._fs.invalidate_cache()
        start = len(self._base) + 1
        return sorted(found[start:] for found in self._fs.find(self._at(name)))

    def exists(self, name: str = "") -> bool:
        """Return True if there is such a file or directory."""
        self._fs.invalidate_cache()
        return bool(self._fs.exists(self._at(name)))

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield a file's content in chunks."""
        with self._fs.open(self._at(name), "rb") as file:
            while piece := file.read(_CHUNK):
                yield piece

    def read(self, name: str) -> bytes:
        """Return a small file's bytes.

        Raises:
            FileNotFoundError: if it does not exist.
        """
        return b"".join(self.chunks(name))

    def write(self, name: str, data: bytes) -> None:
        """Write a small file atomically."""
        self.make(name.rpartition("/")[0])
        if self.path is None:
            self._fs.pipe_file(self._at(name), data)
            return
        made = self.path / self.making(name)
        try:
            descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            made.rename(self.path / name)
        except BaseException:
            made.unlink(missing_ok=True)
            raise
        _sync(made.parent)

    def make(self, name: str = "") -> None:
        """Create a directory and its missing parents."""
        if self.path is None:
            self._fs.makedirs(self._at(name), exist_ok=True)
            return
        directory = self.path / name
        for missing in reversed([at for at in (directory, *directory.parents) if not at.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)

    def remove(self, name: str) -> None:
        """Remove a file or a directory tree, if it exists."""
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            self._fs.rm(self._at(name), recursive=True)

    def move(self, name: str, to: str) -> None:
        """Rename a file."""
        self.make(to.rpartition("/")[0])
        if self.path is not None:
            (self.path / name).rename(self.path / to)
        else:
            self._fs.mv(self._at(name), self._at(to))

    def keep(self, names: list[str]) -> None:
        """Make files written by Spark durable and private (if local)."""
        if self.path is None:
            return
        directories = set[Path]()
        for name in names:
            path = self.path / name
            _sync(path, 0o600)
            checksum = path.with_name(f".{path.name}.crc")
            if checksum.exists():
                checksum.chmod(0o600)
            directories.update(at for at in path.parents if self.path in at.parents)
        for directory in directories:
            _sync(directory, 0o700)

    def making(self, name: str) -> str:
        """Return a temporary name for making `name`."""
        at = PurePosixPath(name)
        return str(at.with_name(f"{_MAKING}{at.name}-{secrets.token_hex(4)}"))

    def swap(self, made: str, final: str) -> None:
        """Replace `final`, which need not exist, by a finished directory."""
        if self.path is None:
            self._copy_over(made, final)
            return
        self.keep(self.files(made))
        new, place = self.path / made, self.path / final
        if not place.exists():
            new.rename(place)
        elif not _exchange(new, place):
            old = place.with_name(_OLD + place.name)
            place.rename(old)
            new.rename(place)
            self.remove(str(old.relative_to(self.path)))
        _sync(place.parent)
        self.remove(made)  # the old directory, after an exchange

    def mend(self, name: str = "") -> None:
        """Remove the leftovers of killed runs in a directory, and restore an entry that one of them had moved away."""
        for found in self.names(name):
            at = str(PurePosixPath(name, found))
            if found.startswith(_OLD) and self.path is not None:
                final = self.path / name / found.removeprefix(_OLD)
                if not final.exists():
                    (self.path / at).rename(final)
            if found.startswith((_MAKING, _OLD)):
                self.remove(at)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of this location, if it is local.

        Raises:
            StorageError: if another run holds it.
        """
        if self.path is None:
            yield
            return
        self.make()
        file = self.path / ".lock"
        lock = FileLock(str(file), timeout=0, mode=0o600, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            holder = file.read_text(errors="replace").strip()
            raise StorageError(
                f"another run uses {self.root} (process {holder or 'unknown'}): wait for it to end, or stop it"
            ) from None
        try:
            # Written in place, because the lock is on this file.
            file.write_text(f"{os.getpid()}\n")
            yield
        finally:
            lock.release()

    def _at(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _listing(self, name: str) -> dict[str, dict[str, Any]]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._at(name), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {PurePosixPath(entry["name"].rstrip("/")).name: entry for entry in found}

    def _copy_over(self, made: str, final: str) -> None:
        new = [name.removeprefix(f"{made}/") for name in self.files(made)]
        for name in sorted(new, key=lambda name: (name == _LAST, name)):
            self.make(f"{final}/{name}".rpartition("/")[0])
            self._fs.cp_file(self._at(f"{made}/{name}"), self._at(f"{final}/{name}"))
        for name in self.files(final):
            if name.removeprefix(f"{final}/") not in new:
                self.remove(name)
        self.remove(made)


def _remote(scheme: str, place: str) -> fsspec.AbstractFileSystem:
    try:
        return fsspec.core.url_to_fs(place)[0]
    except ImportError as error:
        raise StorageError(
            f"{place} needs a package that is not installed ({error}): install it beside relay"
        ) from None
    except ValueError as error:
        raise StorageError(f"{place}: unknown scheme {scheme}:// ({error})") from None


def _sync(path: Path, mode: int | None = None) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if mode is not None:
            os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(path: Path, other: Path) -> bool:
    """Exchange two names atomically; return False where that is not supported."""
    rename = _renameat2()
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    error = ctypes.get_errno()
    if error in _UNSUPPORTED:
        return False
    raise OSError(error, os.strerror(error), str(path), None, str(other))


@cache
def _renameat2() -> ctypes._NamedFuncPointer | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):  # not Linux, or a C library without it
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function
