"""Read configuration and other sensitive files only if no other user can have written or placed them.

1. An operator's file is opened without following a link, from a directory that the user owns and others cannot write
   to. It must be a regular file that the user owns, with one name (no hard link). Both are checked by descriptor, so
   the checked file is the one that is read.
2. A path is checked as sshd's StrictModes does: every directory and link on it belongs to the user or to root, and
   others cannot write to it, unless it is sticky like /tmp.
3. Root is no exception: files of another user are refused.
4. A refusal names the path, the reason and a command, for all directories on the path together. Other users may have
   chosen a name: commands are quoted for the shell, and control characters are replaced.

Only the standard library, and little of it: `relay hook` and `relay mcp`, which start with every prompt of an agent,
import this (relay_supervisor/agents/light).
"""

from __future__ import annotations

import errno
import os
import stat

from relay_core import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


LARGEST = 16 * 1024 * 1024
"""The largest size of an operator's file in bytes."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would never open
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = 0o022
_MOST_LINKS = 40
_AnyPath = str | os.PathLike[str]


class UntrustedFile(ValueError):
    """A file or directory must not be used: another user may control it, or it is not a regular file."""


def read_trusted(path: _AnyPath, *, limit: int = LARGEST, private: bool = False) -> bytes:
    """Return the bytes of an operator's file; with `private`, only if others cannot read it either.

    Raises:
        FileNotFoundError: if it does not exist.
        OSError: if it cannot be read.
        UntrustedFile: if another user may have placed or changed it; the message has the path and a command to run.
    """
    path = os.fspath(path)
    above, name = os.path.split(path)
    try:
        directory = os.open(above or ".", _DIRECTORY)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.islink(above):
            raise UntrustedFile(_linked(above)) from error
        raise
    try:
        _check_status(above or ".", os.fstat(directory), writable_by_others=False)
        try:
            file = os.open(name, _READ, dir_fd=directory)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UntrustedFile(_linked(path)) from error
            raise
    finally:
        os.close(directory)
    try:
        found = os.fstat(file)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(found.st_mode):
            raise UntrustedFile(f"{_shown(path)} is not a file: move it away")
        _check_status(path, found)
        if found.st_nlink != 1:
            quoted, new = _quoted(path), _quoted(f"{path}.new")
            raise UntrustedFile(
                f"{_shown(path)} has {found.st_nlink} names (hard links), so it may be another file: inspect it, then "
                f"run 'cp {quoted} {new} && mv {new} {quoted}'"
            )
        if private and found.st_mode & 0o077:
            raise UntrustedFile(
                f"{_shown(path)}: others can read or change it (mode {stat.S_IMODE(found.st_mode):03o}): "
                "create new tokens, or run chmod 600 if you are sure that no one has read it"
            )
        return _read(file, found.st_size, limit)
    except UntrustedFile as error:
        raise error if _shown(path) in str(error) else UntrustedFile(f"{_shown(path)}: {error}") from error
    finally:
        os.close(file)


def read_regular_file(path: str, *, limit: int) -> bytes:
    """Return a mailbox file's bytes.

    Raises:
        FileNotFoundError: if it does not exist.
        UntrustedFile: if it is a link, a special file, another user's or longer than `limit`.
    """
    try:
        fd = os.open(path, _READ)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise UntrustedFile(f"cannot be opened: {why}") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise UntrustedFile("not a regular file")
        if found.st_uid != os.geteuid():
            raise UntrustedFile(f"belongs to another user (uid {found.st_uid})")
        return _read(fd, found.st_size, limit)
    finally:
        os.close(fd)


def check_owner(path: _AnyPath) -> None:
    """Check that a path, if it exists, is not a link and belongs to the user.

    Raises:
        UntrustedFile: if it is a link or another user's; the message has the path and a command to run.
    """
    path = os.fspath(path)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise UntrustedFile(_linked(path))
    _check_status(path, found)


def check_tree(root: _AnyPath) -> None:
    """Check that nothing below a directory can have been placed or changed by other users.

    Raises:
        UntrustedFile: if something there is a link, another user's, has several names, or is writable by others.
    """

    def fail(error: OSError) -> None:
        raise UntrustedFile(f"cannot inspect {_shown(error.filename)}: {error.strerror}") from error

    for where, directories, files in os.walk(root, onerror=fail):
        for name in directories + files:
            path = os.path.join(where, name)
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                raise UntrustedFile(_linked(path))
            _check_status(path, found, writable_by_others=False)
            if name in files and found.st_nlink != 1:
                raise UntrustedFile(
                    f"{_shown(path)} has {found.st_nlink} names (hard links), so it may be another file"
                )


def check_path(path: _AnyPath) -> str:
    """Check a path and every directory and link on it; return the path with links resolved.

    Raises:
        OSError: if there is no such path.
        UntrustedFile: if another user can change where it leads; the message has the directories and a command to run.
    """
    trusted = {os.geteuid(), *_roots()}
    writable: list[tuple[str, os.stat_result]] = []

    def check_step(path: str, found: os.stat_result) -> None:
        if found.st_uid not in trusted:
            raise UntrustedFile(f"{_shown(path)} belongs to uid {found.st_uid}, not to you or to root")
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
        raise UntrustedFile(_writable(writable))
    return here


def _writable(found: list[tuple[str, os.stat_result]]) -> str:
    """Describe the parts of a path that others can write to, and the command that repairs them."""
    shown = [_shown(path) for path, _ in found]
    if all(stat.S_ISDIR(about.st_mode) for _, about in found):
        shown[0] = f"the {'directory' if len(found) == 1 else 'directories'} {shown[0]}"
    paths = " ".join(_quoted(path) for path in dict(found))
    modes = ", ".join(f"{stat.S_IMODE(about.st_mode):04o}" for _, about in found)
    return f"others can write to {' and '.join(shown)}; run 'chmod go-w {paths}' (mode {modes})"


def _check_status(path: str, found: os.stat_result, *, writable_by_others: bool = True) -> None:
    if found.st_uid != os.geteuid():
        raise UntrustedFile(
            f"{_shown(path)} belongs to another user (uid {found.st_uid}, not {os.geteuid()}), who may have placed it: "
            f"inspect it with 'ls -la {_quoted(path)}' and move it away"
        )
    if not writable_by_others and found.st_mode & _OTHERS_WRITE:
        raise UntrustedFile(
            f"others can write to {_shown(path)} (mode {stat.S_IMODE(found.st_mode):04o}), so they may have changed "
            f"it: inspect it, then run 'chmod go-w {_quoted(path)}'"
        )


def _linked(path: str) -> str:
    return f"cannot read {_shown(path)}: it is a symbolic link, which is not followed; replace it with its target"


def _shown(path: str) -> str:
    """Return a path without control characters."""
    return "".join(char if char.isprintable() else "?" for char in path)


def _quoted(path: str) -> str:
    """Return a path quoted for the shell."""
    from shlex import quote  # needed only for an error, and slow to import

    return quote(_shown(path))


def _read(file: int, size: int, limit: int) -> bytes:
    if size > limit:
        raise UntrustedFile(f"{size} bytes, the limit is {limit}")
    parts = []
    while chunk := os.read(file, size + 1):
        parts.append(chunk)
        limit -= len(chunk)
        if limit < 0:
            raise UntrustedFile("grew beyond the limit while it was read")
    return b"".join(parts)


def _roots() -> Iterator[int]:
    """Yield the uids that mean root: in a user namespace without root, its files show as unmapped."""
    yield 0
    try:
        with open("/proc/self/uid_map") as file:
            starts = [int(line.split()[0]) for line in file]
        if 0 not in starts:
            with open("/proc/sys/kernel/overflowuid") as file:
                yield int(file.read())
    except (OSError, ValueError, IndexError):
        return
