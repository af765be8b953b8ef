"""Files that decide what runs: used only if no other user can have written or placed them.

1. An operator's file is opened without following a link, from a directory that is the user's own and that others
   cannot write to. It must be a regular file of the user's own with one name (no hard link). What was checked is what
   is read: both are looked at by descriptor.
2. The way to a directory is checked as sshd's StrictModes does it: every directory on it, and every link, belongs to
   the user or to root, and others cannot write to it, unless it is sticky as /tmp is.
3. Root is no exception: files of another user are refused.
4. A refusal names the path, says why, and what to run, for all directories on a way at once. Other users may have
   chosen a name: what is to be run is quoted for the shell, and control characters are not repeated.

Only the standard library, and little of it: the programs that every prompt of an agent starts import this
(relay_supervisor/shim).
"""

from __future__ import annotations

import errno
import os
import stat

from relay_core import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


LARGEST = 16 * 1024 * 1024
"""Bytes that an operator's file may have."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would never open
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = 0o022
_MOST_LINKS = 40
_AnyPath = str | os.PathLike[str]


class Unreadable(ValueError):
    """A file or a directory must not be used."""


def read_own(path: _AnyPath, *, limit: int = LARGEST, private: bool = False) -> bytes:
    """Return the bytes of an operator's file; with `private`, only if others cannot read it either.

    Raises:
        FileNotFoundError: if it is not there.
        OSError: if it cannot be read.
        Unreadable: if another user can have placed or changed it; the text has the path and what to run.
    """
    path = os.fspath(path)
    above, name = os.path.split(path)
    try:
        directory = os.open(above or ".", _DIRECTORY)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.islink(above):
            raise Unreadable(_linked(above)) from error
        raise
    try:
        _check_own(above or ".", os.fstat(directory), writable_by_others=False)
        try:
            file = os.open(name, _READ, dir_fd=directory)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Unreadable(_linked(path)) from error
            raise
    finally:
        os.close(directory)
    try:
        found = os.fstat(file)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable(f"{_shown(path)} is not a file: move it away")
        _check_own(path, found)
        if found.st_nlink != 1:
            quoted, new = _quoted(path), _quoted(f"{path}.new")
            raise Unreadable(
                f"{_shown(path)} has {found.st_nlink} names (hard links), so it may be another file: look at it, then "
                f"run 'cp {quoted} {new} && mv {new} {quoted}'"
            )
        if private and found.st_mode & 0o077:
            raise Unreadable(
                f"{_shown(path)}: others can read or change it (mode {stat.S_IMODE(found.st_mode):03o}): "
                "make new tokens, or chmod 600 if nobody has looked"
            )
        return _read(file, found.st_size, limit)
    except Unreadable as error:
        raise error if _shown(path) in str(error) else Unreadable(f"{_shown(path)}: {error}") from error
    finally:
        os.close(file)


def read_regular(path: str, *, limit: int) -> bytes:
    """Return a mailbox file's bytes if it is a plain file of our own and not too long.

    Raises:
        FileNotFoundError: if it is not there.
        Unreadable: if it is a link, special, foreign or longer than `limit`.
    """
    try:
        fd = os.open(path, _READ)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise Unreadable(f"cannot be opened: {why}") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("not a regular file")
        if found.st_uid != os.geteuid():
            raise Unreadable(f"belongs to another user (uid {found.st_uid})")
        return _read(fd, found.st_size, limit)
    finally:
        os.close(fd)


def check_own(path: _AnyPath) -> None:
    """Check that a path, if anything is there, is no link and the user's own.

    Raises:
        Unreadable: if it is not; the text has the path and what to do.
    """
    path = os.fspath(path)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise Unreadable(_linked(path))
    _check_own(path, found)


def check_all_own(root: _AnyPath) -> None:
    """Check that nothing below a directory that others could enter was placed or changed by them.

    Raises:
        Unreadable: if something there is a link, another user's, has several names, or can be written by others.
    """

    def fail(error: OSError) -> None:
        raise Unreadable(f"{_shown(error.filename)} cannot be looked at: {error.strerror}") from error

    for where, directories, files in os.walk(root, onerror=fail):
        for name in directories + files:
            path = os.path.join(where, name)
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                raise Unreadable(_linked(path))
            _check_own(path, found, writable_by_others=False)
            if name in files and found.st_nlink != 1:
                raise Unreadable(f"{_shown(path)} has {found.st_nlink} names (hard links), so it may be another file")


def check_way(path: _AnyPath) -> str:
    """Check every directory and link on the way to a path, and the path itself; return where it really is.

    Raises:
        OSError: if there is no such path.
        Unreadable: if another user can change where it leads; the text has the directories and what to run.
    """
    trusted = {os.geteuid(), *_roots()}
    writable: list[tuple[str, os.stat_result]] = []

    def check_step(path: str, found: os.stat_result) -> None:
        if found.st_uid not in trusted:
            raise Unreadable(f"{_shown(path)} belongs to uid {found.st_uid}, not to you or to root")
        is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_mode & _OTHERS_WRITE and not is_sticky and not stat.S_ISLNK(found.st_mode):
            writable.append((path, found))

    left = list(reversed(os.path.abspath(path).split("/")[1:]))
    here, links = "/", 0
    check_step(here, os.lstat(here))
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            here = os.path.dirname(here)
            continue
        step = os.path.join(here, part)
        found = os.lstat(step)
        check_step(step, found)
        if not stat.S_ISLNK(found.st_mode):
            here = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
        target = os.readlink(step)
        left.extend(reversed(target.split("/")))
        if target.startswith("/"):
            here = "/"
    if writable:
        raise Unreadable(_writable(writable))
    return here


def _writable(found: list[tuple[str, os.stat_result]]) -> str:
    """Return what is wrong with the steps of a way that others can write to, and what to run."""
    shown = [_shown(path) for path, _ in found]
    if all(stat.S_ISDIR(about.st_mode) for _, about in found):
        shown[0] = f"the {'directory' if len(found) == 1 else 'directories'} {shown[0]}"
    paths = " ".join(_quoted(path) for path in dict(found))
    modes = ", ".join(f"{stat.S_IMODE(about.st_mode):04o}" for _, about in found)
    return f"others can write to {' and '.join(shown)}; run 'chmod go-w {paths}' (mode {modes})"


def _check_own(path: str, found: os.stat_result, *, writable_by_others: bool = True) -> None:
    if found.st_uid != os.geteuid():
        raise Unreadable(
            f"{_shown(path)} belongs to another user (uid {found.st_uid}, not {os.geteuid()}), who may have placed it: "
            f"look at it with 'ls -la {_quoted(path)}' and move it away"
        )
    if not writable_by_others and found.st_mode & _OTHERS_WRITE:
        raise Unreadable(
            f"others can write to {_shown(path)} (mode {stat.S_IMODE(found.st_mode):04o}), so they may have changed "
            f"it: look at it, then run 'chmod go-w {_quoted(path)}'"
        )


def _linked(path: str) -> str:
    return (
        f"cannot read {_shown(path)}: it is a symbolic link, which is not followed; put what it leads to in its place"
    )


def _shown(path: str) -> str:
    """Return a path without characters that would change a terminal or begin another line."""
    return "".join(one if one.isprintable() else "?" for one in path)


def _quoted(path: str) -> str:
    """Return a path as a shell takes it."""
    from shlex import quote  # needed only for a refusal, and slow to import

    return quote(_shown(path))


def _read(file: int, size: int, limit: int) -> bytes:
    if size > limit:
        raise Unreadable(f"{size} bytes, the limit is {limit}")
    parts = []
    while chunk := os.read(file, size + 1):
        parts.append(chunk)
        limit -= len(chunk)
        if limit < 0:
            raise Unreadable("grew beyond the limit while it was read")
    return b"".join(parts)


def _roots() -> Iterator[int]:
    """Yield the uids that stand for root here: in a user namespace without one, root's files show as unmapped."""
    yield 0
    try:
        with open("/proc/self/uid_map") as file:
            starts = [int(line.split()[0]) for line in file]
        if 0 not in starts:
            with open("/proc/sys/kernel/overflowuid") as file:
                yield int(file.read())
    except (OSError, ValueError, IndexError):
        return
